// What the parts of a step say of the variables, added up over a process's parts and over all
// processes that make the step together.
//
// Threading: SumParts() by one thread for all of a process's replicas. Errors are exceptions
// (muster::Error). Includes libtorch.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/group.h"
#include "common/base/status.h"
#include "muster/v1/common.pb.h"
#include "strategy/base/error.h"
#include "strategy/base/torch.h"
#include "strategy/values/indexed_slices.h"

namespace muster::executor {

// An error value as the exception of the API of strategy/, which goes through the caller's code.
[[noreturn]] inline void Raise(const Status& status) {
  raise(static_cast<ErrorCode>(status.code()), Message(status));
}
inline void Require(const Status& status) {
  if (!status.ok()) Raise(status);
}
template <class T>
T Require(Result<T> result) {
  Require(result.status());
  return *std::move(result);
}

// How long a member of a step waits for the others: as long as an honest step may take.
inline constexpr std::chrono::minutes kStepWithin{10};

// What one part of a batch says of every variable, by the order of the model's parameters and
// embeddings; rows and ids are undefined where it has none. And what it has scored.
struct PartResult {
  std::vector<torch::Tensor> dense;
  std::vector<torch::Tensor> rows;
  std::vector<torch::Tensor> ids;
  v1::MetricSums metrics;
};

// Joins the rows of all parts, in their order; the rows of one id add up.
IndexedSlices JoinRows(const std::vector<IndexedSlices>& parts);

// The sum of this process's parts, in their order, and of those of all members of `group` (null:
// there are none), which all call it for the same step. Metrics are added up in the order of parts.
// Sums land in the first part's tensors. With `deterministic` the parts of all members are the
// kLogicalShards, and dense gradients are added up along one tree whoever has which.
PartResult SumParts(std::vector<PartResult> parts, bool deterministic, std::uint64_t step,
                    collectives::Group* group);

// Messages as numbers, for Group::Exchange().
std::vector<std::int64_t> Packed(std::string_view bytes);
std::string Unpacked(const std::vector<std::int64_t>& numbers);

}  // namespace muster::executor
