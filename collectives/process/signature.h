// A number that stands for what an operation is called with: equal on members that call the same.
// FNV-1a, 64 bits: the same in every process, which hashes of libraries are not.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster::collectives {

class Signature {
 public:
  Signature& Add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) Byte(static_cast<std::uint8_t>(number >> shift));
    return *this;
  }
  Signature& Add(std::string_view text) {
    Add(text.size());
    for (const char c : text) Byte(static_cast<std::uint8_t>(c));
    return *this;
  }
  std::uint64_t value() const { return value_; }

 private:
  void Byte(std::uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3ULL; }

  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

}  // namespace muster::collectives
