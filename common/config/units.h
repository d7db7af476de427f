// Durations and sizes as people write them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace muster::config {

// "500ms", "3s", "1.5h", "1m30s"; units ns us ms s m h d. "0" alone needs no unit.
//   kInvalidArgument: no number, no unit or an unknown one, negative, or beyond 292 years.
[[nodiscard]] Result<std::chrono::nanoseconds> ParseDuration(std::string_view text);

// "256MiB", "1.5GiB", "64KB", "4096"; KiB MiB GiB TiB count in 1024, KB MB GB TB in 1000, B or
// nothing is bytes.
//   kInvalidArgument: no number, an unknown unit, negative, not whole bytes, or beyond 2^63 - 1.
[[nodiscard]] Result<std::uint64_t> ParseSize(std::string_view text);

// The shortest text that ParseDuration() reads back as the same value: "1500ms".
[[nodiscard]] std::string FormatDuration(std::chrono::nanoseconds duration);

}  // namespace muster::config
