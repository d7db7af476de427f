// CRC-32C (Castagnoli), as in iSCSI. Threading: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace muster {

// The sum of `bytes`; pass an earlier result to go on.
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

// As TFRecord files carry it, so that the sum of data with sums inside is no special value.
inline std::uint32_t MaskedCrc32c(std::span<const std::byte> bytes) {
  const std::uint32_t crc = Crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

}  // namespace muster
