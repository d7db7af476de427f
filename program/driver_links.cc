#include "program/driver_links.h"

#include <algorithm>
#include <utility>

#include "program/executor_endpoint.h"
#include <fmt/core.h>

#include "common/base/words.h"

namespace muster::program::internal {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr Millis kConnect{5'000};
constexpr Millis kFirstPause{20};
constexpr Millis kLongestPause{1'000};

std::string NameOf(const v1::Task& task) { return fmt::format("{}:{}", task.type(), task.index()); }

// Another try changes nothing.
bool IsFinal(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ||
         status.code() == StatusCode::kUnimplemented;
}

dispatch::Driver::Options Complete(const v1::ProgramStart& start,
                                   dispatch::Driver::Options options) {
  options.dispatch.epoch = Epoch(start.epoch());
  options.dispatch.incarnation = static_cast<std::uint16_t>(start.incarnation());
  options.identity = IdentityOf(start);
  return options;
}

}  // namespace

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

DriverLinks::DriverLinks(const v1::ProgramStart& start, dispatch::Driver::Options options)
    : start_(start), driver_([&] {
        dispatch::Driver::Options complete = Complete(start, std::move(options));
        complete.on_lost = [this](const std::string& task, Incarnation incarnation, const Status&) {
          OnLost(task, incarnation);
        };
        return complete;
      }()) {}

// ---- What the daemon says

// Links to workers that went, or came back as another process, end before those to their successors
// begin. False: a list older than the one that is known.
bool DriverLinks::SetMembers(const v1::ProgramMembers& members) {
  std::vector<std::pair<std::string, Incarnation>> gone;
  {
    const MutexLock lock(mutex_);
    if (members.version() < known_.version()) return false;
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
        gone.emplace_back(member->first, member->second->incarnation());
        Retire(member);
      }
      member = next;
    }
    JoinEnded();
  }
  // Before their successors, whose links have the same name.
  for (const auto& [task, incarnation] : gone) {
    driver_.Disconnect(task, Unavailable("{} is gone", task), incarnation);
  }
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
  return true;
}

void DriverLinks::Retire(std::map<std::string, std::shared_ptr<Member>>::iterator member) {
  member->second->wanted = false;
  member->second->changed.notify_all();
  retired_.push_back(member->second);
  members_.erase(member);
  changed_.notify_all();
}

void DriverLinks::JoinEnded() {
  std::erase_if(retired_, [](const std::shared_ptr<Member>& member) {
    if (member->over) member->keeper.join();  // it has let go of the lock for the last time
    return member->over;
  });
}

dispatch::ClosureDispatcher::Crash DriverLinks::OnVerdict(const v1::ExecutorVerdict& verdict) {
  const std::string task = NameOf(verdict.task());
  {
    const MutexLock lock(mutex_);
    const auto found = members_.find(task);
    if (found != members_.end()) {
      const Member& member = *found->second;
      const bool this_one = member.worker.incarnation() == verdict.incarnation();
      // Its successor runs closures already: who had them before is known no more.
      if (!this_one && member.connected) return {};
      if (this_one) Retire(found);
    }
  }
  std::string how = verdict.how();
  if (verdict.last_lines_size() > 0) {
    how += ": " + verdict.last_lines(verdict.last_lines_size() - 1);
  }
  std::vector<ClosureId> running;
  for (const std::uint64_t closure : verdict.running()) running.emplace_back(closure);
  // Known to be none: no closure's number.
  if (verdict.running_known() && running.empty()) running.emplace_back();
  return driver_.Crashed(task, how, CauseOf(verdict.cause()), running,
                         Incarnation(verdict.incarnation()));
}

bool DriverLinks::Reap() {
  const MutexLock lock(mutex_);
  JoinEnded();
  return retired_.empty();
}

// ---- Links

void DriverLinks::OnLost(const std::string& task, Incarnation incarnation) {
  const MutexLock lock(mutex_);
  const auto found = members_.find(task);
  // Its successor's link may be there by now.
  if (found == members_.end() || found->second->incarnation() != incarnation) return;
  ++found->second->breaks;
  found->second->connected = false;
  found->second->changed.notify_all();
  changed_.notify_all();
}

Status DriverLinks::Connect(const v1::ProgramWorker& worker, const std::string& task) {
  const v1::DataEndpoint& endpoint = worker.endpoint();
  const bool local = start_.link() != "tcp" && !endpoint.unix_path().empty() &&
                     endpoint.host_id() == start_.host_id();
  const TimePoint deadline = SteadyClock::now() + kConnect;
  Status status = FailedPrecondition(
      "{} has no address that link \"{}\" can use: it is on another host", task, start_.link());
  if (local) {
    status = driver_.Connect(task, Incarnation(worker.incarnation()), net::LinkKind::kUnix,
                             endpoint.unix_path(), deadline);
    // Its folder may be out of sight here.
    if (status.code() != StatusCode::kUnavailable) return status;
  }
  if (start_.link() == "local" || endpoint.tcp_address().empty()) return status;
  return driver_.Connect(task, Incarnation(worker.incarnation()), net::LinkKind::kTcp,
                         endpoint.tcp_address(), deadline);
}

// Connects a member, again after each break, until it is not wanted any more.
void DriverLinks::Keep(const std::shared_ptr<Member>& member) {
  Millis pause = kFirstPause;
  MutexLock lock(mutex_);
  while (member->wanted) {
    if (member->connected) {
      member->changed.wait(mutex_);
      continue;
    }
    const std::uint64_t breaks = member->breaks;
    lock.unlock();
    const Status status = Connect(member->worker, member->task);
    // The link of its predecessor, which was about to be made when that one went. Not that of its
    // successor, which may be there by now, either here or below.
    if (status.code() == StatusCode::kAlreadyExists) {
      driver_.Disconnect(member->task, status, member->incarnation());
    }
    lock.lock();
    member->last = status;
    if (status.ok() && !member->wanted) {
      lock.unlock();
      driver_.Disconnect(member->task, Unavailable("{} is gone", member->task),
                         member->incarnation());
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
    while (member->wanted && member->changed.wait_until(mutex_, until)) {
    }
    pause = std::min(2 * pause, kLongestPause);
  }
  member->over = true;
}

std::string DriverLinks::Missing(std::size_t n) const {
  std::string missing;
  std::size_t apart = 0;
  for (const auto& [task, member] : members_) {
    if (member->connected || ++apart > kMostNamed) continue;
    missing += fmt::format("; {}: {}", task, Message(member->last));
  }
  if (apart > kMostNamed) missing += fmt::format("; and {} more", apart - kMostNamed);
  if (members_.size() < n) {
    missing +=
        fmt::format("; the coordinator has started {} so far (`muster describe {}` says why)",
                    Counted(members_.size(), "executor"), start_.job_name());
  }
  return missing;
}

Status DriverLinks::AwaitWorkers(std::size_t n, TimePoint deadline, const std::stop_token& stop) {
  MutexLock lock(mutex_);
  for (;;) {
    std::size_t connected = 0;
    for (const auto& [task, member] : members_) {
      if (member->connected) ++connected;
      if (IsFinal(member->last)) return member->last;
    }
    if (connected >= n) return Ok();
    if (stop.stop_requested()) return Cancelled("job {} is to stop", start_.job_name());
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

void DriverLinks::Wake() {
  const MutexLock lock(mutex_);
  changed_.notify_all();
}

v1::ProgramMembers DriverLinks::known() const {
  const MutexLock lock(mutex_);
  return known_;
}

std::vector<Task> DriverLinks::tasks() const {
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

std::vector<Worker> DriverLinks::workers() const {
  const MutexLock lock(mutex_);
  std::vector<Worker> all;
  for (const auto& [task, member] : members_) {
    all.push_back({.index = member->worker.task().index(),
                   .incarnation = Incarnation(member->worker.incarnation()),
                   .connected = member->connected});
  }
  std::ranges::sort(all, {}, &Worker::index);
  return all;
}

}  // namespace muster::program::internal
