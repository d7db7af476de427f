// What a replica function knows of its replica, and the calls in which replicas meet.
#pragma once

#include <chrono>
#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/arrivals.h"
#include "strategy/base/communication_options.h"
#include "strategy/base/options.h"
#include "strategy/base/torch.h"
#include "strategy/core/started.h"
#include "strategy/values/distributed_values.h"
#include "strategy/values/indexed_slices.h"
#include "strategy/values/nest.h"
#include "strategy/values/regroup.h"

namespace muster {

class Strategy;
namespace device {
class ReplicaGroup;
}
namespace internal {
class ReplicaMeeting;
}

// Threading: each replica has its own, to be used on its own thread only.
//   FAILED_PRECONDITION: used in cross-replica context ("Need to be inside"), on another replica's
//   thread ("Mismatching ReplicaContext") or under another strategy ("Mismatching Strategy").
class ReplicaContext {
 public:
  // `replica`: of this process. `group`: where its replicas meet; null where it has one.
  ReplicaContext(Strategy& strategy, int replica, device::ReplicaGroup* group);
  ReplicaContext(const ReplicaContext&) = delete;
  ReplicaContext& operator=(const ReplicaContext&) = delete;

  Strategy& strategy() const { return strategy_; }
  int replica_id_in_sync_group() const { return first_ + replica_; }
  // Among the replicas of this process.
  int local_replica_id() const { return replica_; }
  int num_replicas_in_sync() const;
  // Where libtorch makes and finds this replica's tensors: torch::zeros({3}, context.device()),
  // x.to(context.device()). The CPU, or the replica's card.
  torch::Device device() const;

  // Runs fn(strategy, PerReplica of each argument...) once, in cross-replica context, when all
  // replicas of this process have called merge_call with the same function type and arguments of
  // the same types; each gets the result, with its own component for each PerReplica and Mirrored
  // in it (tuples, pairs, vectors and maps of them and of others). An exception of fn is thrown in
  // every replica.
  template <class F, class... Args>
  auto merge_call(F&& fn, const Args&... args) {
    constexpr bool kFits = std::is_invocable_v<F&, Strategy&, const PerReplica<Args>&...>;
    static_assert(kFits,
                  "merge_call(): the function takes a Strategy&, then a PerReplica<Argument> "
                  "for each argument");
    if constexpr (kFits) {
      using R = std::invoke_result_t<F&, Strategy&, const PerReplica<Args>&...>;
      using Call = MergeCall<R, std::remove_reference_t<F>, Args...>;
      Call mine{fn, std::tuple<const Args&...>(args...), {}};
      meet("merge_call of " + kind_of(fn) + arguments_of<Args...>(), mine,
           [this](const Arrivals<Call>& all) {
             run_merged([&](Strategy& strategy) { Call::run(strategy, all); });
           });
      if constexpr (!std::is_void_v<R>) return select(std::move(*mine.result));
    }
  }

  // The sum or mean of `value` over all replicas, in every replica, by the strategy's cross-device
  // ops. A nest of tensors, numbers and IndexedSlices is reduced in one call. Differentiable in its
  // dense leaves, any number of times (create_graph): the gradient is the same reduction of the
  // replicas' gradients, and is made in the replica function, too. MEAN of integers is float64. The
  // result is never the memory of `value`.
  //   INVALID_ARGUMENT: shapes, types or structures differ between replicas; neither SUM nor MEAN.
  //   UNIMPLEMENTED, in backward: through IndexedSlices.
  torch::Tensor all_reduce(ReduceOp op, const torch::Tensor& value,
                           const CommunicationOptions& options = {});
  template <class T>
    requires(nest::is_leaf<T> || nest::is_container<T>)
  nest::tensors_t<T> all_reduce(ReduceOp op, const T& value,
                                const CommunicationOptions& options = {}) {
    return on_leaves(value,
                     [&](const Leaves& leaves) { return reduce_leaves(op, leaves, options); });
  }
  template <class T>
  auto all_reduce(std::string_view op, const T& value, const CommunicationOptions& options = {}) {
    return all_reduce(reduce_op(op), value, options);
  }

  // all_reduce() that is begun here and carried out between processes while this function goes on;
  // its handle's wait() gives the result, or throws the error. All replicas begin it as they would
  // make the call: what they begin and what they call is one order, the same for all; a call, this
  // or another, takes its turn behind what was begun before, and its time limit counts from then.
  // Several may be in flight; from 64 on the next one waits for the first. One that nobody waits
  // for is carried out all the same, and its error is that of the next call. `value` is not written
  // to until it has ended. It has no gradient.
  //   Carried out before this returns: IndexedSlices, on GPUs, and where all replicas are in this
  //   process.
  //   INVALID_ARGUMENT: as all_reduce(); thrown here when it is the replicas of this process that
  //   differ, by wait() when it is processes. UNIMPLEMENTED: in backward.
  Started<torch::Tensor> start_all_reduce(ReduceOp op, const torch::Tensor& value,
                                          const CommunicationOptions& options = {});
  template <class T>
    requires(nest::is_leaf<T> || nest::is_container<T>)
  Started<nest::tensors_t<T>> start_all_reduce(ReduceOp op, const T& value,
                                               const CommunicationOptions& options = {}) {
    StartedLeaves started = start_leaves(op, leaves_of(value), options);
    return {[value, wait = std::move(started.wait)] { return with_leaves(value, wait()); },
            std::move(started.done)};
  }
  template <class T>
  auto start_all_reduce(std::string_view op, const T& value,
                        const CommunicationOptions& options = {}) {
    return start_all_reduce(reduce_op(op), value, options);
  }

  // The replicas' values joined along `axis`, in every replica; of a nest, leaf by leaf.
  // Differentiable, as all_reduce() is: each replica gets the gradient of its own piece. Sizes may
  // differ along `axis` alone (INVALID_ARGUMENT). UNIMPLEMENTED: IndexedSlices.
  torch::Tensor all_gather(const torch::Tensor& value, int axis,
                           const CommunicationOptions& options = {});
  template <class T>
    requires(nest::is_leaf<T> || nest::is_container<T>)
  nest::tensors_t<T> all_gather(const T& value, int axis,
                                const CommunicationOptions& options = {}) {
    return on_leaves(value,
                     [&](const Leaves& leaves) { return gather_leaves(leaves, axis, options); });
  }

  // Low level: every replica of this process comes with something of its own, the last to come runs
  // `joint` with all of them, in replica order. `kind` must be the same for all, and be used for
  // one T alone.
  //   DEADLINE_EXCEEDED: another replica did not come in time.
  template <class T, class Joint>
    requires std::invocable<Joint&, const Arrivals<T>&>
  void meet(std::string kind, T& mine, Joint&& joint,
            std::optional<std::chrono::milliseconds> timeout = std::nullopt) {
    meet_any(
        std::move(kind), &mine, [&joint](std::vector<void*>& all) { joint(Arrivals<T>(all)); },
        timeout);
  }

 private:
  friend class internal::ReplicaMeeting;

  template <class R, class F, class... Args>
  struct MergeCall {
    F& fn;
    std::tuple<const Args&...> arguments;
    std::shared_ptr<std::conditional_t<std::is_void_v<R>, char, R>> result;

    static void run(Strategy& strategy, const Arrivals<MergeCall>& all) {
      run_indexed(strategy, all, std::index_sequence_for<Args...>());
    }
    template <std::size_t... I>
    static void run_indexed(Strategy& strategy, const Arrivals<MergeCall>& all,
                            std::index_sequence<I...>) {
      MergeCall& first = all[0];
      if constexpr (std::is_void_v<R>) {
        first.fn(strategy, collect<I>(all)...);
      } else {
        const auto result = std::make_shared<R>(first.fn(strategy, collect<I>(all)...));
        for (MergeCall& one : all) one.result = result;
      }
    }
    template <std::size_t I>
    static auto collect(const Arrivals<MergeCall>& all) {
      using Arg = std::remove_cvref_t<std::tuple_element_t<I, std::tuple<Args...>>>;
      std::vector<Arg> values;
      for (const MergeCall& one : all) values.push_back(std::get<I>(one.arguments));
      return PerReplica<Arg>(std::move(values));
    }
  };

  static std::string readable(const std::type_info& type);
  static std::string kind_at(const std::string& type, const void* address);
  // Functions of one type are told apart by their address, lambdas by their type.
  template <class F>
  static std::string kind_of(F& fn) {
    using Plain = std::remove_reference_t<F>;
    static const std::string type = readable(typeid(Plain));
    if constexpr (std::is_function_v<Plain>) {
      return kind_at(type, reinterpret_cast<const void*>(&fn));
    } else if constexpr (std::is_pointer_v<Plain>) {
      return kind_at(type, reinterpret_cast<const void*>(fn));
    } else if constexpr (requires { fn.target_type(); }) {
      return type + " of " + readable(fn.target_type());
    } else {
      return type;
    }
  }

  // One function may take arguments of several types: with others it is another call.
  template <class... Args>
  static const std::string& arguments_of() {
    static const std::string types = [] {
      std::string text;
      ((text += (text.empty() ? " with " : ", ") + readable(typeid(Args))), ...);
      return text;
    }();
    return types;
  }

  template <class R>
  auto select(R&& result) {
    using Plain = std::remove_cvref_t<R>;
    if constexpr (detail::HasDistributed<Plain>::value) {
      return detail::select_nest(replica_, result);
    } else {
      return Plain(result);
    }
  }

  using Leaf = std::variant<torch::Tensor, IndexedSlices>;
  using Leaves = std::vector<Leaf>;

  struct StartedLeaves {
    std::function<Leaves()> wait;
    std::function<bool()> done;
  };

  // `call` on all leaves of `value` at once; its results in their places.
  template <class T, class Call>
  static nest::tensors_t<T> on_leaves(const T& value, Call&& call) {
    return with_leaves(value, call(leaves_of(value)));
  }
  template <class T>
  static Leaves leaves_of(const T& value) {
    Leaves leaves;
    nest::combine(nest::Components<T>{&value}, [&]<class L>(const nest::Components<L>& leaf) {
      if constexpr (std::is_same_v<L, IndexedSlices>) {
        leaves.push_back(*leaf[0]);
        return IndexedSlices{};
      } else {
        leaves.push_back(nest::to_tensor(*leaf[0]));
        return torch::Tensor();
      }
    });
    return leaves;
  }
  template <class T>
  static nest::tensors_t<T> with_leaves(const T& value, Leaves leaves) {
    std::size_t next = 0;
    return nest::combine(nest::Components<T>{&value}, [&]<class L>(const nest::Components<L>&) {
      return std::get<nest::tensors_t<L>>(std::move(leaves[next++]));
    });
  }
  Leaves reduce_leaves(ReduceOp op, const Leaves& leaves, const CommunicationOptions& options);
  StartedLeaves start_leaves(ReduceOp op, const Leaves& leaves,
                             const CommunicationOptions& options);
  Leaves gather_leaves(const Leaves& leaves, int axis, const CommunicationOptions& options);

  // meet() without a type: `arguments` are what the kind says.
  void meet_any(std::string kind, void* arguments,
                const std::function<void(std::vector<void*>&)>& joint,
                std::optional<std::chrono::milliseconds> timeout);
  // With this strategy in cross-replica context on this thread.
  void run_merged(const std::function<void(Strategy&)>& body);
  void require_mine() const;

  Strategy& strategy_;
  const int first_;  // this process's first replica among all
  const int replica_;
  device::ReplicaGroup* const group_;
};

}  // namespace muster
