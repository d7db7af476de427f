// Tensors in memory that workers of one host have in common.
#include <algorithm>
#include <vector>

#include "collectives/group.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/context.h"
#include "tests/support/shared_mapping.h"
#include "tests/unit/strategy/multi_worker_mirrored/workers.h"

namespace muster::testing {
namespace {

using Tensors = std::vector<torch::Tensor>;

TEST_CASE("Zeros that workers have in common are tensors as any and summed as any",
          "[collectives][COL-01]") {
  const int workers = GENERATE(1, 2, 3);
  const auto all = on_cluster<Tensors>(workers, 1, [&](MultiWorkerMirroredStrategy& strategy) {
    constexpr std::int64_t kCount = 30'000;
    torch::Tensor common = strategy.common_zeros({3, kCount / 3}, torch::kFloat64);
    Tensors result{common.clone(), torch::tensor(IsShared(common.data_ptr()))};
    for (int step = 1; step <= 3; ++step) {
      common.fill_(step * (strategy.id_in_cluster() + 1));
      result.push_back(
          strategy.run([&] { return replica_context().all_reduce(ReduceOp::kSum, common); })
              .values()[0]);
    }
    if (collectives::Group* const between = strategy.collectives()) {
      const collectives::ReduceBuffer in_place = {.type = DType::kFloat64,
                                                  .shape = {kCount},
                                                  .in = common.data_ptr(),
                                                  .out = common.data_ptr()};
      raise_unless_ok(between->AllReduce(collectives::Reduction::kSum, {&in_place, 1}));
    }
    result.push_back(common);
    return result;
  });
  const double sum = workers * (workers + 1) / 2.0;
  for (const Tensors& one : all) {
    REQUIRE(one.size() == 6);
    CHECK(one[0].sizes() == torch::IntArrayRef({3, 10'000}));
    CHECK(one[0].equal(torch::zeros_like(one[0])));
    CHECK(one[1].item<bool>() == (workers > 1));
    for (std::size_t step = 1; step <= 3; ++step) {
      CHECK(one[step + 1].equal(torch::full_like(one[0], static_cast<double>(step) * sum)));
    }
    // It outlives its strategy.
    CHECK(one[5].equal(torch::full_like(one[0], 3 * sum)));
  }
}

TEST_CASE("Zeros in common of no elements are refused on all workers", "[collectives]") {
  const int workers = GENERATE(1, 2);
  const auto all = on_cluster<bool>(workers, 1, [&](MultiWorkerMirroredStrategy& strategy) {
    try {
      (void)strategy.common_zeros({3, 0});
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument;
    }
    return false;
  });
  CHECK(std::all_of(all.begin(), all.end(), [](bool refused) { return refused; }));
}

}  // namespace
}  // namespace muster::testing
