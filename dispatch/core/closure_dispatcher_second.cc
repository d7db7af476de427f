// Closures that take long are executed a second time by a worker that would have nothing to do.
//
// At most one execution more of each at a time. It has the higher number, so a server that has seen
// it refuses the first one (kAborted), which is no error of anybody's.
#include <algorithm>

#include "dispatch/core/attempt.h"
#include "dispatch/core/closure_dispatcher.h"

namespace muster::dispatch {
namespace {

// A closure takes long when it has been with its worker for so many times what others of its
// function take, and for so long at least: shorter ones cost less than what is wasted.
constexpr std::int64_t kTimesTypical = 3;
constexpr std::chrono::milliseconds kLeastLate{20};

}  // namespace

bool ClosureDispatcher::may_run_again() const {
  if (second_runs_ == 0 || idle_ == 0 || given_at_.empty()) return false;
  if (paused_ || draining_ || failed() || !suspects_.empty() || !awaited_.empty()) return false;
  return std::ranges::count(extras_, false, &Extra::over) < std::int64_t{second_runs_};
}

TimePoint ClosureDispatcher::LateAt(const ClosureRecord& record, TimePoint given) const {
  const auto typical = typical_.find(record.function);
  const bool has_second =
      std::ranges::any_of(extras_, [&](const Extra& extra) { return extra.closure == record.id; });
  if (typical == typical_.end() || has_second || record.executions == kMostExecutions) {
    return TimePoint::max();
  }
  const std::chrono::nanoseconds late(kTimesTypical * typical->second);
  return given + std::max<std::chrono::nanoseconds>(late, kLeastLate);
}

// The oldest first. A worker that is idle has none of them.
void ClosureDispatcher::RunAgain(TimePoint now, Send send) {
  for (const auto& [id, given] : given_at_) {
    if (!may_run_again()) return;
    ClosureRecord& record = *slab_.Find(id);
    if (LateAt(record, given) > now) continue;
    const auto idle = std::ranges::find(workers_, true, &Worker::idle);
    const auto index = static_cast<std::uint32_t>(idle - workers_.begin());
    const WorkerHandle worker{index, idle->generation};
    ++reruns_;
    extras_.push_back({.closure = id,
                       .number = ++executions_,
                       .execution = ++record.executions,
                       .worker = worker});
    ++idle->extras;
    send(worker, {.closure = id,
                  .attempt = MakeAttempt(options_.epoch, options_.incarnation, record.executions),
                  .function = record.function,
                  .flags = IsWanted(record) ? 0U : kFlagNoValue,
                  .run_limit_ms = record.run_limit_ms,
                  .arguments = record.arguments.kept()});
    Refresh(index);
  }
}

ClosureDispatcher::ExtraAt ClosureDispatcher::SecondOf(ClosureId closure) {
  return std::ranges::find_if(
      extras_, [&](const Extra& extra) { return extra.closure == closure && !extra.over; });
}

void ClosureDispatcher::DropExtra(ExtraAt extra) {
  const std::uint32_t index = extra->worker.index;
  extras_.erase(extra);
  --workers_[index].extras;
  Refresh(index);
}

void ClosureDispatcher::DropExtrasOf(WorkerHandle worker) {
  std::erase_if(extras_, [&](const Extra& extra) { return extra.worker == worker; });
  workers_[worker.index].extras = 0;
}

void ClosureDispatcher::Exchange(Extra& extra, ClosureRecord& record) {
  const std::uint32_t before = record.worker;
  Worker& from = workers_[before];
  Worker& to = workers_[extra.worker.index];
  from.in_flight.Remove(slab_, record);
  to.in_flight.PushBack(slab_, record);
  if (record.suspect) {
    --from.suspects;
    ++to.suspects;
  }
  ++from.extras;
  --to.extras;
  record.worker = extra.worker.index;
  std::swap(record.current, extra.execution);
  std::swap(record.number, extra.number);
  extra.worker = {before, from.generation};
  Refresh(before);
  Refresh(record.worker);
}

// The first that ends counts, if it has succeeded or says what the other one would say, too.
ClosureDispatcher::Outcome ClosureDispatcher::OnExtraResult(WorkerHandle handle,
                                                            const ClosureResult& result,
                                                            TimePoint now) {
  const auto extra = std::ranges::find_if(extras_, [&](const Extra& one) {
    return one.closure == result.closure && one.worker == handle &&
           result.attempt == MakeAttempt(options_.epoch, options_.incarnation, one.execution);
  });
  if (extra == extras_.end()) return Outcome::kStale;
  bool counts = !extra->over;
  if (counts && result.error != nullptr) {
    const ClosureError& error = *result.error;
    const bool own = error.origin == Origin::kUser || error.origin == Origin::kInput;
    counts = own && error.status.code() != StatusCode::kAborted &&
             error.status.code() != StatusCode::kCancelled;
  }
  if (!counts) {
    DropExtra(extra);
    return Outcome::kStale;
  }
  Exchange(*extra, *slab_.Find(result.closure));
  return OnResult(handle, result, now);
}

void ClosureDispatcher::NoteRun(const ClosureRecord& record, std::chrono::nanoseconds run) {
  if (!record.repeatable || run.count() <= 0) return;
  const auto [typical, first] = typical_.try_emplace(record.function, run.count());
  if (!first) typical->second += (run.count() - typical->second) / 8;
}

}  // namespace muster::dispatch
