// What processes of a program and a parameter server say to each other about its variables, beside
// wire.h, which is the model jobs'. docs/formats/frame.md shows it byte by byte.
//
// The connection is one program's: its hello names job, epoch and the driver's incarnation, and is
// proven with the job's key. Every request is answered by one REPLY (a READ over TCP by several,
// where it is long). CREATE, DELETE, LOOKUP and ATTACH carry a message of variables.proto as meta.
//
// Threading: values and pure functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/net/frame.h"
#include "common/net/handshake.h"
#include "ps/elements.h"

namespace muster::ps {

// The number of a program's space of variables on one server, never 0: another number is other
// memory, which a restarted server has.
using SpaceId = Id<struct SpaceTag>;

// What one variable has at most: every dimension fits, so that sizes in bytes do.
inline constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

enum class ProgramVerb : net::FrameKind {
  // Reply: SpaceId.
  kOpen = 40,
  // Meta CreateShard, payload its value or nothing; reply u32, the shard's index here.
  kCreate,
  // Meta ShardList.
  kDelete,
  // Meta LookupVariable; reply FoundVariable.
  kLookup,
  // Meta AttachOptimizer.
  kAttach,
  // Meta ReadEntry table; reply ReadMark table and values.
  kRead,
  // Meta WriteEntry table; reply u64 for each shard's part: 0 applied, 1 had been applied.
  kWrite,
  // Nothing but the ids: how far closures have settled, and which steps are over.
  kSettle,
};

constexpr bool IsProgramRequest(net::FrameKind kind) {
  return kind >= static_cast<net::FrameKind>(ProgramVerb::kOpen) &&
         kind <= static_cast<net::FrameKind>(ProgramVerb::kSettle);
}

// What each frame of a program says of itself.
struct ProgramIds {
  // Every closure up to it has ended for good, as far as the sender knows. It only grows.
  ClosureId settled{};
  // WRITE: FlushId.
  ClosureId closure{};
  Attempt attempt{};
  std::uint64_t flush = 0;
};

// The synchronous step that a frame is of, from 1; 0: of none. It says that all steps before it are
// over, and a WRITE is staged for it. It stands above the number of the flush.
inline constexpr int kStepShift = 32;
constexpr std::uint64_t StepOf(const ProgramIds& ids) {
  // A writer of no closure counts as far as it likes.
  const bool writer = ids.closure == ClosureId() && ids.attempt != Attempt();
  return writer ? 0 : ids.flush >> kStepShift;
}
constexpr std::uint64_t FlushOf(const ProgramIds& ids) {
  return StepOf(ids) == 0 ? ids.flush : ids.flush & ((std::uint64_t{1} << kStepShift) - 1);
}

// The flushes of a closure. Of several parts that write for it at the same time (replicas, from 1;
// 0: the closure itself) each counts its own, from 1, below the part's number.
inline constexpr int kPartShift = 24;
inline constexpr std::uint64_t kMostFlushes = (std::uint64_t{1} << kPartShift) - 1;
// The same for a closure that has no parts, in no synchronous step.
inline constexpr std::uint64_t kMostFlushesAlone = (std::uint64_t{1} << kStepShift) - 1;
constexpr std::uint64_t FlushNumber(std::uint64_t part, std::uint64_t count) {
  return part << kPartShift | count;
}
// kUnimplemented: the `count`-th flush of a part is more than `most`.
Status CheckFlushCount(ClosureId closure, std::uint64_t count, std::uint64_t most);
// Where a flush stands among those of its closure in a synchronous step: by its count, then by its
// part. Parts that begin when others have ended count on from those (WriteSet).
constexpr std::uint64_t OrderOfFlush(std::uint64_t flush) {
  return (flush & kMostFlushes) << (kStepShift - kPartShift) | flush >> kPartShift;
}

inline ProgramIds ProgramIdsOf(const net::FrameHeader& header) {
  return std::bit_cast<ProgramIds>(header.ids);
}
inline net::FrameHeader MakeHeader(ProgramVerb verb, std::uint64_t request, const ProgramIds& ids) {
  return {.kind = static_cast<net::FrameKind>(verb),
          .request = request,
          .ids = std::bit_cast<net::FrameIds>(ids)};
}

// What a hello asks for, beside the job's id, which is in its role.
struct ProgramSubject {
  Epoch epoch{};
  // The driver's: a later one's variables take the place of an earlier one's.
  Incarnation incarnation{};
};

inline net::Subject SubjectOf(const ProgramSubject& subject) {
  return std::bit_cast<net::Subject>(subject);
}
inline ProgramSubject ProgramSubjectOf(const net::Hello& hello) {
  return std::bit_cast<ProgramSubject>(hello.subject);
}

struct ReadEntry {
  // CREATE's answer.
  std::uint32_t shard = 0;
  // 0: the variable's values; k: its optimizer's slot k - 1.
  std::uint32_t slot = 0;
  // 0: whole; 1: rows.
  std::uint32_t access = 0;
  // 1: who asks copies it out of the arena at once; 0: it is used where it lies, or goes over TCP.
  std::uint32_t copied = 0;
  // Row ids, i64, local to the shard.
  std::uint64_t ids = 0;
  // What there is to read.
  std::uint64_t bytes = 0;
  // In the arena; 0 on TCP.
  std::uint64_t ids_offset = 0;
  std::uint64_t values_offset = 0;
};
static_assert(sizeof(ReadEntry) == 48 && std::is_trivially_copyable_v<ReadEntry>);

// A shard when it was read.
struct ReadMark {
  // Changes so far.
  std::uint64_t version = 0;
  // How many updates its optimizer has made.
  std::uint64_t updates = 0;
};
static_assert(sizeof(ReadMark) == 16);

// WriteEntry::op beside ElementOp's.
inline constexpr std::uint8_t kGradient = 32;

struct WriteEntry {
  // As in ReadEntry. Entries of one shard stand together: they are applied in order, at once.
  std::uint32_t shard = 0;
  std::uint16_t slot = 0;
  // An ElementOp, or kGradient.
  std::uint8_t op = 0;
  // 0: whole; 1: rows.
  std::uint8_t access = 0;
  std::uint64_t ids = 0;
  std::uint64_t bytes = 0;
  std::uint64_t ids_offset = 0;
  std::uint64_t values_offset = 0;
  // What a gradient comes with.
  double learning_rate = 0;
};
static_assert(sizeof(WriteEntry) == 48 && std::is_trivially_copyable_v<WriteEntry>);

// One operation of a write set on one shard. Spans live as long as the call.
struct ShardWrite {
  std::uint32_t shard = 0;
  std::uint16_t slot = 0;
  // An ElementOp, or kGradient.
  std::uint8_t op = 0;
  bool rows = false;
  // Local to the shard. A gradient's are unique.
  std::span<const std::int64_t> ids{};
  std::span<const std::byte> values{};
  double learning_rate = 0;
};

// The tables of a READ and a WRITE, checked as far as that is possible without the shards: known
// numbers, ids only for rows, sums that a payload can have, a shard's writes together. `payload` is
// what the frame brings; on a local link nothing.
//   kInvalidArgument: says which entry, and what is allowed.
Result<std::vector<ReadEntry>> ParseReads(std::span<const std::byte> meta, std::uint64_t payload,
                                          bool local);
Result<std::vector<WriteEntry>> ParseWrites(std::span<const std::byte> meta, std::uint64_t payload,
                                            bool local);

}  // namespace muster::ps
