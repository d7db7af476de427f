#include "common/base/environment_numbers.h"

#include <cmath>
#include <limits>

#include "common/base/number_in.h"

namespace muster {
namespace {

constexpr double kMostSeconds = 1e6;

}  // namespace

Result<std::optional<std::chrono::milliseconds>> SecondsIn(const Environment& environment,
                                                           const std::string& name) {
  const std::string text = environment(name).value_or("");
  if (text.empty()) return std::nullopt;
  // Not a number at all is neither less nor more.
  const double seconds = NumberIn<double>(text).value_or(-1);
  if (!(seconds >= 0 && seconds <= kMostSeconds)) {
    return InvalidArgument("{}=\"{}\" in the environment: it is a number of seconds, from 0 to {}",
                           name, text, kMostSeconds);
  }
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

Result<std::optional<std::uint32_t>> CountIn(const Environment& environment,
                                             const std::string& name) {
  const std::string text = environment(name).value_or("");
  if (text.empty()) return std::nullopt;
  const auto count = NumberIn<std::uint32_t>(text);
  if (!count) {
    return InvalidArgument("{}=\"{}\" in the environment: it is a whole number, from 0 to {}", name,
                           text, std::numeric_limits<std::uint32_t>::max());
  }
  return count;
}

}  // namespace muster
