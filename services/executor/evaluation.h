// The evaluation of a checkpoint in this process alone, for the cluster's evaluator: without a
// driver and without parameter servers.
//
// Threading: any thread.
#pragma once

#include <cstdint>
#include <functional>

#include "common/base/status.h"

namespace muster::v1 {
class EvaluationResult;
class ToExecutor;
}  // namespace muster::v1

namespace muster::executor {

// What `message.evaluate` asks for, each example once. `progress` is told how many batches are
// done, first 0, when the data and the variables are here. Errors are those of EvaluateCheckpoint
// (cluster.proto).
Result<v1::EvaluationResult> EvaluateCheckpoint(const v1::ToExecutor& message,
                                                const std::function<void(std::uint64_t)>& progress);

}  // namespace muster::executor
