#include "collectives/process/shared_operations.h"

#include <algorithm>
#include <cstring>

#include "collectives/packing.h"
#include "collectives/process/signature.h"

namespace muster::collectives {
namespace {

// A chunk of up to this many bytes is summed by everybody: a second wait would cost more.
constexpr std::size_t kSmall = 8U << 10;
constexpr std::size_t kAlign = 64;

std::size_t Aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

const std::byte* In(const ReduceBuffer& buffer, std::size_t element) {
  return static_cast<const std::byte*>(buffer.in) + element * SizeOf(buffer.type);
}
std::byte* Out(const ReduceBuffer& buffer, Reduction reduction, std::size_t element) {
  return static_cast<std::byte*>(buffer.out) + element * SizeOf(ResultType(reduction, buffer.type));
}

}  // namespace

std::uint64_t SharedOperations::Signature(const Operation& operation) const {
  // One word says which operation and with what.
  return collectives::Signature().Add(operation.tag.operation).Add(operation.tag.signature).value();
}

Status SharedOperations::AllReduce(const Operation& operation, Reduction reduction,
                                   std::span<const ReduceBuffer> buffers) {
  chunk_.clear();
  chunk_bytes_ = 0;
  for (const ReduceBuffer& buffer : buffers) {
    // A sum may be wider than what is summed; it lies in the same place.
    const std::size_t element =
        std::max(SizeOf(buffer.type), SizeOf(ResultType(reduction, buffer.type)));
    const std::size_t count = buffer.count();
    for (std::size_t begin = 0; begin < count;) {
      const std::size_t room = (SharedMemory::kSlotBytes - chunk_bytes_) / element;
      if (room == 0 || (room < count - begin && room * element < kAlign)) {
        MUSTER_TRY(ReduceChunk(operation, reduction));
        continue;
      }
      const std::size_t taken = std::min(room, count - begin);
      chunk_.push_back({&buffer, begin, taken, chunk_bytes_});
      chunk_bytes_ = std::min(Aligned(chunk_bytes_ + taken * element), SharedMemory::kSlotBytes);
      begin += taken;
    }
  }
  // Also when there was nothing: all have to come.
  return ReduceChunk(operation, reduction);
}

// Sums what lies in chunk_, and empties it.
Status SharedOperations::ReduceChunk(const Operation& operation, Reduction reduction) {
  const bool small = chunk_bytes_ <= kSmall;
  std::size_t elements = 0;
  for (const Placed& piece : chunk_) elements += piece.count;
  const std::span<std::byte> slot = memory_.mine();
  // In a large chunk, the part that this member sums is needed by nobody else.
  const Range own = small ? Range{0, 0}
                          : SliceOf(elements, static_cast<std::size_t>(memory_.rank()),
                                    static_cast<std::size_t>(memory_.size()));
  std::size_t at = 0;
  for (const Placed& piece : chunk_) {
    const std::size_t size = SizeOf(piece.buffer->type);
    const auto copy = [&](std::size_t begin, std::size_t end) {
      if (begin >= end) return;
      std::memcpy(slot.data() + piece.offset + begin * size, In(*piece.buffer, piece.begin + begin),
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
      sources[static_cast<std::size_t>(r)] = memory_.theirs(r).data() + piece.offset;
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
    void* const to[] = {Out(buffer, reduction, piece.begin + part.range.begin),
                        next.data() + piece.offset + part.range.begin * result};
    ReduceRange(reduction, buffer.type, sources, to, 0, part.range.end - part.range.begin);
  }
  MUSTER_TRY(memory_.Publish(Signature(operation), operation.waiter));
  for (int r = 0; r < memory_.size(); ++r) {
    if (r == memory_.rank()) continue;
    for (const Piece& part : slice(r)) {
      const Placed& piece = chunk_[part.buffer];
      const std::size_t result = SizeOf(ResultType(reduction, piece.buffer->type));
      std::memcpy(Out(*piece.buffer, reduction, piece.begin + part.range.begin),
                  memory_.theirs(r).data() + piece.offset + part.range.begin * result,
                  (part.range.end - part.range.begin) * result);
    }
  }
  return Ok();
}

Status SharedOperations::Gather(const Operation& operation, std::span<const std::byte> mine,
                                std::span<const std::span<std::byte>> into) {
  std::size_t longest = 0;
  for (const std::span<std::byte> one : into) longest = std::max(longest, one.size());
  std::size_t at = 0;
  do {
    const auto part = [&](auto bytes) {
      const std::size_t begin = std::min(at, bytes.size());
      return bytes.subspan(begin, std::min(SharedMemory::kSlotBytes, bytes.size() - begin));
    };
    const auto own = part(mine);
    if (!own.empty()) std::memcpy(memory_.mine().data(), own.data(), own.size());
    MUSTER_TRY(memory_.Publish(Signature(operation), operation.waiter));
    for (int r = 0; r < memory_.size(); ++r) {
      const std::span<std::byte> to = part(into[static_cast<std::size_t>(r)]);
      if (!to.empty()) std::memcpy(to.data(), memory_.theirs(r).data(), to.size());
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
    if (memory_.rank() == root && !part.empty()) {
      std::memcpy(memory_.mine().data(), part.data(), part.size());
    }
    MUSTER_TRY(memory_.Publish(Signature(operation), operation.waiter));
    if (memory_.rank() != root && !part.empty()) {
      std::memcpy(part.data(), memory_.theirs(root).data(), part.size());
    }
  } while (!data.empty());
  return Ok();
}

Status SharedOperations::Barrier(const Operation& operation) {
  return memory_.Publish(Signature(operation), operation.waiter);
}

}  // namespace muster::collectives
