// Under which name the coordinator says its version: initial metadata of its answers to unary
// calls.
#pragma once

namespace muster::rpc {

inline constexpr const char* kVersionKey = "muster-version";

}  // namespace muster::rpc
