#include "dispatch/core/closure_dispatcher.h"

#include <algorithm>
#include <limits>

#include "dispatch/core/attempt.h"

namespace muster::dispatch {

ClosureDispatcher::ClosureDispatcher(Options options)
    : options_(std::move(options)),
      // What is handed out lies within the window; what comes back needs no room of the queue.
      slab_(options_.settled.Next(), options_.capacity + 2 * options_.window),
      steps_(options_.staleness),
      per_worker_(options_.epoch, options_.incarnation, results_),
      second_runs_(options_.second_runs),
      suspects_(options_.limits),
      policy_(options_.errors),
      last_given_(std::max(
          {options_.settled, options_.given,
           options_.settled_beyond.empty() ? ClosureId() : options_.settled_beyond.back().last})) {}

std::string ClosureDispatcher::NameOf(ClosureId closure) const {
  return options_.name ? options_.name(closure) : fmt::format("closure {}", closure);
}

// Three ways out: refused (failed, full), settled already by a driver before this one, or queued.
// The number is taken in the order of the calls in any case but the first.
ClosureDispatcher::Scheduled ClosureDispatcher::Schedule(std::uint32_t function,
                                                         const KeptBytes& arguments,
                                                         std::span<const ClosureId> turns_of,
                                                         std::uint64_t step,
                                                         const ClosureTerms& terms) {
  if (failed()) {
    Scheduled cancelled{.admission = Admission::kFailed};
    cancelled.result = results_.Create();
    results_.SetError(cancelled.result, CancelledError());
    return cancelled;
  }
  if (queue_.size() >= options_.capacity || slab_.full() ||
      argument_bytes_ + arguments.size() + turns_of.size() * sizeof(std::uint64_t) >
          options_.argument_bytes) {
    return {.admission = Admission::kFull};
  }
  ClosureRecord& record = slab_.Append();
  record.function = function;
  record.run_limit_ms = static_cast<std::uint32_t>(terms.run_limit.count());
  record.repeatable = terms.repeatable;
  record.of_step = steps_.Scheduled(record.id, step);
  record.result = results_.Create();
  results_.AddReference(record.result);
  const Scheduled scheduled{.closure = record.id, .result = record.result};
  if (inherited_ < options_.settled_beyond.size()) {
    while (inherited_ < options_.settled_beyond.size() &&
           options_.settled_beyond[inherited_].last < record.id) {
      ++inherited_;
    }
    if (inherited_ < options_.settled_beyond.size() &&
        options_.settled_beyond[inherited_].first <= record.id) {
      SettleInherited(record);
      return scheduled;
    }
  }
  if (turns_of.empty()) {
    record.arguments.Assign(arguments);
  } else {
    AssignWithTurns(record, arguments, turns_of);
  }
  argument_bytes_ += record.arguments.size();
  queue_.PushBack(slab_, record);
  return scheduled;
}

void ClosureDispatcher::AssignWithTurns(ClosureRecord& record, const KeptBytes& arguments,
                                        std::span<const ClosureId> turns_of) {
  std::vector<std::byte> all(arguments.begin(), arguments.end());
  std::vector<Turn>& turns = turns_[record.id];
  for (const ClosureId value : turns_of) {
    const std::uint64_t turn = per_worker_.TakeTurn(value);
    turns.push_back({.value = value, .turn = turn});
    const auto bytes = std::as_bytes(std::span(&turn, 1));
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  record.arguments.Assign(KeptBytes::Of(std::move(all)));
  record.has_turns = true;
}

void ClosureDispatcher::SettleInherited(ClosureRecord& record) {
  results_.SetValue(record.result, {});
  Settle(record, true);
}

std::optional<ClosureError> ClosureDispatcher::Raise() {
  if (!stranded()) return std::nullopt;
  while (!queue_.empty()) {
    ClosureRecord& record = slab_.At(queue_.front());
    queue_.Remove(slab_, record);
    Cancel(record);
  }
  suspects_.Clear();
  awaited_.Clear();
  cancel_pending_ = false;
  return std::exchange(error_, std::nullopt);
}

void ClosureDispatcher::Settle(ClosureRecord& record, bool succeeded) {
  record.state = ClosureState::kSettled;
  argument_bytes_ -= record.arguments.size();
  record.arguments.Clear();
  results_.Release(record.result);
  record.result = ResultSlab::kNone;
  if (record.has_turns) turns_.erase(record.id);
  policy_.Forget(record.id);
  for (Extra& extra : extras_) {
    if (extra.closure != record.id) continue;
    extra.over = true;
    extra.unwanted = !succeeded;
  }
  if (record.of_step) steps_.Settled(record.id);
  slab_.DropSettled();
}

void ClosureDispatcher::ReturnTurns(const ClosureRecord& record) {
  if (!record.has_turns) return;
  for (const Turn& one : turns_[record.id]) per_worker_.ReturnTurn(one.value, one.turn);
}

void ClosureDispatcher::Cancel(ClosureRecord& record) {
  ReturnTurns(record);
  results_.SetError(record.result, CancelledError());
  Settle(record, false);
}

void ClosureDispatcher::Fail(ClosureRecord& record, ClosureError error) {
  suspects_.Forget(record.id);
  // What it would have taken is the next one's, unless it may have taken some of it.
  if (record.executions == 0) ReturnTurns(record);
  results_.SetError(record.result, error);
  FailQueue(std::move(error));
  Settle(record, false);
}

void ClosureDispatcher::FailQueue(ClosureError error) {
  if (failed()) return;
  error_ = std::move(error);
  cancel_pending_ = true;
}

std::optional<ClosureId> ClosureDispatcher::TakeCancel() {
  if (!cancel_pending_) return std::nullopt;
  cancel_pending_ = false;
  if (!ends_awaited()) return std::nullopt;
  return last_given_;
}

void ClosureDispatcher::TakeFromFlight(ClosureRecord& record) {
  Worker& worker = workers_[record.worker];
  worker.in_flight.Remove(slab_, record);
  if (record.suspect) --worker.suspects;
  if (record.repeatable) given_at_.erase(record.id);
  --in_flight_;
}

// Where it has a second execution, that one counts from now on.
void ClosureDispatcher::PutBack(ClosureRecord& record) {
  if (const auto second = SecondOf(record.id); second != extras_.end()) {
    Exchange(*second, record);
    return DropExtra(second);
  }
  TakeFromFlight(record);
  if (failed()) {
    suspects_.Forget(record.id);
    return Cancel(record);
  }
  if (record.executions == kMostExecutions) {
    return Fail(record, {.status = Internal("{} was handed out {} times and never ended: given up",
                                            NameOf(record.id), record.executions),
                         .origin = Origin::kWorker,
                         .phase = Phase::kRun,
                         .task = workers_[record.worker].task,
                         .incarnation = workers_[record.worker].incarnation,
                         .retries = record.executions});
  }
  // From the one that came back before it: of a server that is away all in flight do, and each
  // would pass by all the others.
  const ClosureRecord* near = slab_.Find(back_);
  const bool near_waits = near != nullptr && near->state == ClosureState::kQueued;
  RecordSlot at = near_waits ? slab_.SlotOf(back_) : queue_.front();
  while (at != kNoRecord && slab_.At(at).id < record.id) at = slab_.At(at).next;
  for (RecordSlot before = at; before != kNoRecord && slab_.At(before).id > record.id;) {
    at = before;
    before = slab_.At(before).previous;
  }
  record.state = ClosureState::kQueued;
  queue_.InsertBefore(slab_, at, record);
  back_ = record.id;
}

// Takes the result of the execution that counts, of the worker that has it, and of no other; an
// error may send the closure back to the queue.
ClosureDispatcher::Outcome ClosureDispatcher::OnResult(WorkerHandle handle,
                                                       const ClosureResult& result, TimePoint now) {
  Worker* worker = Find(handle);
  if (worker == nullptr) return Outcome::kStale;
  if (PerWorkerValues::IsPinned(result.closure)) return OnBuilt(handle, result, now);
  ClosureRecord* record = slab_.Find(result.closure);
  if (record == nullptr || record->state != ClosureState::kInFlight ||
      record->worker != handle.index ||
      result.attempt != MakeAttempt(options_.epoch, options_.incarnation, record->current)) {
    return extras_.empty() ? Outcome::kStale : OnExtraResult(handle, result, now);
  }
  worker->credit.OnResult(record->id, result.run, now);
  if (result.error != nullptr) {
    const Outcome outcome = OnError(handle, *record, *result.error, now);
    Refresh(handle.index);
    if (outcome != Outcome::kAgain) Remember(handle, result);
    return outcome;
  }
  // First: where there is no memory for it, the closure is in flight as before.
  if (IsWanted(*record)) results_.SetValue(record->result, result.value);
  NoteRun(*record, result.run);
  TakeFromFlight(*record);
  suspects_.OnSuccess(record->id);
  worker->back_off = std::chrono::milliseconds(0);
  ++succeeded_;
  Settle(*record, true);
  Remember(handle, result);
  Refresh(handle.index);
  return Outcome::kDone;
}

void ClosureDispatcher::Remember(WorkerHandle worker, const ClosureResult& result) {
  for (const Bookmark& one : result.bookmarks) per_worker_.Remember(worker.index, one);
}

// What becomes of a closure that has failed, by whose fault it is: it runs again, waits for what is
// missing, or its error is the caller's.
ClosureDispatcher::Outcome ClosureDispatcher::OnError(WorkerHandle handle, ClosureRecord& record,
                                                      ClosureError error, TimePoint now) {
  error.retries = record.executions - 1U;
  workers_[handle.index].NameIn(error);
  if (failed() && (IsOfTheCluster(error) || error.status.code() == StatusCode::kCancelled)) {
    TakeFromFlight(record);
    suspects_.Forget(record.id);
    Cancel(record);
    return Outcome::kCancelled;
  }
  // A later execution has written, which makes this one none.
  if (error.status.code() == StatusCode::kAborted && record.current < record.executions) {
    PutBack(record);
    return Outcome::kAgain;
  }
  if (policy_.Decide(error, {.number = record.number, .newest = executions_}, here_, now) ==
      ErrorPolicy::Remedy::kPutBack) {
    const std::optional<std::string> too_often = policy_.NoteReturn(record.id, now);
    if (!too_often) {
      PutBack(record);
      BackOff(handle.index, now);
      return failed() ? Outcome::kFailed : Outcome::kAgain;
    }
    error.status = Annotate(error.status, *too_often);
  }
  TakeFromFlight(record);
  error.status = Annotate(error.status, NameOf(record.id));
  Fail(record, std::move(error));
  return Outcome::kFailed;
}

// An error of the user's stays with the value. The cluster's does not: the value is built again
// when the worker has paused, and what would be fatal to a closure fails the queue (a parameter
// server that is lost).
ClosureDispatcher::Outcome ClosureDispatcher::OnBuilt(WorkerHandle handle,
                                                      const ClosureResult& result, TimePoint now) {
  const std::optional<std::uint64_t> number = per_worker_.Running(handle.index, result);
  if (!number) {
    per_worker_.DropLate(result.closure);
    return Outcome::kStale;
  }
  Worker& worker = workers_[handle.index];
  if (result.error == nullptr) {
    worker.back_off = std::chrono::milliseconds(0);
    per_worker_.OnResult(handle.index, result);
    return Outcome::kDone;
  }
  ClosureError error = *result.error;
  worker.NameIn(error);
  const auto remedy = policy_.Decide(error, {.number = *number, .newest = executions_}, here_, now);
  if (!MayGoAway(error) || !per_worker_.Again(handle.index, result.closure)) {
    per_worker_.OnResult(handle.index,
                         {.closure = result.closure, .attempt = result.attempt, .error = &error});
    return Outcome::kFailed;
  }
  BackOff(handle.index, now);
  if (remedy == ErrorPolicy::Remedy::kPutBack) return Outcome::kAgain;
  error.status = Annotate(error.status, "a per-worker value of " + worker.task);
  FailQueue(std::move(error));
  return Outcome::kFailed;
}

ClosureId ClosureDispatcher::Limit() const {
  const ClosureId window(settled().value() + options_.window);
  const ClosureId limit = std::min(window, steps_.limit());
  return draining_ ? std::min(limit, steps_.CutFrom(last_given_)) : limit;
}

void ClosureDispatcher::Give(std::uint32_t index, ClosureRecord& record, TimePoint now, Send send) {
  Worker& worker = workers_[index];
  if (worker.in_flight.empty()) worker.credit.OnSentToIdle(record.id, now);
  queue_.Remove(slab_, record);
  worker.in_flight.PushBack(slab_, record);
  if (record.suspect) ++worker.suspects;
  ++in_flight_;
  record.state = ClosureState::kInFlight;
  record.worker = index;
  record.number = ++executions_;
  if (++record.executions > 1) ++reruns_;
  record.current = record.executions;
  if (record.repeatable && second_runs_ > 0) given_at_[record.id] = now;
  last_given_ = std::max(last_given_, record.id);
  send({index, worker.generation},
       {.closure = record.id,
        .attempt = MakeAttempt(options_.epoch, options_.incarnation, record.executions),
        .function = record.function,
        .flags = IsWanted(record) ? 0U : kFlagNoValue,
        .run_limit_ms = record.run_limit_ms,
        .arguments = record.arguments.kept()});
  Refresh(index);
}

void ClosureDispatcher::PumpBuilds(Send send) {
  if (per_worker_.size() == 0 || !per_worker_.any_waiting()) return;
  for (std::uint32_t index = 0; index < workers_.size(); ++index) {
    const Worker& worker = workers_[index];
    // After trouble: one that is not to begin yet, or is to end, builds.
    const bool pauses =
        worker.held && worker.back_off.count() > 0 && worker.hold_until != TimePoint::max();
    if (pauses || !per_worker_.waiting(index)) continue;
    while (const auto build = per_worker_.Next(index, ++executions_)) {
      send({index, workers_[index].generation}, *build);
    }
  }
}

void ClosureDispatcher::Pump(TimePoint now, Send send) {
  if (holds_ > 0) EndHolds(now);
  awaited_.Expire(now);
  LosePatience(now);
  PumpBuilds(send);
  if (paused_ || failed()) return;
  if (!suspects_.empty() || !awaited_.empty() || draining_) return PumpCarefully(now, send);
  const ClosureId limit = Limit();
  while (ready_ != kNoWorker && !queue_.empty()) {
    ClosureRecord& record = slab_.At(queue_.front());
    if (record.id > limit) break;
    const std::uint32_t index = ready_;
    ready_ = workers_[index].next;
    Give(index, record, now, send);
  }
  RunAgain(now, send);
}

void ClosureDispatcher::PumpCarefully(TimePoint now, Send send) {
  // What ended an executor by its own doing may be a program that always does: nobody begins
  // anything else before that is known.
  bool held = std::ranges::any_of(workers_, [this](const Worker& one) {
    return one.suspects > 0 && suspects_.EndsExecutors(slab_.At(one.in_flight.front()).id);
  });
  for (bool given = true; given;) {
    given = false;
    std::vector<std::uint32_t> ready;
    for (std::uint32_t index = 0; index < workers_.size(); ++index) {
      if (workers_[index].ready) ready.push_back(index);
    }
    for (const std::uint32_t index : ready) {
      if (ClosureRecord* record = NextFor(workers_[index], held)) {
        Give(index, *record, now, send);
        held = held || suspects_.EndsExecutors(record->id);
        given = true;
      }
    }
  }
}

// The closure that this worker may have next: a suspect that has nothing else beside it, or the
// first of the others.
ClosureRecord* ClosureDispatcher::NextFor(const Worker& worker, bool held) {
  // Suspects are at the front of the queue; before them is only what a lost worker gave back.
  constexpr std::size_t kLookAhead = 256;
  const ClosureId limit = Limit();
  // It runs a suspect: alone. While draining one at a time: it may be one, and little is left.
  if (worker.suspects > 0 || (draining_ && !worker.in_flight.empty())) return nullptr;
  ClosureRecord* ordinary = nullptr;
  std::size_t looked = 0;
  for (RecordSlot at = queue_.front(); at != kNoRecord && looked < kLookAhead; ++looked) {
    ClosureRecord& record = slab_.At(at);
    at = record.next;
    if (record.id > limit) break;
    const bool awaits = awaited_.Contains(record.id);
    if (!record.suspect) {
      if (ordinary == nullptr && !awaits) ordinary = &record;
      continue;
    }
    held = held || suspects_.EndsExecutors(record.id);
    if (awaits || BetterElsewhere(record.id, worker)) continue;
    // Else it takes nothing more until it is free for the suspect.
    return worker.in_flight.empty() ? &record : nullptr;
  }
  return held ? nullptr : ordinary;
}

bool ClosureDispatcher::BetterElsewhere(ClosureId closure, const Worker& worker) const {
  if (!suspects_.EndedOn(closure, worker.task)) return false;
  return std::ranges::any_of(workers_, [&](const Worker& other) {
    return other.here && !suspects_.EndedOn(closure, other.task) &&
           (!other.held || other.hold_until != TimePoint::max());
  });
}

}  // namespace muster::dispatch
