// The numbers that the data spec leaves to its documentation.
#pragma once

#include <cstdint>

namespace muster::data {

inline constexpr std::int64_t kCriteoNumbers = 13;
inline constexpr std::int64_t kCriteoCategories = 26;
inline constexpr std::int64_t kDefaultTextLength = 256;
inline constexpr std::uint64_t kDefaultCacheBytes = std::uint64_t{8} << 30;

}  // namespace muster::data
