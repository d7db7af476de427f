// Frames both ways at once over one socket: what cannot be written yet waits in memory while the
// same loop goes on reading, so two peers that both send more than the kernel holds never wait for
// each other. Frames that gather while the socket takes no more go out together.
//
// A peer that stands still answers no ping (its kernel would acknowledge bytes for it), and is told
// from a slow one by that.
//
// Threading: Queue(), Flush(), unsent() and ShutDown() from any thread; the rest is the leader's,
// one thread at a time (who waits for an answer reads the link itself). Lifetime: the clock
// outlives it. Errors: kUnavailable, the peer is gone; kDeadlineExceeded, it is silent; kDataLoss,
// it stopped inside a frame, or a checksum fails. After any error: close.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/functional/function_ref.h>

#include "common/base/kept_bytes.h"
#include "common/base/mutex.h"
#include "common/base/real_clock.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/fd.h"
#include "common/net/frame.h"
#include "common/net/link.h"
#include "common/net/spin.h"
#include "common/net/stream.h"

namespace muster::net {

// Frames of the connection itself, beside those of the handshake. A PING is answered by a PONG with
// the same request; neither has meta or payload.
inline constexpr FrameKind kPing = 5;
inline constexpr FrameKind kPong = 6;

class DuplexLink {
 public:
  struct Options {
    FrameLimits limits = {.meta_bytes = 1U << 20, .payload_bytes = 64U << 20};
    // Payloads carry a checksum. Headers and meta always do.
    bool payload_crc = false;
    // More than this unsent is refused: the peer reads nothing.
    std::size_t most_unsent = std::size_t{256} << 20;
    // A peer that was not heard of for `ping_every` is asked, and has `silence` for an answer, from
    // when it takes no more of what was queued before the question.
    Millis ping_every{1'000};
    Millis silence{3'000};
  };
  // `header` has been checked, meta and payload against their checksums; they are valid during the
  // call, but for a long payload, which is kept. An error ends Receive() with it.
  using Handler = absl::FunctionRef<Status(
      const FrameHeader& header, std::span<const std::byte> meta, const KeptBytes& payload)>;

  // `fd` does not block. Sends no ping before the peer has said something.
  DuplexLink(Fd fd, LinkKind kind, std::string peer, Options options,
             const Clock& clock = RealClock());
  // Over a stream that a handshake was made on.
  DuplexLink(std::shared_ptr<Stream> stream, LinkKind kind, std::string peer, Options options,
             const Clock& clock = RealClock());

  LinkKind kind() const { return kind_; }
  const std::string& peer() const { return peer_; }
  int fd() const { return stream_->fd(); }

  // Puts a frame behind those that wait; lengths and checksums are filled in. Bytes are copied, but
  // for what is worth holding, which is sent from where it lies. Sends nothing yet. `descriptor`
  // goes along on a Unix socket.
  //   kResourceExhausted: more than Options::most_unsent wait; never of a PING.  kUnavailable:
  //   ShutDown() was called.
  Status Queue(FrameHeader header, std::span<const std::byte> meta,
               std::span<const KeptBytes> payload, Fd descriptor = {});
  // Writes what the socket takes now, never waits. False: something is left, for the leader's loop.
  Result<bool> Flush();
  // Bytes that wait.
  std::size_t unsent() const { return unsent_.load(std::memory_order_acquire); }
  // Ends all waits of the peer and of the leader.
  void ShutDown();

  // Hands over what has come, without waiting; how many frames that was, pings included.
  Result<std::size_t> Receive(Handler handler);
  // Asks a quiet peer, after Receive().  kDeadlineExceeded: it did not answer.
  Status Tick();
  // When Tick() has something to do.
  TimePoint next_tick() const;
  // A descriptor that came along, the oldest first; invalid: none.
  Fd TakeDescriptor();

 private:
  struct Attached {
    std::size_t at = 0;  // in out_, of the byte that it goes with
    Fd descriptor;
  };
  // What goes out before the byte `at` of out_.
  struct Held {
    std::size_t at = 0;
    KeptBytes bytes;
  };
  // A frame whose payload has memory of its own.
  struct Long {
    FrameHeader header;
    std::vector<std::byte> meta;
    std::shared_ptr<std::byte[]> payload;
    std::size_t got = 0;
    std::size_t left() const { return header.payload_bytes - got; }
  };
  void Sent(std::size_t bytes, bool from_held) MUSTER_REQUIRES(out_mutex_);
  // Where the next bytes go.
  std::span<std::byte> Room();
  Result<std::size_t> ReadInto(std::span<std::byte> room);
  void MakeRoom(std::size_t wanted);
  // Hands over one frame if it is there whole.
  Result<bool> HandleOne(Handler handler);
  void BeginLong(const FrameHeader& header);
  Status Handle(const FrameHeader& header, std::span<const std::byte> meta,
                const KeptBytes& payload, Handler handler);
  Status HandleConnection(const FrameHeader& header);
  // Since when the peer has nothing to read before the ping that waits for an answer.
  TimePoint Asked() const;
  Status Closed() const;

  const std::shared_ptr<Stream> stream_;
  const LinkKind kind_;
  const std::string peer_;
  const Options options_;
  const Clock& clock_;

  Mutex out_mutex_;
  std::vector<std::byte> out_ MUSTER_GUARDED_BY(out_mutex_);  // [sent_, end) waits
  std::deque<Held> held_ MUSTER_GUARDED_BY(out_mutex_);
  std::size_t held_bytes_ MUSTER_GUARDED_BY(out_mutex_) = 0;  // not sent
  std::size_t sent_ MUSTER_GUARDED_BY(out_mutex_) = 0;
  std::deque<Attached> attached_ MUSTER_GUARDED_BY(out_mutex_);
  bool shut_down_ MUSTER_GUARDED_BY(out_mutex_) = false;
  std::atomic<std::size_t> unsent_{0};
  // Bytes that wait up to the end of the last ping, and when some of them went last.
  std::size_t ping_unsent_ MUSTER_GUARDED_BY(out_mutex_) = 0;
  std::atomic<TimePoint> ping_moved_{TimePoint::min()};

  // The leader's.
  std::vector<std::byte> in_;  // [begin_, end_) is not handled
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::optional<Long> long_;
  std::deque<Fd> descriptors_;
  TimePoint heard_;
  std::optional<TimePoint> pinged_;  // without an answer yet
  bool spoken_to_ = false;
};

// The leader's wait: until one of the links has something to read, takes more of what waits, a tick
// is due, `wake` can be read (-1: none), or the deadline is over. Null links are left out. With
// `spinner` it looks for a while before it blocks.
//   What is readable is found by Receive(), not told here.
void WaitForLinks(std::span<DuplexLink* const> links, int wake, TimePoint deadline,
                  Spinner* spinner);

}  // namespace muster::net
