// Training whose workers may come and go: MultiWorkerMirroredStrategy::run_elastic().
//
//   muster::MultiWorkerMirroredStrategy strategy({.elastic = true});
//   auto scope = strategy.scope();
//   auto net = strategy.distribute(Net());
//   auto optimizer = strategy.optimizer<torch::optim::SGD>(net, 0.1,
//                                                          {.all_reduce_gradients = false});
//   muster::Checkpoint state;
//   state.track(net);
//   state.track(optimizer);
//   strategy.run_elastic(state, [&](const muster::ElasticStep& step) {
//     step.backward(optimizer, [&](int shard) { return loss_of(step.number(), shard); });
//     optimizer.step();
//   }, {.steps = 1000});
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "strategy/base/torch.h"
#include "strategy/train/optimizer.h"

namespace muster {

class MultiWorkerMirroredStrategy;
namespace internal {
class ElasticState;
}  // namespace internal

// Steps, logical_shards and seed are the same on all workers.
struct ElasticOptions {
  // The number of the last step; the first one is 1, or behind the restored checkpoint's.
  std::uint64_t steps = 0;
  // With fewer workers nothing goes on.
  int min_workers = 1;
  // The first group waits so long for all workers of the cluster, and begins without the others.
  std::chrono::milliseconds start_within{10'000};
  // A worker without a group looks for one for so long.
  std::chrono::milliseconds regroup_within{120'000};
  // Into how many pieces ElasticStep::backward() cuts a step: a power of two, no less than there
  // are workers in the cluster. Another number, other sums.
  int logical_shards = 8;
  // Before each step libtorch's generator gets a seed made of this and the step's number.
  std::uint64_t seed = 0;
  // Called once for each step that counts for good, on each worker that has done it, in the order
  // of steps: for what leaves the run (losses, logs). Not for calls that all workers make together,
  // for a worker may be lost while they count: save checkpoints at the beginning of the next step.
  std::function<void(std::uint64_t step)> committed = nullptr;
};

// One step, as its function sees it. Threading: that of run_elastic(). Lifetime: the call.
class ElasticStep {
 public:
  // From 1. A step may be called again with the same number: when a worker was lost in it.
  std::uint64_t number() const { return number_; }
  // Which worker this is in this step, and how many there are.
  int worker() const { return worker_; }
  int workers() const { return workers_; }

  // For each logical shard that is this worker's, `loss` computes what it adds to the step's loss,
  // in replica context; its gradients are computed. Random numbers that it draws are the shard's
  // own, fixed by seed, step and shard; of ON_READ variables of the state it is a replica. Then
  // each trained parameter has in .grad() the sum over all shards of all workers, added up in an
  // order that depends on nothing but logical_shards: bit for bit the same with any number of
  // workers. Returns the sum of losses, a float64. All workers of the step make the call together.
  //   FAILED_PRECONDITION: the optimizer would sum again: make it with all_reduce_gradients =
  //   false. UNIMPLEMENTED: a worker has more than one replica. INVALID_ARGUMENT: a loss that is no
  //   single number.
  torch::Tensor backward(const DistributedOptimizerBase& optimizer,
                         const std::function<torch::Tensor(int shard)>& loss) const;

 private:
  friend class MultiWorkerMirroredStrategy;
  ElasticStep(MultiWorkerMirroredStrategy& strategy, internal::ElasticState& state,
              std::uint64_t number, int worker, int workers, int shards)
      : strategy_(strategy),
        state_(state),
        number_(number),
        worker_(worker),
        workers_(workers),
        shards_(shards) {}

  MultiWorkerMirroredStrategy& strategy_;
  internal::ElasticState& state_;
  const std::uint64_t number_;
  const int worker_;
  const int workers_;
  const int shards_;
};

}  // namespace muster
