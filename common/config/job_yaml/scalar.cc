#include "common/config/job_yaml/scalar.h"

#include <cmath>

#include "common/base/number_in.h"

namespace muster::config {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// After an optional '-': at least one digit, and "0" only alone or before a '.', 'e' or 'E'.
bool StartsAsNumber(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  if (text.empty() || !IsDigit(text[0])) return false;
  return text[0] != '0' || text.size() == 1 || !IsDigit(text[1]);
}

template <class Number>
std::optional<Number> ParseWhole(std::string_view text) {
  if (!StartsAsNumber(text)) return std::nullopt;
  return NumberIn<Number>(text);
}

}  // namespace

std::optional<std::int64_t> ParseInt64(std::string_view text) {
  return ParseWhole<std::int64_t>(text);
}

std::optional<std::uint64_t> ParseUint64(std::string_view text) {
  return ParseWhole<std::uint64_t>(text);
}

std::optional<double> ParseDouble(std::string_view text) {
  const auto value = ParseWhole<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<bool> ParseBool(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return std::nullopt;
}

}  // namespace muster::config
