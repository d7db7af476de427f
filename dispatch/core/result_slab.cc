#include "dispatch/core/result_slab.h"

#include <utility>

namespace muster::dispatch {

ResultSlab::Slot ResultSlab::Create() {
  Slot slot = free_;
  if (slot == kNone) {
    slot = static_cast<Slot>(entries_.size());
    entries_.emplace_back();
  } else {
    free_ = entries_[slot].next_free;
  }
  entries_[slot].references = 1;
  entries_[slot].state = State::kNotReady;
  ++held_;
  return slot;
}

void ResultSlab::Release(Slot slot) {
  Entry& entry = entries_[slot];
  MUSTER_INVARIANT(entry.references > 0);
  if (--entry.references > 0) return;
  Reset(entry);
  entry.next_free = free_;
  free_ = slot;
  --held_;
}

void ResultSlab::Reset(Entry& entry) {
  entry.value.Clear();
  entry.error.reset();
}

void ResultSlab::SetValue(Slot slot, const KeptBytes& value) {
  Entry& entry = entries_[slot];
  Reset(entry);
  entry.value.Assign(value);
  entry.state = State::kValue;
}

void ResultSlab::SetError(Slot slot, ClosureError error) {
  Entry& entry = entries_[slot];
  Reset(entry);
  entry.error = std::make_unique<ClosureError>(std::move(error));
  entry.state = State::kError;
}

void ResultSlab::SetAborted(Slot slot, ClosureError error) {
  SetError(slot, std::move(error));
  entries_[slot].state = State::kAborted;
}

void ResultSlab::SetNotReady(Slot slot) {
  Reset(entries_[slot]);
  entries_[slot].state = State::kNotReady;
}

}  // namespace muster::dispatch
