#include "examples/make_clicks/click_data.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "common/data/batch_source.h"
#include "muster/v1/job_spec.pb.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::examples {
namespace {

std::string Content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

constexpr std::int64_t kBuckets = 1 << 18;

std::unique_ptr<data::BatchSource> Open(const std::vector<std::string>& paths,
                                        const std::string& cache, bool shuffle) {
  v1::DataSpec spec;
  for (const std::string& path : paths) spec.mutable_criteo()->add_files(path);
  spec.mutable_criteo()->set_hash_buckets(kBuckets);
  auto source = data::BatchSource::Open(
      spec, {.cache_directory = cache, .seed = 1, .batch_size = 100, .shuffle = shuffle});
  INFO(ToString(source.status()));
  REQUIRE(source.ok());
  return *std::move(source);
}

// Logistic regression by Adagrad: a weight for each number and each hashed category.
class Logistic {
 public:
  Logistic() : weights_(kBuckets + 14), squares_(kBuckets + 14, 1e-3F) {}

  double Logit(const data::Element& batch, std::int64_t row) const {
    const auto* const dense = batch.Find("dense")->as<float>() + 13 * row;
    const auto* const cat = batch.Find("cat")->as<std::int64_t>() + 26 * row;
    double sum = weights_[kBuckets + 13];
    for (std::size_t i = 0; i < 13; ++i) sum += weights_[kBuckets + i] * dense[i];
    for (int i = 0; i < 26; ++i) sum += weights_[static_cast<std::size_t>(cat[i])];
    return sum;
  }

  void Train(const data::Element& batch, std::int64_t row) {
    const auto* const dense = batch.Find("dense")->as<float>() + 13 * row;
    const auto* const cat = batch.Find("cat")->as<std::int64_t>() + 26 * row;
    const double error =
        1 / (1 + std::exp(-Logit(batch, row))) - batch.Find("label")->as<float>()[row];
    Step(kBuckets + 13, error);
    for (std::size_t i = 0; i < 13; ++i) Step(kBuckets + i, error * dense[i]);
    for (int i = 0; i < 26; ++i) Step(static_cast<std::size_t>(cat[i]), error);
  }

 private:
  void Step(std::size_t i, double gradient) {
    squares_[i] += static_cast<float>(gradient * gradient);
    weights_[i] -= static_cast<float>(0.1 * gradient / std::sqrt(squares_[i]));
  }
  std::vector<float> weights_;
  std::vector<float> squares_;
};

TEST_CASE("a simple model comes within a few percent of the planted optimum", "[examples][unit]") {
  const testing::TempFolder folder;
  const auto report =
      MakeClicks({.rows = 100'000, .eval_rows = 20'000, .files = 3, .folder = folder / "clicks"});
  REQUIRE(report.ok());
  CHECK(report->optimum_auc > 0.85);
  CHECK(report->optimum_auc < 0.9);

  const auto train = Open({folder / "clicks/train-*"}, folder / "cache", true);
  REQUIRE(train->examples() == 100'000);
  Logistic model;
  for (std::uint64_t closure = 1; closure <= 2 * train->batches_per_epoch(); ++closure) {
    const auto batch = train->Batch(closure);
    REQUIRE(batch.ok());
    for (std::int64_t row = 0; row < 100; ++row) model.Train(*batch, row);
  }

  const auto held_out = Open({report->eval_file}, folder / "cache", false);
  std::vector<double> scores;
  const auto positive = std::make_unique<bool[]>(held_out->examples());
  for (std::uint64_t closure = 1; closure <= held_out->batches_per_epoch(); ++closure) {
    const auto batch = held_out->Batch(closure);
    REQUIRE(batch.ok());
    for (std::int64_t row = 0; row < 100; ++row) {
      positive[scores.size()] = batch->Find("label")->as<float>()[row] > 0;
      scores.push_back(model.Logit(*batch, row));
    }
  }
  const double auc = Auc(scores, std::span<const bool>(positive.get(), scores.size()));
  INFO("AUC " << auc << " of " << report->optimum_auc);
  CHECK(auc >= 0.97 * report->optimum_auc);
  CHECK(auc <= 1.005 * report->optimum_auc);
}

TEST_CASE("the same options make the same click files, and only those", "[examples][unit]") {
  const testing::TempFolder folder;
  ClickOptions options{.rows = 1000, .eval_rows = 100, .files = 3, .folder = folder / "a"};
  REQUIRE(MakeClicks(options).ok());
  options.files = 2;
  const auto first = MakeClicks(options);
  options.folder = folder / "b";
  const auto second = MakeClicks(options);
  options.seed = 2;
  options.folder = folder / "c";
  const auto other = MakeClicks(options);

  REQUIRE((first.ok() && second.ok() && other.ok()));
  CHECK(Content(first->train_files[1]) == Content(second->train_files[1]));
  CHECK(Content(first->eval_file) == Content(second->eval_file));
  CHECK(Content(first->eval_file) != Content(other->eval_file));
  CHECK_FALSE(std::filesystem::exists(folder / "a/train-02.tsv.zst"));
}

TEST_CASE("files that are not a run's own survive the next one", "[examples][unit]") {
  const testing::TempFolder folder;
  const std::vector<std::string> others = {"train-2024-05.tsv", "train-00.tsv.bak",
                                           "train-0.tsv",       "train-.tsv.zst",
                                           "eval.tsv.old",      "eval.notes.tsv"};
  for (const std::string& name : others) folder.Write(name, "somebody's");
  folder.Write("train-07.tsv.zst", "an earlier run's");
  folder.Write("eval.tsv.gz", "an earlier run's");

  REQUIRE(MakeClicks({.rows = 10, .eval_rows = 10, .files = 2, .folder = folder.path()}).ok());

  for (const std::string& name : others) {
    CAPTURE(name);
    CHECK(Content(folder / name) == "somebody's");
  }
  CHECK_FALSE(std::filesystem::exists(folder / "train-07.tsv.zst"));
  CHECK_FALSE(std::filesystem::exists(folder / "eval.tsv.gz"));
}

TEST_CASE("plain and gzip click files hold the same rows", "[examples][unit]") {
  const testing::TempFolder folder;
  ClickOptions options{.rows = 1000, .eval_rows = 100, .files = 1};
  options.compression = ClickCompression::kNone;
  options.folder = folder / "plain";
  REQUIRE(MakeClicks(options).ok());
  options.compression = ClickCompression::kGzip;
  options.folder = folder / "gzip";
  REQUIRE(MakeClicks(options).ok());

  const auto plain = Open({folder / "plain/train-*"}, folder / "cache", false);
  const auto gzip = Open({folder / "gzip/train-*"}, folder / "cache", false);
  for (std::uint64_t closure = 1; closure <= 10; ++closure) {
    const auto a = plain->Batch(closure);
    const auto b = gzip->Batch(closure);
    REQUIRE((a.ok() && b.ok()));
    CHECK(std::equal(a->columns[2].data, a->columns[2].data + a->columns[2].bytes(),
                     b->columns[2].data));
  }
}

TEST_CASE("AUC counts pairs in the right order, ties half", "[examples][unit]") {
  const bool labels[] = {false, true, false, true};
  CHECK(Auc(std::vector<double>{1, 2, 3, 4}, labels) == Approx(0.75));
  CHECK(Auc(std::vector<double>{1, 1, 1, 1}, labels) == Approx(0.5));
  CHECK(Auc(std::vector<double>{1, 3, 2, 4}, labels) == Approx(1.0));
}

TEST_CASE("click options that make no sense are refused", "[examples][unit]") {
  CHECK(MakeClicks({.folder = ""}).status().code() == StatusCode::kInvalidArgument);
  CHECK(MakeClicks({.rows = 2, .files = 3, .folder = "x"}).status().code() ==
        StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::examples
