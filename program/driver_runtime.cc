#include "program/driver_runtime.h"

#include <cstdio>
#include <utility>

#include "program/executor_role.h"
#include <fmt/core.h>
#include <unistd.h>

#include "common/base/utf8.h"
#include "common/messages/status_proto.h"

namespace muster::program::internal {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr Millis kReportEvery{500};
// A coordinator that is stopped takes nothing for as long; that it has ended is heard at once.
constexpr Millis kPatience{std::chrono::hours(24)};
// What "closures a second" is taken over.
constexpr std::size_t kRateReports = 8;
// Each report has it, and so has each list of jobs.
constexpr std::size_t kLongestPhase = 1'024;

}  // namespace

DriverRuntime::DriverRuntime(const v1::ProgramStart& start, process::MessagePipe& pipe,
                             dispatch::Driver::Options options)
    : pipe_(pipe), links_(start, std::move(options)) {}

Status DriverRuntime::Begin(const Options& options) {
  v1::FromProgram message;
  *message.mutable_ready() = Describe(options);
  MUSTER_TRY(pipe_.Send(message, kPatience));
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
        links_.OnVerdict(message.verdict());
        break;
      case v1::ToProgram::kStop:
        (void)stop_.request_stop();
        links_.Wake();
        break;
      default:
        break;  // of a later release
    }
  }
}

void DriverRuntime::SetMembers(const v1::ProgramMembers& members) {
  if (!links_.SetMembers(members)) return;
  const MutexLock lock(tell_mutex_);
  if (tell_) tell_(members);
}

Status DriverRuntime::AwaitWorkers(std::size_t n, TimePoint deadline) {
  return links_.AwaitWorkers(n, deadline, stop_.get_token());
}

std::vector<Task> DriverRuntime::tasks() const { return links_.tasks(); }

std::vector<Worker> DriverRuntime::workers() const { return links_.workers(); }

void DriverRuntime::OnMembers(std::function<void(const v1::ProgramMembers&)> tell) {
  const MutexLock telling(tell_mutex_);
  tell_ = std::move(tell);
  const v1::ProgramMembers now = links_.known();
  if (tell_ && now.version() > 0) tell_(now);
}

// ---- What the daemon is told

void DriverRuntime::Report(std::string phase) {
  const MutexLock lock(mutex_);
  // Else the whole report would be refused.
  phase_ = Utf8Beginning(phase, kLongestPhase);
}

// Says how far it is, if that is news. Counts are taken in the order in which they are said: the
// last report stays, and is not to be older than the one before it.
void DriverRuntime::ReportNow() {
  const MutexLock reporting(report_mutex_);
  const dispatch::Driver::Counts counts = links_.driver().counts();
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
  (void)pipe_.Send(message, kPatience);  // the listener learns that the daemon has gone
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
  (void)pipe_.Send(message, kPatience);
}

void DriverRuntime::EndAtExit() {
  End(Ok());
  reporter_.join();
  (void)links_.Reap();
}

}  // namespace muster::program::internal
