#include "dispatch/core/closure_error.h"

#include <algorithm>

#include "common/base/trouble.h"
#include "common/base/words.h"

namespace muster::dispatch {
const char* Words(Origin origin) {
  switch (origin) {
    case Origin::kUser:
      return "the function";
    case Origin::kInput:
      return "an input";
    case Origin::kWorker:
      return "a worker";
    case Origin::kPs:
      return "a parameter server";
    case Origin::kCoordinator:
      return "the coordinator";
  }
  return "an unknown part";
}

const char* Words(Phase phase) {
  switch (phase) {
    case Phase::kQueued:
      return "in the queue";
    case Phase::kInputs:
      return "taking its inputs";
    case Phase::kRun:
      return "running";
    case Phase::kWrites:
      return "writing";
    case Phase::kResult:
      return "sending its result";
    case Phase::kBuild:
      return "building a value of the worker";
  }
  return "at an unknown time";
}

std::string ClosureError::ToString() const {
  std::string where = task.empty() ? Words(origin) : task;
  if (incarnation != Incarnation()) where += fmt::format(", incarnation {}", incarnation);
  const std::string again = retries == 0 ? "" : ", after " + Counted(retries, "retry", "retries");
  return fmt::format("{}: {} ({}, {}{})", CodeName(status.code()), Message(status), where,
                     Words(phase), again);
}

bool IsOfTheCluster(const ClosureError& error) {
  return error.origin == Origin::kWorker || error.origin == Origin::kPs ||
         error.origin == Origin::kCoordinator;
}

bool MayGoAway(const ClosureError& error) {
  const StatusCode code = error.status.code();
  const bool back_pressure = error.origin == Origin::kPs && code == StatusCode::kResourceExhausted;
  return IsOfTheCluster(error) && (back_pressure || IsTransient(code));
}

ClosureError CancelledError() {
  return {.status = Cancelled("The corresponding function is cancelled. Please reschedule the "
                              "function."),
          .origin = Origin::kCoordinator,
          .phase = Phase::kQueued};
}

std::size_t WindowedCount::Add(TimePoint now, std::chrono::milliseconds window) {
  std::erase_if(events_, [&](TimePoint event) { return event + window <= now; });
  events_.push_back(now);
  return events_.size();
}

ErrorPolicy::Remedy ErrorPolicy::Decide(const ClosureError& error, const Execution& execution,
                                        std::size_t workers, TimePoint now) {
  const StatusCode code = error.status.code();
  if (!IsOfTheCluster(error)) return Remedy::kFail;
  if (error.origin == Origin::kPs && code == StatusCode::kResourceExhausted) {
    return Remedy::kPutBack;  // back-pressure
  }
  if (error.origin == Origin::kPs &&
      (code == StatusCode::kUnavailable || code == StatusCode::kAborted)) {
    Server& server = servers_[error.task];
    // An executor may hold hundreds of closures that were handed out before: of a server that stays
    // away they fail one after another, and are no news only for a while.
    const bool same = execution.number <= server.seen && now < server.same_until;
    if (same) return Remedy::kPutBack;
    server.seen = execution.newest;
    server.same_until = now + options_.same_failure;
    const std::size_t failures = server.failures.Add(now, options_.window);
    return failures < options_.ps_failures ? Remedy::kPutBack : Remedy::kFail;
  }
  if (code == StatusCode::kDeadlineExceeded) {
    const std::size_t allowed = options_.timeouts.value_or(workers / 10);
    return timeouts_.Add(now, options_.window) < allowed ? Remedy::kPutBack : Remedy::kFail;
  }
  return IsTransient(code) ? Remedy::kPutBack : Remedy::kFail;
}

std::optional<std::string> ErrorPolicy::NoteReturn(ClosureId closure, TimePoint now) {
  Returns& returns = returns_.try_emplace(closure, Returns{.first = now}).first->second;
  ++returns.times;
  if (returns.times < options_.returns || now - returns.first < options_.return_time) {
    return std::nullopt;
  }
  return fmt::format("it has come back {} times in {} s and is given up", returns.times,
                     (now - returns.first) / std::chrono::seconds(1));
}

}  // namespace muster::dispatch
