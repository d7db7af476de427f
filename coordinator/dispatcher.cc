#include "coordinator/dispatcher.h"

#include <algorithm>
#include <utility>

#include "common/base/trouble.h"

namespace muster::coordinator {
namespace {

// Suspects are at the front of the queue; before them is only what a lost worker gave back.
constexpr std::size_t kLookAhead = 256;

}  // namespace

Dispatcher::Dispatcher(Options options, const Clock& clock, Send send)
    : options_(std::move(options)),
      clock_(clock),
      send_(std::move(send)),
      queue_(options_.queue_capacity) {}

void Dispatcher::Adopt(const AppliedClosures& applied, std::uint64_t start_step) {
  train_done_ = CountOf(applied.everywhere) - start_step;
  last_step_ = applied.highest;
  std::uint64_t next = 1;
  const auto again_below = [&](std::uint64_t end) {
    for (; next < end; ++next) queue_.Readmit({v1::CLOSURE_KIND_TRAIN, next});
  };
  for (const ClosureRun& run : applied.everywhere) {
    again_below(run.first);
    queue_.Settle(v1::CLOSURE_KIND_TRAIN, run.first, run.last);
    trained_.Append(run.first, run.last);
    next = run.last + 1;
  }
  again_below(applied.highest + 1);
}

void Dispatcher::AddWorker(const TaskId& worker) { workers_.try_emplace(worker); }

std::vector<ClosureKey> Dispatcher::RemoveWorker(const TaskId& worker) {
  std::vector<ClosureKey> requeued;
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return requeued;
  std::deque<InFlight>& in_flight = found->second.in_flight;
  for (auto item = in_flight.rbegin(); item != in_flight.rend(); ++item) {
    if (queue_.PutBack(item->key, ClosureQueue::Place::kFront).ok()) requeued.push_back(item->key);
  }
  std::reverse(requeued.begin(), requeued.end());
  workers_.erase(found);
  return requeued;
}

Dispatcher::Crash Dispatcher::CrashWorker(const TaskId& worker, const std::string& how,
                                          Cause cause) {
  Crash crash;
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return crash;
  const std::deque<InFlight>& in_flight = found->second.in_flight;
  if (!in_flight.empty()) {
    const bool alone = in_flight.size() == 1;
    for (const InFlight& item : in_flight) {
      Suspect& suspect = suspects_[item.key];
      suspect.on.insert(worker);
      if (cause != Cause::kOutside) {
        ++suspect.crashes;
        if (alone) ++suspect.alone;
      } else if (alone) {
        ++suspect.alone_outside;
      }
    }
    if (cause != Cause::kOutside) ++barren_crashes_;
    if (cause == Cause::kEndless) ++endless_steps_;
    crash.poison = Judge(in_flight.front().key, alone, how);
  }
  crash.requeued = RemoveWorker(worker);
  return crash;
}

std::optional<Dispatcher::Verdict> Dispatcher::Judge(const ClosureKey& blamed, bool alone,
                                                     const std::string& how) const {
  const Suspect& suspect = suspects_.at(blamed);
  std::string where;
  for (const TaskId& task : suspect.on) where += (where.empty() ? "" : ", ") + task.ToString();
  // One worker may be at fault itself.
  const bool excluded = suspect.on.size() >= 2 || workers_.size() == 1;
  if (alone && excluded && suspect.crashes >= options_.crash_limit &&
      suspect.alone >= options_.crash_limit - 1) {
    return Verdict{blamed, fmt::format("closure {} has ended its executor {} times, {} of them "
                                       "with nothing else in flight ({}; the last time by {})",
                                       blamed.id, suspect.crashes, suspect.alone, where, how)};
  }
  const int killed = suspect.alone + suspect.alone_outside;
  if (alone && excluded && killed >= options_.kill_limit) {
    return Verdict{blamed, fmt::format("closure {} has ended its executor {} times with nothing "
                                       "else in flight ({}; the last time by {}): if nobody kills "
                                       "executors here, it needs more memory than there is",
                                       blamed.id, killed, where, how)};
  }
  if (barren_crashes_ >= options_.barren_limit || endless_steps_ >= options_.endless_limit) {
    return Verdict{blamed, fmt::format("executors have ended {} times and no closure has succeeded "
                                       "in between, the last one by closure {} on {} by {}",
                                       barren_crashes_, blamed.id, where, how)};
  }
  return std::nullopt;
}

void Dispatcher::HoldWorker(const TaskId& worker, TimePoint until) {
  if (const auto found = workers_.find(worker); found != workers_.end()) {
    found->second.hold_until = until;
  }
}

bool Dispatcher::EndsExecutors(const ClosureKey& key) const {
  const auto found = suspects_.find(key);
  return found != suspects_.end() && found->second.crashes > 0;
}

bool Dispatcher::BetterElsewhere(const Suspect& suspect, const TaskId& task) const {
  if (!suspect.on.contains(task)) return false;
  return std::any_of(workers_.begin(), workers_.end(), [&](const auto& other) {
    return !suspect.on.contains(other.first) && other.second.hold_until != TimePoint::max();
  });
}

std::optional<ClosureKey> Dispatcher::Next(const TaskId& task, const Worker& worker) {
  if (draining_) return NextOfCut(worker);
  if (suspects_.empty()) {
    const bool waits = queue_.queued() > 0 && !MayBegin(queue_.waiting().front());
    return waits ? std::nullopt : queue_.Get();
  }
  // It runs a suspect: alone.
  if (!worker.in_flight.empty() && IsSuspect(worker.in_flight.front().key)) return std::nullopt;
  std::optional<ClosureKey> ordinary;
  // What ended an executor by its own doing may be a program that always does: nobody begins
  // anything else before that is known.
  bool held = std::any_of(workers_.begin(), workers_.end(), [this](const auto& other) {
    return !other.second.in_flight.empty() && EndsExecutors(other.second.in_flight.front().key);
  });
  std::size_t looked = 0;
  for (const ClosureKey key : queue_.waiting()) {
    if (++looked > kLookAhead) break;
    if (!MayBegin(key)) break;
    const auto suspect = suspects_.find(key);
    if (suspect == suspects_.end()) {
      if (!ordinary) ordinary = key;
      continue;
    }
    held = held || suspect->second.crashes > 0;
    if (BetterElsewhere(suspect->second, task)) continue;
    // Else it takes nothing more until it is free for the suspect.
    if (!worker.in_flight.empty() || !queue_.Take(key)) return std::nullopt;
    return key;
  }
  if (!held && ordinary && queue_.Take(*ordinary)) return ordinary;
  return std::nullopt;
}

bool Dispatcher::MayBegin(const ClosureKey& key) const {
  if (key.kind != v1::CLOSURE_KIND_TRAIN || !options_.steps.bounded()) return true;
  return key.id <= options_.steps.Limit(trained_.EndOfRun(options_.start + 1));
}

std::optional<ClosureKey> Dispatcher::NextOfCut(const Worker& worker) {
  // One at a time: it may be a suspect, and little is left.
  if (!worker.in_flight.empty()) return std::nullopt;
  const std::uint64_t cut = options_.steps.CutFrom(last_step_);
  const auto& waiting = queue_.waiting();
  const auto found = std::find_if(waiting.begin(), waiting.end(), [&](const ClosureKey& key) {
    return key.kind == v1::CLOSURE_KIND_TRAIN && key.id <= cut;
  });
  if (found == waiting.end()) return std::nullopt;
  const ClosureKey key = *found;
  return queue_.Take(key) ? std::optional(key) : std::nullopt;
}

void Dispatcher::Pump() {
  if (paused_) return;
  const TimePoint now = clock_.Now();
  // One closure to each worker before any gets its second.
  for (std::size_t depth = 0; depth < options_.in_flight_per_worker; ++depth) {
    for (auto& [task, worker] : workers_) {
      if (worker.in_flight.size() > depth || now < worker.hold_until) continue;
      const std::optional<ClosureKey> key = Next(task, worker);
      if (!key && queue_.queued() == 0) {
        if (!dry_since_) dry_since_ = now;
        return;
      }
      if (!key) continue;
      dry_since_.reset();
      if (key->kind == v1::CLOSURE_KIND_TRAIN) last_step_ = std::max(last_step_, key->id);
      v1::ClosureAssignment assignment;
      assignment.set_job_id(options_.job_id);
      assignment.set_view(options_.view);
      assignment.mutable_closure()->set_kind(key->kind);
      assignment.mutable_closure()->set_id(key->id);
      assignment.set_attempt(Attempt(options_.epoch, ++last_attempt_).value());
      worker.in_flight.push_back({*key, assignment.attempt()});
      send_(task, assignment);
    }
  }
}

Dispatcher::Outcome Dispatcher::OnResult(const TaskId& worker, v1::ClosureResult result) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || result.view() != options_.view) return Outcome::kStale;
  std::deque<InFlight>& in_flight = found->second.in_flight;
  const ClosureKey key{result.closure().kind(), result.closure().id()};
  const auto item = std::find_if(in_flight.begin(), in_flight.end(), [&](const InFlight& one) {
    return one.key == key && one.attempt == result.attempt();
  });
  if (item == in_flight.end()) return Outcome::kStale;
  in_flight.erase(item);

  const auto code = static_cast<StatusCode>(result.status().code());
  if (IsTransient(code)) {
    const bool first = options_.in_order || options_.steps.bounded() || IsSuspect(key);
    (void)queue_.PutBack(key, first ? ClosureQueue::Place::kFront : ClosureQueue::Place::kEnd);
    return Outcome::kAgain;
  }
  if (code != StatusCode::kOk) {
    const std::string message =
        fmt::format("closure {} on {}: {}", key.id, worker.ToString(), result.status().message());
    (void)queue_.MarkFailed(key, MakeStatus(code, message));
    suspects_.erase(key);
    return Outcome::kFailed;
  }
  (void)queue_.MarkFinished(key);
  suspects_.erase(key);
  barren_crashes_ = endless_steps_ = 0;
  if (key.kind == v1::CLOSURE_KIND_TRAIN) {
    ++train_done_;
    trained_.Insert(key.id);
  }
  std::deque<v1::ClosureResult>& results = results_[key.kind];
  results.push_back(std::move(result));
  if (results.size() > kMaxResults) results.pop_front();
  return Outcome::kDone;
}

void Dispatcher::TakeResults(v1::ClosureKind kind, v1::FetchReply& reply) {
  constexpr std::size_t kMaxBytes = 2 << 20;
  std::deque<v1::ClosureResult>& results = results_[kind];
  std::size_t bytes = 0;
  while (!results.empty() && bytes < kMaxBytes) {
    bytes += results.front().ByteSizeLong();
    *reply.add_results() = std::move(results.front());
    results.pop_front();
  }
  reply.set_more(!results.empty());
}

void Dispatcher::Forget(v1::ClosureKind kind) {
  queue_.Forget(kind);
  results_[kind].clear();
  std::erase_if(suspects_, [&](const auto& entry) { return entry.first.kind == kind; });
}

}  // namespace muster::coordinator
