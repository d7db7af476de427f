#include "common/base/wall_time.h"

#include <ctime>
#include <string_view>

#include <fmt/core.h>

namespace muster {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// Without the zone.
std::string ToTheSecond(std::int64_t unix_seconds) {
  const std::time_t seconds = unix_seconds;
  std::tm utc = {};
  ::gmtime_r(&seconds, &utc);
  char text[64];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc)};
}

}  // namespace

std::string UtcText(std::int64_t unix_seconds) { return ToTheSecond(unix_seconds) + "Z"; }
std::string UtcText(WallTime time) {
  return UtcText(std::chrono::floor<std::chrono::seconds>(time.time_since_epoch()).count());
}

std::string UtcTextOfNanos(std::int64_t unix_nanoseconds) {
  std::int64_t seconds = unix_nanoseconds / kSecond;
  std::int64_t rest = unix_nanoseconds % kSecond;
  if (rest < 0) {
    rest += kSecond;
    --seconds;
  }
  return fmt::format("{}.{:09}Z", ToTheSecond(seconds), rest);
}

}  // namespace muster
