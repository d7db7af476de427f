// Values that outlive a step, with a component on each device that needs one.
//
//   auto scope = strategy.scope();
//   auto w = Variable::create("w", torch::zeros({4, 3}));
//   auto total = Variable::create("total", 0.0,
//                                 {.synchronization = VariableSynchronization::kOnRead,
//                                  .aggregation = VariableAggregation::kSum});
//
// What a whole variable does depends on where it is used (docs/strategies/README.md has the table):
//   replica context     reads give the replica's own component; writes combine the replicas' values
//                       by the aggregation and go to all components (ON_WRITE), or to the replica's
//                       own alone (ON_READ, and ON_WRITE with NONE)
//   update context      the component that is being updated, read and written
//   anywhere else       reads give the first component (ON_WRITE) or the aggregated value
//   (cross-replica,     (ON_READ); writes go to all components
//   no context at all)
// A component of a variable is a Variable too: it is read and written by itself, everywhere.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/base/options.h"
#include "strategy/base/torch.h"
#include "strategy/values/distributed_values.h"
#include "strategy/values/indexed_slices.h"
#include "strategy/values/nest.h"

namespace muster {

class Strategy;
class Variable;
namespace internal {
class VariableState;
}

// Some rows of a variable that a partitioner has cut: its sizes, and where it begins.
struct VariablePart {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> offset;
};

// A tensor, a number (as nest::in_tensor_t says; floating ones become torch's default type), or a
// function that makes a tensor when it is asked; or in_parts(), which makes each part by itself.
class InitialValue {
 public:
  // A value of this shape and type whose parts are made one by one: `make` is asked for the parts
  // that it is cut into, one after another, or for all of it.
  template <class F>
    requires std::is_invocable_r_v<torch::Tensor, F&, const VariablePart&>
  static InitialValue in_parts(std::vector<std::int64_t> shape, torch::ScalarType type, F make) {
    const VariablePart whole{.shape = shape, .offset = std::vector<std::int64_t>(shape.size())};
    InitialValue value([make, whole]() mutable { return make(whole); });
    value.shape_ = shape;
    value.type_ = type;
    value.parts_ = Parts{.shape = std::move(shape), .type = type, .make = std::move(make)};
    return value;
  }

  // NOLINTBEGIN(google-explicit-constructor): create("w", 1.0) and create("w", torch::zeros(3)).
  InitialValue(torch::Tensor value) : make_([value] { return value; }) {
    if (!value.defined()) return;
    shape_ = value.sizes().vec();
    type_ = value.scalar_type();
  }
  template <class T>
    requires std::is_arithmetic_v<T>
  InitialValue(T number)
      : make_([number] {
          if constexpr (std::is_floating_point_v<T>) {
            return torch::scalar_tensor(static_cast<double>(number),
                                        torch::get_default_dtype_as_scalartype());
          } else {
            return nest::to_tensor(number);
          }
        }),
        shape_(std::vector<std::int64_t>()) {}
  template <class F>
    requires std::is_invocable_r_v<torch::Tensor, F&>
  InitialValue(F make) : make_(std::move(make)) {}
  // NOLINTEND(google-explicit-constructor)
  torch::Tensor operator()() const { return make_(); }

  // For the code of strategy/.
  struct Parts {
    std::vector<std::int64_t> shape;
    torch::ScalarType type = torch::kFloat;
    std::function<torch::Tensor(const VariablePart&)> make;
  };
  // Absent: it makes a value as a whole.
  const std::optional<Parts>& parts() const { return parts_; }
  // What is known of the value before it is made.
  const std::optional<std::vector<std::int64_t>>& shape() const { return shape_; }
  const std::optional<torch::ScalarType>& type() const { return type_; }
  // INVALID_ARGUMENT: its function has made another shape or type.
  torch::Tensor part(const VariablePart& part) const;

 private:
  std::function<torch::Tensor()> make_;
  std::optional<Parts> parts_;
  std::optional<std::vector<std::int64_t>> shape_;
  std::optional<torch::ScalarType> type_;
};

struct VariableOptions {
  // Default: true, but false for ON_READ.
  std::optional<bool> trainable = std::nullopt;
  VariableSynchronization synchronization = VariableSynchronization::kAuto;
  VariableAggregation aggregation = VariableAggregation::kNone;
  // Default: the initial value's.
  std::optional<torch::ScalarType> dtype = std::nullopt;
  // false: the variable has no value until initialize() or an assign().
  bool initialize = true;
};

// Everything that create() was given, as variable creators see and change it.
struct VariableSpec {
  std::string name;
  InitialValue initial_value;
  VariableOptions options;
  // Set by colocate_vars_with(): the devices of another variable of this strategy.
  std::vector<std::string> colocated_devices = {};
  // Set by Checkpoint::create(): the value to restore; the initial value is then not asked for.
  std::function<torch::Tensor()> restored = nullptr;
};

// What a variable may be assigned: a number, a tensor, another variable, or a mirrored value. A
// number fills the variable; a tensor must have its shape.
class VariableValue {
 public:
  // NOLINTBEGIN(google-explicit-constructor): v.assign(5), v.assign(tensor), v.assign(other).
  template <class T>
    requires std::is_arithmetic_v<T>
  VariableValue(T number) : number_(true), tensor_(nest::to_tensor(number)) {}
  VariableValue(torch::Tensor tensor) : tensor_(std::move(tensor)) {}
  VariableValue(const Variable& variable);
  VariableValue(const Mirrored<torch::Tensor>& mirrored) : mirrored_(mirrored.values()) {}
  // Components that differ have no place in a cross-replica write: reduce them first.
  template <class T>
  VariableValue(const PerReplica<T>&) = delete;
  // NOLINTEND(google-explicit-constructor)

  bool is_number() const { return number_; }
  // What component `index` of `count` gets. INVALID_ARGUMENT: a mirrored value of another size.
  torch::Tensor for_component(int index, int count) const;
  // The variable that it is read from; null: none.
  internal::VariableState* source() const { return variable_.get(); }

 private:
  bool number_ = false;
  torch::Tensor tensor_;
  std::vector<torch::Tensor> mirrored_;
  std::shared_ptr<internal::VariableState> variable_;
  int component_ = -1;
};

// A handle: copies are the same variable.
//
// Concurrency: reads and writes from any thread. A component is replaced as a whole, so a reader
// sees the old or the new value, never a mixture; what value() returned never changes under it.
// Writes of one variable happen one after another.
// Lifetime: the strategy outlives its variables.
//
// Errors, for all calls: FAILED_PRECONDITION for a handle of no variable, for the value of a
// variable that is not initialised, and for a write inside a scope of another strategy. Writes:
// INVALID_ARGUMENT for another shape or a type that does not convert (floating to integer).
class Variable {
 public:
  enum class Kind : std::uint8_t {
    kPlain,        // one component, of the default strategy or a strategy of one device
    kMirrored,     // ON_WRITE, a component on each device
    kSyncOnRead,   // ON_READ, a component for each replica
    kAggregating,  // one component for several replicas (central storage)
  };

  // No variable yet; every use but assignment and valid() is FAILED_PRECONDITION.
  Variable() = default;

  // Asks the open variable creators, then the current strategy, for a new variable. In a replica
  // context all replicas must create it together; it gets replica 0's name and value. Without a
  // name it is called "Variable".
  //   INVALID_ARGUMENT: synchronization NONE under a strategy, or no mode at all.
  //   RESOURCE_EXHAUSTED: the system gives a device no more memory or addresses.
  //   FAILED_PRECONDITION: replicas create variables of different names (a last "_<number>" does
  //   not count), options, or given values' shapes or types; or strategies are mixed.
  static Variable create(std::string name, InitialValue initial_value,
                         VariableOptions options = {});
  static Variable create(InitialValue initial_value, VariableOptions options = {});

  bool valid() const { return state_ != nullptr; }
  // The same variable, and the same component of it or both whole.
  bool is_same(const Variable& other) const {
    return state_ == other.state_ && component_ == other.component_;
  }

  // "w"; components after the first "w/replica_<r>".
  const std::string& name() const;
  Strategy& strategy() const;
  Kind kind() const;
  VariableSynchronization synchronization() const;  // never AUTO
  VariableAggregation aggregation() const;
  bool trainable() const;
  torch::ScalarType dtype() const;
  std::vector<std::int64_t> sizes() const;
  // Canonical names: of the device that value() reads from here, and of all.
  std::string device() const;
  std::vector<std::string> devices() const;

  int size() const;  // number of components
  // OUT_OF_RANGE. A component's own component 0 is itself.
  Variable component(int index) const;
  std::vector<Variable> components() const;
  // The whole variable that this is a component of; a whole one is its own.
  Variable container() const;

  bool is_initialized() const;
  // Runs the initial value's function; all components get its result.
  void initialize() const;

  // The value here, for arithmetic; in a replica on its device, where the variable is on a card and
  // the replica is not, or on another. In a replica it is the replica's own autograd leaf
  // (requires_grad if trainable): the same one until the variable is written, so gradients of a
  // step gather in value().grad(), and backward passes of several replicas never mix. Not to be
  // written in place: that is what assign() is for.
  //   INVALID_ARGUMENT: ON_READ with aggregation NONE across replicas.
  torch::Tensor value() const;
  // NOLINTNEXTLINE(google-explicit-constructor): a variable stands where a tensor may.
  operator torch::Tensor() const { return value(); }

  // Each returns the value here afterwards; with `read_value` false an undefined tensor. No
  // gradient flows through a write.
  //   INVALID_ARGUMENT: in replicas with aggregation SUM, one value that is the same number (but
  //   0) or tensor object on all of them; NONE on a variable with one component for several
  //   replicas; assign_add and assign_sub of an ON_READ SUM variable across replicas.
  torch::Tensor assign(const VariableValue& value, bool read_value = true) const;
  torch::Tensor assign_add(const VariableValue& value, bool read_value = true) const;
  torch::Tensor assign_sub(const VariableValue& value, bool read_value = true) const;

  // As assign_add() and assign_sub().
  const Variable& operator+=(const VariableValue& value) const {
    (void)assign_add(value, /*read_value=*/false);
    return *this;
  }
  const Variable& operator-=(const VariableValue& value) const {
    (void)assign_sub(value, /*read_value=*/false);
    return *this;
  }

  // On value().
  template <std::integral I>
  torch::Tensor operator[](I index) const {
    return value()[static_cast<std::int64_t>(index)];
  }
  torch::Tensor operator[](const torch::Tensor& index) const { return value()[index]; }
  torch::Tensor sum() const { return value().sum(); }
  torch::Tensor mean() const { return value().mean(); }
  template <class T>
  T item() const {
    return value().item<T>();
  }

  // On rows (axis 0). An index that comes twice counts twice, in order. Integers divide toward 0.
  //   UNIMPLEMENTED: ON_READ; min, max and update with aggregation SUM or MEAN.
  //   INVALID_ARGUMENT: as above, an index that is no row, values that do not fit the rows, a 0
  //   that integers are divided by.
  torch::Tensor scatter_add(const IndexedSlices& slices, bool read_value = true) const;
  torch::Tensor scatter_sub(const IndexedSlices& slices, bool read_value = true) const;
  torch::Tensor scatter_mul(const IndexedSlices& slices, bool read_value = true) const;
  torch::Tensor scatter_div(const IndexedSlices& slices, bool read_value = true) const;
  torch::Tensor scatter_min(const IndexedSlices& slices, bool read_value = true) const;
  torch::Tensor scatter_max(const IndexedSlices& slices, bool read_value = true) const;
  torch::Tensor scatter_update(const IndexedSlices& slices, bool read_value = true) const;

  // For the code of strategy/.
  explicit Variable(std::shared_ptr<internal::VariableState> state, int component = -1)
      : state_(std::move(state)), component_(component) {}
  const std::shared_ptr<internal::VariableState>& state() const { return state_; }
  int component_index() const { return component_; }  // -1: whole

 private:
  std::shared_ptr<internal::VariableState> state_;
  int component_ = -1;
};

namespace detail {
inline torch::Tensor operand(const Variable& variable) { return variable.value(); }
inline torch::Tensor operand(torch::Tensor tensor) { return tensor; }
template <class T>
  requires std::is_arithmetic_v<T>
at::Scalar operand(T number) {
  return nest::in_tensor(number);
}
// What the operators below take: at least one variable, and besides it tensors and numbers.
template <class T>
constexpr bool is_operand =
    std::is_arithmetic_v<T> || std::is_same_v<T, torch::Tensor> || std::is_same_v<T, Variable>;
template <class A, class B>
concept VariableOperands =
    is_operand<A> && is_operand<B> && (std::is_same_v<A, Variable> || std::is_same_v<B, Variable>);
}  // namespace detail

template <class A, class B>
  requires detail::VariableOperands<A, B>
torch::Tensor operator+(const A& a, const B& b) {
  return detail::operand(a) + detail::operand(b);
}
template <class A, class B>
  requires detail::VariableOperands<A, B>
torch::Tensor operator-(const A& a, const B& b) {
  return detail::operand(a) - detail::operand(b);
}
template <class A, class B>
  requires detail::VariableOperands<A, B>
torch::Tensor operator*(const A& a, const B& b) {
  return detail::operand(a) * detail::operand(b);
}
template <class A, class B>
  requires detail::VariableOperands<A, B>
torch::Tensor operator/(const A& a, const B& b) {
  return detail::operand(a) / detail::operand(b);
}
inline torch::Tensor operator-(const Variable& a) { return -a.value(); }

// Element by element, as libtorch compares tensors. Whether two handles are of one variable:
// is_same().
template <class A, class B>
  requires detail::VariableOperands<A, B>
torch::Tensor operator==(const A& a, const B& b) {
  return detail::operand(a) == detail::operand(b);
}
template <class A, class B>
  requires detail::VariableOperands<A, B>
torch::Tensor operator!=(const A& a, const B& b) {
  return detail::operand(a) != detail::operand(b);
}
template <class A, class B>
  requires detail::VariableOperands<A, B>
torch::Tensor operator<(const A& a, const B& b) {
  return detail::operand(a) < detail::operand(b);
}
template <class A, class B>
  requires detail::VariableOperands<A, B>
torch::Tensor operator<=(const A& a, const B& b) {
  return detail::operand(a) <= detail::operand(b);
}
template <class A, class B>
  requires detail::VariableOperands<A, B>
torch::Tensor operator>(const A& a, const B& b) {
  return detail::operand(a) > detail::operand(b);
}
template <class A, class B>
  requires detail::VariableOperands<A, B>
torch::Tensor operator>=(const A& a, const B& b) {
  return detail::operand(a) >= detail::operand(b);
}

// Its name and its value here; of a variable that has no value here, those of its components.
std::ostream& operator<<(std::ostream& out, const Variable& variable);

// Sees each variable that is created on this thread (and, opened around run(), in its replicas)
// while it is open, the innermost creator first; calls `next` to have it made, or makes another.
using VariableCreator =
    std::function<Variable(const std::function<Variable(VariableSpec)>& next, VariableSpec spec)>;

// Threading: ends on the thread that opened it; a strategy's scope around it cannot be closed
// before.
class [[nodiscard]] VariableCreatorScope {
 public:
  explicit VariableCreatorScope(VariableCreator creator);
  ~VariableCreatorScope();
  VariableCreatorScope(const VariableCreatorScope&) = delete;
  VariableCreatorScope& operator=(const VariableCreatorScope&) = delete;

 private:
  std::size_t ticket_;
};

}  // namespace muster
