#include "program/driver_runtime.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "dispatch/functions.h"
#include "program/executor_role.h"
#include <fmt/core.h>
#include <unistd.h>

#include "common/base/words.h"
#include "common/messages/status_proto.h"

namespace muster::program::internal {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr Millis kConnect{5'000};
constexpr Millis kFirstPause{20};
constexpr Millis kLongestPause{1'000};
constexpr Millis kReportEvery{500};
// How long closures wait for a worker while none is there.
constexpr Millis kWorkerPatience{3'600'000};
// What "closures a second" is taken over.
constexpr std::size_t kRateReports = 8;

std::string NameOf(const v1::Task& task) { return fmt::format("{}:{}", task.type(), task.index()); }

dispatch::Suspects::Cause CauseOf(v1::ExecutorVerdict::Cause cause) {
  switch (cause) {
    case v1::ExecutorVerdict::CAUSE_CRASHED:
      return dispatch::Suspects::Cause::kItself;
    case v1::ExecutorVerdict::CAUSE_STUCK:
      return dispatch::Suspects::Cause::kEndless;
    default:
      return dispatch::Suspects::Cause::kOutside;
  }
}

// Another try changes nothing.
bool IsFinal(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kUnimplemented;
}

// A number of seconds in the environment, as the original has them; 0: none, or no number.
Millis SecondsOf(const char* variable) {
  const char* const text = std::getenv(variable);
  const double seconds = text == nullptr ? 0 : std::strtod(text, nullptr);
  return seconds > 0 && seconds < 1e6 ? Millis(std::llround(seconds * 1000)) : Millis(0);
}

dispatch::Driver::Options DriverOptions(const v1::ProgramStart& start) {
  return {.dispatch = {.epoch = Epoch(start.epoch()),
                       .incarnation = static_cast<std::uint16_t>(start.incarnation()),
                       .worker_patience = kWorkerPatience},
          .identity = {.token = start.key(), .host_id = start.host_id()},
          .functions = dispatch::ProgramFunctions().hash(),
          .start_delay = SecondsOf("TF_COORDINATOR_SCHEDULE_START_DELAY"),
          .most_start_delay = SecondsOf("TF_COORDINATOR_SCHEDULE_START_DELAY_MAX")};
}

}  // namespace

DriverRuntime::DriverRuntime(const v1::ProgramStart& start, process::MessagePipe& pipe)
    : start_(start), pipe_(pipe), driver_([&] {
        dispatch::Driver::Options options = DriverOptions(start);
        options.on_lost = [this](const std::string& task, const Status&) { OnLost(task); };
        return options;
      }()) {}

Status DriverRuntime::Begin(const Options& options) {
  v1::FromProgram message;
  *message.mutable_ready() = Describe(options);
  MUSTER_TRY(pipe_.Send(message));
  listener_ = std::thread([this] { Listen(); });
  reporter_ = std::thread([this] { ReportAgainAndAgain(); });
  return Ok();
}

// ---- What the daemon says

void DriverRuntime::Listen() {
  for (;;) {
    v1::ToProgram message;
    const Status status = pipe_.Receive(message);
    if (!status.ok()) {
      // It is killed with its daemon anyhow; nothing that it still did would count.
      fmt::print(stderr, "muster: the coordinator is gone, this driver ends: {}\n",
                 Message(status));
      (void)std::fflush(stderr);
      ::_exit(1);
    }
    switch (message.body_case()) {
      case v1::ToProgram::kMembers:
        SetMembers(message.members());
        break;
      case v1::ToProgram::kVerdict:
        OnVerdict(message.verdict());
        break;
      case v1::ToProgram::kStop: {
        (void)stop_.request_stop();
        const MutexLock lock(mutex_);
        changed_.notify_all();
        break;
      }
      default:
        break;  // of a later release
    }
  }
}

// Takes the new list: keepers of those that are new begin, those of the others end.
void DriverRuntime::SetMembers(const v1::ProgramMembers& members) {
  std::vector<std::string> gone;
  {
    const MutexLock lock(mutex_);
    if (members.version() < known_.version()) return;
    known_ = members;
    for (const v1::ProgramWorker& worker : members.workers()) {
      workers_seen_.insert(static_cast<std::uint32_t>(worker.task().index()));
    }
    for (const v1::PsAddress& server : members.servers()) servers_seen_.insert(server.index());
    std::map<std::string, const v1::ProgramWorker*> now;
    for (const v1::ProgramWorker& worker : members.workers()) now[NameOf(worker.task())] = &worker;
    for (auto member = members_.begin(); member != members_.end();) {
      const auto found = now.find(member->first);
      const auto next = std::next(member);
      if (found == now.end() ||
          found->second->incarnation() != member->second->worker.incarnation()) {
        gone.push_back(member->first);
        Retire(member);
      }
      member = next;
    }
    Reap();
  }
  // Before their successors, whose links have the same name.
  for (const std::string& task : gone) driver_.Disconnect(task, Unavailable("{} is gone", task));
  {
    const MutexLock lock(mutex_);
    for (const v1::ProgramWorker& worker : members.workers()) {
      const std::string task = NameOf(worker.task());
      const auto [place, fresh] = members_.try_emplace(task, nullptr);
      if (!fresh) continue;
      const auto member = std::make_shared<Member>();
      member->worker = worker;
      member->task = task;
      member->last = Unavailable("it was not connected yet");
      place->second = member;
      member->keeper = std::thread([this, member] { Keep(member); });
    }
    changed_.notify_all();
  }
  const MutexLock lock(tell_mutex_);
  if (tell_) tell_(members);
}

void DriverRuntime::Retire(std::map<std::string, std::shared_ptr<Member>>::iterator member) {
  member->second->wanted = false;
  retired_.push_back(member->second);
  members_.erase(member);
  changed_.notify_all();
}

void DriverRuntime::Reap() {
  std::erase_if(retired_, [](const std::shared_ptr<Member>& member) {
    if (member->over) member->keeper.join();  // it has let go of the lock for the last time
    return member->over;
  });
}

// Passes the verdict on, if it is about the executor that had the task's closures last.
void DriverRuntime::OnVerdict(const v1::ExecutorVerdict& verdict) {
  const std::string task = NameOf(verdict.task());
  {
    const MutexLock lock(mutex_);
    const auto found = members_.find(task);
    if (found != members_.end()) {
      const Member& member = *found->second;
      const bool this_one = member.worker.incarnation() == verdict.incarnation();
      // Its successor runs closures already: who had them before is known no more.
      if (!this_one && member.connected) return;
      if (this_one) Retire(found);
    }
  }
  std::string how = verdict.how();
  if (verdict.last_lines_size() > 0) {
    how += ": " + verdict.last_lines(verdict.last_lines_size() - 1);
  }
  std::vector<std::uint64_t> running(verdict.running().begin(), verdict.running().end());
  // Known to be none: no closure's number.
  if (verdict.running_known() && running.empty()) running.push_back(0);
  driver_.Crashed(task, how, CauseOf(verdict.cause()), running);
}

// ---- Links

void DriverRuntime::OnLost(const std::string& task) {
  const MutexLock lock(mutex_);
  const auto found = members_.find(task);
  if (found == members_.end()) return;
  ++found->second->breaks;
  found->second->connected = false;
  changed_.notify_all();
}

Status DriverRuntime::Connect(const v1::ProgramWorker& worker, const std::string& task) {
  const v1::DataEndpoint& endpoint = worker.endpoint();
  const bool local = start_.link() != "tcp" && !endpoint.unix_path().empty() &&
                     endpoint.host_id() == start_.host_id();
  const TimePoint deadline = SteadyClock::now() + kConnect;
  Status status = FailedPrecondition(
      "{} has no address that link \"{}\" can use: it is on another host", task, start_.link());
  if (local) {
    status = driver_.Connect(task, worker.incarnation(), net::LinkKind::kUnix, endpoint.unix_path(),
                             deadline);
    // Its folder may be out of sight here.
    if (status.code() != StatusCode::kUnavailable) return status;
  }
  if (start_.link() == "local" || endpoint.tcp_address().empty()) return status;
  return driver_.Connect(task, worker.incarnation(), net::LinkKind::kTcp, endpoint.tcp_address(),
                         deadline);
}

// Connects a member, again after each break, until it is not wanted any more.
void DriverRuntime::Keep(const std::shared_ptr<Member>& member) {
  Millis pause = kFirstPause;
  MutexLock lock(mutex_);
  while (member->wanted) {
    if (member->connected) {
      changed_.wait(mutex_);
      continue;
    }
    const std::uint64_t breaks = member->breaks;
    lock.unlock();
    const Status status = Connect(member->worker, member->task);
    // The link of its predecessor, which was about to be made when that one went.
    if (status.code() == StatusCode::kAlreadyExists) driver_.Disconnect(member->task, status);
    lock.lock();
    member->last = status;
    if (status.ok() && !member->wanted) {
      lock.unlock();
      driver_.Disconnect(member->task, Unavailable("{} is gone", member->task));
      lock.lock();
      break;
    }
    if (status.ok()) {
      member->connected = member->breaks == breaks;
      pause = kFirstPause;
    }
    changed_.notify_all();
    if (member->connected) continue;
    const TimePoint until = SteadyClock::now() + pause;
    while (member->wanted && changed_.wait_until(mutex_, until)) {
    }
    pause = std::min(2 * pause, kLongestPause);
  }
  member->over = true;
}

std::string DriverRuntime::Missing(std::size_t n) const {
  std::string missing;
  for (const auto& [task, member] : members_) {
    if (!member->connected) missing += fmt::format("; {}: {}", task, Message(member->last));
  }
  if (members_.size() < n) {
    missing +=
        fmt::format("; the coordinator has started {} so far (`muster describe {}` says why)",
                    Counted(members_.size(), "executor"), start_.job_name());
  }
  return missing;
}

Status DriverRuntime::AwaitWorkers(std::size_t n, TimePoint deadline) {
  MutexLock lock(mutex_);
  for (;;) {
    std::size_t connected = 0;
    for (const auto& [task, member] : members_) {
      if (member->connected) ++connected;
      if (IsFinal(member->last)) return member->last;
    }
    if (connected >= n) return Ok();
    if (stop_.stop_requested()) return Cancelled("job {} is to stop", start_.job_name());
    const bool over = SteadyClock::now() >= deadline;
    if (over) {
      return DeadlineExceeded("waited for {}, {} connected{}", Counted(n, "executor"), connected,
                              Missing(n));
    }
    if (deadline == TimePoint::max()) {
      changed_.wait(mutex_);
    } else {
      (void)changed_.wait_until(mutex_, deadline);
    }
  }
}

std::vector<Task> DriverRuntime::tasks() const {
  const MutexLock lock(mutex_);
  std::vector<Task> tasks;
  for (const std::uint32_t index : workers_seen_) {
    const std::string name = fmt::format("worker:{}", index);
    const auto found = members_.find(name);
    tasks.push_back({.name = name, .up = found != members_.end() && found->second->connected});
  }
  for (const std::uint32_t index : servers_seen_) {
    const auto& servers = known_.servers();
    const bool up = std::any_of(servers.begin(), servers.end(),
                                [index](const auto& server) { return server.index() == index; });
    tasks.push_back({.name = fmt::format("ps:{}", index), .up = up});
  }
  return tasks;
}

std::vector<Worker> DriverRuntime::workers() const {
  const MutexLock lock(mutex_);
  std::vector<Worker> all;
  for (const auto& [task, member] : members_) {
    all.push_back({.index = member->worker.task().index(),
                   .incarnation = member->worker.incarnation(),
                   .connected = member->connected});
  }
  std::ranges::sort(all, {}, &Worker::index);
  return all;
}

void DriverRuntime::OnMembers(std::function<void(const v1::ProgramMembers&)> tell) {
  const MutexLock telling(tell_mutex_);
  tell_ = std::move(tell);
  v1::ProgramMembers now;
  {
    const MutexLock lock(mutex_);
    now = known_;
  }
  if (tell_ && now.version() > 0) tell_(now);
}

// ---- What the daemon is told

void DriverRuntime::Report(std::string phase) {
  const MutexLock lock(mutex_);
  phase_ = std::move(phase);
}

// Says how far it is, if that is news.
void DriverRuntime::ReportNow() {
  const dispatch::Driver::Counts counts = driver_.counts();
  v1::FromProgram message;
  v1::ProgramReport& report = *message.mutable_report();
  report.set_scheduled(counts.scheduled);
  report.set_queued(counts.queued);
  report.set_in_flight(counts.in_flight);
  report.set_done(counts.scheduled - counts.queued - counts.in_flight);
  report.set_reruns(counts.reruns);
  {
    const MutexLock lock(mutex_);
    report.set_phase(phase_);
  }
  const MutexLock lock(report_mutex_);
  rate_.emplace_back(SteadyClock::now(), report.done());
  if (rate_.size() > kRateReports) rate_.erase(rate_.begin());
  const std::chrono::duration<double> over = rate_.back().first - rate_.front().first;
  if (over.count() > 0) {
    report.set_closures_per_second(static_cast<double>(rate_.back().second - rate_.front().second) /
                                   over.count());
  }
  std::string bytes = message.SerializeAsString();
  if (ended_ || bytes == sent_) return;
  sent_ = std::move(bytes);
  (void)pipe_.Send(message);  // the listener learns that the daemon has gone
}

void DriverRuntime::ReportAgainAndAgain() {
  for (;;) {
    ReportNow();
    const TimePoint next = SteadyClock::now() + kReportEvery;
    const MutexLock lock(report_mutex_);
    while (!ended_ && report_changed_.wait_until(report_mutex_, next)) {
    }
    if (ended_) return;
  }
}

void DriverRuntime::End(const Status& status) {
  ReportNow();
  const MutexLock lock(report_mutex_);
  if (std::exchange(ended_, true)) return;
  report_changed_.notify_all();
  v1::FromProgram message;
  SetStatus(status, *message.mutable_end()->mutable_status());
  (void)pipe_.Send(message);
}

void DriverRuntime::EndAtExit() {
  End(Ok());
  reporter_.join();
  const MutexLock lock(mutex_);
  Reap();
}

}  // namespace muster::program::internal
