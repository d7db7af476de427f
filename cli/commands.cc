#include "cli/commands.h"

#include <algorithm>
#include <string_view>

#include <fmt/core.h>

#include "cli/certs.h"
#include "cli/drain.h"
#include "cli/format.h"
#include "common/base/byte_count.h"
#include "common/base/version.h"
#include "common/base/version_skew.h"
#include "common/base/wall_time.h"
#include "common/base/words.h"
#include "common/messages/job_state.h"

namespace muster::cli {
namespace {

std::string Percent(const v1::JobProgress& progress) {
  if (progress.total_steps() == 0) return "-";
  return fmt::format("{}%", progress.step() * 100 / progress.total_steps());
}

// What does not get onto the coordinator's disk, and what that means.
std::string DiskText(const v1::DiskTrouble& disk, std::int64_t now_ms) {
  std::string text = fmt::format(
      "disk        {} {} for {}: {} wait", disk.directory(),
      disk.error().empty() ? "does not answer"
                           : fmt::format("cannot be written ({})", disk.error()),
      Seconds(static_cast<double>(std::max<std::int64_t>(0, now_ms - disk.since_ms())) / 1000),
      Counted(disk.rows(), "row"));
  if (disk.jobs_size() > 0) {
    text += fmt::format(" (of {} {})", Agreeing(disk.jobs().size(), "job", "jobs"),
                        Joined(disk.jobs()));
  }
  return text +
         "; jobs go on, but what happens now is lost if the coordinator is restarted before they "
         "are written: make room there\n";
}

void WarnOf(const Context& context, const Status& status) {
  context.terminal.err << "warning: " << Message(status) << '\n';
}

// A line for each daemon there of another version than its coordinator.
std::string OtherVersionsText(const v1::ClusterStatus& status) {
  std::string text;
  for (const v1::TaskState& task : status.tasks()) {
    if (task.pid() == 0 || task.state() == "lost") continue;
    const VersionSkew skew =
        CompareVersions(TaskName(task.task()), task.version(), status.version());
    if (!skew.warning.empty()) text += skew.warning + "\n";
  }
  return text;
}

}  // namespace

ExitCode Jobs(const Context& context) {
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) return Fail(context, api.status());
  const Result<v1::ListJobsReply> reply = (*api)->List();
  if (!reply.ok()) return Fail(context, reply.status());
  if (context.options.output == Output::kJson) {
    context.terminal.out << Json(*reply);
    return ExitCode::kDone;
  }
  std::vector<std::vector<std::string>> rows{
      {"JOB", "NAME", "STATE", "REASON", "STEP", "PROGRESS", "ETA", "AGE"}};
  // Where jobs have owners: behind TLS.
  const bool owned =
      std::ranges::any_of(reply->jobs(), [](auto& job) { return job.owner() != ""; });
  if (owned) rows.front().push_back("OWNER");
  const std::int64_t now = UnixMillis(context.clock.WallNow());
  for (const v1::Job& job : reply->jobs()) {
    const v1::JobProgress& progress = job.progress();
    const bool eta = progress.has_eta_seconds() && !HasEnded(job.state());
    rows.push_back({job.id(), job.name(), StateName(job.state()),
                    Reason(job).empty() ? "-" : Reason(job),
                    std::to_string(job.has_program() ? job.program().done() : progress.step()),
                    Percent(progress), eta ? Seconds(progress.eta_seconds()) : "-",
                    Seconds(static_cast<double>(now - job.submitted_ms()) / 1000)});
    if (owned) rows.back().push_back(job.owner().empty() ? "-" : job.owner());
  }
  if (reply->jobs().empty()) {
    context.terminal.err << "no jobs; submit one with `muster submit -f job.yaml`, or a program "
                            "with `muster submit -- PROGRAM`\n";
  } else {
    context.terminal.out << Table(rows);
  }
  return ExitCode::kDone;
}

ExitCode Describe(const Context& context) {
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) return Fail(context, api.status());
  const Result<v1::Job> job = (*api)->Get(context.options.job);
  if (!job.ok()) return Fail(context, job.status());
  context.terminal.out << (context.options.output == Output::kJson
                               ? Json(*job)
                               : DescribeText(context.terminal, *job,
                                              UnixMillis(context.clock.WallNow())));
  return ExitCode::kDone;
}

ExitCode Stop(const Context& context) {
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) return Fail(context, api.status());
  v1::StopJobRequest request;
  request.set_job(context.options.job);
  request.set_grace_ms(static_cast<std::uint32_t>(context.options.grace.count()));
  const Result<v1::Job> job = (*api)->Stop(request);
  if (!job.ok()) return Fail(context, job.status());
  if (context.options.output == Output::kJson) {
    context.terminal.out << Json(*job);
  } else if (HasEnded(job->state())) {
    context.terminal.err << fmt::format("job {} has ended: {}\n", job->id(),
                                        StateName(job->state()));
  } else {
    // --grace 0 is 1 ms there: time for nothing.
    const std::string_view what = request.grace_ms() == 1     ? "is cut off"
                                  : job->spec().has_launch()  ? "asks its processes to end"
                                  : job->spec().has_program() ? "asks its program to end"
                                                              : "saves a checkpoint and ends";
    context.terminal.err << fmt::format("job {} {}; `muster wait {}` waits for it\n", job->id(),
                                        what, job->id());
  }
  return ExitCode::kDone;
}

ExitCode ShowStatus(const Context& context) {
  if (context.options.wait_ready) {
    if (const ExitCode code = WaitUntilReady(context); code != ExitCode::kDone) return code;
  }
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) return Fail(context, api.status());
  const Result<v1::ClusterStatus> status = (*api)->GetStatus();
  if (!status.ok()) return Fail(context, status.status());
  const Terminal& terminal = context.terminal;
  if (context.options.output == Output::kJson) {
    terminal.out << Json(*status);
    return ExitCode::kDone;
  }
  terminal.out << fmt::format(
      "coordinator {} (pid {}, version {}, epoch {})\nstate       {}\n{}{}jobs        {} running, "
      "{} pending\n\n",
      status->grpc_address(), status->pid(), status->version(), status->epoch(),
      status->state_directory(),
      status->page_address().empty()
          ? ""
          : fmt::format("page        {}\n", PageUrl(status->page_address())),
      status->has_disk() ? DiskText(status->disk(), UnixMillis(context.clock.WallNow())) : "",
      status->jobs_running(), status->jobs_pending());
  std::vector<std::vector<std::string>> rows{
      {"TASK", "STATE", "PID", "SESSION", "ADDRESS", "HOST", "MEMORY", "CLOSURES", "EXECUTOR"}};
  bool insecure = status->insecure_network();
  for (const v1::TaskState& task : status->tasks()) {
    insecure = insecure || task.insecure_network();
    const bool there = task.pid() != 0 && task.state() != "lost";
    rows.push_back({TaskName(task.task()), task.state(), there ? std::to_string(task.pid()) : "-",
                    std::to_string(task.session()), task.grpc_address(), task.hostname(),
                    ByteCount(task.resident_bytes()), std::to_string(task.closures_done()),
                    task.executor_pid() == 0 ? "-" : std::to_string(task.executor_pid())});
  }
  terminal.out << Table(rows);
  const std::string odd = OtherVersionsText(*status);
  if (!odd.empty()) terminal.out << '\n' << odd;
  const std::string taken_out = TakenOutText(*status);
  if (!taken_out.empty()) terminal.out << '\n' << taken_out;
  std::vector<std::vector<std::string>> held{{"JOB", "TASK", "HELD"}};
  for (const v1::TaskState& task : status->tasks()) {
    for (const v1::JobBytes& job : task.job_bytes()) {
      held.push_back({job.job_id(), TaskName(task.task()), ByteCount(job.bytes())});
    }
  }
  if (held.size() > 1) terminal.out << '\n' << Table(held);
  if (insecure) {
    terminal.err << "warning: some daemons listen beyond loopback without encryption "
                    "(--allow-insecure-network): whoever reads the network reads the token\n";
  }
  return ExitCode::kDone;
}

ExitCode Version(const Context& context) {
  const std::string ours(muster::Version());
  std::string theirs;
  if (const Result<JobApi*> api = context.connect(); api.ok()) {
    const Result<v1::ClusterStatus> status = (*api)->GetStatus();
    if (status.ok()) theirs = status->version();
    // One of another major version answers nothing else; this says which it is.
    if (!status.ok()) WarnOf(context, status.status());
  } else if (api.status().code() != StatusCode::kUnavailable) {
    // That no cluster runs is no trouble here; a token that cannot be read is.
    WarnOf(context, api.status());
  }
  if (context.options.output == Output::kJson) {
    context.terminal.out << fmt::format("{{\"client\": \"{}\", \"cluster\": {}}}\n", ours,
                                        theirs.empty() ? "null" : "\"" + theirs + "\"");
    return ExitCode::kDone;
  }
  context.terminal.out << fmt::format("muster  {}\ncluster {}\n", ours,
                                      theirs.empty() ? "none reached" : theirs);
  if (!theirs.empty() && theirs != ours) {
    context.terminal.err << fmt::format(
        "warning: this program is {}, the cluster {}; use the same version for both\n", ours,
        theirs);
  }
  return ExitCode::kDone;
}

ExitCode Bench(const Context& context) {
  const Result<int> code = context.run("muster-bench", context.options.rest, nullptr);
  if (!code.ok()) return Fail(context, code.status());
  return static_cast<ExitCode>(*code);
}

ExitCode RunCommand(const Context& context) {
  struct Entry {
    const char* name;
    ExitCode (*run)(const Context&);
  };
  static constexpr Entry kCommands[] = {
      {"submit", Submit},
      {"jobs", Jobs},
      {"describe", Describe},
      {"logs", Logs},
      {"stop", Stop},
      {"wait", Wait},
      {"drain", Drain},
      {"undrain", Undrain},
      {"backup", Backup},
      {"status", ShowStatus},
      {"top", Top},
      {"checkpoints list", CheckpointsList},
      {"checkpoints verify", CheckpointsVerify},
      {"checkpoints export", CheckpointsExport},
      {"checkpoints gc", CheckpointsGc},
      {"certs init", CertsInit},
      {"certs issue", CertsIssue},
      {"certs revoke", CertsRevoke},
      {"certs show", CertsShow},
      {"version", Version},
      {"bench", Bench},
  };
  const auto* found =
      std::find_if(std::begin(kCommands), std::end(kCommands),
                   [&](const Entry& entry) { return entry.name == context.options.command; });
  // The parser knows no other command.
  MUSTER_INVARIANT(found != std::end(kCommands));
  return found->run(context);
}

}  // namespace muster::cli
