// What a program's user is told beside its own output.
//
// Threading: any thread.
#pragma once

#include <cstdio>
#include <string>

#include <fmt/format.h>

namespace muster::internal {

// "muster: <text>" on standard error. Where that takes no more (a full disk, nobody who reads it)
// the line is lost: fmt::print() would throw, and end the process from a thread of ours.
inline void TellStderr(const std::string& text) {
  (void)std::fputs(fmt::format("muster: {}\n", text).c_str(), stderr);
  (void)std::fflush(stderr);
}

}  // namespace muster::internal
