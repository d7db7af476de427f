// The calls of a strategy that few programs need: updates component by component, reductions to
// given devices, and where variables are made.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/base/options.h"
#include "strategy/core/strategy.h"
#include "strategy/values/destinations.h"
#include "strategy/values/distributed_values.h"
#include "strategy/variables/variable.h"

namespace muster {

// First argument of update(): a list of results instead of a Mirrored.
struct Ungrouped {};
inline constexpr Ungrouped kUngrouped;

namespace internal {
// One replica's part of an update() of a variable with one component for several replicas.
struct UpdateCall {
  const std::function<void(int)>* body;
  std::string type;
  void* results;
  const void* arguments;
  bool (*same_arguments)(const void* a, const void* b);
  void (*copy_results)(void* to, const void* from);
};
// Calls body(r) for every component r that is to be updated here, in its update context.
void run_update(Strategy& strategy, const Variable& variable, UpdateCall& call);
[[noreturn]] void raise_per_replica_argument();

bool same_argument(const torch::Tensor& a, const torch::Tensor& b);
template <class T>
bool same_argument(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, Variable>) {
    return a.is_same(b);
  } else if constexpr (requires { bool(a == b); }) {
    return a == b;
  } else {
    return &a == &b;
  }
}

// Component `index` of an argument of update(): what is not distributed goes to all.
template <class T>
decltype(auto) update_argument(int index, const T& value) {
  if constexpr (IsPerReplica<T>::value) {
    raise_per_replica_argument();
    return (value[0]);
  } else if constexpr (IsMirrored<T>::value) {
    return (value[index]);
  } else if constexpr (std::is_same_v<T, Variable>) {
    return value.size() > index && value.component_index() < 0 ? value.component(index) : value;
  } else {
    return (value);
  }
}
}  // namespace internal

// Lifetime: the strategy outlives it.
class Extended {
 public:
  explicit Extended(Strategy& strategy) : strategy_(strategy) {}

  // Calls fn(component, arguments...) for each component of `variable`, on its device, in update
  // context: there get_update_replica_id() is the component's index and a write goes to that
  // component alone. Of a Mirrored or a Variable, fn gets the component of the same index. In a
  // replica context only the replica's own component is updated; where all replicas share one, fn
  // runs once, and the replicas must have come with equal arguments.
  // Returns Mirrored of the results (with kUngrouped: std::vector; of a void function: nothing).
  //   INVALID_ARGUMENT: a PerReplica argument, replicas' arguments that differ, or a variable of
  //   another strategy.
  template <class F, class... Args>
    requires(!std::is_same_v<std::remove_cvref_t<F>, Variable>)
  auto update(const Variable& variable, F&& fn, const Args&... args) {
    using R = update_result<F, Args...>;
    if constexpr (std::is_void_v<R>) {
      run_update<char>(variable, fn, args...);
    } else {
      return Mirrored<R>(run_update<R>(variable, fn, args...));
    }
  }
  template <class F, class... Args>
  auto update(Ungrouped, const Variable& variable, F&& fn, const Args&... args) {
    return run_update<update_result<F, Args...>>(variable, fn, args...);
  }

  // As Strategy::reduce(), with a copy of the result on every destination.
  template <class T>
  Mirrored<torch::Tensor> reduce_to(ReduceOp op, const T& value, const Destinations& to) {
    return place(strategy_.reduce(op, value), to);
  }
  template <class T>
  Mirrored<torch::Tensor> reduce_to(std::string_view op, const T& value, const Destinations& to) {
    return reduce_to(reduce_op(op), value, to);
  }
  template <class T>
  std::vector<Mirrored<torch::Tensor>> batch_reduce_to(
      ReduceOp op, const std::vector<std::pair<T, Destinations>>& values) {
    std::vector<Mirrored<torch::Tensor>> results;
    for (const auto& [value, to] : values) results.push_back(reduce_to(op, value, to));
    return results;
  }
  template <class T>
  std::vector<Mirrored<torch::Tensor>> batch_reduce_to(
      std::string_view op, const std::vector<std::pair<T, Destinations>>& values) {
    return batch_reduce_to(reduce_op(op), values);
  }

  // New variables go to the devices of `variable` while the scope is open.
  //   FAILED_PRECONDITION "Need to be inside scope" of this strategy.
  //   INVALID_ARGUMENT: a variable of another strategy.
  VariableCreatorScope colocate_vars_with(const Variable& variable);
  VariableCreatorScope variable_creator_scope(VariableCreator creator) {
    return VariableCreatorScope(std::move(creator));
  }
  // The strategy's own.
  std::shared_ptr<ClusterResolver> cluster_resolver() const { return strategy_.cluster_resolver(); }
  // Was it made under this strategy?
  bool variable_created_in_scope(const Variable& variable) const;
  // The variable that `value` is a component of, else `value` itself.
  Variable value_container(const Variable& value) const { return value.container(); }
  // Its value across replicas, aggregated.
  torch::Tensor read_var(const Variable& variable) const;

 private:
  template <class F, class... Args>
  using update_result = std::decay_t<std::invoke_result_t<
      F&, Variable, decltype(internal::update_argument(0, std::declval<const Args&>()))...>>;

  template <class R, class F, class... Args>
  std::vector<R> run_update(const Variable& variable, F& fn, const Args&... args) {
    using Result = update_result<F, Args...>;
    if ((IsPerReplica<Args>::value || ...)) internal::raise_per_replica_argument();
    std::vector<R> results;
    const std::function<void(int)> body = [&](int index) {
      if constexpr (std::is_void_v<Result>) {
        fn(variable.component(index), internal::update_argument(index, args)...);
      } else {
        results.push_back(fn(variable.component(index), internal::update_argument(index, args)...));
      }
    };
    using Arguments = std::tuple<const Args&...>;
    const Arguments arguments(args...);
    internal::UpdateCall call{
        &body,
        typeid(F).name(),
        &results,
        &arguments,
        [](const void* a, const void* b) {
          return equal(*static_cast<const Arguments*>(a), *static_cast<const Arguments*>(b),
                       std::index_sequence_for<Args...>());
        },
        [](void* into, const void* from) {
          *static_cast<std::vector<R>*>(into) = *static_cast<const std::vector<R>*>(from);
        }};
    internal::run_update(strategy_, variable, call);
    return results;
  }
  template <class Tuple, std::size_t... I>
  static bool equal([[maybe_unused]] const Tuple& a, [[maybe_unused]] const Tuple& b,
                    std::index_sequence<I...>) {
    return (internal::same_argument(std::get<I>(a), std::get<I>(b)) && ...);
  }
  static Mirrored<torch::Tensor> place(const torch::Tensor& value, const Destinations& to);

  Strategy& strategy_;
};

}  // namespace muster
