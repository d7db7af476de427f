// What the futures of closures hold. A value lives as long as its future: with the last reference
// it ends, and a value that nobody waits for any more is not kept when it comes.
//
// Threading: not thread-safe; who owns the dispatcher owns this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "dispatch/core/closure_error.h"
#include "dispatch/core/small_bytes.h"

#include "common/base/kept_bytes.h"

namespace muster::dispatch {

class ResultSlab {
 public:
  using Slot = std::uint32_t;
  static constexpr Slot kNone = ~Slot{0};

  enum class State : std::uint8_t {
    kNotReady,
    kValue,
    kError,
    // The worker of a per-worker value is lost; the value is built again when it is back.
    kAborted,
  };

  // With one reference, the caller's.
  Slot Create();
  void AddReference(Slot slot) { ++entries_[slot].references; }
  void Release(Slot slot);
  std::uint32_t references(Slot slot) const { return entries_[slot].references; }

  State state(Slot slot) const { return entries_[slot].state; }
  // Empty unless kValue.
  KeptBytes value(Slot slot) const { return entries_[slot].value.kept(); }
  // Null unless kError or kAborted.
  const ClosureError* error(Slot slot) const { return entries_[slot].error.get(); }

  void SetValue(Slot slot, const KeptBytes& value);
  void SetError(Slot slot, ClosureError error);
  void SetAborted(Slot slot, ClosureError error);
  void SetNotReady(Slot slot);

  // How many futures there are.
  std::size_t held() const { return held_; }

 private:
  struct Entry {
    std::uint32_t references = 0;
    State state = State::kNotReady;
    Slot next_free = kNone;
    std::unique_ptr<ClosureError> error;
    SmallBytes<32> value;
  };
  void Reset(Entry& entry);

  std::deque<Entry> entries_;
  Slot free_ = kNone;
  std::size_t held_ = 0;
};

}  // namespace muster::dispatch
