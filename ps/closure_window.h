// Which closures one shard has applied, and which attempts of the others it has seen. A repeat is
// known for ever; memory is bounded.
//
// Invariant: every closure up to watermark() is applied; of those above it, up to kWindow, each is
// remembered by itself. Attempts are forgotten once the watermark has passed their closure: by then
// every attempt of it is a duplicate.
// Threading: not thread-safe; the shard's lock owns it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "common/base/status.h"
#include "ps/shard.h"

namespace muster::v1 {
class ClosureMarks;
}

namespace muster::ps {

class ClosureWindow {
 public:
  static constexpr std::uint64_t kWindow = 65'536;

  explicit ClosureWindow(std::uint64_t watermark = 0) : watermark_(watermark) {}

  // Whether `push` may be applied now; remembers its attempt in any case. kDuplicate: its closure
  // has been applied. kInvalidArgument: closure 0. kAborted: a later attempt was seen.
  // kUnavailable: beyond the window.
  Result<ApplyOutcome> Admit(PushId push);
  // After Admit() said kApplied.
  void Mark(ClosureId closure);
  // Attempts below it are refused from now on (kAborted), but for those that are duplicates.
  void RefuseBelow(Attempt attempt) { least_attempt_ = std::max(least_attempt_, attempt); }

  std::uint64_t watermark() const { return watermark_; }
  std::uint64_t applied_above() const { return applied_above_; }
  // What is applied: the watermark and the runs above it.
  void Report(v1::ClosureMarks& marks) const;

 private:
  struct Entry {
    Attempt attempt;
    bool applied = false;
  };

  std::uint64_t watermark_;
  std::uint64_t applied_above_ = 0;
  Attempt least_attempt_;
  std::map<std::uint64_t, Entry> above_;  // all in (watermark_, watermark_ + kWindow]
};

}  // namespace muster::ps
