#include "strategy/base/options.h"

#include <algorithm>
#include <cctype>
#include <cstddef>

#include "strategy/base/internal/raise.h"

namespace muster {

ReduceOp reduce_op(std::string_view name) {
  std::string lower;
  for (const char c : name) {
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (lower == "sum") return ReduceOp::kSum;
  if (lower == "mean") return ReduceOp::kMean;
  raise(InvalidArgument("reduce op \"{}\" is not one of: sum, mean", name));
}

std::string_view name_of(ReduceOp op) { return op == ReduceOp::kSum ? "SUM" : "MEAN"; }

std::string_view name_of(VariableSynchronization synchronization) {
  switch (synchronization) {
    case VariableSynchronization::kAuto:
      return "AUTO";
    case VariableSynchronization::kNone:
      return "NONE";
    case VariableSynchronization::kOnWrite:
      return "ON_WRITE";
    case VariableSynchronization::kOnRead:
      return "ON_READ";
  }
  return "invalid";
}

std::string_view name_of(VariableAggregation aggregation) {
  switch (aggregation) {
    case VariableAggregation::kNone:
      return "NONE";
    case VariableAggregation::kSum:
      return "SUM";
    case VariableAggregation::kMean:
      return "MEAN";
    case VariableAggregation::kOnlyFirstReplica:
      return "ONLY_FIRST_REPLICA";
  }
  return "invalid";
}

std::vector<std::int64_t> Axes::resolve(std::int64_t rank) const {
  std::vector<std::int64_t> resolved;
  for (const std::int64_t axis : axes_) {
    const std::int64_t from_start = axis < 0 ? axis + rank : axis;
    if (from_start < 0 || from_start >= rank) {
      raise(InvalidArgument("axis out of range for value with rank {}: {} is not in [{}, {})", rank,
                            axis, -rank, rank));
    }
    const auto same = std::find(resolved.begin(), resolved.end(), from_start);
    if (same != resolved.end()) {
      raise(InvalidArgument(
          "axis {} of a value with rank {} is given twice, as {} and {}; give each axis once",
          from_start, rank, axes_[static_cast<std::size_t>(same - resolved.begin())], axis));
    }
    resolved.push_back(from_start);
  }
  return resolved;
}

}  // namespace muster
