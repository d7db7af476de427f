#include "dispatch/core/suspects.h"

#include <fmt/core.h>

#include "common/base/words.h"

namespace muster::dispatch {

bool Suspects::EndsExecutors(ClosureId closure) const {
  const auto found = suspects_.find(closure);
  return found != suspects_.end() && found->second.crashes > 0;
}

bool Suspects::EndedOn(ClosureId closure, const std::string& worker) const {
  const auto found = suspects_.find(closure);
  return found != suspects_.end() && found->second.on.contains(worker);
}

void Suspects::Blame(ClosureId closure, const std::string& worker, Cause cause, bool alone) {
  Suspect& suspect = suspects_[closure];
  suspect.on.insert(worker);
  if (cause != Cause::kOutside) {
    ++suspect.crashes;
    if (alone) ++suspect.alone;
  } else if (alone) {
    ++suspect.alone_outside;
  }
}

void Suspects::CountEnd(Cause cause) {
  if (cause != Cause::kOutside) ++barren_;
  if (cause == Cause::kEndless) ++endless_;
}

std::optional<std::string> Suspects::Judge(ClosureId closure, const std::string& name, bool alone,
                                           bool only_worker, const std::string& how) const {
  const auto found = suspects_.find(closure);
  if (found == suspects_.end()) return std::nullopt;
  const Suspect& suspect = found->second;
  const std::string where = Joined(suspect.on);
  // One worker may be at fault itself.
  const bool excluded = suspect.on.size() >= 2 || only_worker;
  if (alone && excluded && suspect.crashes >= limits_.crash && suspect.alone >= limits_.crash - 1) {
    return fmt::format(
        "{} has ended its executor {} times, {} of them with nothing else in flight ({}, the last "
        "time by {})",
        name, suspect.crashes, suspect.alone, where, how);
  }
  const int killed = suspect.alone + suspect.alone_outside;
  if (alone && excluded && killed >= limits_.kill) {
    return fmt::format(
        "{} has ended its executor {} times with nothing else in flight ({}, the last time by {}): "
        "if nobody kills executors here, it needs more memory than there is, or it waits for "
        "something that does not come",
        name, killed, where, how);
  }
  if (barren_ >= limits_.barren || endless_ >= limits_.endless) {
    return fmt::format(
        "executors have ended {} times and no closure has succeeded in between, the last one by {} "
        "on {} by {}",
        barren_, name, where, how);
  }
  return std::nullopt;
}

void Suspects::OnSuccess(ClosureId closure) {
  if (!suspects_.empty()) suspects_.erase(closure);
  barren_ = endless_ = 0;
}

void Suspects::Clear() {
  suspects_.clear();
  barren_ = endless_ = 0;
}

}  // namespace muster::dispatch
