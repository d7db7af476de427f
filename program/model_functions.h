// The functions of a model's executors, as its driver names them: one for each v1::ClosureKind.
// Argument: a serialized v1::ClosureAssignment; value: a v1::ClosureResult.
#pragma once

#include <cstdint>
#include <utility>

#include "dispatch/functions.h"

#include "muster/v1/common.pb.h"

namespace muster::program {

inline std::uint32_t ModelFunction(v1::ClosureKind kind) {
  return static_cast<std::uint32_t>(kind) - v1::CLOSURE_KIND_TRAIN;
}

// A driver, which runs none, needs the table's hash.
inline dispatch::FunctionTable ModelFunctions(
    dispatch::FunctionTable::Function train = nullptr,
    dispatch::FunctionTable::Function evaluate = nullptr) {
  dispatch::FunctionTable functions;
  functions.Add("muster.model.TRAIN", std::move(train));
  functions.Add("muster.model.EVALUATE", std::move(evaluate));
  return functions;
}

}  // namespace muster::program
