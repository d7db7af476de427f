#include "collectives/process/shared_operations.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "collectives/packing.h"
#include "collectives/process/group_spec.h"
#include "collectives/process/signature.h"
#include "common/base/stream.h"

namespace muster::collectives {
namespace {

// A chunk is summed by everybody where all that it brings is up to this many bytes: a second wait
// would cost more.
constexpr std::size_t kSmall = 32U << 10;
constexpr std::size_t kAlign = 64;

std::size_t Aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

const std::byte* In(const ReduceBuffer& buffer, std::size_t element) {
  return static_cast<const std::byte*>(buffer.in) + element * SizeOf(buffer.type);
}
std::byte* Out(const ReduceBuffer& buffer, Reduction reduction, std::size_t element) {
  return static_cast<std::byte*>(buffer.out) + element * SizeOf(ResultType(reduction, buffer.type));
}

// Into a slot, which other members read.
void Hand(std::byte* to, const void* from, std::size_t bytes) {
  CopyFor(ReadBy::kAnother, to, from, bytes);
}

// What of `bytes`, a span, goes when `at` of them have gone and as many as `most` go at a time.
template <class Bytes>
Bytes PieceAt(Bytes bytes, std::size_t at, std::size_t most) {
  const std::size_t begin = std::min(at, bytes.size());
  return bytes.subspan(begin, std::min(most, bytes.size() - begin));
}

// The size of a part, where a slot has one for each member.
std::size_t PartBytes(std::size_t members) {
  return SharedMemory::kSlotBytes / members / kAlign * kAlign;
}

}  // namespace

std::uint64_t SharedOperations::Signature(const Operation& operation) const {
  // One word says which operation and with what.
  return collectives::Signature().Add(operation.tag.operation).Add(operation.tag.signature).value();
}

// Fills chunks as large as a slot with pieces of the buffers, and sums each as soon as it is full.
Status SharedOperations::AllReduce(const Operation& operation, Reduction reduction,
                                   std::span<const ReduceBuffer> buffers) {
  chunk_.clear();
  chunk_bytes_ = 0;
  std::size_t all = 0;
  for (const ReduceBuffer& buffer : buffers) {
    all += buffer.count() * SizeOf(ResultType(reduction, buffer.type));
  }
  large_ = all >= kPastCaches;
  if (numbers_ > 0 && all > kSmall) {
    MUSTER_TRY_ASSIGN(const bool done, ReduceWhereItLies(operation, reduction, buffers));
    if (done) return Ok();
  }
  for (const ReduceBuffer& buffer : buffers) {
    // A sum may be wider than what is summed; it lies in the same place.
    const std::size_t element =
        std::max(SizeOf(buffer.type), SizeOf(ResultType(reduction, buffer.type)));
    const std::size_t count = buffer.count();
    for (std::size_t begin = 0; begin < count;) {
      // kSlotBytes is a multiple of kAlign.
      const std::size_t offset = Aligned(chunk_bytes_);
      const std::size_t room = (SharedMemory::kSlotBytes - offset) / element;
      if (room == 0 || (room < count - begin && room * element < kAlign)) {
        MUSTER_TRY(ReduceChunk(operation, reduction));
        continue;
      }
      const std::size_t taken = std::min(room, count - begin);
      chunk_.push_back({&buffer, begin, taken, offset});
      chunk_bytes_ = offset + taken * element;
      begin += taken;
    }
  }
  // Also when there was nothing: all have to come.
  return ReduceChunk(operation, reduction);
}

void SharedOperations::Know(const std::shared_ptr<CommonMemory>& memory) {
  std::erase_if(known_, [](const Known& one) { return one.memory.expired(); });
  known_.push_back({++numbers_, memory});
}

std::uint64_t SharedOperations::Find(Reduction reduction, std::span<const ReduceBuffer> buffers,
                                     bool apart, std::vector<Found>& found) const {
  collectives::Signature places;
  const auto find = [&](const void* address, std::size_t bytes, std::shared_ptr<CommonMemory>& in,
                        std::size_t& offset) {
    for (const Known& known : known_) {
      std::shared_ptr<CommonMemory> memory = known.memory.lock();
      if (memory == nullptr) continue;
      const std::optional<std::size_t> at = memory->OffsetOf(address, bytes);
      if (!at.has_value()) continue;
      places.Add(known.number).Add(*at);
      in = std::move(memory);
      offset = *at;
      return true;
    }
    return false;
  };
  for (const ReduceBuffer& buffer : buffers) {
    Found& one = found.emplace_back();
    const std::size_t count = buffer.count();
    if (count == 0) continue;
    const std::size_t result = count * SizeOf(ResultType(reduction, buffer.type));
    if (!find(buffer.in, count * SizeOf(buffer.type), one.in, one.in_offset)) return 0;
    if (!apart && !find(buffer.out, result, one.out, one.out_offset)) return 0;
  }
  return places.Add(apart ? 1 : 0).value();
}

// One word of each member's says where its buffers lie: only equal ones are summed there, so that
// what this member finds of its own says where the others' lie, too.
Result<bool> SharedOperations::ReduceWhereItLies(const Operation& operation, Reduction reduction,
                                                 std::span<const ReduceBuffer> buffers) {
  std::vector<std::size_t> counts;
  std::size_t elements = 0;
  // Two members that both sum everything overwrite nothing that the other one still reads.
  bool apart = memory_.size() == 2;
  for (const ReduceBuffer& buffer : buffers) {
    const std::size_t count = counts.emplace_back(buffer.count());
    elements += count;
    apart = apart && (count == 0 || buffer.in != buffer.out);
  }
  std::vector<Found> found;
  const std::uint64_t places = Find(reduction, buffers, apart, found);
  std::memcpy(memory_.mine(sizeof(places)).data(), &places, sizeof(places));
  MUSTER_TRY(memory_.Publish(Signature(operation), operation.waiter));
  bool same = places != 0;
  for (int r = 0; r < memory_.size(); ++r) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, memory_.theirs(r, sizeof(theirs)).data(), sizeof(theirs));
    same = same && theirs == places;
  }
  if (!same) return false;
  const auto slice = [&](int rank) {
    return PiecesOf(counts, SliceOf(elements, static_cast<std::size_t>(rank),
                                    static_cast<std::size_t>(memory_.size())));
  };
  if (apart) {
    ReduceOwn(reduction, buffers, found, PiecesOf(counts, {0, elements}), /*handed=*/false);
  } else {
    ReduceOwn(reduction, buffers, found, slice(memory_.rank()), /*handed=*/true);
    MUSTER_TRY(memory_.Publish(Signature(operation), operation.waiter));
    for (int r = 0; r < memory_.size(); ++r) {
      if (r == memory_.rank()) continue;
      for (const Piece& piece : slice(r)) {
        const ReduceBuffer& buffer = buffers[piece.buffer];
        const Found& one = found[piece.buffer];
        const std::size_t size = SizeOf(ResultType(reduction, buffer.type));
        const std::size_t begin = piece.range.begin * size;
        Take(static_cast<std::byte*>(buffer.out) + begin, one.out->part(r) + one.out_offset + begin,
             (piece.range.end * size) - begin);
      }
    }
    if (large_) EndStream();
  }
  // Until all say so somebody may still read what is this member's. Who waits for that in vain goes
  // on with its memory all the same, and whoever was late has read what it should not have.
  if (const Status status = memory_.Publish(Signature(operation), operation.waiter); !status.ok()) {
    memory_.GiveUp();
    return status;
  }
  if (memory_.AnyGaveUp()) return Cancelled("the group is over: a member has given up waiting");
  return true;
}

void SharedOperations::ReduceOwn(Reduction reduction, std::span<const ReduceBuffer> buffers,
                                 std::span<const Found> found, std::span<const Piece> pieces,
                                 bool handed) {
  std::vector<const void*> sources(static_cast<std::size_t>(memory_.size()));
  for (const Piece& piece : pieces) {
    const ReduceBuffer& buffer = buffers[piece.buffer];
    const Found& one = found[piece.buffer];
    for (int r = 0; r < memory_.size(); ++r) {
      sources[static_cast<std::size_t>(r)] = one.in->part(r) + one.in_offset;
    }
    void* const out = buffer.out;
    const std::span<void* const> past(&out, handed || large_ ? 1 : 0);
    ReduceRange(reduction, buffer.type, sources, std::span(&out, past.empty() ? 1 : 0),
                piece.range.begin, piece.range.end, past);
  }
}

// Part of a result, which stays in the caches if all of it does.
void SharedOperations::Take(void* to, const void* from, std::size_t bytes) const {
  if (large_) {
    Stream(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

// Sums what lies in chunk_, and empties it.
Status SharedOperations::ReduceChunk(const Operation& operation, Reduction reduction) {
  static_assert(SharedMemory::kBriefBytes * (kMostMembers - 1) <= kSmall, "slices lie in slots");
  const bool small = chunk_bytes_ * (static_cast<std::size_t>(memory_.size()) - 1) <= kSmall;
  std::size_t elements = 0;
  for (const Placed& piece : chunk_) elements += piece.count;
  const std::span<std::byte> slot = memory_.mine(chunk_bytes_);
  // In a large chunk, the part that this member sums is needed by nobody else.
  const Range own = small ? Range{0, 0}
                          : SliceOf(elements, static_cast<std::size_t>(memory_.rank()),
                                    static_cast<std::size_t>(memory_.size()));
  std::size_t at = 0;
  for (const Placed& piece : chunk_) {
    const std::size_t size = SizeOf(piece.buffer->type);
    const auto copy = [&](std::size_t begin, std::size_t end) {
      if (begin >= end) return;
      Hand(slot.data() + piece.offset + begin * size, In(*piece.buffer, piece.begin + begin),
           (end - begin) * size);
    };
    const std::size_t own_begin = std::clamp(own.begin, at, at + piece.count) - at;
    const std::size_t own_end = std::clamp(own.end, at, at + piece.count) - at;
    copy(0, own_begin);
    copy(std::max(own_begin, own_end), piece.count);
    at += piece.count;
  }
  MUSTER_TRY(memory_.Publish(Signature(operation), operation.waiter));
  if (small) {
    ReduceEverything(reduction);
  } else {
    MUSTER_TRY(ReduceSlices(operation, reduction));
  }
  chunk_.clear();
  chunk_bytes_ = 0;
  return Ok();
}

void SharedOperations::ReduceEverything(Reduction reduction) {
  std::vector<const void*> sources(static_cast<std::size_t>(memory_.size()));
  for (const Placed& piece : chunk_) {
    for (int r = 0; r < memory_.size(); ++r) {
      sources[static_cast<std::size_t>(r)] =
          r == memory_.rank() ? static_cast<const void*>(In(*piece.buffer, piece.begin))
                              : memory_.theirs(r, chunk_bytes_).data() + piece.offset;
    }
    void* const out = Out(*piece.buffer, reduction, piece.begin);
    ReduceRange(reduction, piece.buffer->type, sources, {&out, 1}, 0, piece.count);
  }
}

// Each member sums its part into its result and its next slot; the others take it from there.
Status SharedOperations::ReduceSlices(const Operation& operation, Reduction reduction) {
  std::vector<std::size_t> counts;
  std::size_t elements = 0;
  for (const Placed& piece : chunk_) {
    counts.push_back(piece.count);
    elements += piece.count;
  }
  const auto members = static_cast<std::size_t>(memory_.size());
  const auto slice = [&](int rank) {
    return PiecesOf(counts, SliceOf(elements, static_cast<std::size_t>(rank), members));
  };
  const std::span<std::byte> next = memory_.mine();
  std::vector<const void*> sources(members);
  for (const Piece& part : slice(memory_.rank())) {
    const Placed& piece = chunk_[part.buffer];
    const ReduceBuffer& buffer = *piece.buffer;
    const std::size_t in_slot = piece.offset + part.range.begin * SizeOf(buffer.type);
    for (int r = 0; r < memory_.size(); ++r) {
      sources[static_cast<std::size_t>(r)] =
          r == memory_.rank() ? static_cast<const void*>(In(buffer, piece.begin + part.range.begin))
                              : memory_.theirs(r).data() + in_slot;
    }
    const std::size_t result = SizeOf(ResultType(reduction, buffer.type));
    void* const out = Out(buffer, reduction, piece.begin + part.range.begin);
    // What does not stay in the caches is not read before it is overwritten.
    void* const past[] = {next.data() + piece.offset + part.range.begin * result, out};
    ReduceRange(reduction, buffer.type, sources, std::span(&out, large_ ? 0 : 1), 0,
                part.range.end - part.range.begin, std::span(past, large_ ? 2 : 1));
  }
  MUSTER_TRY(memory_.Publish(Signature(operation), operation.waiter));
  for (int r = 0; r < memory_.size(); ++r) {
    if (r == memory_.rank()) continue;
    for (const Piece& part : slice(r)) {
      const Placed& piece = chunk_[part.buffer];
      const std::size_t result = SizeOf(ResultType(reduction, piece.buffer->type));
      std::byte* const to = Out(*piece.buffer, reduction, piece.begin + part.range.begin);
      const std::byte* const from =
          memory_.theirs(r).data() + piece.offset + part.range.begin * result;
      const std::size_t bytes = (part.range.end - part.range.begin) * result;
      Take(to, from, bytes);
    }
  }
  if (large_) EndStream();
  return Ok();
}

Status SharedOperations::Gather(const Operation& operation, std::span<const std::byte> mine,
                                std::span<const std::span<std::byte>> into) {
  std::size_t longest = 0;
  for (const std::span<std::byte> one : into) longest = std::max(longest, one.size());
  std::size_t at = 0;
  do {
    const auto own = PieceAt(mine, at, SharedMemory::kSlotBytes);
    Hand(memory_.mine(own.size()).data(), own.data(), own.size());
    MUSTER_TRY(memory_.Publish(Signature(operation), operation.waiter));
    for (int r = 0; r < memory_.size(); ++r) {
      const auto to = PieceAt(into[static_cast<std::size_t>(r)], at, SharedMemory::kSlotBytes);
      if (!to.empty()) std::memcpy(to.data(), memory_.theirs(r, to.size()).data(), to.size());
    }
    at += SharedMemory::kSlotBytes;
  } while (at < longest);
  return Ok();
}

Status SharedOperations::Broadcast(const Operation& operation, std::span<std::byte> data,
                                   int root) {
  do {
    const auto part = data.first(std::min(SharedMemory::kSlotBytes, data.size()));
    data = data.subspan(part.size());
    if (memory_.rank() == root) Hand(memory_.mine(part.size()).data(), part.data(), part.size());
    MUSTER_TRY(memory_.Publish(Signature(operation), operation.waiter));
    if (memory_.rank() != root && !part.empty()) {
      std::memcpy(part.data(), memory_.theirs(root, part.size()).data(), part.size());
    }
  } while (!data.empty());
  return Ok();
}

// A slot has a part for each member. Of each range as much goes at a time, so that all have as much
// to add.
Status SharedOperations::ReduceScatter(const Operation& operation, Reduction reduction, DType type,
                                       const std::byte* in, std::span<const Range> ranges,
                                       std::byte* out) {
  const auto members = static_cast<std::size_t>(memory_.size());
  const auto rank = static_cast<std::size_t>(memory_.rank());
  const std::size_t element = SizeOf(type);
  const std::size_t part = PartBytes(members);
  const std::size_t most = part / element;
  std::size_t longest = 0;
  for (const Range& range : ranges) longest = std::max(longest, range.end - range.begin);
  std::vector<const void*> sources(members);
  std::size_t at = 0;
  do {
    const auto piece = [&](std::size_t r) {
      const std::size_t begin = std::min(ranges[r].begin + at, ranges[r].end);
      return Range{begin, std::min(begin + most, ranges[r].end)};
    };
    std::byte* const slot = memory_.mine().data();
    for (std::size_t r = 0; r < members; ++r) {
      const auto [begin, end] = piece(r);
      if (r != rank) Hand(slot + r * part, in + begin * element, (end - begin) * element);
    }
    MUSTER_TRY(memory_.Publish(Signature(operation), operation.waiter));
    const auto [begin, end] = piece(rank);
    for (std::size_t r = 0; r < members; ++r) {
      sources[r] = r == rank ? in + begin * element
                             : memory_.theirs(static_cast<int>(r)).data() + rank * part;
    }
    void* const to = out + at * SizeOf(ResultType(reduction, type));
    if (begin < end) ReduceRange(reduction, type, sources, {&to, 1}, 0, end - begin);
    at += most;
  } while (at < longest);
  return Ok();
}

Result<std::size_t> SharedOperations::LargestPart(const Operation& operation,
                                                  std::span<const std::span<const std::byte>> sends,
                                                  std::span<const std::span<std::byte>> receives) {
  const auto members = static_cast<std::size_t>(memory_.size());
  std::vector<std::uint64_t> lengths;
  for (const auto send : sends) lengths.push_back(send.size());
  for (const auto receive : receives) lengths.push_back(receive.size());
  static_assert(2 * kMostMembers * sizeof(std::uint64_t) <= SharedMemory::kSlotBytes);
  std::memcpy(memory_.mine().data(), lengths.data(), lengths.size() * sizeof(std::uint64_t));
  MUSTER_TRY(memory_.Publish(Signature(operation), operation.waiter));
  std::vector<std::vector<std::uint64_t>> all(members, lengths);
  for (std::size_t r = 0; r < members; ++r) {
    std::memcpy(all[r].data(), memory_.theirs(static_cast<int>(r)).data(),
                lengths.size() * sizeof(std::uint64_t));
  }
  std::size_t largest = 0;
  for (std::size_t from = 0; from < members; ++from) {
    for (std::size_t to = 0; to < members; ++to) {
      largest = std::max<std::size_t>(largest, all[from][to]);
      if (all[from][to] == all[to][members + from]) continue;
      return InvalidArgument("member {} sends {} bytes to member {}, which takes {}", from,
                             all[from][to], to, all[to][members + from]);
    }
  }
  return largest;
}

Status SharedOperations::AllToAll(const Operation& operation,
                                  std::span<const std::span<const std::byte>> sends,
                                  std::span<const std::span<std::byte>> receives) {
  const auto members = static_cast<std::size_t>(memory_.size());
  const auto rank = static_cast<std::size_t>(memory_.rank());
  MUSTER_TRY_ASSIGN(const std::size_t largest, LargestPart(operation, sends, receives));
  const std::size_t part = PartBytes(members);
  for (std::size_t at = 0; at < largest; at += part) {
    std::byte* const slot = memory_.mine().data();
    for (std::size_t r = 0; r < members; ++r) {
      const auto send = PieceAt(sends[r], at, part);
      if (r != rank) Hand(slot + r * part, send.data(), send.size());
    }
    MUSTER_TRY(memory_.Publish(Signature(operation), operation.waiter));
    for (std::size_t r = 0; r < members; ++r) {
      const auto into = PieceAt(receives[r], at, part);
      if (r == rank || into.empty()) continue;
      std::memcpy(into.data(), memory_.theirs(static_cast<int>(r)).data() + rank * part,
                  into.size());
    }
  }
  if (!sends[rank].empty()) {
    std::memcpy(receives[rank].data(), sends[rank].data(), sends[rank].size());
  }
  return Ok();
}

Status SharedOperations::Barrier(const Operation& operation) {
  return memory_.Publish(Signature(operation), operation.waiter);
}

}  // namespace muster::collectives
