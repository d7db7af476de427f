#include "ps/closure_window.h"

#include "muster/v1/cluster.pb.h"

namespace muster::ps {

Result<ApplyOutcome> ClosureWindow::Admit(PushId push) {
  const std::uint64_t closure = push.closure.value();
  if (closure == 0) return InvalidArgument("closure 0 does not exist; they begin at 1");
  if (closure <= watermark_) return ApplyOutcome::kDuplicate;
  if (closure - watermark_ > kWindow) {
    // Not for good: it may come again when the one that holds it up is done.
    return Unavailable(
        "closure {} is too far ahead: closure {} has not been applied here, and {} at most are "
        "accepted beyond it",
        closure, watermark_ + 1, kWindow);
  }
  if (push.attempt < least_attempt_) {
    return Aborted("closure {}: attempt {:#x} is of a coordinator or driver that was replaced",
                   closure, push.attempt.value());
  }
  Entry& entry = above_[closure];
  if (push.attempt < entry.attempt) {
    return Aborted("closure {}: attempt {:#x} is superseded by attempt {:#x}", closure,
                   push.attempt.value(), entry.attempt.value());
  }
  entry.attempt = push.attempt;
  return entry.applied ? ApplyOutcome::kDuplicate : ApplyOutcome::kApplied;
}

void ClosureWindow::Mark(ClosureId closure) {
  above_[closure.value()].applied = true;
  ++applied_above_;
  while (!above_.empty() && above_.begin()->first == watermark_ + 1 &&
         above_.begin()->second.applied) {
    above_.erase(above_.begin());
    ++watermark_;
    --applied_above_;
  }
}

void ClosureWindow::Report(v1::ClosureMarks& marks) const {
  marks.set_watermark(watermark_);
  v1::ClosureRun* run = nullptr;
  for (const auto& [closure, entry] : above_) {
    if (!entry.applied) continue;
    if (run == nullptr || run->last() + 1 != closure) {
      run = marks.add_above();
      run->set_first(closure);
    }
    run->set_last(closure);
  }
}

}  // namespace muster::ps
