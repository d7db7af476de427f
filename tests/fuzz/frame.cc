// The fixed header of the data plane: the first bytes that a stranger sends. Its checksum keeps
// nearly all inputs out, so a header that says the same with a good checksum is tried, too.
#include "common/net/frame.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/fuzz/fuzz.h"

namespace {

using muster::net::FrameHeader;
using muster::net::kHeaderBytes;

constexpr muster::net::FrameLimits kLimits{.meta_bytes = 4096, .payload_bytes = 1 << 20};

void Decode(const std::array<std::byte, kHeaderBytes>& raw) {
  const auto header = DecodeHeader(raw, kLimits);
  if (!header.ok()) return;
  muster::fuzz::Require(header->meta_bytes <= kLimits.meta_bytes, "meta is within its limit");
  muster::fuzz::Require(header->payload_bytes <= kLimits.payload_bytes,
                        "payload is within its limit");
  std::array<std::byte, kHeaderBytes> again{};
  EncodeHeader(*header, again);
  muster::fuzz::Require(again == raw, "a header has one encoding");
}

// The input as fields: whatever they are, their checksum is right.
FrameHeader FromFields(const std::array<std::byte, kHeaderBytes>& raw) {
  FrameHeader header;
  header.kind = std::to_integer<muster::net::FrameKind>(raw[0]);
  std::memcpy(&header.flags, &raw[1], sizeof header.flags);
  std::memcpy(&header.request, &raw[8], sizeof header.request);
  std::memcpy(header.ids.data(), &raw[16], header.ids.size());
  std::memcpy(&header.status, &raw[48], sizeof header.status);
  std::memcpy(&header.meta_bytes, &raw[52], sizeof header.meta_bytes);
  std::memcpy(&header.payload_bytes, &raw[56], sizeof header.payload_bytes);
  std::memcpy(&header.meta_crc, &raw[64], sizeof header.meta_crc);
  std::memcpy(&header.payload_crc, &raw[68], sizeof header.payload_crc);
  return header;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::array<std::byte, kHeaderBytes> raw{};
  std::copy_n(reinterpret_cast<const std::byte*>(data), std::min(size, raw.size()), raw.begin());
  Decode(raw);
  std::array<std::byte, kHeaderBytes> with_checksum{};
  EncodeHeader(FromFields(raw), with_checksum);
  Decode(with_checksum);
  return 0;
}
