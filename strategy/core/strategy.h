// The base of all strategies: how a computation is spread over devices.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/place.h"
#include "strategy/base/options.h"
#include "strategy/base/torch.h"
#include "strategy/core/context.h"
#include "strategy/core/replica_context.h"
#include "strategy/values/distributed_values.h"

namespace muster {

class ClusterResolver;
class CrossDeviceOps;
template <class Torch>
class DistributedOptimizer;
template <class M>
class DistributedModule;
class Extended;
struct OptimizerOptions;
template <class Options>
struct ParameterGroup;
class Variable;
namespace collectives {
class Group;
struct Torus;
}  // namespace collectives
namespace internal {
class ComponentMaker;
class EarlyTurns;
class Runs;
class StrategyRef;
}  // namespace internal

// fn takes these arguments, a replica's component of each distributed one. Anything else does not
// compile: a list of arguments is one argument.
template <class F, class... Args>
concept ReplicaFunction =
    std::invocable<F&, decltype(select_replica(0, std::declval<const Args&>()))...>;

// Names that programs written for TPUs give. Without effect: nothing is traced, and a last batch
// may be smaller anywhere.
struct RunOptions {
  bool experimental_enable_dynamic_batch_size = true;
  bool experimental_bucketizing_dynamic_shape = false;
  std::optional<bool> experimental_xla_options;
};

// Threading: run(), reduce() and the like from any thread, several at once. Lifetime: variables and
// scopes must not outlive their strategy (they throw FAILED_PRECONDITION then). Errors, for all
// calls: FAILED_PRECONDITION inside a replica function ("requires cross-replica context, use
// merge_call") and inside a scope of another strategy
// ("Mixing different Strategy objects").
class Strategy {
 public:
  virtual ~Strategy();
  // A strategy is one object: variables and scopes refer to it.
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  // "MirroredStrategy", for messages.
  virtual std::string_view name() const = 0;
  // All replicas that train in step, in whichever process.
  int num_replicas_in_sync() const { return num_local_replicas() * processes_; }
  // Those of this process: what run() calls, and what a PerReplica has components of.
  int num_local_replicas() const { return static_cast<int>(worker_devices_.size()); }
  // The place of this process's first replica among all.
  int first_replica() const { return first_replica_; }
  // The processes that its replicas are spread over, as this one uses their group: all of them make
  // the same calls in the same order. Null: they are all in this process.
  ::muster::collectives::Group* collectives() const { return group_.get(); }
  // Canonical names: where this process's replicas compute, in their order, and where variables
  // live.
  virtual const std::vector<std::string>& worker_devices() const { return worker_devices_; }
  virtual const std::vector<std::string>& parameter_devices() const { return parameter_devices_; }

  // libtorch's device of a replica of this process, for tensors that its function makes: the CPU,
  // or its card. OUT_OF_RANGE.
  torch::Device torch_device(int replica) const;
  // Whether any replica computes on a GPU.
  bool uses_gpus() const;

  // Makes this strategy current on this thread until the returned object ends.
  Scope scope() { return Scope(*this); }

  // Calls fn(r's component of each argument...) for every replica r of this process, concurrently
  // on one thread each (a strategy of one device: on the caller's). Arguments that are not
  // distributed go to all. Returns PerReplica<result>, or nothing for a function that returns
  // nothing. When replicas throw, the exception of the lowest one is rethrown, after all have come
  // to rest.
  template <class F, class... Args>
    requires ReplicaFunction<F, Args...>
  auto run(F&& fn, const Args&... args) {
    using R = std::decay_t<std::invoke_result_t<F&, decltype(select_replica(0, args))...>>;
    require_cross_replica("run()");
    (check_components(args), ...);
    if constexpr (std::is_void_v<R>) {
      run_replicas([&]([[maybe_unused]] int replica) { fn(select_replica(replica, args)...); });
    } else {
      std::vector<std::optional<R>> results(static_cast<std::size_t>(num_local_replicas()));
      run_replicas([&]([[maybe_unused]] int replica) {
        results[static_cast<std::size_t>(replica)].emplace(fn(select_replica(replica, args)...));
      });
      std::vector<R> values;
      for (std::optional<R>& result : results) values.push_back(std::move(*result));
      return PerReplica<R>(std::move(values));
    }
  }
  template <class F, class... Args>
    requires ReplicaFunction<F, Args...>
  auto run(const RunOptions&, F&& fn, const Args&... args) {
    return run(std::forward<F>(fn), args...);
  }

  // The sum or mean over replicas and, with axes, over those axes too: MEAN then divides by the
  // number of elements. Leaf by leaf for a nest. Sums of float16 and bfloat16 are made in float32;
  // MEAN of integers is float64.
  // IndexedSlices are joined, duplicates kept. The result lies on the device that is current here:
  // CPU:0, unless a DeviceScope says otherwise.
  // INVALID_ARGUMENT: shapes differ (without axes), an axis is out of range or given twice, or SUM
  // of one object that was never distributed over more than one replica. UNIMPLEMENTED: axes of
  // IndexedSlices and sparse tensors.
  // Several processes call it together. A plain value is its process's own, one for each of them.
  template <class T>
  nest::tensors_t<T> reduce(ReduceOp op, const PerReplica<T>& value, const Axes& axes = {}) {
    static_assert(nest::is_reducible<T>,
                  "reduce(): leaves are tensors, IndexedSlices and numbers, in tuples, pairs, "
                  "vectors, maps, or a struct with NestFields (strategy/values/nest.h)");
    if constexpr (nest::is_reducible<T>) {
      return reduce_nest(op, value, axes);
    } else {
      return value[0];
    }
  }
  template <class T>
  nest::tensors_t<T> reduce(ReduceOp op, const T& value, const Axes& axes = {}) {
    static_assert(nest::is_reducible<T>,
                  "reduce(): leaves are tensors, IndexedSlices and numbers, in tuples, pairs, "
                  "vectors, maps, or a struct with NestFields (strategy/values/nest.h)");
    if constexpr (nest::is_reducible<T>) {
      return reduce_undistributed_nest(op, value, axes);
    } else {
      return value;
    }
  }
  // What is the same on all replicas: its MEAN is that.
  torch::Tensor reduce(ReduceOp op, const Mirrored<torch::Tensor>& value) {
    require_cross_replica("reduce()");
    if (op != ReduceOp::kMean && num_replicas_in_sync() > 1) raise_undistributed();
    return value.get();
  }
  template <class T>
  auto reduce(std::string_view op, const T& value, const Axes& axes = {}) {
    return reduce(op_named(op), value, axes);
  }
  torch::Tensor reduce(std::string_view op, const Mirrored<torch::Tensor>& value) {
    return reduce(op_named(op), value);
  }

  // The replicas' values joined along `axis`, on the device that is current here.
  // INVALID_ARGUMENT: ranks differ, sizes differ off the axis, scalars, an axis out of [0, rank).
  // UNIMPLEMENTED: IndexedSlices.
  template <class T>
  nest::tensors_t<T> gather(const PerReplica<T>& value, int axis) {
    static_assert(nest::is_reducible<T>,
                  "gather(): leaves are tensors and numbers, in tuples, pairs, vectors, maps, or a "
                  "struct with NestFields (strategy/values/nest.h)");
    if constexpr (nest::is_reducible<T>) {
      return gather_nest(value, axis);
    } else {
      return value[0];
    }
  }

  // The components on this process: N of a PerReplica; a lone value as one; a nest that was never
  // distributed repeated N times. Of a nest with something distributed in it, each replica's nest.
  template <class T>
  std::vector<T> local_results(const PerReplica<T>& value) const {
    return value.values();
  }
  template <class T>
  std::vector<T> local_results(const Mirrored<T>& value) const {
    return value.values();
  }
  std::vector<Variable> local_results(const Variable& variable) const;
  template <class T>
  auto local_results(const T& value) const {
    if constexpr (detail::HasDistributed<T>::value) {
      detail::for_distributed(value, [this](const auto& part) { check_part(part); });
      std::vector<decltype(detail::select_nest(0, value))> nests;
      for (int replica = 0; replica < num_local_replicas(); ++replica) {
        nests.push_back(detail::select_nest(replica, value));
      }
      return nests;
    } else {
      const int copies = nest::is_container<T> ? num_local_replicas() : 1;
      return std::vector<T>(static_cast<std::size_t>(copies), value);
    }
  }

  // value_fn(ValueContext) for every replica of this process, on its device.
  template <class F>
  auto distribute_values_from_function(F&& value_fn) {
    using R = std::decay_t<std::invoke_result_t<F&, ValueContext>>;
    std::vector<R> values;
    for (int replica = 0; replica < num_local_replicas(); ++replica) {
      values.push_back(value_fn(ValueContext{first_replica() + replica, num_replicas_in_sync()}));
    }
    return PerReplica<R>(std::move(values));
  }

  // How values of several devices become one.
  CrossDeviceOps& cross_device_ops() const;

  // Copies of a module for the replicas, its parameters and buffers as variables:
  // strategy/train/module.h. The module becomes the first copy.
  //   INVALID_ARGUMENT: null, it cannot be copied (torch::nn::Cloneable does that), or, where there
  //   are several copies or values on servers, two of its parameters or buffers overlap in memory.
  //   UNIMPLEMENTED: on parameter servers, parameters that share memory without being one tensor.
  template <class M>
    requires std::is_base_of_v<torch::nn::Module, M>
  DistributedModule<M> distribute(std::shared_ptr<M> module);
  template <class M>
  DistributedModule<M> distribute(const torch::nn::ModuleHolder<M>& module);

  // A torch::optim optimizer for all copies: strategy/train/optimizer.h. `options` are libtorch's.
  //   INVALID_ARGUMENT: a module of another strategy, or options that libtorch refuses.
  template <class Torch, class M, class Options>
  DistributedOptimizer<Torch> optimizer(const DistributedModule<M>& module, Options options);
  template <class Torch, class M, class Options>
  DistributedOptimizer<Torch> optimizer(const DistributedModule<M>& module, Options options,
                                        const OptimizerOptions& how);

  // Parameters in groups with options of their own; `others` are those of the rest.
  //   INVALID_ARGUMENT: as above, and a group's name of no parameter, or in two groups.
  template <class Torch, class M, class Options>
  DistributedOptimizer<Torch> optimizer(const DistributedModule<M>& module,
                                        const std::vector<ParameterGroup<Options>>& groups,
                                        Options others);
  template <class Torch, class M, class Options>
  DistributedOptimizer<Torch> optimizer(const DistributedModule<M>& module,
                                        const std::vector<ParameterGroup<Options>>& groups,
                                        Options others, const OptimizerOptions& how);

  // Updates, reductions to given devices, where variables are made: strategy/variables/extended.h.
  Extended extended();

  // Where the processes of the cluster are; null: this strategy has one process alone.
  virtual std::shared_ptr<ClusterResolver> cluster_resolver() const { return nullptr; }

  // false: one replica, whose variables need no rules for several.
  virtual bool distributes_variables() const { return true; }
  virtual bool should_checkpoint() const { return true; }
  virtual bool should_save_summary() const { return true; }
  virtual bool require_static_shapes() const { return false; }
  // As reduce_op(); of another name some say UNIMPLEMENTED.
  virtual ReduceOp op_named(std::string_view name) const { return reduce_op(name); }
  // INVALID_ARGUMENT: distributed datasets are not for this process to iterate.
  virtual void require_iteration() const {}

  // For the code of strategy/.
  // Who makes the components of its variables; null: they are ordinary ones, in this process.
  virtual internal::ComponentMaker* component_maker() const { return nullptr; }
  // Whether replicas of `other` may read variables of this strategy: both use cores of one system.
  virtual bool shares_devices_with(const Strategy&) const { return false; }
  // Where its replicas lie; null: nowhere, all are neighbours.
  virtual const ::muster::collectives::Torus* torus() const { return nullptr; }
  const internal::StrategyRef& ref() const;
  internal::Runs& runs() const;
  internal::EarlyTurns& early_turns() const;

 protected:
  // One replica on each compute device. No ops: what select_cross_device_ops()
  // takes, chosen when they are first asked for. `group`: of processes that have as many replicas
  // each; null: this one alone.
  Strategy(std::vector<device::Place> compute_devices, std::vector<device::Place> parameter_devices,
           std::shared_ptr<CrossDeviceOps> ops = nullptr,
           std::shared_ptr<::muster::collectives::Group> group = nullptr);

  // From here on its replicas are those of this group's processes, as many in each as before.
  // Nobody else uses the strategy meanwhile.
  void set_collectives(std::shared_ptr<::muster::collectives::Group> group);

  // Runs replica(r) for every r in its replica context, device and thread.
  virtual void run_replicas(const std::function<void(int)>& replica);

 private:
  struct Impl;

  void require_cross_replica(std::string_view call, std::string_view instead = "merge_call") const;
  void check_size(int components) const;
  template <class T>
  void check_part(const T& part) const {
    // One copy is that of all replicas.
    if (!IsMirrored<T>::value || part.size() != 1) check_size(part.size());
  }
  template <class T>
  void check_components(const T& value) const {
    if constexpr (detail::IsTakenApart<T>::value) {
      detail::for_distributed(value, [this](const auto& part) { check_part(part); });
    }
  }
  template <class T>
  nest::tensors_t<T> reduce_nest(ReduceOp op, const PerReplica<T>& value, const Axes& axes) {
    require_cross_replica("reduce()");
    check_components(value);
    const bool distributed = num_local_replicas() == 1 || !value.same_object();
    if (!distributed && op == ReduceOp::kSum && takes_plain_values()) raise_undistributed();
    const nest::Components<T> components = nest::components_of(value.values());
    return nest::combine(components, [&]<class L>(const nest::Components<L>& leaves) {
      if constexpr (std::is_same_v<L, IndexedSlices>) {
        std::vector<IndexedSlices> slices;
        for (const L* leaf : leaves) slices.push_back(*leaf);
        if (!distributed) slices.resize(1);
        return reduce_slices(op, slices, axes);
      } else {
        if (!distributed) return reduce_undistributed(op, nest::to_tensor(*leaves[0]), axes);
        std::vector<torch::Tensor> tensors;
        for (const L* leaf : leaves) tensors.push_back(nest::to_tensor(*leaf));
        return reduce_components(op, tensors, axes);
      }
    });
  }
  template <class T>
  nest::tensors_t<T> reduce_undistributed_nest(ReduceOp op, const T& value, const Axes& axes) {
    require_cross_replica("reduce()");
    return nest::combine(nest::Components<T>{&value},
                         [&]<class L>(const nest::Components<L>& leaf) {
                           if constexpr (std::is_same_v<L, IndexedSlices>) {
                             return reduce_slices(op, {*leaf[0]}, axes);
                           } else {
                             const torch::Tensor tensor = nest::to_tensor(*leaf[0]);
                             // A plain 0 may stand for "nothing was added", whatever the number of
                             // replicas.
                             if constexpr (std::is_arithmetic_v<L>) {
                               if (*leaf[0] == 0 && !takes_plain_values()) return tensor;
                             }
                             return reduce_undistributed(op, tensor, axes);
                           }
                         });
  }
  template <class T>
  nest::tensors_t<T> gather_nest(const PerReplica<T>& value, int axis) {
    require_cross_replica("gather()", "all_gather()");
    check_components(value);
    const nest::Components<T> components = nest::components_of(value.values());
    return nest::combine(components, [&]<class L>(const nest::Components<L>& leaves) {
      if constexpr (std::is_same_v<L, IndexedSlices>) {
        refuse_gather_of_slices();
        return *leaves[0];
      } else {
        std::vector<torch::Tensor> tensors;
        for (const L* leaf : leaves) tensors.push_back(nest::to_tensor(*leaf));
        return gather_components(tensors, axis);
      }
    });
  }

  torch::Tensor reduce_components(ReduceOp op, const std::vector<torch::Tensor>& values,
                                  const Axes& axes) const;
  torch::Tensor reduce_undistributed(ReduceOp op, const torch::Tensor& value,
                                     const Axes& axes) const;
  IndexedSlices reduce_slices(ReduceOp op, const std::vector<IndexedSlices>& values,
                              const Axes& axes) const;
  // Runs body(r) for every replica r on its thread, without a replica's context or device.
  void on_replica_threads(const std::function<void(int)>& body) const;
  // A plain value is this one's of several processes.
  bool takes_plain_values() const { return processes_ > 1; }
  [[noreturn]] void raise_undistributed() const;
  [[noreturn]] static void refuse_gather_of_slices();
  torch::Tensor gather_components(const std::vector<torch::Tensor>& values, int axis) const;

  std::vector<std::string> worker_devices_;
  std::vector<std::string> parameter_devices_;
  std::shared_ptr<::muster::collectives::Group> group_;
  int processes_ = 1;
  int first_replica_ = 0;
  // Written in the constructor, or once under the flag.
  mutable std::shared_ptr<CrossDeviceOps> ops_;
  mutable std::once_flag ops_chosen_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
