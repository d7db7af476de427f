#include "common/base/crc32c.h"

#include <algorithm>

#include <isa-l/crc.h>

namespace muster {

std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  // isa-l's length is an int and it neither starts nor ends with the usual inversion.
  constexpr std::size_t kStep = 1U << 30;
  std::uint32_t crc = ~before;
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kStep);
    // isa-l takes a pointer to non-const and only reads through it.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    crc = crc32_iscsi(data, static_cast<int>(n), crc);
    bytes = bytes.subspan(n);
  }
  return ~crc;
}

}  // namespace muster
