#include "common/net/frame.h"

#include <bit>
#include <cstring>

#include "common/base/crc32c.h"

namespace muster::net {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian in memory");

constexpr std::array<char, 4> kMagic = {'M', 'S', 'T', 'R'};
constexpr std::size_t kCrcOffset = kHeaderBytes - sizeof(std::uint32_t);

// The layout on the wire; every field is aligned, so the compiler adds nothing.
struct Raw {
  std::array<char, 4> magic;
  std::uint8_t version;
  std::uint8_t kind;
  std::uint16_t flags;
  std::uint64_t request;
  FrameIds ids;
  std::uint64_t payload_bytes;
  std::uint32_t meta_bytes;
  std::uint32_t status;
  std::uint32_t meta_crc;
  std::uint32_t payload_crc;
  std::uint32_t reserved;
  std::uint32_t header_crc;
};
static_assert(sizeof(Raw) == kHeaderBytes);

}  // namespace

void EncodeHeader(const FrameHeader& header, std::span<std::byte, kHeaderBytes> into) {
  Raw raw{};
  raw.magic = kMagic;
  raw.version = kFrameVersion;
  raw.kind = header.kind;
  raw.flags = header.flags;
  raw.request = header.request;
  raw.ids = header.ids;
  raw.payload_bytes = header.payload_bytes;
  raw.meta_bytes = header.meta_bytes;
  raw.status = header.status;
  raw.meta_crc = header.meta_crc;
  raw.payload_crc = header.payload_crc;
  std::memcpy(into.data(), &raw, kHeaderBytes);
  const std::uint32_t crc = Crc32c(into.first<kCrcOffset>());
  std::memcpy(into.data() + kCrcOffset, &crc, sizeof(crc));
}

Result<FrameHeader> DecodeHeader(std::span<const std::byte, kHeaderBytes> bytes,
                                 const FrameLimits& limits) {
  Raw raw{};
  std::memcpy(&raw, bytes.data(), kHeaderBytes);
  if (raw.magic != kMagic) {
    return DataLoss("not a Muster frame: it begins with {:02x} {:02x} {:02x} {:02x}",
                    static_cast<unsigned>(bytes[0]), static_cast<unsigned>(bytes[1]),
                    static_cast<unsigned>(bytes[2]), static_cast<unsigned>(bytes[3]));
  }
  const std::uint32_t crc = Crc32c(bytes.first<kCrcOffset>());
  if (crc != raw.header_crc) {
    return DataLoss("frame header fails its checksum: {:08x}, it says {:08x}", crc, raw.header_crc);
  }
  if (raw.version != kFrameVersion) {
    return Unimplemented("frame version {}; this program speaks version {}", raw.version,
                         kFrameVersion);
  }
  if (raw.meta_bytes > limits.meta_bytes) {
    return ResourceExhausted("frame {}: {} bytes of meta, limit {}", raw.request, raw.meta_bytes,
                             limits.meta_bytes);
  }
  if (raw.payload_bytes > limits.payload_bytes) {
    return ResourceExhausted("frame {}: {} bytes of payload, limit {}", raw.request,
                             raw.payload_bytes, limits.payload_bytes);
  }
  return FrameHeader{.kind = raw.kind,
                     .flags = raw.flags,
                     .request = raw.request,
                     .ids = raw.ids,
                     .status = raw.status,
                     .meta_bytes = raw.meta_bytes,
                     .payload_bytes = raw.payload_bytes,
                     .meta_crc = raw.meta_crc,
                     .payload_crc = raw.payload_crc};
}

}  // namespace muster::net
