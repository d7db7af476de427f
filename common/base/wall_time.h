// Wall time as it is sent, kept and shown; steady time is Clock's.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace muster {

using WallTime = std::chrono::system_clock::time_point;

// Since 1970-01-01T00:00:00Z, rounded down.
[[nodiscard]] constexpr std::int64_t UnixMillis(WallTime time) {
  return std::chrono::floor<std::chrono::milliseconds>(time.time_since_epoch()).count();
}
[[nodiscard]] constexpr std::int64_t UnixMicros(WallTime time) {
  return std::chrono::floor<std::chrono::microseconds>(time.time_since_epoch()).count();
}

// RFC 3339 in UTC, to the second: "2026-01-02T03:04:05Z".
[[nodiscard]] std::string UtcText(std::int64_t unix_seconds);
[[nodiscard]] std::string UtcText(WallTime time);
// The same to the nanosecond: "2026-01-02T03:04:05.000000006Z".
[[nodiscard]] std::string UtcTextOfNanos(std::int64_t unix_nanoseconds);

}  // namespace muster
