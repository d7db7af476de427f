#include "common/data/pipeline/nodes.h"
#include "tests/support/catch.h"
#include "tests/unit/common/data/pipeline/pipelines.h"

namespace muster::data::testing {
namespace {

Batches Rebatched(const Pipeline& pipeline, int workers, int replicas, int index) {
  auto rebatched = RebatchForReplicas(pipeline, {.workers = workers, .index = index}, replicas);
  INFO(ToString(rebatched.status()));
  REQUIRE(rebatched.ok());
  return All(*rebatched);
}

TEST_CASE("a rebatch crosses the borders of batches", "[pipeline][unit]") {
  CHECK(All(Range(5).Batch(4).Rebatch({2})) == Batches{{0, 1}, {2, 3}, {4}});
  CHECK(All(Range(12).Batch(4).Rebatch({6})) == Batches{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}});
  CHECK(All(Range(6).Batch(4).Rebatch({1, 1, 1, 1, 0})) ==
        Batches{{0}, {1}, {2}, {3}, {}, {4}, {5}});
  CHECK(All(Range(4).Batch(4).Rebatch({1, 1, 1, 1, 0})) == Batches{{0}, {1}, {2}, {3}});
  CHECK(All(Range(3).Batch(3).Rebatch({0, 1})) == Batches{{}, {0}, {}, {1}, {}, {2}});
  CHECK(All(Range(0).Batch(3).Rebatch({0, 1})).empty());
}

TEST_CASE("seven on four: [2,2,2,1]", "[pipeline][unit]") {
  CHECK(Rebatched(Range(14).Batch(7), 1, 4, 0) ==
        Batches{{0, 1}, {2, 3}, {4, 5}, {6}, {7, 8}, {9, 10}, {11, 12}, {13}});
  // Two workers of two replicas, each reading the whole stream.
  CHECK(Rebatched(Range(14).Batch(7), 2, 2, 1) ==
        Batches{{0, 1}, {2}, {3, 4}, {5, 6}, {7, 8}, {9}, {10, 11}, {12, 13}});
}

TEST_CASE("an even rebatch splits each batch by itself", "[pipeline][unit]") {
  CHECK(All(Range(8).Batch(4).EvenRebatch(3)) == Batches{{0, 1}, {2, 3}, {}, {4, 5}, {6, 7}, {}});
  CHECK(All(Range(9).Batch(7).EvenRebatch(4)) ==
        Batches{{0, 1}, {2, 3}, {4, 5}, {6}, {7}, {8}, {}, {}});
}

TEST_CASE("the pieces of the same step add up to the batch on all workers", "[pipeline][unit]") {
  for (std::int64_t batch = 1; batch <= 9; ++batch) {
    const Batches w0 = Rebatched(Range(5 * batch).Batch(batch), 2, 2, 0);
    const Batches w1 = Rebatched(Range(5 * batch).Batch(batch), 2, 2, 1);
    for (std::size_t step = 0; 2 * step + 1 < std::min({w0.size(), w1.size(), std::size_t{6}});
         ++step) {
      const std::size_t sum = w0[2 * step].size() + w0[2 * step + 1].size() + w1[2 * step].size() +
                              w1[2 * step + 1].size();
      CHECK(sum == static_cast<std::size_t>(batch));
    }
  }
}

TEST_CASE("the batch size is inferred through steps that keep batches whole", "[pipeline][unit]") {
  const auto size = [](const Pipeline& pipeline) { return InferBatchSize(*pipeline.node()); };
  const Pipeline batched = Range(100).Batch(8);
  const MapFunction same = [](const Element& element, const std::stop_token&) -> Result<Element> {
    return element;
  };

  CHECK(size(batched) == 8);
  CHECK(size(batched.Take(3).Prefetch(2)) == 8);
  CHECK(size(batched.Repeat().Shuffle(4).Skip(1)) == 8);
  CHECK(size(Pipeline::Zip({batched, Range(50).Batch(8)})) == 8);
  CHECK(size(Pipeline::Zip({batched, Range(50).Batch(4)})) == -1);
  CHECK(size(batched.Map(same)) == -1);
  CHECK(size(Range(100)) == -1);
  CHECK(size(Range(100).Map(same).Batch(5)) == 5);
  Pipeline::MapOptions told;
  told.spec =
      std::vector<ColumnInfo>{{.name = kValueColumn, .dtype = DType::kInt64, .shape = {6, 2}}};
  CHECK(size(batched.Map(same, told)) == 6);
}

TEST_CASE("an unknown batch size is split batch by batch", "[pipeline][unit]") {
  const auto batch = [](std::int64_t begin, std::int64_t end) {
    return testing::VectorOf(testing::Sequence(begin, end));
  };
  const Pipeline batches = Pipeline::Of({batch(0, 8), batch(8, 12)});

  CHECK(Rebatched(batches, 2, 1, 0) == Batches{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}, {10, 11}});
  CHECK(Rebatched(batches, 1, 2, 0) == Batches{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}, {10, 11}});
}

TEST_CASE("elements without a batch dimension cannot be split", "[pipeline][unit]") {
  const Result<Pipeline> early = RebatchForReplicas(Range(10), {}, 2);
  // Behind a map only running it tells.
  const Result<Pipeline> late = RebatchForReplicas(Range(10).Map(Times(2)), {}, 2);

  CHECK(early.status().code() == StatusCode::kInvalidArgument);
  CHECK(Mentions(early.status(), "Call the batch method on the input Dataset"));
  REQUIRE(late.ok());
  CHECK(ErrorOf(*late).code() == StatusCode::kInvalidArgument);
  CHECK(Mentions(ErrorOf(*late), "Call the batch method on the input Dataset"));
}

TEST_CASE("the spec of a piece says its rows where they never vary", "[pipeline][unit]") {
  const auto rows = [](const Pipeline& pipeline, int replicas) {
    return RebatchForReplicas(pipeline, {}, replicas)->node()->spec()->at(0).shape.at(0);
  };

  CHECK(rows(Range(10).Repeat().Batch(8), 2) == 4);
  CHECK(rows(Range(10).Repeat().Batch(7), 2) == -1);
  CHECK(rows(Range(10).Batch(8), 2) == -1);
  CHECK(rows(Range(10).Batch(8, true), 2) == 4);
}

TEST_CASE("numbers of replicas and workers are checked", "[pipeline][unit]") {
  const Pipeline batched = Range(10).Batch(2);

  for (const int replicas : {0, -1}) {
    CHECK(RebatchForReplicas(batched, {}, replicas).status().code() ==
          StatusCode::kInvalidArgument);
  }
  CHECK_FALSE(RebatchForReplicas(batched, {.workers = 2, .index = 2}, 1).ok());
  CHECK_FALSE(RebatchForReplicas(Pipeline::Range(3).Batch(0), {}, 1).ok());
}

}  // namespace
}  // namespace muster::data::testing
