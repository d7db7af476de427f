// The words of tf.distribute as types: reduce operations, variable synchronization and aggregation.
//
// Threading: plain values, and functions of their arguments alone.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

enum class ReduceOp : std::uint8_t { kSum, kMean };

// "sum", "MEAN", ... in any case. INVALID_ARGUMENT otherwise.
ReduceOp reduce_op(std::string_view name);
std::string_view name_of(ReduceOp op);

// When a variable's components are made equal.
enum class VariableSynchronization : std::uint8_t {
  kAuto,     // as the strategy thinks best: on write
  kNone,     // refused by the strategies of one machine
  kOnWrite,  // all components always hold the same value
  kOnRead,   // each replica has its own; aggregated when read across replicas
};

// How values of several replicas become one.
enum class VariableAggregation : std::uint8_t { kNone, kSum, kMean, kOnlyFirstReplica };

std::string_view name_of(VariableSynchronization synchronization);
std::string_view name_of(VariableAggregation aggregation);

// Axes to reduce over: one number or a list; negative ones count from the end. The default: none.
class Axes {
 public:
  Axes() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): reduce(op, value, 0) and {0, 1} read as in Python.
  Axes(int axis) : given_(true), axes_{axis} {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Axes(std::initializer_list<int> axes) : given_(true), axes_(axes.begin(), axes.end()) {}
  explicit Axes(const std::vector<std::int64_t>& axes) : given_(true), axes_(axes) {}
  // Not a floating number, a string or a tensor.
  template <class T>
  Axes(T) = delete;

  bool given() const { return given_; }
  // Each in [0, rank). INVALID_ARGUMENT: "axis out of range for value with rank", or one twice.
  std::vector<std::int64_t> resolve(std::int64_t rank) const;

 private:
  bool given_ = false;
  std::vector<std::int64_t> axes_;
};

}  // namespace muster
