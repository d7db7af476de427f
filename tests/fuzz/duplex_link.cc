// What a peer may send over a duplex link: any bytes, and frames with good checksums of any kind
// and length, cut anywhere.
#include "common/net/duplex_link.h"

#include <algorithm>
#include <array>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace muster;

constexpr net::FrameLimits kLimits{.meta_bytes = 4096, .payload_bytes = 2 * kLongBytes};

void Feed(std::span<const std::byte> bytes) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) != 0) return;
  const net::Fd peer(ends[1]);
  net::DuplexLink link(net::Fd(ends[0]), net::LinkKind::kUnix, "peer", {.limits = kLimits});
  Status status;
  for (int i = 0; i < 1'000 && status.ok(); ++i) {
    // A pair of sockets holds less than a long frame.
    if (!bytes.empty()) {
      const ssize_t took = ::send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (took > 0) bytes = bytes.subspan(static_cast<std::size_t>(took));
    }
    if (bytes.empty()) (void)::shutdown(peer.get(), SHUT_WR);
    status =
        link.Receive([](const net::FrameHeader& header, std::span<const std::byte> meta,
                        const KeptBytes& payload) {
              fuzz::Require(meta.size() == header.meta_bytes, "meta is what the header says");
              fuzz::Require(meta.size() <= kLimits.meta_bytes, "meta is within its limit");
              fuzz::Require(payload.size() == header.payload_bytes, "payload is, too");
              fuzz::Require(payload.size() <= kLimits.payload_bytes, "payload is within its limit");
              fuzz::Require((payload.size() >= kLongBytes) == (payload.Hold() != nullptr),
                            "what is long is kept");
              return Ok();
            })
            .status();
  }
  fuzz::Require(!status.ok(), "a link that was closed ends");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 60'000) return 0;
  const auto bytes = fuzz::Bytes(data, size);
  Feed(bytes);
  // The input as frames: three bytes say kind and lengths, checksums are right, the last is cut. A
  // payload of 240 bytes and more is about as long as what is held.
  std::vector<std::byte> frames;
  for (std::size_t at = 0; at + 3 < size && frames.size() < 2 * kLongBytes;) {
    net::FrameHeader header{.kind = data[at], .meta_bytes = data[at + 1]};
    const std::size_t payload = data[at + 2];
    header.payload_bytes = payload < 240 ? payload : kLongBytes - 248 + payload;
    at += 3;
    const auto meta = bytes.subspan(at, std::min<std::size_t>(header.meta_bytes, size - at));
    header.meta_bytes = static_cast<std::uint32_t>(meta.size());
    header.meta_crc = meta.empty() ? 0 : Crc32c(meta);
    std::array<std::byte, net::kHeaderBytes> raw{};
    EncodeHeader(header, raw);
    frames.insert(frames.end(), raw.begin(), raw.end());
    frames.insert(frames.end(), meta.begin(), meta.end());
    frames.insert(frames.end(), header.payload_bytes, std::byte{7});
    at += meta.size();
  }
  if (!frames.empty()) frames.pop_back();
  Feed(frames);
  return 0;
}
