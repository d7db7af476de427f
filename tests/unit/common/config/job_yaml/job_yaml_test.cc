#include "common/config/job_yaml/job_yaml.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/core.h>

#include "common/config/job_yaml/validate_job.h"
#include "common/config/job_yaml/validate_strategy.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/config/job_yaml/good_job.h"

namespace muster::config {
namespace {

using testing::GoodJobBut;
using testing::kGoodJob;

// All problems, one a line.
std::string ProblemsOf(const std::string& text) {
  const JobFile job = ParseJobYaml(text, "job.yaml");
  std::string all;
  for (const LocatedProblem& problem : job.problems) {
    all += (all.empty() ? "" : "\n") + job.Describe(problem);
  }
  return all;
}

bool Contains(const std::string& text, const std::string& part) {
  CAPTURE(text, part);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

TEST_CASE("a good job becomes the message it says", "[config][unit]") {
  const JobFile job = ParseJobYaml(kGoodJob, "job.yaml");

  CHECK(ProblemsOf(kGoodJob).empty());
  CHECK(job.spec.name() == "digits");
  CHECK(job.spec.batch_size() == 128);
  CHECK(job.spec.optimizer().kind() == v1::OPTIMIZER_KIND_ADAM);
  CHECK(job.spec.optimizer().learning_rate() == 0.001);
  REQUIRE(job.spec.model().parameters().contains("w"));
  CHECK(job.spec.model().parameters().at("w").shape(1) == 10);
  CHECK(job.spec.metrics(1) == v1::METRIC_ACCURACY);
  CHECK(job.spec.model().forward() ==
        "def forward(self, image):\n    return torch.addmm(self.b, image, self.w)\n");
}

TEST_CASE("a list of files may be one file, a kind may stand for its message", "[config][unit]") {
  const JobFile job = ParseJobYaml(kGoodJob, "job.yaml");

  CHECK(job.spec.data().idx().columns().at("image").files(0) == "train-images.gz");
  CHECK(job.spec.data().idx().columns().at("label").files(0) == "train-labels.gz");
  CHECK(job.spec.model().parameters().at("b").initializer().kind() == v1::INITIALIZER_KIND_ZEROS);
}

TEST_CASE("an unknown key is an error with its place and the likely meaning", "[config][unit]") {
  CHECK(ProblemsOf(GoodJobBut("batch_size", "batch_sise")) ==
        "job.yaml:17:1: batch_sise: unknown key; did you mean \"batch_size\"?");
  CHECK(ProblemsOf(GoodJobBut("shape: [784", "shpe: [784")) ==
        "job.yaml:4:9: model.parameters.w.shpe: unknown key; did you mean \"shape\"?");
  Contains(ProblemsOf(kGoodJob + "zzzz: 1\n"),
           "job.yaml:19:1: zzzz: unknown key; known here: name, ");
}

TEST_CASE("a job file cannot hold a program, and says how one is submitted", "[config][unit]") {
  CHECK(ProblemsOf("name: words\nprogram:\n  name: words\n") ==
        "job.yaml:3:3: program: a job file trains a model; a program is submitted by itself: "
        "muster submit --strategy parameter_server -- PROGRAM ARGUMENTS");
  Contains(ProblemsOf(kGoodJob + "program: build/words\n"), "a program is submitted by itself");
}

TEST_CASE("a byte that is not UTF-8 is an error with its place", "[config][unit]") {
  CHECK(ProblemsOf("# \xC3\xA9t\xC3\xA9\nname: \xC3\xA9t\xE9\nepochs: 1\n") ==
        "job.yaml:2:9: byte \\xe9 is not UTF-8: save the file as UTF-8");
  CHECK(ProblemsOf("\x80") == "job.yaml:1:1: byte \\x80 is not UTF-8: save the file as UTF-8");
}

TEST_CASE("relative paths in a folder whose name is not UTF-8 are refused", "[config][unit]") {
  const muster::testing::TempFolder root;
  const std::string folder = root / "\xFF";
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/job.yaml") << kGoodJob;
  std::string absolute = kGoodJob;
  for (std::size_t at = 0; (at = absolute.find("train-", at)) != std::string::npos; at += 7) {
    absolute.insert(at, "/");
  }
  std::ofstream(folder + "/absolute.yaml") << absolute;

  const Result<JobFile> job = LoadJobYaml(folder + "/job.yaml");
  const Result<JobFile> other = LoadJobYaml(folder + "/absolute.yaml");

  REQUIRE(job.ok());
  REQUIRE(job->problems.size() == 1);
  Contains(job->problems[0].problem.message, "whose name is not UTF-8: rename the folder");
  REQUIRE(other.ok());
  CHECK(other->problems.empty());
}

TEST_CASE("a value of the wrong type is told against what is expected", "[config][unit]") {
  CHECK(ProblemsOf(GoodJobBut("batch_size: 128", "batch_size: many")) ==
        "job.yaml:17:13: batch_size: expected a whole number from 0 to 4294967295; given 'many'");
  CHECK(ProblemsOf(GoodJobBut("[784, 10]", "784")) ==
        "job.yaml:4:16: model.parameters.w.shape: expected a list; given '784'");
  CHECK(ProblemsOf(GoodJobBut("[784, 10]", "[784, ten]")) ==
        "job.yaml:4:22: model.parameters.w.shape.1: expected a whole number; given 'ten'");
  CHECK(ProblemsOf(GoodJobBut("{kind: softmax_cross_entropy, label: label}", "[1]"))
            .starts_with("job.yaml:14:7: loss: expected a mapping with keys of kind, label, "
                         "function; given a list"));
  CHECK(ProblemsOf(GoodJobBut("epochs: 5", "epochs:")) ==
        "job.yaml:18:1: epochs: has no value; give one or remove the key");
}

TEST_CASE("numbers are neither quoted nor octal, and yes is not true", "[config][unit]") {
  Contains(ProblemsOf(GoodJobBut("128", "\"128\"")), "given the quoted text \"128\"");
  Contains(ProblemsOf(GoodJobBut("128", "0128")), "given '0128'");
  Contains(ProblemsOf(GoodJobBut("batch_size: 128", "batch_size: 4294967296")), "to 4294967295");
  Contains(ProblemsOf(GoodJobBut("data:\n", "data:\n  shuffle: yes\n")),
           "data.shuffle: expected true or false; given 'yes'");
  CHECK(ParseJobYaml(GoodJobBut("digits", "no"), "x").spec.name() == "no");
}

TEST_CASE("an enum lists what it takes", "[config][unit]") {
  CHECK(
      ProblemsOf(GoodJobBut("kind: adam", "kind: adem")) ==
      "job.yaml:16:19: optimizer.kind: expected one of adagrad, adam, adamw, ftrl, momentum, sgd; "
      "given 'adem'; did you mean \"adam\"?");
  Contains(ProblemsOf(GoodJobBut("kind: adam", "kind: ADAM")), "given 'ADAM'");
  Contains(ProblemsOf(GoodJobBut("kind: adam", "kind: 4")), "given '4'");
  Contains(ProblemsOf(GoodJobBut("kind: adam", "kind: unspecified")), "given 'unspecified'");
}

TEST_CASE("a key given twice is refused", "[config][unit]") {
  CHECK(ProblemsOf(kGoodJob + "epochs: 6\n") ==
        "job.yaml:19:1: epochs: given twice; the first is in line 18");
  Contains(ProblemsOf(GoodJobBut("    b: {", "    w: {shape: [1]}\n    b: {")),
           "job.yaml:5:5: model.parameters.w: given twice; the first is in line 4");
}

TEST_CASE("every problem is listed, in the order of the file", "[config][unit]") {
  std::string text = GoodJobBut("batch_size: 128", "batch_size: -1");
  text.replace(text.find("kind: adam"), 10, "knd: adam");
  text += "colour: red\n";

  const JobFile job = ParseJobYaml(text, "job.yaml");

  REQUIRE(job.problems.size() == 3);
  CHECK(job.problems[0].problem.path == "optimizer.knd");
  CHECK(job.problems[1].problem.path == "batch_size");
  CHECK(job.problems[2].problem.path == "colour");
}

TEST_CASE("a field that was meant is not reported as missing, too", "[config][unit]") {
  const auto one = [](const std::string& from, const std::string& to) {
    const std::string problems = ProblemsOf(GoodJobBut(from, to));
    CAPTURE(problems);
    CHECK(problems.find('\n') == std::string::npos);
    return problems;
  };
  CHECK(one("  forward:", "  foward:") ==
        "job.yaml:6:3: model.foward: unknown key; did you mean \"forward\"?");
  CHECK(one("  idx:", "  idxx:") == "job.yaml:10:3: data.idxx: unknown key; did you mean \"idx\"?");
  CHECK(one("label: label}", "labl: label}") ==
        "job.yaml:14:37: loss.labl: unknown key; did you mean \"label\"?");
  CHECK(one("epochs: 5", "step: 5") == "job.yaml:18:1: step: unknown key; did you mean \"steps\"?");
  Contains(one("kind: softmax_cross_entropy", "kind: softmax"), "job.yaml:14:14: loss.kind: ");
  // What nobody meant is missing.
  Contains(ProblemsOf(GoodJobBut("epochs: 5", "")), "exactly one of epochs and steps");
  Contains(ProblemsOf(GoodJobBut("kind: softmax_cross_entropy, ", "")),
           "loss: exactly one of kind and function; given none");
}

TEST_CASE("of a long value the beginning is shown in whole characters", "[config][unit]") {
  const std::string begin(39, 'x');
  Contains(ProblemsOf(GoodJobBut("epochs: 5", "epochs: " + begin + "\xC3\xA9y")),
           "'" + begin + "...'");
}

// Who holds the variables would refuse them, or compute with infinite ones.
TEST_CASE("numbers that float32 does not hold are refused with the job", "[config][unit]") {
  for (const char* const rate : {"1e39", "1e-60"}) {
    CAPTURE(rate);
    Contains(ProblemsOf(GoodJobBut("0.001", rate)),
             "optimizer.learning_rate: must be above 0 and finite as a float32; given 1e");
  }
  for (const char* const gamma : {"1e39", "1e-60"}) {
    const std::string schedule = fmt::format("{{kind: step, step_size: 10, gamma: {}}}", gamma);
    Contains(ProblemsOf(GoodJobBut("0.001", "0.001, schedule: " + schedule)),
             "optimizer.schedule.gamma: must be above 0 and finite as a float32; given 1e");
  }
  Contains(ProblemsOf(GoodJobBut("0.001", "0.001, epsilon: 1e39")),
           "optimizer.epsilon: must be 0 or more, and a finite float32; given 1e+39");
  const auto scaled = [](const std::string& kind, const std::string& scale) {
    return ProblemsOf(GoodJobBut(
        "data:",
        fmt::format("embeddings:\n  rows: {{feature: label, rows: 10, dim: 2, initializer: "
                    "{{kind: {}, scale: {}}}}}\ndata:",
                    kind, scale)));
  };
  for (const char* const kind : {"constant", "normal"}) {
    CAPTURE(kind);
    Contains(scaled(kind, "1e39"),
             "embeddings.rows.initializer.scale: must be a finite float32; given 1e+39");
    CHECK(scaled(kind, "3e38").empty());
  }
  Contains(scaled("constant", "-1e39"), "must be a finite float32; given -1e+39");
  CHECK(scaled("constant", "-3e38").empty());
}

TEST_CASE("problems of meaning carry the place of the field", "[config][unit]") {
  CHECK(ProblemsOf(GoodJobBut("0.001", "-1")) ==
        "job.yaml:16:40: optimizer.learning_rate: required, above 0 and finite; given -1");
  Contains(
      ProblemsOf(GoodJobBut("label: label}", "label: lable}")),
      "job.yaml:14:44: loss.label: the data has no column 'lable'; it has image, label; did you "
      "mean \"label\"?");
}

TEST_CASE("buffers belong to an archive, and beside a forward are refused with their place",
          "[config][unit]") {
  CHECK(ProblemsOf(GoodJobBut("model:\n", "model:\n  buffers: worker_local\n")) ==
        "job.yaml:3:12: model.buffers: only an archive has buffers");
}

TEST_CASE("what stands for an empty field is a value of its column", "[config][unit]") {
  const auto problem = [](const std::string& column) {
    const std::string text =
        GoodJobBut("      image: train-images.gz\n      label: [train-labels.gz]\n",
                   "      image: " + column + "\n      label: {dtype: int64}\n");
    const std::string from = "  idx:\n    columns:\n";
    std::string csv = text;
    csv.replace(csv.find(from), from.size(), "  csv:\n    files: a.csv\n    columns:\n");
    return ProblemsOf(csv);
  };
  CHECK(problem("{missing: 3.0e38}").empty());
  CHECK(problem("{missing: 1.0e300}") ==
        "job.yaml:13:24: data.csv.columns.image.missing: must be a finite float32; given 1e+300");
  CHECK(problem("{dtype: float64, missing: 1.0e300}").empty());
  CHECK(problem("{dtype: int64, missing: -1}").empty());
  for (const char* given : {"0.5", "1.0e300"}) {
    Contains(problem(fmt::format("{{dtype: int64, missing: {}}}", given)),
             "data.csv.columns.image.missing: must be a whole number of 64 bits; given ");
  }
  CHECK(problem("{dtype: int64, hash_buckets: 10, missing: 9}").empty());
  CHECK(problem("{dtype: int64, hash_buckets: 10, missing: -1}").empty());
  Contains(problem("{dtype: int64, hash_buckets: 10, missing: 10}"),
           "data.csv.columns.image.missing: must be below hash_buckets, 10; given 10");
}

TEST_CASE("text that is not YAML is an error with its place", "[config][unit]") {
  Contains(ProblemsOf("name: [1, 2\nmodel: }"), "job.yaml:2:6: not YAML: ");
  Contains(ProblemsOf("a: *nowhere"), "not YAML: ");
  Contains(ProblemsOf(""), "the file says nothing");
  Contains(ProblemsOf("# only words\n"), "the file says nothing");
  Contains(ProblemsOf(","), "job.yaml:1:1: not YAML: nothing can begin with this character");
  Contains(ProblemsOf(kGoodJob + "---\nname: second\n"), "2 YAML documents; expected one");
  Contains(ProblemsOf("just text"), "expected a mapping");
  Contains(ProblemsOf(std::string("name: a\0b", 9)), "name");
}

TEST_CASE("the checksum of an archive cannot be set by hand", "[config][unit]") {
  Contains(ProblemsOf(GoodJobBut("model:\n", "model:\n  archive_sha256: ab\n")),
           "model.archive_sha256: unknown key");
}

TEST_CASE("a tag is refused, not obeyed", "[config][unit]") {
  Contains(ProblemsOf(GoodJobBut("128", "!!str 128")), "is not understood");
}

TEST_CASE("anchors work, and bombs of anchors or depth end at once", "[config][unit]") {
  CHECK(ProblemsOf(GoodJobBut("w: {shape: [784, 10]}", "w: &m {shape: [784, 10]}\n    w2: *m"))
            .empty());

  const auto start = std::chrono::steady_clock::now();
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string one = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + one;
    for (int j = 0; j < 9; ++j) bomb += ", " + one;
    bomb += "]\n";
  }
  Contains(ProblemsOf(bomb + kGoodJob), "a0: unknown key");
  Contains(ProblemsOf(GoodJobBut("[784, 10]", "[&a [1, 2], *a]")),
           "expected a whole number; given a list");
  Contains(ProblemsOf("name: &n [*n]\n"), "job.yaml:1:");
  Contains(ProblemsOf(std::string(100'000, '[')), "not YAML");
  Contains(ProblemsOf(std::string(100'000, '{')), "not YAML");
  std::string deep;
  for (int i = 0; i < 900; ++i) deep += std::string(i, ' ') + "a:\n";
  Contains(ProblemsOf(deep), "not YAML");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("a file of 10 MB is refused unread", "[config][unit]") {
  const muster::testing::TempFolder folder;
  const std::string path = folder.Write("job.yaml", std::string(10'000'000, '#'));

  const Result<JobFile> job = LoadJobYaml(path);

  REQUIRE_FALSE(job.ok());
  CHECK(job.status().code() == StatusCode::kResourceExhausted);
  Contains(Message(job.status()), "more than 1048576 bytes");
  CHECK(LoadJobYaml(folder.path()).status().code() == StatusCode::kNotFound);
  CHECK(LoadJobYaml(folder / "none.yaml").status().code() == StatusCode::kNotFound);
}

TEST_CASE("a key as long as no name may be is refused and not written out", "[config][unit]") {
  const std::string key(100'000, 'k');

  const std::string problems = ProblemsOf(GoodJobBut("    w:", "    ? " + key + "\n    :"));

  Contains(problems, "model.parameters: a key of 100000 bytes, 'kkkk");
  Contains(problems, "...'; at most 1024");
  CHECK(problems.size() < 2'000);
}

TEST_CASE("many aliases of one value are counted each time", "[config][unit]") {
  std::string text =
      GoodJobBut("    b: {", "    big: &big {shape: [1, 1, 1, 1, 1, 1, 1, 1]}\n    b: {");
  std::string aliases;
  for (int i = 0; i < 20'000; ++i) aliases += "    p" + std::to_string(i) + ": *big\n";
  text.insert(text.find("  forward:"), aliases);

  Contains(ProblemsOf(text), "more than 100000 values; aliases count each time they are used");
}

TEST_CASE("a number that a newer client has a name for is refused with its place",
          "[config][unit]") {
  v1::JobSpec spec = ParseJobYaml(kGoodJob, "job.yaml").spec;
  spec.mutable_strategy()->set_kind(static_cast<v1::StrategyKind>(99));
  spec.mutable_strategy()->set_workers(2);
  spec.add_metrics(static_cast<v1::Metric>(77));

  const Problems problems = ValidateJob(spec);

  REQUIRE(problems.size() == 2);
  CHECK(problems[0].path == "metrics");
  Contains(problems[0].message, "number 77 is none that this version of Muster knows");
  CHECK(problems[1].path == "strategy.kind");
  Contains(problems[1].message, "number 99 ");
  CHECK(NameOf(static_cast<v1::StrategyKind>(99)) == "number 99");
}

TEST_CASE("the list of problems ends somewhere", "[config][unit]") {
  std::string text = kGoodJob;
  for (int i = 0; i < 500; ++i) text += "wrong" + std::to_string(i) + ": 1\n";

  const JobFile job = ParseJobYaml(text, "job.yaml");

  CHECK(job.problems.size() == kMostProblems);

  // So do those of values that can be read.
  text = GoodJobBut("[784, 10]", "[0]");
  std::string wrong;
  for (int i = 0; i < 500; ++i) wrong += "    p" + std::to_string(i) + ": {shape: [0]}\n";
  text.insert(text.find("  forward:"), wrong);

  const JobFile other = ParseJobYaml(text, "job.yaml");

  CHECK(other.problems.size() == kMostProblems);
  CHECK(other.problems.front().problem.path == "model.parameters.w.shape");
  CHECK(other.problems.back().problem.message == kTooMany);
}

TEST_CASE("a message may name more metrics than there are, and is told so once", "[config][unit]") {
  v1::JobSpec spec = ParseJobYaml(kGoodJob, "job.yaml").spec;
  for (int i = 0; i < 1'000; ++i) spec.add_metrics(v1::METRIC_LOSS);

  const Problems problems = ValidateJob(spec);

  REQUIRE(problems.size() == 1);
  CHECK(problems[0].message == "at most 16, each once; given 1002");
}

TEST_CASE("a job without a name is called after its file", "[config][unit]") {
  CHECK(ParseJobYaml(GoodJobBut("name: digits\n", ""), "/x/my job.v2.yaml").spec.name() ==
        "my-job.v2");
  CHECK(NameFromFile("build/\u00f6dd n\u00e4me") == "dd-n-me");
  CHECK(NameFromFile("bin/-x.y") == "x");
  CHECK(NameFromFile("\u6a21\u578b.yaml") == "job");
  CHECK(NameFromFile(std::string(300, 'n')) == std::string(64, 'n'));
}

TEST_CASE("relative paths become absolute below the file's folder", "[config][unit]") {
  const muster::testing::TempFolder folder;
  std::string text = GoodJobBut("train-images.gz", "../a/images-*.gz");
  text.replace(text.find("[train-labels.gz]"), 17, "[/abs/labels.gz, more.gz]");
  text += "checkpoint: {directory: ckpt}\n";

  const Result<JobFile> job = LoadJobYaml(folder.Write("job.yaml", text));

  REQUIRE(job.ok());
  CHECK(job->problems.empty());
  const auto& columns = job->spec.data().idx().columns();
  CHECK(columns.at("image").files(0) ==
        (std::filesystem::path(folder.path()).parent_path() / "a/images-*.gz").string());
  CHECK(columns.at("label").files(0) == "/abs/labels.gz");
  CHECK(columns.at("label").files(1) == folder / "more.gz");
  CHECK(job->spec.checkpoint().directory() == folder / "ckpt");
}

}  // namespace
}  // namespace muster::config
