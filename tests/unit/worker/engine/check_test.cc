#include "worker/engine/check.h"

#include "muster/v1/cluster.pb.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/worker/engine/fixture.h"

namespace muster::engine {
namespace {

using test::AddParameter;
using test::Has;

// Criteo data says its columns by itself: label [batch], dense [batch, 13], cat [batch, 26].
v1::JobSpec Clicks() {
  v1::JobSpec spec;
  spec.mutable_data()->mutable_criteo()->add_files("/nowhere/part-*.tsv");
  spec.set_batch_size(64);
  AddParameter(spec, "w", {13, 1});
  AddParameter(spec, "v", {4, 1});
  auto& table = (*spec.mutable_embeddings())["table"];
  table.set_feature("cat");
  table.set_rows(100);
  table.set_dim(4);
  table.set_combiner(v1::COMBINER_SUM);
  spec.mutable_model()->set_forward(
      "def forward(self, dense, table):\n"
      "    return torch.matmul(dense, self.w) + torch.matmul(table, self.v)\n");
  spec.mutable_loss()->set_kind(v1::LOSS_KIND_BCE_WITH_LOGITS);
  spec.mutable_loss()->set_label("label");
  spec.add_metrics(v1::METRIC_AUC);
  return spec;
}

std::string Problems(const v1::JobSpec& spec) {
  std::string all;
  const v1::CheckReport report = CheckJob(spec, {});
  for (const std::string& problem : report.problems()) all += problem + "\n";
  return all;
}

TEST_CASE("a job without problems is tried on made-up data and lists its parameters",
          "[engine][unit]") {
  const v1::CheckReport report = CheckJob(Clicks(), {});

  CHECK(report.problems().empty());
  CHECK(!report.torch_version().empty());
  REQUIRE(report.parameters_size() == 2);
  CHECK(report.parameters(0).name() == "v");
  CHECK(report.parameters(1).name() == "w");
  CHECK(report.parameters(1).shape(0) == 13);
}

TEST_CASE("shapes that cannot match are found before running, with what was tried",
          "[engine][unit]") {
  v1::JobSpec spec = Clicks();
  (*spec.mutable_model()->mutable_parameters())["w"].set_shape(0, 12);

  const std::string problems = Problems(spec);

  Has(problems, "forward, line 2, column 12: " + test::NoProduct());
  Has(problems, "(tried with label float32 [2], dense float32 [2, 13], cat int64 [2, 26])");
}

TEST_CASE("all problems come at once, each once", "[engine][unit]") {
  v1::JobSpec spec = Clicks();
  (*spec.mutable_embeddings())["table"].set_feature("cats");
  spec.mutable_loss()->set_label("lable");
  spec.mutable_model()->set_forward(
      "def forward(self, dnse, table):\n"
      "    return torch.matmul(dnse, self.w) + torch.matmul(table, self.v)\n");

  const v1::CheckReport report = CheckJob(spec, {});

  CHECK(report.problems_size() == 3);
  const std::string problems = Problems(spec);
  Has(problems, "feature \"cats\" is no column of the data; did you mean \"cat\"?");
  Has(problems, "loss.label \"lable\" is no column of the data; did you mean \"label\"?");
  Has(problems, "argument \"dnse\" is no column of the data and no embedding; did you mean");
}

TEST_CASE("self.x that is no parameter is answered in the words of a job file", "[engine][unit]") {
  v1::JobSpec spec = Clicks();
  spec.mutable_model()->set_forward(
      "def forward(self, dense, table):\n    return torch.matmul(dense, self.ww)\n");

  Has(Problems(spec),
      "forward, line 2, column 32: self.ww is no parameter; did you mean \"w\"?; declared are: v, "
      "w");
}

TEST_CASE("data that cannot be read is a problem only when it was asked for", "[engine][unit]") {
  CheckOptions options;
  options.data = CheckOptions::Data::kIfPresent;
  CHECK(CheckJob(Clicks(), options).problems().empty());
  options.data = CheckOptions::Data::kRequired;
  const v1::CheckReport report = CheckJob(Clicks(), options);
  REQUIRE(report.problems_size() == 1);
  Has(report.problems(0), "data: ");
  Has(report.problems(0), "/nowhere/part-*.tsv");
}

// The look itself takes two, which is no batch of the job.
TEST_CASE("one example is enough to look at where the rest of a batch is dropped",
          "[engine][unit]") {
  const testing::TempFolder folder;
  v1::JobSpec spec = Clicks();
  spec.mutable_data()->mutable_criteo()->set_files(
      0, folder.Write("one.tsv", "1" + std::string(13, '\t') + std::string(26, '\t') + "\n"));
  spec.mutable_data()->mutable_criteo()->set_hash_buckets(100);
  spec.mutable_data()->set_drop_remainder(true);
  spec.set_batch_size(1);
  CheckOptions options;
  options.data = CheckOptions::Data::kRequired;

  const v1::CheckReport report = CheckJob(spec, options);

  CAPTURE(report.DebugString());
  CHECK(report.problems().empty());
}

TEST_CASE("evaluation data must have the columns that the model reads", "[engine][unit]") {
  v1::JobSpec spec = Clicks();
  auto& csv = *spec.mutable_evaluation()->mutable_data()->mutable_csv();
  csv.add_files("/nowhere.csv");
  (*csv.mutable_columns())["label"].set_dtype(v1::DTYPE_INT64);

  const std::string problems = Problems(spec);

  Has(problems, "evaluation.data: has no column \"dense\"");
  Has(problems, "evaluation.data: column \"label\" is int64, in training float32");
}

TEST_CASE("parameters beyond the memory of who tries them are a problem that names both",
          "[engine][unit]") {
  v1::JobSpec spec = Clicks();
  (*spec.mutable_model()->mutable_parameters())["w"].set_shape(1, std::int64_t{1} << 34);
  CheckOptions options;
  options.memory_bytes = std::uint64_t{64} << 20;

  const v1::CheckReport report = CheckJob(spec, options);

  REQUIRE(report.problems_size() == 1);
  Has(report.problems(0),
      "the parameters and their gradients need 1703936 MiB for one step, and the host that tries "
      "it has 64 MiB left");
  // The made-up model takes 136 bytes.
  options.memory_bytes = 136;
  CHECK(CheckJob(Clicks(), options).problems().empty());
  options.memory_bytes = 135;
  CHECK(CheckJob(Clicks(), options).problems_size() == 1);
}

TEST_CASE("made-up numbers that make a loss infinite are no problem", "[engine][unit]") {
  v1::JobSpec spec = Clicks();
  spec.mutable_model()->set_forward(
      "def forward(self, dense, table):\n"
      "    return torch.log(torch.matmul(dense, self.w) + torch.matmul(table, self.v) - 100.0)\n");

  CHECK(Problems(spec).empty());
}

}  // namespace
}  // namespace muster::engine
