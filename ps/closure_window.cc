#include "ps/closure_window.h"

#include <algorithm>

namespace muster::ps {

Result<ApplyOutcome> ClosureWindow::Admit(PushId push) {
  if (push.closure == 0) return InvalidArgument("closure 0 does not exist; they begin at 1");
  if (push.closure <= watermark_) return ApplyOutcome::kDuplicate;
  if (push.closure - watermark_ > kWindow) {
    // Not for good: it may come again when the one that holds it up is done.
    return Unavailable(
        "closure {} is too far ahead: closure {} has not been applied here, and {} at most are "
        "accepted beyond it",
        push.closure, watermark_ + 1, kWindow);
  }
  Entry& entry = above_[push.closure];
  if (push.attempt < entry.attempt) {
    return Aborted("closure {}: attempt {:#x} is superseded by attempt {:#x}", push.closure,
                   push.attempt, entry.attempt);
  }
  entry.attempt = push.attempt;
  return entry.applied ? ApplyOutcome::kDuplicate : ApplyOutcome::kApplied;
}

void ClosureWindow::Mark(std::uint64_t closure) {
  above_[closure].applied = true;
  ++applied_above_;
  while (!above_.empty() && above_.begin()->first == watermark_ + 1 &&
         above_.begin()->second.applied) {
    above_.erase(above_.begin());
    ++watermark_;
    --applied_above_;
  }
}

}  // namespace muster::ps
