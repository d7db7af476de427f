// muster-coordinator: the daemon of the chief task.
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/environment.h"
#include "common/base/number_in.h"
#include "common/base/utf8.h"
#include "common/base/version.h"
#include "common/base/words.h"
#include "common/process/child.h"
#include "common/telemetry/log.h"
#include "coordinator/backup.h"
#include "services/common/daemon.h"
#include "services/coordinator/coordinator_node.h"

namespace muster::coordinator {
namespace {

using config::Kind;

// Between two looks at what it does.
constexpr Millis kTellEvery{2'000};

const services::Role kRole{
    .program = "muster-coordinator",
    .about = "The chief task: keeps the jobs, starts their drivers, knows who is alive.",
    .task_type = "chief",
    .settings = {
        {.name = "lease",
         .kind = Kind::kDuration,
         .fallback = "3s",
         .doc = "Silence longer than this loses a task.",
         .least = 0.2,
         .most = 600},
        {.name = "heartbeat",
         .kind = Kind::kDuration,
         .fallback = "250ms",
         .doc = "How often tasks report; at most half of the lease.",
         .least = 0.02,
         .most = 60},
        {.name = "ps-wait",
         .kind = Kind::kDuration,
         .fallback = "60s",
         .doc = "How long a job waits for its parameter servers before it says who is missing."},
        {.name = "driver-timeout",
         .kind = Kind::kDuration,
         .fallback = "15s",
         .doc = "A job's driver process that asks nothing for so long (5s or more) is killed and "
                "replaced. 0: never."},
        {.name = "max-jobs",
         .kind = Kind::kInt,
         .fallback = "4",
         .doc = "Jobs that run at once; others wait for their turn.",
         .least = 1,
         .most = 1'000},
        {.name = "keep-jobs",
         .kind = Kind::kInt,
         .fallback = "1000",
         .doc = "Ended jobs that are remembered; rows and logs of older ones are deleted, "
                "checkpoints are not.",
         .least = 1,
         .most = 100'000},
        {.name = "audit-size",
         .kind = Kind::kSize,
         .fallback = "0",
         .doc = "The audit log is renamed to audit.log.old, in place of the one before, when it "
                "has this size. 0: never; logrotate does that, or something like it."},
        {.name = "checkpoint-dir",
         .doc = "Folder for checkpoints of jobs that name none, by a path that parameter servers "
                "and workers have, too. Default: checkpoints in --state-dir."},
        {.name = "restore",
         .doc =
             "A file of `muster backup`: it is put into the state directory, which must be empty "
             "or not there, and the coordinator ends; start it again without this."},
        {.name = "predecessor-end",
         .doc = "How the coordinator's process before this one ended (\"signal SIGKILL\"), for the "
                "events of its jobs; its parent knows."},
        {.name = "expect",
         .doc = "Who will come, where TF_CONFIG does not say: ps=2,worker=3,evaluator=1. A job "
                "waits for these "
                "and names who is missing; others may come too."},
    }};

// --state-dir, else systemd's, else the user's.
std::string StateDirectory(const services::DaemonConfig& config) {
  if (!config.state_dir.empty()) return config.state_dir;
  const Environment environment = ProcessEnvironment();
  if (const auto own = environment("STATE_DIRECTORY"); own && !own->empty()) return *own;
  if (const auto state = environment("XDG_STATE_HOME"); state && !state->empty()) {
    return *state + "/muster/coordinator";
  }
  return environment("HOME").value_or("/var/lib") + "/.local/state/muster/coordinator";
}

// "ps=2,worker=3"
Result<std::vector<TaskId>> ParseExpected(std::string_view text) {
  constexpr int kMost = 10'000;
  std::vector<TaskId> tasks;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const std::size_t equals = part.find('=');
    const std::string type(part.substr(0, equals));
    const std::string_view digits =
        equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
    const int count = NumberIn<int>(digits).value_or(-1);
    const int most = type == "evaluator" ? 1 : kMost;
    if ((type != "ps" && type != "worker" && type != "evaluator") || count < 0 || count > most) {
      return InvalidArgument(
          "expect: \"{}\" is none of ps=N, worker=N with N from 0 to {}, evaluator=1", part, kMost);
    }
    for (int index = 0; index < count; ++index) tasks.push_back({type, index});
  }
  return tasks;
}

Result<CoordinatorNode::Options> MakeOptions(const services::Daemon& daemon) {
  const services::DaemonConfig& config = daemon.config();
  CoordinatorNode::Options options;
  options.server = daemon.ServerOptions();
  if (daemon.tls() != nullptr) options.allowed = daemon.tls()->allowed();
  options.audit_bytes = config.values.Size("audit-size");
  options.trainer = process::SiblingProgram("muster-trainer");
  Coordinator::Options& core = options.coordinator;
  core.lease = config.values.Duration("lease");
  core.heartbeat = config.values.Duration("heartbeat");
  if (core.heartbeat * 2 > core.lease) {
    return InvalidArgument(
        "heartbeat is {} ms and lease {} ms: two heartbeats must fit in a lease; shorten the "
        "heartbeat or give a longer lease",
        core.heartbeat.count(), core.lease.count());
  }
  core.jobs.ps_wait = config.values.Duration("ps-wait");
  core.jobs.driver_timeout = config.values.Duration("driver-timeout");
  // It rests for up to 3 s between two attempts at a checkpoint on a full disk.
  if (const Millis given = core.jobs.driver_timeout; given > Millis(0) && given < Millis(5'000)) {
    return InvalidArgument("driver-timeout is {} ms; give 5s or more, or 0 for never",
                           given.count());
  }
  core.max_running_jobs = static_cast<std::size_t>(config.values.Int("max-jobs"));
  core.keep_jobs = static_cast<std::size_t>(config.values.Int("keep-jobs"));
  MUSTER_TRY_ASSIGN(core.expected, ParseExpected(config.values.String("expect")));
  core.before.how = Utf8Beginning(config.values.String("predecessor-end"), kMostOfHow);
  core.version = std::string(Version());
  // Checkpoint paths go to other processes, which have other working directories.
  core.state_directory = std::filesystem::absolute(StateDirectory(config)).string();
  if (const std::string folder = config.values.String("checkpoint-dir"); !folder.empty()) {
    core.jobs.checkpoints_directory = std::filesystem::absolute(folder).string();
  }
  core.insecure_network = config.insecure_network;
  if (config.cluster) {
    for (const auto& [type, tasks] : config.cluster->jobs()) {
      for (const auto& [index, address] : tasks) {
        if (type == "ps" || type == "worker") core.tasks.push_back({type, index});
      }
    }
  }
  return options;
}

Status Restore(const services::DaemonConfig& config) {
  const std::string file = config.values.String("restore");
  const std::string state = StateDirectory(config);
  const Result<BackupContents> contents = RestoreBackup(file, state);
  if (!contents.ok()) return Annotate(contents.status(), "restore");
  log::Info("restored {} and {} from {} into {}; its next epoch is {}. Start the coordinator there",
            Counted(contents->jobs, "job"), Counted(contents->files, "file"), file, state,
            contents->epoch.Next());
  return Ok();
}

// To systemd and the admin port, on the strand, for as long as that turns.
void TellStatus(services::Daemon& daemon, CoordinatorNode& node) {
  daemon.SetStatus(node.Doing());
  (void)node.strand().RunAfter(kTellEvery, [&] { TellStatus(daemon, node); });
}

Status Run(services::Daemon& daemon) {
  if (daemon.config().values.Given("restore")) return Restore(daemon.config());
  MUSTER_TRY_ASSIGN(CoordinatorNode::Options options, MakeOptions(daemon));
  MUSTER_TRY_ASSIGN(const auto node, CoordinatorNode::Start(std::move(options), daemon.token()));
  node->strand().Post([&] {
    daemon.FeedWatchdog(node->strand());
    TellStatus(daemon, *node);
  });
  if (daemon.admin() != nullptr) node->Show(*daemon.admin());
  const Status status =
      daemon.Serve(fmt::format("coordinator serves on {}, epoch {}", node->endpoint().ToString(),
                               node->epoch().value()),
                   [&] { node->Drain(daemon.config().values.Duration("drain-timeout") * 9 / 10); });
  node->Shutdown();
  return status;
}

}  // namespace
}  // namespace muster::coordinator

int main(int argc, char** argv) {
  return muster::services::RunDaemon(muster::coordinator::kRole, argc, argv,
                                     muster::coordinator::Run);
}
