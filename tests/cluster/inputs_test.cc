// What a job is given to read and to run: broken files are located, NaN is named, archives train.
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>

#include <fmt/core.h>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

constexpr const char* kFixtures = MUSTER_SOURCE "/tests/fixtures";

// One parameter times one column, or an archive.
std::string JobText(const std::string& model, const std::string& data) {
  return fmt::format(R"({}
data:
{}
loss:
  function: |
    def loss(output):
        return (output * output).mean()
optimizer: {{kind: sgd, learning_rate: 0.001}}
batch_size: 10
epochs: 2
)",
                     model, data);
}

std::string Times(const std::string& column, const std::string& what) {
  return fmt::format(R"(model:
  parameters:
    w: {{shape: [1], initializer: ones}}
  forward: |
    def forward(self, {}):
        return self.w * {})",
                     column, what);
}

// rows x 3 floats in MNIST's format.
std::string IdxOfFloats(int rows) {
  std::string bytes{0, 0, 0x0d, 2};
  const auto add = [&bytes](std::uint32_t word) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(word >> shift & 0xff);
  };
  add(static_cast<std::uint32_t>(rows));
  add(3);
  for (int i = 0; i < 3 * rows; ++i) {
    const float value = 0.25F * static_cast<float>(i % 7);
    std::uint32_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    add(word);
  }
  return bytes;
}

struct InputsFixture {
  // Submits the job and waits for its end.
  RunResult Run(const std::string& name, const std::string& text) const {
    return cluster.Muster({"submit", "-f", folder.Write(name + ".yaml", text), "--wait"});
  }
  static void Has(const RunResult& result, const std::string& text) {
    INFO(result.err);
    CHECK(result.err.find(text) != std::string::npos);
  }

  Cluster cluster{{.ps = 1, .workers = 1}};
  TempFolder folder;
};

TEST_CASE_METHOD(InputsFixture, "broken data, NaN and archives in jobs", "[cluster]") {
  const std::string times_a = Times("a", "a");

  // A row without its second field, on line 19.
  std::string csv = "a,b\n";
  for (int i = 0; i < 30; ++i) csv += i == 17 ? "17\n" : fmt::format("{0},{0}\n", i);
  const std::string short_csv = folder.Write("short.csv", csv);
  const std::string read_csv =
      fmt::format("  csv: {{files: {}, columns: {{a: {{}}, b: {{}}}}}}\n", short_csv);
  RunResult result = Run("short", JobText(times_a, read_csv));
  CHECK(result.code == 2);
  Has(result, short_csv + ":19 on host");
  Has(result, "1 field, 2 are needed");
  Has(result, "data.bad_records.skip_up_to");

  result = Run("skip", JobText(times_a, read_csv + "  bad_records: {skip_up_to: 1}\n"));
  CHECK(result.code == 0);
  v1::Job job = cluster.Describe("skip");
  CHECK(job.progress().bad_records() == 1);
  CHECK(job.progress().total_steps() == 6);
  const RunResult logs = cluster.Muster({"logs", "skip", "worker:0"});
  CAPTURE(logs.out);
  CHECK(logs.out.find("data: skipped " + short_csv + ":19 on host") != std::string::npos);

  // One bit of the second record.
  std::string records =
      ReadAll(std::string(kFixtures) + "/tfrecord/examples.tfrecord-00000-of-00002");
  REQUIRE(records.size() > 200);
  records[117] ^= 4;
  const std::string flipped = folder.Write("flip.tfrecord", records);
  const std::string read_tfrecord =
      fmt::format("  tfrecord: {{files: {}, features: {{weight: {{dtype: float32}}}}}}\n", flipped);
  const std::string times_weight = Times("weight", "weight");
  result = Run("flip", JobText(times_weight, read_tfrecord));
  CHECK(result.code == 2);
  Has(result, flipped + " on host");
  Has(result, "byte 97: a record of 104 bytes fails its checksum");

  // Which no policy skips.
  const std::string idx = IdxOfFloats(40);
  const std::string cut = folder.Write("cut.idx", idx.substr(0, idx.size() - 5));
  result = Run("cut", JobText(Times("x", "x"), fmt::format("  idx: {{columns: {{x: {}}}}}\n"
                                                           "  bad_records: {{skip_up_to: 9}}\n",
                                                           cut)));
  CHECK(result.code == 2);
  Has(result, cut + " on host");
  Has(result, "cut short: 475 bytes of values after its header");

  // The root of a negative number in step 21 of 30.
  csv = "a\n";
  for (int i = 0; i < 300; ++i) csv += fmt::format("{}\n", i == 205 ? -4 : i);
  result = Run("nan", JobText(Times("a", "torch.sqrt(a)"),
                              fmt::format("  csv: {{files: {}, columns: {{a: {{}}}}}}\n"
                                          "  shuffle: false\n",
                                          folder.Write("negative.csv", csv))));
  CHECK(result.code == 1);
  Has(result, R"(step 21: the loss is nan, the gradient of parameter "w" is not finite)");
  job = cluster.Describe("nan");
  CHECK(job.error().code() == 3);
  REQUIRE(FindEvent(job, "CLOSURE_FAILED") != nullptr);
  CHECK(Field(*FindEvent(job, "CLOSURE_FAILED"), "closure") == 21);

  const std::string read_idx =
      fmt::format("  idx: {{columns: {{x: {}}}}}\n", folder.Write("x.idx", idx));
  const auto archive = [&](const std::string& name) {
    return Run("archive-" + name,
               JobText(fmt::format("model: {{archive: {}/torchscript/{}.pt}}", kFixtures, name),
                       read_idx));
  };
  result = archive("plain-2.15");
  CAPTURE(result.err);
  REQUIRE(result.code == 0);
  const std::string file = folder / "exported";
  REQUIRE(cluster.Muster({"checkpoints", "export", "archive-plain-2.15", "-o", file}).code == 0);
  const auto tensors = ReadSafetensors(file);
  CHECK(tensors.size() == 9);
  // The frozen parameter and the buffer, as they were in the archive.
  CHECK(tensors.at("scale") == std::vector<float>{2});
  CHECK(tensors.at("mask") == std::vector<float>{1, 1, 0, 1});
  // Near the value in the archive, sin(1), and not on it.
  const float first = tensors.at("hidden.weight").at(0);
  CHECK(first == Approx(0.8415).margin(0.1));
  CHECK(first != Approx(0.841471).margin(1e-6));
  result = archive("attention-2.15");
  // An operator that libtorch has since 2.0.
  if (std::string_view(MUSTER_TORCH_VERSION).starts_with("1.")) {
    CHECK(result.code == 2);
    Has(result, "archive attention-2.15.pt: uses operator aten::scaled_dot_product_attention");
    Has(result, "MUSTER_TORCH");
  } else {
    CHECK(result.code == 0);
  }
}

TEST_CASE_METHOD(InputsFixture,
                 "what is not UTF-8, misspelled or without a shape is answered at once",
                 "[cluster]") {
  const auto read = [&](const std::string& file) {
    return fmt::format("  csv: {{files: '{}', columns: {{a: {{}}}}}}\n", file);
  };
  // An error text that is not UTF-8 used to be lost on its way: the wait for it took a minute.
  const auto begin = std::chrono::steady_clock::now();
  RunResult result =
      Run("latin", JobText(Times("a", "a"), read(folder.Write("latin.csv", "pre\xE7o,b\n1,2\n"))));
  CHECK(result.code == 2);
  Has(result, "no column a; its first line names pre\\xe7o, b");
  (void)folder.Write("\xFF.csv", "a\n1\xFF\n");
  result = Run("bytes", JobText(Times("a", "a"), read(folder / "?.csv")));
  CHECK(result.code == 2);
  Has(result, "/\\xff.csv:2 on host");
  Has(result, "'1\\xff' is not a float32 number");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));

  const std::string good = read(folder.Write("good.csv", "a\n1\n2\n3\n"));
  result = Run("written", JobText(Times("a", "a"), good) + "# \xE9\n");
  CHECK(result.code == 2);
  Has(result, "written.yaml:17:3: byte \\xe9 is not UTF-8");

  std::string text = JobText(Times("a", "a"), good);
  text.replace(text.find("return self"), 6, "retrn");
  result = Run("retrn", text);
  CHECK(result.code == 2);
  Has(result,
      "retrn.yaml:6:15: forward: invalid syntax: expected an operator, '=' or the end of the "
      "line; did you mean \"return\"?");

  text = JobText(Times("a", "a"), good);
  text.replace(text.find("shape: [1], "), 12, "");
  result = Run("scalar", text);
  INFO(result.err);
  REQUIRE(result.code == 0);
  const std::string file = folder / "exported";
  REQUIRE(cluster.Muster({"checkpoints", "export", "scalar", "-o", file}).code == 0);
  CHECK(ReadSafetensors(file).at("w").size() == 1);
}

}  // namespace
}  // namespace muster::testing
