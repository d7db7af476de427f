#include "common/config/units.h"

#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/core.h>

namespace muster::config {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t count;
};

// Largest first, so that formatting takes the first that divides.
constexpr std::array<Unit, 7> kTime = {{{"d", 86'400'000'000'000},
                                        {"h", 3'600'000'000'000},
                                        {"m", 60'000'000'000},
                                        {"s", 1'000'000'000},
                                        {"ms", 1'000'000},
                                        {"us", 1'000},
                                        {"ns", 1}}};
constexpr std::array<Unit, 9> kBytes = {{{"TiB", std::int64_t{1} << 40},
                                         {"TB", 1'000'000'000'000},
                                         {"GiB", 1 << 30},
                                         {"GB", 1'000'000'000},
                                         {"MiB", 1 << 20},
                                         {"MB", 1'000'000},
                                         {"KiB", 1 << 10},
                                         {"KB", 1'000},
                                         {"B", 1}}};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Takes one "12.5unit" off the front of `text` and returns it as a multiple of the smallest unit.
template <std::size_t n>
std::optional<std::int64_t> TakeQuantity(std::string_view& text, const std::array<Unit, n>& units,
                                         std::string_view unit_when_none) {
  // Digits before and after the point as one integer: 12.5 is 125 with one decimal place, exactly.
  __int128 digits = 0;
  __int128 scale = 1;
  std::size_t at = 0;
  bool any = false;
  bool point = false;
  for (; at < text.size() && (IsDigit(text[at]) || (text[at] == '.' && !point)); ++at) {
    if (text[at] == '.') {
      point = true;
      continue;
    }
    any = true;
    if (digits > std::numeric_limits<std::int64_t>::max() || (point && scale > 1'000'000'000)) {
      return std::nullopt;
    }
    digits = digits * 10 + (text[at] - '0');
    if (point) scale *= 10;
  }
  if (!any) return std::nullopt;
  text.remove_prefix(at);
  std::size_t letters = 0;
  while (letters < text.size() && !IsDigit(text[letters]) && text[letters] != '.') ++letters;
  const std::string_view name = letters == 0 ? unit_when_none : text.substr(0, letters);
  text.remove_prefix(letters);
  for (const Unit& unit : units) {
    if (unit.name != name) continue;
    const __int128 total = digits * unit.count;
    if (total % scale != 0) return std::nullopt;
    if (total / scale > std::numeric_limits<std::int64_t>::max()) return std::nullopt;
    return static_cast<std::int64_t>(total / scale);
  }
  return std::nullopt;
}

}  // namespace

Result<std::chrono::nanoseconds> ParseDuration(std::string_view text) {
  const auto refused = [&] {
    return InvalidArgument(
        "\"{}\" is not a duration; write a number and a unit (ns us ms s m h d), "
        "such as 500ms, 3s or 1m30s, with at most 106751d in all",
        text);
  };
  if (text == "0") return std::chrono::nanoseconds(0);
  if (text.empty()) return refused();
  std::int64_t total = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::optional<std::int64_t> part = TakeQuantity(rest, kTime, "");
    if (!part || *part > std::numeric_limits<std::int64_t>::max() - total) return refused();
    total += *part;
  }
  return std::chrono::nanoseconds(total);
}

Result<std::uint64_t> ParseSize(std::string_view text) {
  std::string_view rest = text;
  const std::optional<std::int64_t> bytes = TakeQuantity(rest, kBytes, "B");
  if (!bytes || !rest.empty()) {
    return InvalidArgument(
        "\"{}\" is not a size; write a whole number of bytes, or a number and a unit "
        "(KiB MiB GiB TiB, KB MB GB TB), such as 4096, 256MiB or 1.5GiB",
        text);
  }
  return static_cast<std::uint64_t>(*bytes);
}

std::string FormatDuration(std::chrono::nanoseconds duration) {
  if (duration.count() == 0) return "0s";
  for (const Unit& unit : kTime) {
    if (duration.count() % unit.count == 0) {
      return fmt::format("{}{}", duration.count() / unit.count, unit.name);
    }
  }
  return fmt::format("{}ns", duration.count());
}

}  // namespace muster::config
