// Random numbers that are the same on every machine and compiler: what a job reads depends on them,
// so neither the constants nor the order of draws may ever change.
#pragma once

#include <cstdint>

namespace muster {

// SplitMix64's output function: a bijection that spreads every bit.
constexpr std::uint64_t Mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// SplitMix64 (Steele, Lea, Flood 2014).
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t Next() {
    const std::uint64_t value = Mix(state_);
    state_ += 0x9e3779b97f4a7c15;
    return value;
  }
  // In [0, bound). The bias is below bound / 2^64.
  constexpr std::uint64_t Below(std::uint64_t bound) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  // In [0, 1), 53 bits.
  constexpr double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace muster
