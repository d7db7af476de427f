// A text that is a number and nothing else.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace muster {

// As std::from_chars() reads it: no blanks, no plus, no 0x. Nothing: the whole text is no number of
// that type, or does not fit it.
template <class T>
std::optional<T> NumberIn(std::string_view text) {
  T number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace muster
