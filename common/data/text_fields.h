// Numbers in text.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <type_traits>

#include <xxhash.h>

namespace muster::data {

inline std::string_view TrimBlanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Whether a decimal number whose magnitude no binary format holds is too small rather than too
// large.
inline bool IsTiny(std::string_view number) {
  std::int64_t exponent = 0;
  if (const auto at = number.find_first_of("eE"); at != std::string_view::npos) {
    std::string_view digits = number.substr(at + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    // Beyond 64 bits, or so far that the number's own digits make no difference.
    constexpr std::int64_t kFar = std::int64_t{1} << 62;
    if (error != std::errc() || exponent > kFar || exponent < -kFar) return digits.starts_with('-');
    number = number.substr(0, at);
  }
  const std::size_t point = std::min(number.find('.'), number.size());
  const std::size_t first = number.find_first_of("123456789");
  if (first == std::string_view::npos) return true;
  return static_cast<std::int64_t>(point) - static_cast<std::int64_t>(first) + exponent < 0;
}

// The whole of `text` as a finite number; blanks around it and a leading '+' are allowed. One that
// is nearer to 0 than the format can say is 0, as in other readers; one that is too large is none.
template <class T>
bool ParseNumber(std::string_view text, T& value) {
  text = TrimBlanks(text);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return false;
  if constexpr (std::is_floating_point_v<T>) {
    if (error == std::errc::result_out_of_range && IsTiny(text)) {
      value = text.starts_with('-') ? -T{0} : T{0};
      return true;
    }
    return error == std::errc() && std::isfinite(value);
  }
  return error == std::errc();
}

// xxh3-64 with a seed, modulo `buckets`. What a model has learnt depends on it: it may never
// change.
inline std::int64_t HashBucket(std::string_view text, std::uint64_t seed, std::int64_t buckets) {
  return static_cast<std::int64_t>(XXH3_64bits_withSeed(text.data(), text.size(), seed) %
                                   static_cast<std::uint64_t>(buckets));
}

// At most 40 bytes of `text`, for messages; a UTF-8 character is not cut in two.
inline std::string_view Shown(std::string_view text) {
  std::size_t size = std::min<std::size_t>(text.size(), 40);
  for (int i = 0; i < 3 && size > 0 && size < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[size]) & 0xC0) != 0x80) break;
    --size;
  }
  return text.substr(0, size);
}

}  // namespace muster::data
