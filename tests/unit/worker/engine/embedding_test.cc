#include "tests/support/catch.h"
#include "tests/unit/worker/engine/fixture.h"
#include "worker/engine/lookup.h"
#include "worker/engine/torch.h"

namespace muster::engine {
namespace {

using test::AddParameter;
using test::Bench;
using test::MakeColumn;

constexpr std::int64_t kRows = 7, kDim = 3, kBatch = 4, kLength = 5;

data::Element IdBatch() {
  const std::vector<std::int64_t> ids{1, 1, -1, 6, 2,  -1, -1, -1, -1, -1,
                                      0, 6, 6,  6, -1, 5,  4,  3,  2,  1};
  return {{MakeColumn<std::int64_t>("item", {kBatch, kLength}, ids)}};
}

v1::JobSpec EmbeddingJob(v1::Combiner combiner) {
  v1::JobSpec spec;
  auto& embedding = (*spec.mutable_embeddings())["table"];
  embedding.set_feature("item");
  embedding.set_rows(kRows);
  embedding.set_dim(kDim);
  embedding.set_combiner(combiner);
  spec.mutable_model()->set_forward("def forward(self, table):\n    return torch.sin(table)\n");
  spec.mutable_loss()->set_function(
      "def loss(output, item):\n    return (output * output).sum()\n");
  return spec;
}

// What forward sees of a whole table through one-hot ids: autograd gives the dense reference.
at::Tensor Reference(const at::Tensor& table, const data::Column& column, v1::Combiner combiner) {
  const at::Tensor ids =
      at::tensor(std::vector<std::int64_t>(column.as<std::int64_t>(),
                                           column.as<std::int64_t>() + column.elements()))
          .reshape({kBatch, kLength});
  const at::Tensor real = (ids >= 0).to(at::kFloat).unsqueeze(-1);
  const at::Tensor one_hot = at::one_hot(ids.clamp_min(0), kRows).to(at::kFloat) * real;
  const at::Tensor rows = at::matmul(one_hot, table);
  if (combiner == v1::COMBINER_SUM) return rows.sum(1);
  if (combiner == v1::COMBINER_MEAN) return rows.sum(1) / real.sum(1).clamp_min(1);
  return rows;
}

TEST_CASE("embeddings equal a dense one-hot reference, values and gradients, padding included",
          "[engine][unit]") {
  const auto combiner =
      GENERATE(v1::COMBINER_UNSPECIFIED, v1::COMBINER_NONE, v1::COMBINER_SUM, v1::COMBINER_MEAN);
  auto bench = Bench::Make(EmbeddingJob(combiner), IdBatch()).value();
  for (std::size_t i = 0; i < bench.tables[0].size(); ++i) {
    bench.tables[0][i] = 0.1f * static_cast<float>(i) - 0.7f;
  }
  at::Tensor table = at::tensor(bench.tables[0]).reshape({kRows, kDim}).requires_grad_(true);

  const auto sums = bench.Train(1, IdBatch()).value();

  const at::Tensor out = at::sin(Reference(table, IdBatch().columns[0], combiner));
  const at::Tensor loss = (out * out).sum();
  loss.backward();
  CHECK(sums.loss_sum() == Approx(kBatch * loss.item<double>()).epsilon(1e-5));
  REQUIRE(bench.lookups[0].ids.size() == 7);  // 0 to 6, each once
  for (std::size_t i = 0; i < bench.lookups[0].ids.size(); ++i) {
    for (std::int64_t d = 0; d < kDim; ++d) {
      const float want = table.grad()[bench.lookups[0].ids[i]][d].item<float>();
      CHECK(bench.row_gradients[0][i * kDim + static_cast<std::size_t>(d)] ==
            Approx(want).margin(1e-6));
    }
  }
}

TEST_CASE("a feature without a length gives one row for each example", "[engine][unit]") {
  const data::Element batch{{MakeColumn<std::int64_t>("item", {3}, {4, -1, 4})}};
  auto bench = Bench::Make(EmbeddingJob(v1::COMBINER_NONE), batch).value();
  bench.tables[0].assign(kRows * kDim, 0.5f);

  REQUIRE(bench.Train(1, batch).ok());

  CHECK(bench.lookups[0].ids == std::vector<std::int64_t>{4});
  CHECK(bench.lookups[0].shape == std::vector<std::int64_t>{3, kDim});
}

TEST_CASE("a batch of padding alone needs no row", "[engine][unit]") {
  const data::Element batch{{MakeColumn<std::int64_t>("item", {2, 2}, {-1, -5, -1, -1})}};
  const auto combiner = GENERATE(v1::COMBINER_NONE, v1::COMBINER_MEAN);
  auto bench = Bench::Make(EmbeddingJob(combiner), batch).value();

  const auto sums = bench.Train(1, batch);

  REQUIRE(sums.ok());
  CHECK(sums->loss_sum() == 0);
  CHECK(bench.lookups[0].ids.empty());
}

TEST_CASE("an id beyond the table is an error that names table, id and example", "[engine][unit]") {
  const data::Element batch{{MakeColumn<std::int64_t>("item", {2, 2}, {0, 1, 2, 7})}};
  auto bench = Bench::Make(EmbeddingJob(v1::COMBINER_SUM), batch).value();

  const Status status = bench.Train(1, batch).status();

  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(Message(status) ==
        "embedding \"table\": column \"item\" holds id 7 (example 1 of the batch); the table has 7 "
        "rows, ids 0 to 6");
}

TEST_CASE("an embedding needs an int64 feature and a place in forward", "[engine][unit]") {
  const data::Element floats{{MakeColumn<float>("item", {2}, {0, 1})}};
  const auto wrong = Bench::Make(EmbeddingJob(v1::COMBINER_SUM), floats);
  CHECK(Message(wrong.status()) ==
        "embedding \"table\": feature \"item\" is float32 [batch]; ids are int64 [batch] or "
        "[batch, length]");

  v1::JobSpec spec = EmbeddingJob(v1::COMBINER_SUM);
  AddParameter(spec, "w", {1});
  spec.mutable_model()->set_forward("def forward(self, item):\n    return item.float() * self.w\n");
  const auto unused = Bench::Make(spec, IdBatch());
  CHECK(Message(unused.status()) ==
        "embedding \"table\" is no argument of forward, so it would never train");
}

}  // namespace
}  // namespace muster::engine
