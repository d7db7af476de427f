// Which write sets of closures one shard of a program's variable has applied: each flush of a
// closure at most once, whatever the attempt and however often and in which order it comes.
//
// Unlike a model job's closures (closure_window.h), those of a program write to the shards they
// like, so nothing here says that a closure is over; the driver does, by its settled watermark:
// every closure up to it has ended for good. What comes of those is a zombie's, and refused.
//
// Invariant: memory grows with the closures above the watermark that wrote here, at most kWindow.
// Threading: not thread-safe; the shard's lock owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include <absl/container/btree_map.h>
#include <absl/container/inlined_vector.h>

#include "common/base/ids.h"
#include "common/base/status.h"

namespace muster::ps {

// Which write set it is.
struct FlushId {
  // From 1. 0: no closure's; then `attempt` names a writer, who sends one after another, and
  // `flush` counts that writer's.
  ClosureId closure{};
  Attempt attempt{};
  // From 1 within the closure, of each part that writes for it by itself: they leave gaps.
  std::uint64_t flush = 0;
};

class FlushWindow {
 public:
  static constexpr std::uint64_t kWindow = 65'536;

  // True: it may be applied now; false: it has been. Remembers a closure's attempt in any case.
  // `settled`: the watermark as the caller knows it, who may have looked before others moved it.
  // The highest that was said here counts.
  //   kInvalidArgument: flush 0.  kAborted: a later attempt of the closure was seen, or the closure
  //   is settled.  kResourceExhausted: more than kWindow above the watermark; come again when that
  //   has moved.
  Result<bool> Admit(const FlushId& id, ClosureId settled);
  // After Admit() said true.
  void Mark(const FlushId& id);
  // Forgets closures up to `settled`.
  void Trim(ClosureId settled);

  // Closures that are remembered.
  std::size_t size() const { return closures_.size(); }

 private:
  // From first to last, both included.
  using Range = std::pair<std::uint64_t, std::uint64_t>;
  struct Closure {
    Attempt attempt;
    // Flushes that are applied, ascending, with a gap between any two: mostly one range.
    absl::InlinedVector<Range, 1> applied;
  };

  // Marks up to it are forgotten: without it a late repeat of one would look like the first.
  ClosureId settled_;
  absl::btree_map<ClosureId, Closure> closures_;
  // The last write of each writer.
  std::map<Attempt, std::uint64_t> writers_;
};

}  // namespace muster::ps
