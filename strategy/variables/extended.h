// The calls of a strategy that few programs need: updates component by component, reductions to
// given devices, and where variables are made.
//
// Threading: any thread, as Strategy and Variable.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "strategy/base/options.h"
#include "strategy/core/strategy.h"
#include "strategy/values/destinations.h"
#include "strategy/values/distributed_values.h"
#include "strategy/values/indexed_slices.h"
#include "strategy/variables/variable.h"

namespace muster {

// First argument of update(): a list of results instead of a Mirrored.
struct Ungrouped {};
inline constexpr Ungrouped kUngrouped;

namespace internal {
// One replica's call of update(). Two of them meet where replicas share one component; they are
// then calls of the same function type with the same argument types.
class UpdateCall {
 public:
  virtual ~UpdateCall() = default;
  // Calls the function for component `index`, in whose update context this is.
  virtual void run(int index) = 0;
  // The types of the function and its arguments, which tell this call from others of the program.
  virtual std::string type() const = 0;
  virtual bool same_arguments(const UpdateCall& other) const = 0;
  virtual void take_results(const UpdateCall& from) = 0;
};
// Runs `call` for every component that is to be updated here.
void run_update(Strategy& strategy, const Variable& variable, UpdateCall& call);
[[noreturn]] void raise_per_replica_argument();
// INVALID_ARGUMENT: a Mirrored of so many components leaves some of the variable's without theirs.
void check_mirrored_argument(const Variable& variable, int components);
template <class T>
void check_update_argument(const Variable& variable, const T& value) {
  if constexpr (IsMirrored<T>::value) check_mirrored_argument(variable, value.size());
}

// NaN is the same as NaN.
bool same_argument(const torch::Tensor& a, const torch::Tensor& b);
bool same_argument(const IndexedSlices& a, const IndexedSlices& b);
template <class T>
bool same_argument(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, Variable>) {
    return a.is_same(b);
  } else if constexpr (std::is_floating_point_v<T>) {
    return a == b || (std::isnan(a) && std::isnan(b));
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
    return detail::copy_for(index, value);
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
  // component alone. Of a Mirrored or a Variable, fn gets the component of the same index, of a
  // Mirrored of one component always that one. In a
  // replica context only the replica's own component is updated; where all replicas share one, fn
  // runs once, and the replicas must have come with equal arguments.
  // Returns Mirrored of the results (with kUngrouped: std::vector; of a void function: nothing).
  //   INVALID_ARGUMENT: a PerReplica argument, a Mirrored of several components that are not as
  //   many as the variable's several, replicas' arguments that differ, or a variable of another
  //   strategy.
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
    return reduce_to(strategy_.op_named(op), value, to);
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
    return batch_reduce_to(strategy_.op_named(op), values);
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
  // Whether it was made under this strategy.
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
    if ((IsPerReplica<Args>::value || ...)) internal::raise_per_replica_argument();
    // Before anything is written.
    (internal::check_update_argument(variable, args), ...);
    Call<R, F, Args...> call(variable, fn, args...);
    internal::run_update(strategy_, variable, call);
    return std::move(call.results());
  }
  // R is char for functions that return nothing, which leave no results.
  template <class R, class F, class... Args>
  class Call final : public internal::UpdateCall {
   public:
    Call(const Variable& variable, F& fn, const Args&... args)
        : variable_(variable), fn_(fn), args_(args...) {}

    void run(int index) override {
      // `variable_` may be the component itself.
      const Variable component = variable_.container().component(index);
      std::apply(
          [&](const Args&... args) {
            if constexpr (std::is_void_v<update_result<F, Args...>>) {
              fn_(component, internal::update_argument(index, args)...);
            } else {
              results_.push_back(fn_(component, internal::update_argument(index, args)...));
            }
          },
          args_);
    }
    std::string type() const override { return typeid(Call).name(); }
    bool same_arguments(const internal::UpdateCall& other) const override {
      return equal(static_cast<const Call&>(other).args_, std::index_sequence_for<Args...>());
    }
    void take_results(const internal::UpdateCall& from) override {
      results_ = static_cast<const Call&>(from).results_;
    }
    std::vector<R>& results() { return results_; }

   private:
    template <std::size_t... I>
    bool equal([[maybe_unused]] const std::tuple<const Args&...>& other,
               std::index_sequence<I...>) const {
      return (internal::same_argument(std::get<I>(args_), std::get<I>(other)) && ...);
    }

    const Variable& variable_;
    F& fn_;
    const std::tuple<const Args&...> args_;
    std::vector<R> results_;
  };
  static Mirrored<torch::Tensor> place(const torch::Tensor& value, const Destinations& to);

  Strategy& strategy_;
};

}  // namespace muster
