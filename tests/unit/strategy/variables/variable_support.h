// Shorthands of the tests about variables. Include before tests/support/catch.h.
#pragma once

#include <string>
#include <vector>

#include "strategy/kinds/central_storage_strategy.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "strategy/values/device_of.h"
#include "strategy/variables/extended.h"
#include "strategy/variables/variable.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/replicas.h"

namespace muster::testing {

inline constexpr auto kNone = VariableAggregation::kNone;
inline constexpr auto kSum = VariableAggregation::kSum;
inline constexpr auto kMean = VariableAggregation::kMean;
inline constexpr auto kFirst = VariableAggregation::kOnlyFirstReplica;
inline constexpr auto kOnRead = VariableSynchronization::kOnRead;
inline constexpr auto kOnWrite = VariableSynchronization::kOnWrite;

// A tensor of this replica's own.
inline torch::Tensor own(double value) { return torch::scalar_tensor(value); }

template <class... T>
torch::Tensor ints(T... values) {
  return torch::tensor(std::vector<std::int64_t>{values...}, torch::kLong);
}
template <class... T>
torch::Tensor floats(T... values) {
  return torch::tensor(std::vector<float>{static_cast<float>(values)...});
}
inline IndexedSlices rows(torch::Tensor values, torch::Tensor indices) {
  return {.values = std::move(values), .indices = std::move(indices)};
}
inline IndexedSlices row(double value, std::int64_t index) {
  return rows(torch::scalar_tensor(value), ints(index));
}
inline IndexedSlices row(int value, std::int64_t index) {
  return rows(torch::scalar_tensor(value, torch::kInt), ints(index));
}

inline std::vector<double> list(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.detach().to(torch::kDouble).reshape({-1}).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}
inline double number(const torch::Tensor& tensor) { return tensor.item<double>(); }
inline double number(const Variable& variable) { return variable.value().item<double>(); }
// The components of a variable of scalars.
inline std::vector<double> numbers(const Variable& variable) {
  std::vector<double> all;
  for (const Variable& component : variable.components()) all.push_back(number(component));
  return all;
}
inline std::vector<double> numbers(const PerReplica<torch::Tensor>& values) {
  std::vector<double> all;
  for (const torch::Tensor& value : values.values()) all.push_back(number(value));
  return all;
}
inline std::vector<double> times(int n, double value) {
  return std::vector<double>(static_cast<std::size_t>(n), value);
}

inline Variable on_write(Strategy& strategy, InitialValue value, VariableAggregation aggregation) {
  const auto scope = strategy.scope();
  return Variable::create("v", std::move(value), {.aggregation = aggregation});
}
inline Variable on_read(Strategy& strategy, InitialValue value, VariableAggregation aggregation) {
  const auto scope = strategy.scope();
  return Variable::create("v", std::move(value),
                          {.synchronization = kOnRead, .aggregation = aggregation});
}

}  // namespace muster::testing
