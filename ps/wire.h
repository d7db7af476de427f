// The parameter server's protocol: the kinds of its frames, the ids in their headers, their tables.
// docs/formats/frame.md shows them byte by byte.
//
// A request's meta is one WireEntry per shard. Its payload, on TCP only, has for each entry the ids
// (rows only) and then the values (push and assign only), each padded to 8 bytes. On a local link
// they stand in the client's arena at the offsets that the entry names, and so do a pull's results.
// A call that one frame does not hold goes in several, one after another; all but the last carry
// kFlagMore, so that its server waits for them no longer than for one.
//
// A reply's meta is one u64 per entry: the shard's version (pull), or a WireOutcome (push). Over
// TCP a pull may be answered by several frames, each for the next few entries; all but the last
// carry kFlagMore. A reply with a status other than 0 ends the request; its meta is the message.
//
// Threading: values and pure functions.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/net/frame.h"
#include "common/net/handshake.h"

namespace muster::ps {

enum class Verb : net::FrameKind {
  kPullDense = net::kFirstOfProtocols,
  kPullRows,
  kPush,
  kAssign,
  kReply = 32,
};

inline constexpr auto kReply = static_cast<net::FrameKind>(Verb::kReply);

constexpr bool IsPull(Verb verb) { return verb == Verb::kPullDense || verb == Verb::kPullRows; }
constexpr bool IsRequest(Verb verb) {
  return IsPull(verb) || verb == Verb::kPush || verb == Verb::kAssign;
}

// What each frame of the protocol says of itself.
struct WireIds {
  JobNumber job{};
  ViewId view{};
  // The update's number, from 1, and in a push the execution that it comes from. A pull of none (an
  // evaluation's) has 0.
  ClosureId closure{};
  Attempt attempt{};
};

inline WireIds IdsOf(const net::FrameHeader& header) { return std::bit_cast<WireIds>(header.ids); }

inline net::FrameHeader MakeHeader(Verb verb, std::uint64_t request, const WireIds& ids,
                                   std::uint16_t flags = 0) {
  return {.kind = static_cast<net::FrameKind>(verb),
          .flags = flags,
          .request = request,
          .ids = std::bit_cast<net::FrameIds>(ids)};
}

// A hello's role says which job its process is of: "model job-7", "program job-7".
inline constexpr std::string_view kModelRole = "model ";
inline constexpr std::string_view kProgramRole = "program ";

inline std::string RoleOf(std::string_view kind, std::string_view job_id) {
  return std::string(kind).append(job_id);
}
// The job's id; nullopt: the role is of another kind.
inline std::optional<std::string_view> JobOf(std::string_view kind, std::string_view role) {
  if (!role.starts_with(kind) || role.size() == kind.size()) return std::nullopt;
  return role.substr(kind.size());
}

// What a model job's hello asks for, beside the job's id, which is in its role.
struct WireSubject {
  JobNumber job{};
  ViewId view{};
};

inline net::Subject SubjectOf(const WireSubject& subject) {
  return std::bit_cast<net::Subject>(subject);
}
inline WireSubject SubjectOf(const net::Hello& hello) {
  return std::bit_cast<WireSubject>(hello.subject);
}

enum class WireAccess : std::uint32_t { kDense = 0, kRows = 1 };
enum class WireOutcome : std::uint64_t { kApplied = 0, kDuplicate = 1 };

struct WireEntry {
  // The shard's index in JobShards::shards().
  std::uint32_t shard = 0;
  std::uint32_t access = 0;
  // Row ids, i64, local to the shard; 0 for dense access.
  std::uint64_t ids = 0;
  // Values, f32.
  std::uint64_t floats = 0;
  // In the arena; 0 on TCP.
  std::uint64_t ids_offset = 0;
  std::uint64_t values_offset = 0;
};
static_assert(sizeof(WireEntry) == 40 && std::is_trivially_copyable_v<WireEntry>);

// More entries than this in one frame are refused.
inline constexpr std::uint32_t kMaxEntries = 65'536;
// One frame carries about this much on TCP, or one shard where that is larger.
inline constexpr std::uint64_t kFrameTarget = 32ULL << 20;
// What a transfer may take beside the fixed limits of both sides: at this rate or better.
inline constexpr std::uint64_t kSlowBytesPerSecond = 50'000'000;
constexpr Millis TimeFor(std::uint64_t bytes) { return Millis(1000 * bytes / kSlowBytesPerSecond); }
// An arena larger than this is refused; it is address space, not memory.
inline constexpr std::uint64_t kMaxArenaBytes = 1ULL << 43;

constexpr std::uint64_t PaddedTo8(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace muster::ps
