#include "strategy/multi_worker_mirrored/elastic.h"

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "device/random.h"
#include "strategy/base/internal/raise.h"
#include "strategy/multi_worker_mirrored/internal/elastic_state.h"
#include "strategy/multi_worker_mirrored/internal/logical_shards.h"
#include "strategy/multi_worker_mirrored/multi_worker_mirrored_strategy.h"
#include "strategy/train/internal/optimizer_state.h"

namespace muster {
namespace {

// The parameters by type, each type's in their order: one flat tensor a type.
using ByType = std::map<torch::ScalarType, std::vector<torch::Tensor>>;

ByType GroupedByType(const std::vector<torch::Tensor>& parameters) {
  ByType grouped;
  for (const torch::Tensor& parameter : parameters) {
    grouped[parameter.scalar_type()].push_back(parameter);
  }
  return grouped;
}

// The gradients of one type, end to end; zeros where there is none.
torch::Tensor TakenGradients(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& parameter : parameters) {
    torch::Tensor& gradient = parameter.mutable_grad();
    flat.push_back(gradient.defined() ? gradient.to_dense().reshape({-1})
                                      : torch::zeros({parameter.numel()}, parameter.options()));
    gradient = torch::Tensor();
  }
  return torch::cat(flat);
}

void GiveGradients(const torch::Tensor& flat, const std::vector<torch::Tensor>& parameters) {
  std::int64_t at = 0;
  for (const torch::Tensor& parameter : parameters) {
    parameter.mutable_grad() =
        flat.narrow(0, at, parameter.numel()).reshape(parameter.sizes()).clone();
    at += parameter.numel();
  }
}

}  // namespace

// Shards are what is summed, not workers, and each draws from a seed of its own: so the step's
// result does not depend on how many workers there are, and another worker may compute a shard
// again.
torch::Tensor ElasticStep::backward(const DistributedOptimizerBase& optimizer,
                                    const std::function<torch::Tensor(int shard)>& loss) const {
  const auto state =
      std::dynamic_pointer_cast<const internal::OptimizerState>(optimizer.saved_state());
  if (state == nullptr || state->reduces_gradients()) {
    raise(
        FailedPrecondition("backward() sums the gradients over all workers, and {} would do it "
                           "again: make it with {{.all_reduce_gradients = false}}",
                           optimizer.name()));
  }
  if (strategy_.num_local_replicas() > 1) {
    raise(Unimplemented("backward() with {} replicas on each worker: give each worker one device",
                        strategy_.num_local_replicas()));
  }
  const internal::ModuleState& module = state->module();
  std::vector<torch::Tensor> parameters;
  for (const std::size_t i : internal::TrainedParameters(module)) {
    parameters.push_back(module.leaves[0][i]);
  }
  const ByType grouped = GroupedByType(parameters);
  optimizer.zero_grad();
  // Each shard draws its own numbers, whoever computes it: the seed is the step's.
  internal::ElasticState::Shards replicas(state_);
  device::RunSeed seed;
  (void)seed.OfReplica(0);
  const auto taken = [&](int shard, const torch::Tensor& value) {
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> values;
    for (const auto& [type, of_type] : grouped) values.push_back(TakenGradients(of_type));
    for (torch::Tensor& one : replicas.End(shard)) values.push_back(std::move(one));
    values.push_back(value.detach().to(torch::kFloat64).reshape({}).clone());
    return values;
  };
  std::vector<torch::Tensor> sums = internal::sum_over_shards(
      strategy_.collectives(), shards_,
      [&](int shard) {
        replicas.Begin();
        torch::Tensor value;
        strategy_.run([&] {
          const device::GeneratorScope generator(seed, shard);
          value = loss(shard);
          if (!value.defined() || value.numel() != 1) {
            raise(InvalidArgument("backward(): the loss of shard {} is no single number", shard));
          }
          value.backward();
        });
        return taken(shard, value);
      },
      [&] {
        replicas.Begin();
        const auto options = parameters.empty() ? torch::TensorOptions() : parameters[0].options();
        return taken(0, torch::zeros({}, options.dtype(torch::kFloat64)));
      });
  std::size_t next = 0;
  for (const auto& [type, of_type] : grouped) GiveGradients(sums[next++], of_type);
  replicas.Take(std::span(sums).subspan(next), shards_);
  return sums.back();
}

}  // namespace muster
