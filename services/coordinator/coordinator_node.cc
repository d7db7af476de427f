#include "services/coordinator/coordinator_node.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <set>
#include <utility>

#include "common/base/time_left.h"
#include "common/base/wall_time.h"
#include "common/base/words.h"
#include "common/net/handshake.h"
#include "common/telemetry/log.h"
#include "coordinator/journal.h"
#include "services/coordinator/alive_mark.h"
#include "services/coordinator/audit_trail.h"
#include "services/coordinator/cluster_service.h"
#include "services/coordinator/coordinator_metrics.h"
#include "services/coordinator/driver_calls.h"
#include "services/coordinator/driver_processes.h"
#include "services/coordinator/file_store.h"
#include "services/coordinator/front.h"
#include "services/coordinator/job_figures.h"
#include "services/coordinator/job_service.h"
#include "services/coordinator/pages.h"

namespace muster::coordinator {
namespace {

constexpr Millis kShutdownGrace{300};
// For pieces of disk work that run, all of them together; one that hangs is left behind.
constexpr Millis kDiskGrace{2'000};
// And for one that comes last, which has worked all the while.
constexpr Millis kMoment{200};
// For rows that wait for the database's disk when the coordinator ends, and for what jobs have
// written meanwhile. Longer than a disk needs that works; with all that comes after it shorter than
// those who end a coordinator wait for it (services/common/daemon.cc, kLastWork).
constexpr Millis kFlushGrace{10'000};
// How long a file is kept that no job needs: its job is yet to be submitted, or was forgotten.
constexpr std::chrono::hours kUnusedFile{24};

void LogEvent(const std::string& job, const v1::Event& event) {
  log::With({{"job", job}, {"reason", event.reason()}}).Info("{}", event.message());
}

void LogTask(const TaskId& task, const std::string& what) {
  log::Info("{} {}", task.ToString(), what);
}

}  // namespace

// In the order of construction; the strand goes last, because everything runs on it.
struct CoordinatorNode::Parts {
  Parts(const Options& options, const services::Token& token, std::unique_ptr<Journal> opened)
      : journal(std::move(opened)),
        journal_thread(strand),
        writer(*journal, journal_thread, strand),
        alive(options.coordinator.state_directory + "/alive"),
        files(options.coordinator.state_directory + "/files"),
        log_thread(strand),
        logs({.directory = options.coordinator.state_directory + "/logs"}, log_thread),
        disks(strand),
        audit(options.coordinator.state_directory + "/audit.log", options.audit_bytes, disks,
              strand),
        checkpoints(disks),
        figures(disks, strand),
        drivers(
            strand,
            {.program = options.trainer,
             .tls = options.server.tls != nullptr,
             .on_line =
                 [this](const std::string& job, std::int64_t time, std::string line) {
                   if (core) core->OnDriverLine(job, time, std::move(line));
                 },
             .on_exit =
                 [this](const std::string& job, Incarnation number, bool success,
                        const std::string& how) {
                   if (core) core->OnDriverExit(job, number, success, how);
                 },
             .executable = [this](const std::string& sha256) { return files.Executable(sha256); },
             .data_cache = options.coordinator.state_directory + "/cache/data",
             .key = [token](const std::string& job,
                            Epoch epoch) { return net::JobKey(token.value(), job, epoch); },
             .on_message =
                 [this](const std::string& job, Incarnation number,
                        const v1::FromProgram& message) {
                   if (!core) return;
                   if (message.has_call()) {
                     driver_calls.Serve({.job = job, .driver = number}, message.call());
                   } else {
                     core->OnDriverMessage(job, number, message);
                   }
                 }}),
        front{strand,
              nullptr,
              [token, list = options.allowed](const grpc::ServerContextBase& context,
                                              tls::Role least) {
                return services::CheckCaller(context, token, least, list.get());
              },
              [list = options.allowed](const services::Caller& caller) {
                return services::CheckStillAllowed(caller, list.get());
              },
              audit,
              disks,
              options.stall_limit,
              options.coordinator.version},
        cluster_service(front, files),
        driver_calls(front,
                     [this](const DriverCalls::Asker& asker, v1::DriverAnswer answer) {
                       v1::ToProgram message;
                       *message.mutable_answer() = std::move(answer);
                       drivers.SendTo(asker.job, asker.driver, message);
                     }),
        job_service(front, files, options.coordinator.state_directory) {}

  // Runs a function on the strand and waits for it.
  template <class Function>
  auto OnStrand(Function function) {
    std::packaged_task<decltype(function())()> task(std::move(function));
    auto result = task.get_future();
    strand.Post([&task] { task(); });
    return result.get();
  }

  // Waits until all rows are written. False: the disk hangs, and they are lost.
  bool Flush() {
    auto idle = std::make_shared<std::promise<void>>();
    auto flushed = idle->get_future();
    strand.Post([this, idle] { writer.WhenIdle([idle] { idle->set_value(); }); });
    if (flushed.wait_for(kFlushGrace) == std::future_status::ready) return true;
    log::Error("the disk of the coordinator's database has not answered for {} s: rows are lost",
               kFlushGrace.count() / 1000);
    OnStrand([this] { writer.Abandon(); });
    return false;
  }

  ThreadScheduler strand;
  std::unique_ptr<Journal> journal;
  ThreadOffload journal_thread;
  JournalWriter writer;
  AliveMark alive;
  FileStore files;
  // Each has a thread of its own, since a checkpoint takes minutes.
  ThreadOffload log_thread;
  Logs logs;
  ThreadLanes disks;
  AuditTrail audit;
  DiskCheckpoints checkpoints;
  JobFigures figures;
  DriverProcesses drivers;
  Front front;
  ClusterServiceImpl cluster_service;
  DriverCalls driver_calls;
  JobServiceImpl job_service;
  std::unique_ptr<Coordinator> core;
  std::unique_ptr<services::GrpcServer> server;
  bool shut_down = false;
};

Scheduler& CoordinatorNode::strand() { return parts_->strand; }

// First the journal, which takes the next epoch, then the core on its strand with the jobs in it,
// and the port last: who is answered is answered by a coordinator that knows its jobs.
Result<std::unique_ptr<CoordinatorNode>> CoordinatorNode::Start(Options options,
                                                                const services::Token& token) {
  const std::string& state = options.coordinator.state_directory;
  MUSTER_TRY_ASSIGN(std::unique_ptr<Journal> journal, OpenSqliteJournal(state));
  if (const std::string network = NetworkFileSystemOf(state); !network.empty()) {
    log::Warning(
        "the state directory {} is on a network file system ({}): its database does without a "
        "write-ahead log there, is slower, and as safe as that file system's locks. Give "
        "--state-dir a disk of this host, and --checkpoint-dir what hosts share",
        state, network);
  }
  if (options.coordinator.jobs.checkpoints_directory.empty()) {
    options.coordinator.jobs.checkpoints_directory = state + "/checkpoints";
  }
  auto parts = std::make_unique<Parts>(options, token, std::move(journal));
  Parts& all = *parts;
  std::unique_ptr<CoordinatorNode> node(new CoordinatorNode(std::move(parts)));

  options.coordinator.before.alive = all.alive.Last();
  options.coordinator.before.pid = all.alive.LastPid();
  const Status created = all.OnStrand([&]() -> Status {
    all.alive.Renew(all.strand, all.journal_thread);
    MUSTER_TRY_ASSIGN(
        all.core, Coordinator::Create(
                      options.coordinator,
                      {.scheduler = all.strand,
                       .journal = all.writer,
                       .logs = all.logs,
                       .checkpoints = all.checkpoints,
                       .drivers = all.drivers,
                       .has_file =
                           [&all](const std::string& sha256, std::function<void(bool)> then) {
                             all.files.Look(all.disks, sha256, std::move(then));
                           },
                       .keep_files =
                           [&all](std::set<std::string> used) {
                             all.disks.Run(
                                 "files",
                                 [files = all.files, used = std::move(used)] {
                                   if (const std::size_t gone = files.Collect(used, kUnusedFile);
                                       gone > 0) {
                                     log::Info("removed {} uploaded files that no job needs", gone);
                                   }
                                 },
                                 [] {});
                           },
                       .on_event = LogEvent,
                       .on_task = LogTask,
                       .figures = &all.figures}));
    all.front.core = all.core.get();
    return Ok();
  });
  MUSTER_TRY(created);
  options.server.services = {&all.cluster_service, &all.job_service};
  MUSTER_TRY_ASSIGN(all.server, services::GrpcServer::Start(options.server));
  all.OnStrand([&] {
    all.drivers.set_address(all.server->endpoint().ToString());
    all.core->set_grpc_address(all.server->endpoint().ToString());
  });
  all.server->SetReady(true);
  return node;
}

CoordinatorNode::CoordinatorNode(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
CoordinatorNode::~CoordinatorNode() { Shutdown(); }

const services::Endpoint& CoordinatorNode::endpoint() const { return parts_->server->endpoint(); }
Epoch CoordinatorNode::epoch() const { return parts_->journal->epoch(); }

std::string CoordinatorNode::Doing() const {
  const Parts& all = *parts_;
  if (all.core == nullptr) return "shutting down";
  const v1::ClusterStatus status = all.core->Status();
  const auto up = std::ranges::count_if(
      status.tasks(), [](const v1::TaskState& task) { return task.state() == "up"; });
  return fmt::format("serves on {}, epoch {}: {} running, {} waiting; {} of {} up",
                     status.grpc_address(), status.epoch(), Counted(status.jobs_running(), "job"),
                     status.jobs_pending(), up, Counted(status.tasks_size(), "task"));
}

void CoordinatorNode::Show(services::AdminPort& admin) {
  Parts& all = *parts_;
  admin.Collect(all.strand, [&all](services::Samples& samples) {
    if (all.core) AddMetrics(*all.core, UnixMillis(all.strand.WallNow()), samples);
  });
  ServePages(all.front, all.figures, admin);
  all.OnStrand([&] { all.core->set_page_address(admin.address()); });
}

void CoordinatorNode::Drain(Millis limit) {
  Parts& all = *parts_;
  all.server->SetReady(false);
  std::promise<void> drained;
  all.strand.Post([&] { all.core->Drain(limit, [&drained] { drained.set_value(); }); });
  drained.get_future().wait();  // bounded by `limit`
}

// Every row that was asked for is on disk when this returns, unless the disk hangs. Disks work side
// by side: each that hangs is waited for while the others are. Drivers come last, since one that
// cannot die is waited for without an end.
void CoordinatorNode::Shutdown() {
  if (parts_ == nullptr) return;
  Parts& all = *parts_;
  if (std::exchange(all.shut_down, true)) return;
  if (all.server) all.server->SetReady(false);
  all.OnStrand([&] {
    all.front.core = nullptr;
    all.drivers.Kill();
    all.core.reset();
  });
  const TimePoint began = all.strand.Now();
  const TimeLeft patience(kFlushGrace);
  const bool flushed = all.Flush();
  const TimeLeft soon(kDiskGrace);
  // Before the server: calls that wait for a disk are answered by it.
  if (!all.audit.Flush(*soon())) {
    log::Error("the disk of the audit log has not answered for {} s: its last lines are lost",
               kDiskGrace.count() / 1'000);
  }
  all.disks.Stop(std::max(kMoment, *soon()));
  if (all.server) all.server->Shutdown(kShutdownGrace);
  const bool logged = all.log_thread.Finish(std::max({kMoment, *soon(), *patience()}));
  if (!logged) {
    log::Error("the disk of the jobs' logs has not answered for {} s: their last lines are lost",
               std::chrono::floor<std::chrono::seconds>(all.strand.Now() - began).count());
  }
  const bool ended = flushed && all.journal_thread.Finish(kDiskGrace);
  all.OnStrand([&] { all.drivers.Close(); });
  all.OnStrand([] {});  // what the end of the streams has posted
  all.strand.Stop();
  // The thread that hangs still needs them; the process ends now.
  if (!ended || !logged) (void)parts_.release();
}

}  // namespace muster::coordinator
