// The frame of the data plane: a fixed little-endian header, a small table ("meta"), raw tensor
// bytes. docs/formats/frame.md shows one byte by byte.
//
// What a frame asks for is the business of the protocol that runs over the connection: it numbers
// its own kinds, gives the header's ids their meaning, and refuses the kinds that it does not know
// (ps/wire.h is one).
//
// Threading: values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/status.h"

namespace muster::net {

inline constexpr std::size_t kHeaderBytes = 80;
inline constexpr std::uint8_t kFrameVersion = 1;

using FrameKind = std::uint8_t;

// The kinds below 16 are those of connections, whatever runs over them.
// Handshake, in this order.
inline constexpr FrameKind kNonce = 1;
inline constexpr FrameKind kHello = 2;
inline constexpr FrameKind kWelcome = 3;
// Client to server, once, on a local link: carries the arena's descriptor.
inline constexpr FrameKind kArena = 4;
// After that, where the arena's answer has kFlagRings: carries the descriptor of rings (rings.h),
// through which all that follows its answer passes.
inline constexpr FrameKind kRings = 7;
// Protocols number theirs from here on.
inline constexpr FrameKind kFirstOfProtocols = 16;

// Set: payload_crc holds the payload's CRC32C.
inline constexpr std::uint16_t kFlagPayloadCrc = 1;
// More frames follow: of the same reply, or, in a request, of the same call.
inline constexpr std::uint16_t kFlagMore = 2;
// In the answer to an arena: rings are welcome.
inline constexpr std::uint16_t kFlagRings = 4;

// What the request is about and what it must not be older than, as the protocol lays it out. Here
// it is carried, and repeated in an answer that is an error.
using FrameIds = std::array<std::byte, 32>;

struct FrameHeader {
  FrameKind kind = 0;
  std::uint16_t flags = 0;
  // Chosen by who asks, repeated in the answer; 0: the last words before a connection is closed.
  std::uint64_t request = 0;
  FrameIds ids{};
  // Canonical code; not OK: meta is the message.
  std::uint32_t status = 0;
  std::uint32_t meta_bytes = 0;
  std::uint64_t payload_bytes = 0;
  std::uint32_t meta_crc = 0;
  std::uint32_t payload_crc = 0;
};

// What a reader accepts before it has looked at a byte of meta or payload.
struct FrameLimits {
  std::uint32_t meta_bytes = 4U << 20;
  std::uint64_t payload_bytes = 16ULL << 30;
};

// Adds magic, version and the header's own checksum.
void EncodeHeader(const FrameHeader& header, std::span<std::byte, kHeaderBytes> into);

// kDataLoss: wrong magic or checksum: the peer speaks something else, or the stream is damaged.
// kUnimplemented: another version.  kResourceExhausted: a length is over its limit.
Result<FrameHeader> DecodeHeader(std::span<const std::byte, kHeaderBytes> raw,
                                 const FrameLimits& limits);

}  // namespace muster::net
