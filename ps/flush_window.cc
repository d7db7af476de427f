#include "ps/flush_window.h"

#include <algorithm>

namespace muster::ps {

Result<bool> FlushWindow::Admit(const FlushId& id, ClosureId settled) {
  if (id.flush == 0) return InvalidArgument("flush 0 does not exist; they begin at 1");
  if (id.closure == ClosureId()) {
    const auto writer = writers_.find(id.attempt);
    return writer == writers_.end() || writer->second < id.flush;
  }
  Trim(settled);
  if (id.closure <= settled_) {
    return Aborted("closure {} has ended (all up to {} have): nothing more is written for it",
                   id.closure, settled_);
  }
  if (id.closure.value() - settled_.value() > kWindow) {
    return ResourceExhausted(
        "closure {} is too far ahead: those up to {} are known to have ended, and {} at most are "
        "accepted beyond",
        id.closure, settled_, kWindow);
  }
  Closure& closure = closures_[id.closure];
  if (id.attempt < closure.attempt) {
    return Aborted("closure {}: attempt {:#x} is superseded by attempt {:#x}", id.closure,
                   id.attempt.value(), closure.attempt.value());
  }
  closure.attempt = id.attempt;
  const auto at = std::ranges::lower_bound(closure.applied, id.flush, {}, &Range::second);
  return at == closure.applied.end() || id.flush < at->first;
}

void FlushWindow::Mark(const FlushId& id) {
  if (id.closure == ClosureId()) {
    writers_[id.attempt] = id.flush;
    return;
  }
  auto& applied = closures_[id.closure].applied;
  auto at = std::ranges::lower_bound(applied, id.flush - 1, {}, &Range::second);
  if (at == applied.end() || id.flush + 1 < at->first) {
    applied.insert(at, {id.flush, id.flush});
    return;
  }
  at->first = std::min(at->first, id.flush);
  at->second = std::max(at->second, id.flush);
  if (const auto next = at + 1; next != applied.end() && at->second + 1 == next->first) {
    at->second = next->second;
    applied.erase(next);
  }
}

void FlushWindow::Trim(ClosureId settled) {
  settled_ = std::max(settled_, settled);
  closures_.erase(closures_.begin(), closures_.upper_bound(settled_));
}

}  // namespace muster::ps
