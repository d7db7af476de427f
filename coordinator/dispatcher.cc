#include "coordinator/dispatcher.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/words.h"

namespace muster::coordinator {

Dispatcher::Dispatcher(Options options, const Clock& clock, Send send)
    : options_(std::move(options)),
      clock_(clock),
      send_(std::move(send)),
      queue_(options_.queue_capacity) {}

void Dispatcher::AddWorker(const TaskId& worker) { workers_.try_emplace(worker); }

std::vector<ClosureKey> Dispatcher::RemoveWorker(const TaskId& worker) {
  std::vector<ClosureKey> requeued;
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return requeued;
  std::deque<InFlight>& in_flight = found->second.in_flight;
  if (options_.in_order) std::reverse(in_flight.begin(), in_flight.end());
  for (const InFlight& item : in_flight) {
    if (queue_.PutBack(item.key, PlaceBack()).ok()) requeued.push_back(item.key);
  }
  if (options_.in_order) std::reverse(requeued.begin(), requeued.end());
  workers_.erase(found);
  return requeued;
}

Dispatcher::Crash Dispatcher::CrashWorker(const TaskId& worker, const std::string& how) {
  Crash crash;
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return crash;
  if (!found->second.in_flight.empty()) {
    const ClosureKey blamed = found->second.in_flight.front().key;
    std::vector<TaskId>& by = crashes_[blamed];
    by.push_back(worker);
    const std::set<TaskId> distinct(by.begin(), by.end());
    if (static_cast<int>(by.size()) >= options_.crash_limit &&
        (distinct.size() >= 2 || workers_.size() == 1)) {
      std::string where;
      for (const TaskId& task : distinct) where += (where.empty() ? "" : ", ") + task.ToString();
      crash.poison = Internal(
          "closure {} has ended its executor {} ({}; the last time by {}): it would do so for "
          "ever; "
          "the executor's last lines are in the job's events",
          blamed.id, Counted(by.size(), "time"), where, how);
      (void)queue_.MarkFailed(blamed, *crash.poison);
    }
  }
  crash.requeued = RemoveWorker(worker);
  return crash;
}

void Dispatcher::HoldWorker(const TaskId& worker, TimePoint until) {
  if (const auto found = workers_.find(worker); found != workers_.end()) {
    found->second.hold_until = until;
  }
}

void Dispatcher::Pump() {
  if (paused_) return;
  const TimePoint now = clock_.Now();
  // One closure to each worker before any gets its second.
  for (std::size_t depth = 0; depth < options_.in_flight_per_worker; ++depth) {
    for (auto& [task, worker] : workers_) {
      if (worker.in_flight.size() > depth || now < worker.hold_until) continue;
      const std::optional<ClosureKey> key = queue_.Get();
      if (!key) {
        if (queue_.queued() == 0 && !dry_since_) dry_since_ = now;
        return;
      }
      dry_since_.reset();
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
  if (code == StatusCode::kUnavailable || code == StatusCode::kAborted ||
      code == StatusCode::kCancelled || code == StatusCode::kDeadlineExceeded) {
    (void)queue_.PutBack(key, PlaceBack());
    return Outcome::kAgain;
  }
  if (code != StatusCode::kOk) {
    const std::string message =
        fmt::format("closure {} on {}: {}", key.id, worker.ToString(), result.status().message());
    (void)queue_.MarkFailed(key, MakeStatus(code, message));
    return Outcome::kFailed;
  }
  (void)queue_.MarkFinished(key);
  crashes_.erase(key);
  ++done_by_[worker];
  if (key.kind == v1::CLOSURE_KIND_TRAIN) ++train_done_;
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

std::uint64_t Dispatcher::done_by(const TaskId& worker) const {
  const auto found = done_by_.find(worker);
  return found == done_by_.end() ? 0 : found->second;
}

void Dispatcher::Forget(v1::ClosureKind kind) {
  queue_.Forget(kind);
  results_[kind].clear();
}

}  // namespace muster::coordinator
