// Synchronous training on the workers of a cluster: every worker runs the same program, and every
// variable has an equal copy on each device of each.
//
//   muster::MultiWorkerMirroredStrategy strategy;   // who is who: TF_CONFIG
//   auto scope = strategy.scope();
//   ...                                             // from here on as under a MirroredStrategy
//
// All workers make the same calls of these, in the same order: what makes a variable or distributes
// a module (the chief's first values count), run() where its replicas reduce, reduce(), gather(), a
// read of an ON_READ variable across replicas or of a metric, a step of a distributed dataset,
// saves of checkpoints and of modules. run() calls the function for this worker's replicas; their
// ids count on over the workers, the chief's first.
//
// Whatever a worker does wrong, no other waits for ever: a worker that has ended, is stopped or cut
// off (4 s), calls something else or brings another shape, or does not come before the deadline is
// an error of everybody's call, which names it: UNAVAILABLE, INVALID_ARGUMENT, DEADLINE_EXCEEDED.
// After it every further call of this kind throws the same; a new strategy, or a new process, joins
// anew.
//
// Threading: as Strategy, but for the calls above: from one thread, or in an order that all workers
// have.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/base/communication_options.h"
#include "strategy/core/strategy.h"
#include "strategy/multi_worker_mirrored/elastic.h"
#include "strategy/resolver/cluster_resolver.h"
#include "strategy/train/checkpoint.h"

namespace muster {

struct MultiWorkerMirroredOptions {
  // None: TF_CONFIG.
  std::shared_ptr<ClusterResolver> cluster_resolver = nullptr;
  // What this worker's replicas compute on, as many on each worker. None named: the GPUs that the
  // resolver counts (TF_CONFIG: those of this machine), else the TPU cores that it counts, else as
  // many logical CPUs, or one. Not together with a resolver.
  std::vector<std::string> devices = {};
  // kNccl is for GPUs; on CPUs it is said in the log, and kRing taken.
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;
  // How long to wait for the others at the start. None: for as long as it takes.
  std::optional<std::chrono::milliseconds> join_within = std::nullopt;
  // How long one call waits for workers that are there; calls may have less.
  std::chrono::milliseconds call_within = std::chrono::hours(1);
  // What the workers prove to each other. Empty: the key that a launched process is told, else made
  // of the cluster's addresses, which keeps out who comes by mistake, and no one else.
  std::string key = {};
  // Workers may come and go: the constructor waits for nobody, and this worker is alone until
  // run_elastic() (strategy/multi_worker_mirrored/elastic.h) finds the others.
  bool elastic = false;
};

class MultiWorkerMirroredStrategy final : public Strategy {
 public:
  // Returns when all workers have joined. Without a cluster, in a cluster of one worker and on an
  // evaluator: at once, alone.
  //   INVALID_ARGUMENT: a cluster resolver and devices ("cannot be set at the same time"), a
  //   cluster without workers, two chiefs, no task, or one that the cluster does not have; workers
  //   that were given different clusters, or have different numbers of devices.
  //   FAILED_PRECONDITION: "Timeout waiting for the cluster", which names who has not come.
  //   ALREADY_EXISTS: two processes say that they are the same worker. UNAVAILABLE: this worker's
  //   port is in use, or another worker was lost while all joined.
  explicit MultiWorkerMirroredStrategy(const MultiWorkerMirroredOptions& options = {});
  explicit MultiWorkerMirroredStrategy(std::shared_ptr<ClusterResolver> cluster_resolver);
  ~MultiWorkerMirroredStrategy() override;

  // Calls `step` once for each step, on all workers that are there, until the last one counts, and
  // returns its number. `state` tracks all that steps change. A worker that is lost, in a step or
  // between two, costs what that step has done: the others go on without it, with the state of the
  // last step that all of them had finished. One that comes, or comes back, is let in between two
  // steps, and gets its state from another worker. Afterwards the strategy has the workers of the
  // last step.
  //
  // All workers must have the same variables, options and program. Whatever else `step` changes is
  // its own affair: it may be called twice for a step. What it throws is thrown here when it is no
  // loss of a worker; the others go on without this one.
  //   FAILED_PRECONDITION: the strategy is not elastic, or runs already; the run has ended before
  //   this worker joined.
  //   INVALID_ARGUMENT: options that cannot be; another worker has other variables.
  //   DEADLINE_EXCEEDED: no group in regroup_within; names who is missing.
  //   UNAVAILABLE: all workers that had the state have ended.
  //   UNIMPLEMENTED: an ON_READ variable in `state` that has no aggregation; a value of more than
  //   14 dimensions.
  std::uint64_t run_elastic(Checkpoint& state, const std::function<void(const ElasticStep&)>& step,
                            const ElasticOptions& options);

  // Zeros on the CPU. Where all workers are processes of one host they lie in memory that all map,
  // and are summed where they lie: by all_reduce() between two workers, between more by
  // collectives()->AllReduce() in place (collectives/group.h, AllocateCommon()). Elsewhere they are
  // like any other tensor, as they are to the next group of an elastic run. All workers call it,
  // outside run(), with as many bytes, once for what is summed again and again: each call waits for
  // all of them and takes new pages. Any error ends the strategy's group.
  //   INVALID_ARGUMENT: no elements, a negative size; workers ask for other sizes.
  torch::Tensor common_zeros(torch::IntArrayRef sizes, torch::ScalarType type = torch::kFloat32);

  std::string_view name() const override { return "MultiWorkerMirroredStrategy"; }
  std::shared_ptr<ClusterResolver> cluster_resolver() const override { return resolver_; }

  // "worker" and 1; without a cluster "worker" and 0.
  const std::string& task_type() const { return task_type_; }
  int task_id() const { return task_id_; }
  // chief:0, without a chief worker:0; an evaluator is its own. Of an elastic run the first worker
  // that is there; one that an error has taken out of it is none.
  bool is_chief() const { return chief_; }
  int num_workers() const;
  // Among the workers: the chief is 0, workers follow it.
  int id_in_cluster() const;
  // On the chief alone, which writes for all: every worker calls save().
  bool should_checkpoint() const override { return chief_; }
  bool should_save_summary() const override { return chief_; }

 private:
  struct Joined;
  explicit MultiWorkerMirroredStrategy(Joined joined);
  static Joined join(const MultiWorkerMirroredOptions& options);

  std::shared_ptr<ClusterResolver> resolver_;
  std::string task_type_;
  int task_id_ = 0;
  bool chief_ = true;
  // What the run of an elastic strategy needs; null in others. It ends before the rest.
  struct Elastic;
  std::unique_ptr<Elastic> elastic_;
};

namespace experimental {
// Its name of old.
using MultiWorkerMirroredStrategy = muster::MultiWorkerMirroredStrategy;
}  // namespace experimental

}  // namespace muster
