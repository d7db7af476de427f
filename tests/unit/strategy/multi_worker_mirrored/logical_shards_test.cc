// Sums over the logical shards of a step; members are threads here.
#include "strategy/multi_worker_mirrored/internal/logical_shards.h"

#include "device/placing.h"
#include "strategy/base/logical_devices.h"
#include "tests/support/catch.h"
#include "tests/unit/collectives/process/members.h"

namespace muster::internal {
namespace {

constexpr int kShards = 4;

std::vector<std::vector<torch::Tensor>> ValuesOfShards() {
  std::vector<std::vector<torch::Tensor>> shards;
  for (int shard = 0; shard < kShards; ++shard) {
    torch::manual_seed(shard);
    shards.push_back({torch::randn({3, 5}), torch::randn({1}, torch::kFloat64)});
  }
  return shards;
}

// Whether any number of members comes to the sums of one alone, which lie where the values do.
void CheckSumsOn(torch::Device where, int members) {
  const auto shards = ValuesOfShards();
  const auto compute = [&](int shard) {
    std::vector<torch::Tensor> values;
    // As they lie there, not all in order.
    for (const torch::Tensor& value : shards[static_cast<std::size_t>(shard)]) {
      values.push_back(value.to(where, value.scalar_type(), false, /*copy=*/true).t());
    }
    return values;
  };
  const auto like = [&] {
    return std::vector<torch::Tensor>{
        torch::zeros({5, 3}, where),
        torch::zeros({1}, torch::dtype(torch::kFloat64).device(where))};
  };
  const std::vector<torch::Tensor> alone = sum_over_shards(nullptr, kShards, compute, like);
  collectives::InGroup(collectives::Address(members), [&](collectives::Group& group) {
    const std::vector<torch::Tensor> sums = sum_over_shards(&group, kShards, compute, like);
    if (sums.size() != alone.size()) {
      FAIL_CHECK(sums.size() << " sums");
      return;
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (sums[i].device() != alone[i].device())
        FAIL_CHECK("value " << i << " has left its device");
      else if (!sums[i].equal(alone[i]))
        FAIL_CHECK("value " << i << " is another");
    }
  });
}

TEST_CASE("sums over logical shards are the same bits for any number of members",
          "[strategy][unit]") {
  CheckSumsOn(torch::kCPU, GENERATE(2, 3, 4));
}

TEST_CASE("members that are more than the logical shards have the sums, too", "[strategy][unit]") {
  CheckSumsOn(torch::kCPU, GENERATE(5, 6));
}

TEST_CASE("sums over logical shards whose values lie on a card are there, too",
          "[strategy][unit]") {
  if (list_physical_devices("GPU").empty()) {
    WARN("skipped: no GPU");
    return;
  }
  CheckSumsOn(device::TorchDevice(device::Place::Gpu(0)), 3);
}

}  // namespace
}  // namespace muster::internal
