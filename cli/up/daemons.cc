#include "cli/up/daemons.h"

#include <csignal>
#include <utility>

#include <fmt/core.h>

namespace muster::cli {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kLastLines = 20;
// Exit codes that say "the same start cannot go better": bad flags, bad configuration.
constexpr int kBadFlags = 2;
constexpr int kBadConfig = 78;

milliseconds Since(const Clock& clock, TimePoint begin) {
  return std::chrono::duration_cast<milliseconds>(clock.Now() - begin);
}

}  // namespace

struct Daemons::Daemon {
  DaemonPlan plan;
  std::unique_ptr<process::Child> child;
  std::optional<process::Exit> exit;
  TimePoint started;
  // When to start it again; nullopt: it runs, or is to stay dead.
  std::optional<TimePoint> due;
  Backoff backoff;
  bool draining = false;
  mutable Mutex lines_mutex;
  std::optional<LogFile> log MUSTER_GUARDED_BY(lines_mutex);
  std::deque<std::string> last MUSTER_GUARDED_BY(lines_mutex);
};

Daemons::Daemons(Options options, const Clock& clock)
    : options_(std::move(options)), clock_(clock) {}

// Before what their last words and their end are told to.
Daemons::~Daemons() {
  for (const auto& daemon : daemons_) daemon->child.reset();
}

Daemons::Daemon* Daemons::Find(const std::string& task) const {
  for (const auto& daemon : daemons_) {
    if (daemon->plan.task == task) return daemon.get();
  }
  return nullptr;
}

Status Daemons::Start(DaemonPlan plan) {
  auto daemon = std::make_unique<Daemon>();
  daemon->plan = std::move(plan);
  {
    const MutexLock lock(daemon->lines_mutex);
    daemon->log.emplace(daemon->plan.log_file, clock_);
    MUSTER_TRY(daemon->log->Open());
  }
  MUSTER_TRY(Launch(*daemon));
  daemons_.push_back(std::move(daemon));
  return Ok();
}

void Daemons::Replace(const std::string& task, std::vector<std::string> argv) {
  if (Daemon* const daemon = Find(task)) daemon->plan.argv = std::move(argv);
}

Status Daemons::Launch(Daemon& daemon) {
  daemon.child.reset();
  process::Child::Options options;
  options.argv = daemon.plan.argv;
  options.on_line = [this, &daemon](std::chrono::system_clock::time_point,
                                    const std::string& line) {
    {
      const MutexLock lock(daemon.lines_mutex);
      daemon.log->Write(line);
      daemon.last.push_back(line);
      if (daemon.last.size() > kLastLines) daemon.last.pop_front();
    }
    if (options_.on_line) options_.on_line(daemon.plan.task, line);
  };
  options.on_exit = [this](const process::Exit&) {
    {
      const MutexLock lock(mutex_);
      ++deaths_;
    }
    died_.notify_all();
  };
  MUSTER_TRY_ASSIGN(daemon.child, process::Child::Start(std::move(options)));
  daemon.started = clock_.Now();
  daemon.exit.reset();
  daemon.due.reset();
  return Ok();
}

void Daemons::Bury(Daemon& daemon, const process::Exit& exit) {
  daemon.exit = exit;
  if (options_.on_death) options_.on_death(daemon.plan.task, daemon.child->pid(), exit);
  const std::string what = fmt::format("{} (pid {}) ended with {}", daemon.plan.task,
                                       daemon.child->pid(), exit.ToString());
  const bool hopeless = exit.code == kBadFlags || exit.code == kBadConfig;
  if (!options_.restart || hopeless) {
    options_.say(fmt::format("{}; it stays down. Its log: {}", what, daemon.plan.log_file));
    return;
  }
  const milliseconds rest = daemon.backoff.Next(Since(clock_, daemon.started));
  daemon.due = clock_.Now() + rest;
  options_.say(fmt::format("{}; starting it again in {} ms", what, rest.count()));
}

void Daemons::Poll(milliseconds limit) {
  {
    const TimePoint deadline = std::chrono::steady_clock::now() + limit;
    const MutexLock lock(mutex_);
    while (deaths_ == 0 && died_.wait_until(mutex_, deadline)) {
    }
    deaths_ = 0;
  }
  for (const auto& daemon : daemons_) {
    if (daemon->draining) continue;
    if (!daemon->exit) {
      if (const auto exit = daemon->child->Wait(milliseconds(0)); exit.ok()) Bury(*daemon, *exit);
    }
    if (daemon->due && clock_.Now() >= *daemon->due) {
      if (const Status status = Launch(*daemon); !status.ok()) {
        const milliseconds rest = daemon->backoff.Next(milliseconds(0));
        daemon->due = clock_.Now() + rest;
        options_.say(fmt::format("cannot start {} again: {}; trying once more in {} ms",
                                 daemon->plan.task, Message(status), rest.count()));
      } else {
        options_.say(
            fmt::format("{} runs again (pid {})", daemon->plan.task, daemon->child->pid()));
      }
    }
  }
}

std::optional<std::string> Daemons::Dead() const {
  for (const auto& daemon : daemons_) {
    if (daemon->exit && !daemon->due) return daemon->plan.task;
  }
  return std::nullopt;
}

std::optional<process::Exit> Daemons::Ended(const std::string& task) const {
  const Daemon* const daemon = Find(task);
  if (daemon == nullptr || daemon->exit) return daemon == nullptr ? std::nullopt : daemon->exit;
  const auto exit = daemon->child->Wait(milliseconds(0));
  return exit.ok() ? std::optional(*exit) : std::nullopt;
}

// Asks all at once, then waits for each out of one time for all; who is late is killed. True: all
// that ran have drained.
bool Daemons::Drain() {
  std::vector<Daemon*> ending;
  bool clean = true;
  for (const auto& daemon : daemons_) {
    daemon->draining = true;
    const bool rests = std::exchange(daemon->due, std::nullopt).has_value();
    if (daemon->exit) {
      // What stays down has not drained; what only rests was to come back.
      clean = clean && (rests || daemon->exit->ok());
      continue;
    }
    if (const auto exit = daemon->child->Wait(milliseconds(0)); exit.ok()) {
      daemon->exit = *exit;
      if (exit->ok()) continue;
      clean = false;
      options_.say(fmt::format("{} ended with {} before it was asked to drain; its log: {}",
                               daemon->plan.task, exit->ToString(), daemon->plan.log_file));
      continue;
    }
    (void)daemon->child->Signal(SIGTERM);
    ending.push_back(daemon.get());
  }
  const TimePoint begin = clock_.Now();
  for (Daemon* const daemon : ending) {
    const milliseconds left = std::max(milliseconds(0), options_.grace - Since(clock_, begin));
    auto exit = daemon->child->Wait(left);
    if (!exit.ok()) {
      options_.say(fmt::format("{} has not drained after {} s; killing it", daemon->plan.task,
                               options_.grace.count() / 1000));
      clean = false;
      exit = daemon->child->End(milliseconds(0));
    }
    daemon->exit = *exit;
    // Daemons hear SIGTERM from main() on: one that it ends has not got there, and had nothing yet.
    if (!exit->ok() && exit->signal != SIGTERM) {
      clean = false;
      options_.say(fmt::format("{} ended with {} while draining; its log: {}", daemon->plan.task,
                               exit->ToString(), daemon->plan.log_file));
    }
  }
  return clean;
}

std::vector<std::string> Daemons::LastLines(const std::string& task) const {
  const Daemon* const daemon = Find(task);
  if (daemon == nullptr) return {};
  const MutexLock lock(daemon->lines_mutex);
  return {daemon->last.begin(), daemon->last.end()};
}

}  // namespace muster::cli
