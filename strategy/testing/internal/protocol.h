// What a process and its run say to each other, in lines over a socket pair.
#pragma once

namespace muster::internal {

// Environment: the descriptor of the socket, and the function to run.
inline constexpr const char* kProcessDescriptor = "MUSTER_PROCESS_FD";
inline constexpr const char* kProcessFunction = "MUSTER_PROCESS_FUNCTION";

// From the process. "result 5\nvalue".
inline constexpr const char* kBarrier = "barrier";
inline constexpr const char* kResult = "result";
// To it. "gone worker:1".
inline constexpr const char* kGo = "go";
inline constexpr const char* kGone = "gone";

}  // namespace muster::internal
