// `muster top`: the cluster on one screen; `muster status --wait ready`.
#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>

#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/format.h"
#include "common/base/byte_count.h"
#include "common/base/wall_time.h"
#include "common/base/words.h"
#include "common/messages/job_state.h"

namespace muster::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRefresh{1'000};
constexpr milliseconds kReadyPause{100};
// Without --timeout.
constexpr milliseconds kReadyLimit{60'000};
// So many jobs that have ended are shown when there is room.
constexpr int kMostEnded = 5;

// A second screen of the terminal, and back.
constexpr const char* kEnter = "\033[?1049h\033[?25l";
constexpr const char* kLeave = "\033[?25h\033[?1049l";
constexpr const char* kClear = "\033[H\033[J";
constexpr std::string_view kEnds = "Ctrl-C ends";

std::vector<std::string> JobRow(const v1::Job& job, std::int64_t now_ms) {
  const v1::JobProgress& progress = job.progress();
  const bool steps = progress.total_steps() > 0;
  const bool eta = progress.has_eta_seconds() && !HasEnded(job.state());
  return {job.id(),
          StateName(job.state()),
          Reason(job).empty() ? "-" : Reason(job),
          steps ? fmt::format("{}/{}", progress.step(), progress.total_steps())
                : std::to_string(job.program().done()),
          steps ? fmt::format("{}%", progress.step() * 100 / progress.total_steps()) : "-",
          progress.step() > 0 ? fmt::format("{:.4f}", progress.loss()) : "-",
          progress.examples_per_second() > 0 && !HasEnded(job.state())
              ? Thousands(static_cast<std::uint64_t>(progress.examples_per_second()))
              : "-",
          eta ? Seconds(progress.eta_seconds()) : "-",
          Seconds(static_cast<double>(now_ms - job.submitted_ms()) / 1000)};
}

std::string Screen(const v1::ClusterStatus& status, const v1::ListJobsReply& jobs,
                   std::int64_t now_ms) {
  std::string text = fmt::format("muster {} at {}, epoch {}: {} running, {} pending\n\n",
                                 status.version(), status.grpc_address(), status.epoch(),
                                 status.jobs_running(), status.jobs_pending());
  std::vector<std::vector<std::string>> rows{
      {"JOB", "STATE", "REASON", "STEP", "DONE", "LOSS", "EXAMPLES/S", "ETA", "AGE"}};
  int ended = 0;
  for (const v1::Job& job : jobs.jobs()) {
    if (!HasEnded(job.state()) || ++ended <= kMostEnded) rows.push_back(JobRow(job, now_ms));
  }
  text += rows.size() > 1 ? Table(rows) : "no jobs\n";
  rows = {{"TASK", "STATE", "HOST", "PID", "MEMORY", "CLOSURES", "HELD"}};
  for (const v1::TaskState& task : status.tasks()) {
    std::uint64_t bytes = 0;
    for (const v1::JobBytes& held : task.job_bytes()) bytes += held.bytes();
    rows.push_back({TaskName(task.task()), task.state(), task.hostname(),
                    task.pid() == 0 ? "-" : std::to_string(task.pid()),
                    ByteCount(task.resident_bytes()), std::to_string(task.closures_done()),
                    bytes == 0 ? "-" : ByteCount(bytes)});
  }
  return text + "\n" + Table(rows);
}

// As much of `text` as there is room for: what is longer would scroll its own head away, which a
// second screen does not keep.
std::string Fitted(std::string_view text, ScreenSize size) {
  const auto lines = static_cast<int>(std::ranges::count(text, '\n'));
  const bool all = size.rows <= 0 || lines + 2 <= size.rows;
  const int shown = all ? lines : std::max(size.rows - 1, 0);
  std::string fitted;
  for (int i = 0; i < shown; ++i) {
    const std::size_t end = text.find('\n');
    fitted += Cut(text.substr(0, end), size.columns);
    fitted += '\n';
    text.remove_prefix(end + 1);
  }
  if (all) return fitted + '\n' + std::string(Cut(kEnds, size.columns));
  const std::string more =
      fmt::format("{}; {} more: muster top --once", kEnds, Counted(lines - shown, "line"));
  return fitted + std::string(Cut(more, size.columns));
}

Result<std::string> Look(const Context& context) {
  MUSTER_TRY_ASSIGN(JobApi * api, context.connect());
  MUSTER_TRY_ASSIGN(const v1::ClusterStatus status, api->GetStatus());
  MUSTER_TRY_ASSIGN(const v1::ListJobsReply jobs, api->List());
  return Screen(status, jobs, UnixMillis(context.clock.WallNow()));
}

// The tasks that are not up and should be; empty: it is ready.
std::string Missing(const v1::ClusterStatus& status) {
  std::vector<std::string> missing;
  bool worker = false;
  for (const v1::TaskState& task : status.tasks()) {
    const bool up = task.state() == "up";
    worker = worker || (up && task.task().type() == "worker");
    // Nobody waits for one that was taken out.
    if (up || task.state() == "drained") continue;
    const bool before = task.state() == "never seen" && status.epoch() > 1;
    missing.push_back(
        fmt::format("{} ({})", TaskName(task.task()),
                    before ? "not seen since the coordinator's restart" : task.state()));
  }
  return missing.empty() && !worker ? "a worker" : Joined(missing);
}

}  // namespace

ExitCode Top(const Context& context) {
  std::ostream& out = context.terminal.out;
  const bool live = context.terminal.screen && !context.options.once;
  Result<std::string> screen = Look(context);
  // Without a person who watches, one screen is all.
  if (!screen.ok()) return Fail(context, screen.status());
  if (!live) {
    out << *screen;
    return ExitCode::kDone;
  }
  out << kEnter;
  do {
    out << kClear
        << Fitted(
               screen.ok() ? *screen : fmt::format("{}; trying again\n", Message(screen.status())),
               context.terminal.size ? context.terminal.size() : ScreenSize())
        << std::flush;
    screen = context.sleep(kRefresh) ? Look(context) : Result<std::string>(std::string());
  } while (!context.interrupted());
  out << kLeave << std::flush;
  return ExitCode::kDone;
}

// Also while there is no cluster yet: whoever starts one waits here for it.
ExitCode WaitUntilReady(const Context& context) {
  const TimePoint begin = context.clock.Now();
  const milliseconds limit = context.options.timeout.value_or(kReadyLimit);
  std::string missing;
  while (true) {
    const Result<JobApi*> api = context.connect();
    const Result<v1::ClusterStatus> status =
        api.ok() ? (*api)->GetStatus() : Result<v1::ClusterStatus>(api.status());
    // A call that was cut short knows nothing of the cluster.
    if (status.ok() || !context.interrupted()) {
      if (!status.ok() && CodeOf(status.status()) != ExitCode::kUnreachable) {
        return Fail(context, status.status());
      }
      missing = status.ok() ? Missing(*status) : Message(status.status());
      if (missing.empty()) return ExitCode::kDone;
      if (context.clock.Now() - begin >= limit) break;
    }
    if (!context.sleep(kReadyPause)) {
      return Fail(context, Cancelled("interrupted, not ready yet, waiting for: {}",
                                     missing.empty() ? "the coordinator" : missing));
    }
  }
  (void)Fail(context, DeadlineExceeded("not ready after {}, waiting for: {}",
                                       Seconds(static_cast<double>(limit.count()) / 1e3), missing));
  return ExitCode::kTimedOut;
}

}  // namespace muster::cli
