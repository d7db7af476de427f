// Sums between processes by NCCL, on real cards: members are threads here, each with a card of its
// own. A program of its own, since its GPUs are the cards as they are.
#include <algorithm>

#include "collectives/nccl/communicator.h"
#include "device/placing.h"
#include "strategy/base/logical_devices.h"
#include "strategy/core/internal/between.h"
#include "strategy/reduce/internal/nccl.h"
#include "tests/support/catch.h"
#include "tests/unit/collectives/process/members.h"

namespace muster::internal {
namespace {

std::vector<torch::Tensor> ValuesOf(int rank) {
  torch::manual_seed(rank);
  const torch::Tensor numbers = torch::randn({3, 1000}) * 100;
  std::vector<torch::Tensor> values;
  for (const auto type : {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16,
                          torch::kInt64, torch::kInt32, torch::kInt16, torch::kInt8}) {
    values.push_back(numbers.to(type));
  }
  values.push_back(torch::empty({0}));
  return values;
}

TEST_CASE("sums between cards by NCCL are those through host memory", "[strategy][unit]") {
  const int cards = static_cast<int>(list_physical_devices("GPU").size());
  if (cards == 0 || !nccl_in_build()) {
    WARN("skipped: " << (cards == 0 ? "no GPU" : "this build is without CUDA"));
    return;
  }
  const int members = std::min(cards, 2);
  if (members == 1) WARN("one member: there is one GPU");
  std::vector<std::vector<torch::Tensor>> values;
  for (int rank = 0; rank < members; ++rank) values.push_back(ValuesOf(rank));
  collectives::InGroup(collectives::Address(members), [&](collectives::Group& group) {
    const auto card = device::Place::Gpu(group.rank());
    const auto& mine = values[static_cast<std::size_t>(group.rank())];
    const auto expected = sum_between(group, mine, std::chrono::seconds(60));
    join_nccl(group, card, std::chrono::seconds(60));
    if (group.communicator() == nullptr) {
      FAIL_CHECK("no communicator: the log says why");
      return;
    }
    std::vector<torch::Tensor> there;
    for (const torch::Tensor& value : mine) there.push_back(value.to(device::TorchDevice(card)));
    for (int again = 0; again < 3; ++again) {
      const auto sums = sum_between_cards(group, card, there, std::chrono::seconds(60));
      for (std::size_t i = 0; i < sums.size(); ++i) {
        // Two numbers have one sum, in whichever order.
        if (!sums[i].cpu().equal(expected[i])) FAIL_CHECK("value " << i << " is another");
      }
      if (!sums[0].is_cuda()) FAIL_CHECK("the sum has left the card");
    }
  });
}

TEST_CASE("without a communicator values are summed through host memory", "[strategy][unit]") {
  collectives::InGroup(collectives::Address(2), [&](collectives::Group& group) {
    const torch::Tensor mine = torch::full({3}, group.rank() + 1.0);
    const auto sums = sum_between_cards(group, device::Place::Cpu(0), {mine}, std::nullopt);
    if (!sums[0].equal(torch::full({3}, 3.0))) FAIL_CHECK("sum");
  });
}

}  // namespace
}  // namespace muster::internal
