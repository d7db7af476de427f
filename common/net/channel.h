// Frames over a link.
//
// Threading: one thread. Lifetime: the clock outlives it.
// Errors: those of Link and DecodeHeader; kDeadlineExceeded also says for how long it was waited
// and how many bytes of how many had come; kDataLoss, the peer stopped in the middle of a frame, or
// a checksum fails. After any error the stream may stand mid-frame: close.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/uio.h>

#include "common/base/real_clock.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/frame.h"
#include "common/net/link.h"
#include "common/net/socket.h"

namespace muster::net {

class Channel {
 public:
  explicit Channel(std::unique_ptr<Link> link, FrameLimits limits = {},
                   const Clock& clock = RealClock())
      : link_(std::move(link)), clock_(clock), limits_(limits) {}
  // Over a socket.
  Channel(Fd fd, LinkKind kind, std::string peer, SpinMode spin, SpinLimit* limit,
          FrameLimits limits = {})
      : Channel(std::make_unique<Socket>(std::move(fd), kind, std::move(peer), spin, limit),
                limits) {}
  // The same over a stream that goes on without it: for a handshake that another thing follows.
  Channel(std::shared_ptr<Stream> stream, LinkKind kind, std::string peer, FrameLimits limits)
      : Channel(std::make_unique<Socket>(std::move(stream), kind, std::move(peer), SpinMode::kOff,
                                         nullptr),
                limits) {}

  Link& link() { return *link_; }
  const Link& link() const { return *link_; }
  const Clock& clock() const { return clock_; }
  // The moment `time` from now.
  TimePoint After(Millis time) const { return clock_.Now() + time; }

  // Before the handshake a peer may send little; after it, what requests need.
  void SetLimits(const FrameLimits& limits) { limits_ = limits; }
  // From now on payloads carry a checksum and are checked by it (a TCP link between two hosts).
  void UsePayloadCrc() { payload_crc_ = true; }
  bool uses_payload_crc() const { return payload_crc_; }

  // From now on meta and payload may not pause for longer than this, whatever their own deadlines:
  // a peer that stopped in the middle of a frame holds what was reserved for it.
  void SetQuietLimit(Millis limit) { quiet_limit_ = limit; }

  // Fills in lengths and checksums.
  Status Send(FrameHeader header, std::span<const std::byte> meta, std::span<const iovec> payload,
              TimePoint deadline, int descriptor = -1);
  // An answer that ends a request with an error.
  Status SendError(const FrameHeader& request, FrameKind kind, const Status& error,
                   TimePoint deadline);

  // Waits until `first` for a frame to begin, then at most `rest` for its header, and again for its
  // meta, to be there; never longer than `latest`. Empty: the peer closed between two frames.
  // meta() is valid until the next call.
  Result<std::optional<FrameHeader>> ReadFrame(TimePoint first, Millis rest,
                                               TimePoint latest = TimePoint::max());
  // The same with one limit for all of it.
  Result<std::optional<FrameHeader>> ReadFrame(TimePoint deadline);
  std::span<const std::byte> meta() const { return meta_; }

  // Waits until a frame has begun, or the peer has closed: ReadFrame() then has something to say.
  // False: neither, until `deadline`; the stream stands between two frames still.
  Result<bool> AwaitFrame(TimePoint deadline);

  // The payload of the frame read last, piece by piece; the last piece checks the checksum.
  Status ReadPayload(std::span<std::byte> into, TimePoint deadline);
  // What is left of it.
  Status SkipPayload(TimePoint deadline);

  // A descriptor may come with one of the next frames; TakeDescriptor() has it then.
  void ExpectDescriptor() { expect_descriptor_ = true; }
  Fd TakeDescriptor() {
    expect_descriptor_ = false;
    return std::move(descriptor_);
  }

 private:
  // Makes at least `n` bytes available in the buffer. False: closed before the first of them.
  Result<bool> Fill(std::size_t n, TimePoint first, Millis rest, TimePoint latest);
  // Bytes [first, first + into.size()) of the `all` that the current frame's `part` has.
  Status Fetch(std::span<std::byte> into, TimePoint deadline, std::string_view part,
               std::uint64_t first, std::uint64_t all);
  // In words for a message, since `began`.
  std::string Took(TimePoint began) const;

  std::unique_ptr<Link> link_;
  const Clock& clock_;
  FrameLimits limits_;
  std::optional<Millis> quiet_limit_;
  bool payload_crc_ = false;
  bool expect_descriptor_ = false;
  Fd descriptor_;
  // The frame read last, and when its header was there.
  FrameHeader current_;
  TimePoint frame_began_;
  std::uint64_t payload_left_ = 0;
  std::uint32_t crc_so_far_ = 0;
  std::vector<std::byte> meta_;
  // Bytes [begin_, end_) have been read ahead: header and table of a small request come in one
  // call.
  std::array<std::byte, 8192> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

// The status that a frame says, its message from meta, "peer: " before it.
Status StatusOf(const FrameHeader& header, std::span<const std::byte> meta);

}  // namespace muster::net
