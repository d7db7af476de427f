// What driver and executors say to each other: frames of fixed records, with arguments or values as
// payload. docs/formats/dispatch.md shows them byte by byte.
//
//   driver -> executor   CREDIT    once: the link is open
//   executor -> driver   CREDIT    how many closures it runs at a time; 0: no more, it ends
//   driver -> executor   CLOSURES  records with arguments
//   driver -> executor   CANCEL    closures up to an id, or a per-worker value that is over
//   executor -> driver   RESULTS   records with values or errors
//
// Before that comes the handshake of common/net, with the job's key for a token and WireSubject.
// Errors: kDataLoss, what came is no such frame.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dispatch/core/closure_error.h"
#include <absl/functional/function_ref.h>

#include "common/base/ids.h"
#include "common/base/kept_bytes.h"
#include "common/base/status.h"
#include "common/net/duplex_link.h"
#include "common/net/handshake.h"

namespace muster::dispatch {

inline constexpr std::uint16_t kProtocol = 1;

enum class Verb : net::FrameKind {
  kClosures = net::kFirstOfProtocols,
  kResults,
  kCancel,
  kCredit,
};

struct WireRecord {
  ClosureId closure = {};
  Attempt attempt = {};
  // CREDIT: closures at a time.
  std::uint32_t function = 0;
  std::uint32_t flags = 0;
  // Length of its part of the payload, which is in the order of the records.
  std::uint32_t bytes = 0;
  // RESULTS: how many nanoseconds it ran; as many as fit. CLOSURES: how many milliseconds it may
  // run; 0: as many as it likes.
  std::uint32_t run_time = 0;
};
static_assert(sizeof(WireRecord) == 32 && std::is_trivially_copyable_v<WireRecord>);

// Flags of CLOSURES are those of assignment.h. RESULTS: the bytes are an error.
inline constexpr std::uint32_t kFlagError = 1;
// RESULTS: behind the value or error are bookmarks (core/bookmark.h).
inline constexpr std::uint32_t kFlagBookmarks = 2;
// CANCEL: the closure is a per-worker value, which is over; else all closures up to it are
// cancelled.
inline constexpr std::uint32_t kFlagRelease = 1;

// Arguments and values of one closure are at most this long.
inline constexpr std::size_t kMostBytes = std::size_t{128} << 20;
// What a link must accept for that.
inline constexpr net::FrameLimits kLinkLimits{.meta_bytes = 1U << 20,
                                              .payload_bytes = kMostBytes + (4U << 20)};

// What a driver comes for; two sides with other functions do not work together.
struct WireSubject {
  std::uint16_t protocol = kProtocol;
  std::uint16_t incarnation = 0;
  std::uint32_t epoch = 0;
  std::uint64_t functions = 0;  // FunctionTable::hash()
};
static_assert(sizeof(WireSubject) == sizeof(net::Subject));

// Records that go out together. Not thread-safe.
class Batch {
 public:
  explicit Batch(Verb verb) : verb_(verb) {}
  bool empty() const { return records_.empty(); }
  std::size_t size() const { return records_.size(); }
  std::size_t bytes() const { return payload_.size() + held_bytes_; }
  // True: it is long enough to be sent before more is added.
  bool Add(WireRecord record, const KeptBytes& bytes = {});
  // Queues it on the link, as one frame, and is empty again. After an error it is as it was.
  Status QueueOn(net::DuplexLink& link);

 private:
  const Verb verb_;
  std::vector<WireRecord> records_;
  std::vector<std::byte> payload_;
  // Those that are held, each with its place in payload_.
  std::vector<std::pair<std::size_t, KeptBytes>> held_;
  std::size_t held_bytes_ = 0;
};

// Calls `each` for the records of a frame, in order.
Status ReadBatch(std::span<const std::byte> meta, const KeptBytes& payload,
                 absl::FunctionRef<Status(const WireRecord&, const KeptBytes&)> each);

std::vector<std::byte> EncodeError(const ClosureError& error);
Result<ClosureError> DecodeError(std::span<const std::byte> bytes);

// A closure's error as the Status that calls return, and back; nullopt: the status has none.
Status ToStatus(const ClosureError& error);
std::optional<ClosureError> ErrorOf(const Status& status);

}  // namespace muster::dispatch
