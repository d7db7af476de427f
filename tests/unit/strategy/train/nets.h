// Modules, strategies and data that the tests of this folder share.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "strategy/core/default_strategy.h"
#include "strategy/kinds/central_storage_strategy.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "strategy/train/loss.h"
#include "strategy/train/module.h"
#include "strategy/train/optimizer.h"

namespace muster::testing {

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second->forward(torch::tanh(first->forward(x)));
  }
  torch::nn::Linear first = nullptr;
  torch::nn::Linear second = nullptr;
};
TORCH_MODULE(Net);

// Always the same values, on several threads at once, too: they share libtorch's generator.
inline Net float64_net() {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(7);
  Net net;
  net->to(torch::kFloat64);
  return net;
}

inline std::shared_ptr<NetImpl> clone(const Net& net) {
  return std::dynamic_pointer_cast<NetImpl>(net->clone());
}

struct Batch {
  torch::Tensor x;
  torch::Tensor y;
  Batch part(std::int64_t begin, std::int64_t count) const {
    return {x.narrow(0, begin, count), y.narrow(0, begin, count)};
  }
};

inline Batch float64_batch(std::int64_t step, std::int64_t rows) {
  torch::manual_seed(static_cast<std::uint64_t>(1000 + step));
  return {torch::randn({rows, 6}, torch::kFloat64), torch::randn({rows, 3}, torch::kFloat64)};
}

inline torch::Tensor squares(const torch::Tensor& outputs, const torch::Tensor& targets) {
  return (outputs - targets).square().sum(1);
}

struct NamedStrategy {
  std::string name;
  std::unique_ptr<Strategy> strategy;
};
inline std::vector<NamedStrategy> all_strategies() {
  std::vector<NamedStrategy> all;
  all.push_back({"one device", std::make_unique<OneDeviceStrategy>("CPU:1")});
  all.push_back(
      {"mirrored 1", std::make_unique<MirroredStrategy>(std::vector<std::string>{"CPU:2"})});
  all.push_back({"mirrored 2",
                 std::make_unique<MirroredStrategy>(std::vector<std::string>{"CPU:0", "CPU:1"})});
  all.push_back({"mirrored 4", std::make_unique<MirroredStrategy>(
                                   std::vector<std::string>{"CPU:0", "CPU:1", "CPU:2", "CPU:3"})});
  all.push_back({"central 2", std::make_unique<CentralStorageStrategy>(
                                  std::vector<std::string>{"CPU:1", "CPU:2"})});
  all.push_back(
      {"central 3 on CPU:4", std::make_unique<CentralStorageStrategy>(
                                 std::vector<std::string>{"CPU:0", "CPU:1", "CPU:2"}, "CPU:4")});
  return all;
}

inline int replica_id() { return replica_context().replica_id_in_sync_group(); }

// The largest difference between equally named tensors of two modules.
inline double difference(const torch::nn::Module& a, const torch::nn::Module& b) {
  double most = 0;
  const auto theirs = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    const auto distance = (item.value() - theirs[item.key()]).abs().max().item<double>();
    most = std::isnan(distance) ? distance : std::max(most, distance);
  }
  return most;
}

}  // namespace muster::testing
