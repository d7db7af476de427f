// How much a worker keeps, and hands on, of what its processes write.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "common/base/utf8.h"

namespace muster::worker {

// Told with the end of a process.
inline constexpr std::size_t kLastLines = 20;
// The daemon bounds their rate; this is for what comes within one log_delay.
inline constexpr int kMostLinesWaiting = 4'000;
inline constexpr std::size_t kLongestLine = 4 * 1024;

// As it is handed on: UTF-8, and no longer than that.
inline std::string CutLine(const std::string& line) {
  if (line.size() <= kLongestLine) return ToValidUtf8(line);
  return ToValidUtf8(std::string_view(line).substr(0, kLongestLine)) +
         fmt::format("... ({} bytes)", line.size());
}

}  // namespace muster::worker
