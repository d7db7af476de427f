// A fuzz target: one parser of bytes that Muster did not write, and what must hold for any input.
//
// Each target is a file that defines LLVMFuzzerTestOneInput(); the preset `fuzz` links it with
// libFuzzer (clang), every other preset with replay_main.cc, which ctest runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace muster::fuzz {

inline std::span<const std::byte> Bytes(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

inline std::string_view Text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Ends the process, which both mains report with the input.
inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

}  // namespace muster::fuzz
