// The closures that are not settled, by id: a ring of chunks, so that finding one is an index,
// making one allocates nothing (but a chunk for each 4,096), and what a long queue took is given
// back.
//
// A record is in at most one list at a time: the queue, or what a worker has in flight.
//
// Threading: not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dispatch/core/result_slab.h"
#include "dispatch/core/small_bytes.h"

#include "common/base/ids.h"
#include "common/base/status.h"

namespace muster::dispatch {

// A place in the slab; one that is not there.
using RecordSlot = std::uint32_t;
inline constexpr RecordSlot kNoRecord = ~RecordSlot{0};

enum class ClosureState : std::uint8_t { kQueued, kInFlight, kSettled };

struct ClosureRecord {
  ClosureId id;
  // The number of its current execution among all (ErrorPolicy::Execution), while in flight.
  std::uint64_t number = 0;
  RecordSlot previous = kNoRecord;
  RecordSlot next = kNoRecord;
  std::uint32_t worker = 0;  // while in flight
  std::uint32_t function = 0;
  std::uint32_t run_limit_ms = 0;  // 0: none
  std::uint16_t executions = 0;
  // The one whose result counts, while in flight.
  std::uint16_t current = 0;
  ClosureState state = ClosureState::kQueued;
  bool suspect = false;
  bool has_turns = false;
  bool repeatable = false;
  bool of_step = false;  // an open one
  ResultSlab::Slot result = ResultSlab::kNone;
  SmallBytes<64> arguments;
};

class ClosureSlab {
 public:
  // The first record gets the id `first`. At most `most` records at a time, up to 2^30.
  ClosureSlab(ClosureId first, std::size_t most)
      : base_(first),
        next_(first),
        // A chunk more than that: the newest record is never in the one that is given back.
        mask_(std::bit_ceil(most + kChunk) - 1),
        chunks_((mask_ + 1) / kChunk) {}

  // Ids in [base, next) are here.
  ClosureId base() const { return base_; }
  ClosureId next() const { return next_; }

  bool full() const { return next_.value() - base_.value() > mask_ - kChunk; }

  // Not when it is full.
  ClosureRecord& Append() {
    MUSTER_INVARIANT(!full());
    std::unique_ptr<ClosureRecord[]>& chunk = chunks_[SlotOf(next_) / kChunk];
    if (chunk == nullptr) {
      chunk = spare_ != nullptr ? std::move(spare_) : std::make_unique<ClosureRecord[]>(kChunk);
    }
    ClosureRecord& record = At(SlotOf(next_));
    record.id = next_;
    next_ = next_.Next();
    record.previous = record.next = kNoRecord;
    record.executions = 0;
    record.state = ClosureState::kQueued;
    record.suspect = false;
    record.has_turns = false;
    record.result = ResultSlab::kNone;
    return record;
  }

  // The newest.
  ClosureId last() const { return ClosureId(next_.value() - 1); }
  // Null: never made, or gone.
  ClosureRecord* Find(ClosureId id) {
    return id >= base_ && id < next_ ? &At(SlotOf(id)) : nullptr;
  }
  ClosureRecord& At(RecordSlot slot) { return chunks_[slot / kChunk][slot % kChunk]; }
  const ClosureRecord& At(RecordSlot slot) const { return chunks_[slot / kChunk][slot % kChunk]; }
  RecordSlot SlotOf(ClosureId id) const { return static_cast<RecordSlot>(id.value() & mask_); }

  // Forgets the lowest records that are settled.
  void DropSettled() {
    while (base_ < next_ && At(SlotOf(base_)).state == ClosureState::kSettled) {
      const std::size_t chunk = SlotOf(base_) / kChunk;
      base_ = base_.Next();
      // One is kept: a short queue goes round and round.
      if (SlotOf(base_) % kChunk == 0) spare_ = std::move(chunks_[chunk]);
    }
  }

 private:
  static constexpr std::size_t kChunk = 4096;

  ClosureId base_;
  ClosureId next_;
  const std::uint64_t mask_;
  std::vector<std::unique_ptr<ClosureRecord[]>> chunks_;
  std::unique_ptr<ClosureRecord[]> spare_;
};

// Records linked through themselves. Every call names the slab that they are in.
class RecordList {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  RecordSlot front() const { return front_; }

  void PushBack(ClosureSlab& slab, ClosureRecord& record) { InsertBefore(slab, kNoRecord, record); }
  // Before `at`; kNoRecord: at the end.
  void InsertBefore(ClosureSlab& slab, RecordSlot at, ClosureRecord& record) {
    const RecordSlot slot = slab.SlotOf(record.id);
    const RecordSlot before = at == kNoRecord ? back_ : slab.At(at).previous;
    record.previous = before;
    record.next = at;
    (before == kNoRecord ? front_ : slab.At(before).next) = slot;
    (at == kNoRecord ? back_ : slab.At(at).previous) = slot;
    ++size_;
  }
  void Remove(ClosureSlab& slab, ClosureRecord& record) {
    (record.previous == kNoRecord ? front_ : slab.At(record.previous).next) = record.next;
    (record.next == kNoRecord ? back_ : slab.At(record.next).previous) = record.previous;
    record.previous = record.next = kNoRecord;
    --size_;
  }

 private:
  RecordSlot front_ = kNoRecord;
  RecordSlot back_ = kNoRecord;
  std::size_t size_ = 0;
};

}  // namespace muster::dispatch
