// Who is there: joining, leaving, crashing, holding.
#include <algorithm>

#include "dispatch/core/closure_dispatcher.h"

#include "common/base/words.h"

namespace muster::dispatch {
namespace {

constexpr std::chrono::milliseconds kFirstBackOff{10};
constexpr std::chrono::milliseconds kLongestBackOff{1'000};

}  // namespace

ClosureDispatcher::Worker* ClosureDispatcher::Find(WorkerHandle worker) {
  if (worker.index >= workers_.size()) return nullptr;
  Worker& found = workers_[worker.index];
  return found.here && found.generation == worker.generation ? &found : nullptr;
}

const ClosureDispatcher::Worker* ClosureDispatcher::Find(WorkerHandle worker) const {
  return const_cast<ClosureDispatcher*>(this)->Find(worker);
}

std::size_t ClosureDispatcher::in_flight(WorkerHandle worker) const {
  const Worker* found = Find(worker);
  return found == nullptr ? 0 : found->in_flight.size();
}

std::uint32_t ClosureDispatcher::credit(WorkerHandle worker) const {
  const Worker* found = Find(worker);
  return found == nullptr ? 0 : found->credit.value();
}

std::optional<std::uint32_t> ClosureDispatcher::IndexOf(const std::string& task) const {
  const auto found = by_task_.find(task);
  return found == by_task_.end() ? std::nullopt : std::optional(found->second);
}

WorkerHandle ClosureDispatcher::AddWorker(const std::string& task, Incarnation incarnation,
                                          std::uint32_t slots) {
  const auto [place, fresh] =
      by_task_.try_emplace(task, static_cast<std::uint32_t>(workers_.size()));
  if (fresh) workers_.emplace_back();
  Worker& worker = workers_[place->second];
  MUSTER_INVARIANT(!worker.here);
  worker.task = task;
  worker.incarnation = incarnation;
  ++worker.generation;
  worker.here = true;
  worker.slots = slots;
  worker.credit = Credit(options_.credit, slots);
  worker.back_off = std::chrono::milliseconds(0);
  worker.had.clear();
  awaited_.OnVerdict(place->second);
  ++here_;
  per_worker_.Join(place->second);
  Refresh(place->second);
  return {place->second, worker.generation};
}

void ClosureDispatcher::PutBackAll(Worker& worker, std::vector<ClosureId>& ids) {
  for (RecordSlot at = worker.in_flight.front(); at != kNoRecord; at = slab_.At(at).next) {
    ids.push_back(slab_.At(at).id);
  }
  std::ranges::sort(ids);
  // The highest first: each goes before the one that went before it.
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) PutBack(*slab_.Find(*id));
}

std::vector<ClosureId> ClosureDispatcher::RemoveWorker(WorkerHandle handle, const Status& why) {
  std::vector<ClosureId> ids;
  Worker* worker = Find(handle);
  if (worker == nullptr) return ids;
  // Second executions, too, for the verdict: they go to nobody, and may be what ends executors.
  std::vector<ClosureId> had;
  for (const Extra& extra : extras_) {
    if (extra.worker == handle && !extra.over) had.push_back(extra.closure);
  }
  DropExtrasOf(handle);
  PutBackAll(*worker, ids);
  for (const ClosureId id : ids) {
    const ClosureRecord* record = slab_.Find(id);
    if (record == nullptr || record->state != ClosureState::kQueued) continue;
    if (record->suspect || record->executions > 1) awaited_.Add(id, handle.index);
  }
  had.insert(had.end(), ids.begin(), ids.end());
  std::ranges::sort(had);
  worker->had = std::move(had);
  worker->here = false;
  if (worker->held) --holds_;
  worker->held = false;
  --here_;
  Refresh(handle.index);
  per_worker_.Leave(handle.index,
                    {.status = Aborted("The corresponding function is aborted. Please reschedule "
                                       "the function. {}: {}",
                                       worker->task, Message(why)),
                     .origin = Origin::kWorker,
                     .phase = Phase::kBuild,
                     .task = worker->task,
                     .incarnation = worker->incarnation});
  return ids;
}

// What the worker had goes back to the queue, and what ran there is blamed: it runs alone from now
// on, and is given up when it has ended too many executors.
ClosureDispatcher::Crash ClosureDispatcher::CrashWorker(const std::string& task,
                                                        const std::string& how,
                                                        Suspects::Cause cause,
                                                        std::span<const ClosureId> running) {
  Crash crash;
  const auto found = by_task_.find(task);
  if (found == by_task_.end()) return crash;
  Worker& worker = workers_[found->second];
  if (worker.here) {
    crash.requeued = RemoveWorker({found->second, worker.generation}, Unavailable("{}", how));
  }
  awaited_.OnVerdict(found->second);
  crash.had = std::exchange(worker.had, {});
  for (const ClosureId id : running) {
    if (PerWorkerValues::IsPinned(id)) BlameBuild(found->second, id, cause, how);
  }
  // What waited behind the one that ran is no accomplice.
  const bool alone = (running.empty() ? crash.had.size() : running.size()) == 1;
  ClosureId blamed;
  for (const ClosureId id : crash.had) {
    ClosureRecord* record = slab_.Find(id);
    if (record == nullptr || record->state == ClosureState::kSettled) continue;
    if (!running.empty() && std::ranges::find(running, id) == running.end()) continue;
    suspects_.Blame(id, task, cause, alone);
    if (!record->suspect && record->state == ClosureState::kInFlight) {
      ++workers_[record->worker].suspects;
    }
    record->suspect = true;
    if (blamed == ClosureId()) blamed = id;
  }
  if (blamed == ClosureId()) return crash;
  suspects_.CountEnd(cause);
  ClosureRecord& record = *slab_.Find(blamed);
  // One that runs elsewhere by now, as the verdict came too late, speaks for itself.
  if (record.state != ClosureState::kQueued) return crash;
  if (const auto why = suspects_.Judge(blamed, NameOf(blamed), alone, here_ == 0, how)) {
    crash.given_up = blamed;
    crash.why = *why;
    queue_.Remove(slab_, record);
    Fail(record, {.status = Internal("{}", *why),
                  .origin = Origin::kUser,
                  .phase = Phase::kRun,
                  .task = task,
                  .incarnation = worker.incarnation,
                  .retries = record.executions - 1U});
  }
  return crash;
}

// A build has no other worker to go to: it would take one executor after another without an end,
// and what is queued would never run.
void ClosureDispatcher::BlameBuild(std::uint32_t index, ClosureId value, Suspects::Cause cause,
                                   const std::string& how) {
  const bool from_outside = cause == Suspects::Cause::kOutside;
  const auto ends = per_worker_.CountEnd(index, value, from_outside);
  const Suspects::Limits& limits = options_.limits;
  if (!ends || (ends->itself < limits.crash && ends->all < limits.kill)) return;
  const Worker& worker = workers_[index];
  const ClosureError error{
      .status = Internal("a per-worker value of {} is given up there: its build has ended its "
                         "executor {} times, the last time by {}",
                         worker.task, ends->all, how),
      .origin = Origin::kUser,
      .phase = Phase::kBuild,
      .task = worker.task,
      .incarnation = worker.incarnation};
  per_worker_.GiveUp(index, value, error);
  FailQueue(error);
}

void ClosureDispatcher::SetReady(std::uint32_t index, bool ready) {
  Worker& worker = workers_[index];
  if (worker.ready == ready) return;
  worker.ready = ready;
  if (ready && ready_ == kNoWorker) {
    worker.previous = worker.next = ready_ = index;
  } else if (ready) {
    // The last of the ring.
    worker.next = ready_;
    worker.previous = workers_[ready_].previous;
    workers_[worker.previous].next = index;
    workers_[ready_].previous = index;
  } else if (worker.next == index) {
    ready_ = kNoWorker;
  } else {
    workers_[worker.previous].next = worker.next;
    workers_[worker.next].previous = worker.previous;
    if (ready_ == index) ready_ = worker.next;
  }
}

void ClosureDispatcher::Refresh(std::uint32_t index) {
  Worker& worker = workers_[index];
  const bool was_ready = worker.ready;
  // Nothing waits behind an execution that does not count, which may take for ever.
  const std::size_t room = worker.extras == 0 ? worker.credit.value() : worker.slots;
  const std::size_t has = worker.in_flight.size() + worker.extras;
  SetReady(index, worker.here && !worker.held && has < room);
  const bool idle = worker.ready && has == 0;
  if (idle == worker.idle) return;
  worker.idle = idle;
  idle_ += idle ? 1 : -1;
  // One that just joined waits for its turn.
  if (idle && was_ready) ready_ = index;
}

void ClosureDispatcher::HoldWorker(WorkerHandle handle, TimePoint until) {
  Worker* worker = Find(handle);
  if (worker == nullptr) return;
  if (!worker->held) ++holds_;
  worker->held = true;
  worker->hold_until = until;
  Refresh(handle.index);
}

void ClosureDispatcher::EndHolds(TimePoint now) {
  for (std::uint32_t index = 0; index < workers_.size(); ++index) {
    Worker& worker = workers_[index];
    if (!worker.held || worker.hold_until > now) continue;
    worker.held = false;
    --holds_;
    Refresh(index);
  }
}

void ClosureDispatcher::LosePatience(TimePoint now) {
  const bool nobody = here_ == 0 && !queue_.empty() && !failed();
  if (!nobody || options_.worker_patience.count() == 0) return nobody_since_.reset();
  if (!nobody_since_) nobody_since_ = now;
  if (now - *nobody_since_ < options_.worker_patience) return;
  nobody_since_.reset();
  const std::string tasks = Joined(workers_, kMostNamed, &Worker::task);
  ClosureRecord& record = slab_.At(queue_.front());
  queue_.Remove(slab_, record);
  Fail(record, {.status = Unavailable(
                    "{} closures have waited {} s for a worker and none has come back{}{}",
                    queue_.size() + 1, options_.worker_patience.count() / 1000,
                    tasks.empty() ? "" : "; there were ", tasks),
                .origin = Origin::kWorker,
                .phase = Phase::kQueued});
}

void ClosureDispatcher::BackOff(std::uint32_t index, TimePoint now) {
  Worker& worker = workers_[index];
  worker.back_off = std::clamp(2 * worker.back_off, kFirstBackOff, kLongestBackOff);
  const TimePoint until = now + worker.back_off;
  if (!worker.held || worker.hold_until < until) HoldWorker({index, worker.generation}, until);
}

TimePoint ClosureDispatcher::next_timer() const {
  TimePoint next = TimePoint::max();
  if (nobody_since_) next = *nobody_since_ + options_.worker_patience;
  next = std::min(next, awaited_.next());
  if (holds_ > 0) {
    for (const Worker& worker : workers_) {
      if (worker.held) next = std::min(next, worker.hold_until);
    }
  }
  if (!may_run_again()) return next;
  for (const auto& [id, given] : given_at_) {
    next = std::min(next, LateAt(slab_.At(slab_.SlotOf(id)), given));
  }
  return next;
}

}  // namespace muster::dispatch
