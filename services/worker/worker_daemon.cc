#include "services/worker/worker_daemon.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <thread>
#include <type_traits>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "common/base/limits.h"
#include "common/base/private_directory.h"
#include "common/base/wall_time.h"
#include "common/base/words.h"
#include "common/net/handshake.h"
#include "common/net/host_id.h"
#include "common/process/cpu_time.h"
#include "common/telemetry/log.h"
#include "services/common/admin.h"
#include "services/common/attach_stream.h"
#include "services/common/network.h"
#include "services/common/program_child.h"
#include "services/common/registration.h"
#include "services/common/socket_folder.h"
#include "services/worker/drain_in_turn.h"

namespace muster::services {
namespace {

using worker::ProcessId;

constexpr Millis kGoodbye{2'000};
// Between two looks at what an executor has written.
constexpr Millis kLinePause{100};

std::string CacheDirectory(const DaemonConfig& config) {
  const std::string given = config.values.String("cache-dir");
  if (!given.empty()) return given;
  if (!config.state_dir.empty()) return config.state_dir + "/cache";
  const Environment environment = ProcessEnvironment();
  if (const auto cache = environment("CACHE_DIRECTORY"); cache && !cache->empty()) {
    // A unit with DynamicUser= has a link there, which systemd made.
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::canonical(*cache, error);
    return error ? *cache : folder.string();
  }
  if (const auto cache = environment("XDG_CACHE_HOME"); cache && !cache->empty()) {
    return *cache + "/muster";
  }
  if (const auto home = environment("HOME"); home && !home->empty()) {
    return *home + "/.cache/muster";
  }
  return fmt::format("{}/muster-cache-{}", std::filesystem::temp_directory_path().string(),
                     ::geteuid());
}

// Ours alone to change: what stands in it is believed. Its place may be one where others make
// folders too.
Status MakeCache(const std::string& cache) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(cache).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (error) return FromErrno(error.value(), "cache folder " + cache);
  if (::mkdir(cache.c_str(), 0700) != 0 && errno != EEXIST) {
    return FromErrno(errno, "cache folder " + cache);
  }
  return Annotate(RequireOwnDirectory(cache), "cache folder");
}

// All cores of this host, divided by the workers that TF_CONFIG puts on it. A control group's quota
// is this worker's own.
std::uint32_t ThreadsOf(const DaemonConfig& config) {
  if (const auto given = config.values.Int("threads"); given > 0) {
    return static_cast<std::uint32_t>(given);
  }
  const Limits limits = ReadLimits();
  const auto cores = static_cast<std::uint32_t>(limits.processors());
  if (limits.quota) return cores;
  std::uint32_t here = 0;
  if (config.cluster && config.cluster->HasJob("worker")) {
    for (const auto& [index, address] : config.cluster->jobs().at("worker")) {
      const auto endpoint = ParseEndpoint(address);
      here += endpoint.ok() && endpoint->host == config.listen.host ? 1 : 0;
    }
  }
  return std::max(1U, cores / std::max(here, here == 0 ? 2U : 1U));
}

}  // namespace

std::vector<config::Setting> WorkerSettings() {
  using config::Kind;
  return {
      {.name = "threads",
       .kind = Kind::kInt,
       .fallback = "0",
       .doc = "Threads of each executor. 0: those that the control group allows; where it has no "
              "quota the cores, divided by the workers of this host in TF_CONFIG (without it: by "
              "two).",
       .least = 0,
       .most = 1024},
      {.name = "link",
       .fallback = "auto",
       .doc = "How executors reach parameter servers, and drivers executors of programs; auto: "
              "shared memory and Unix sockets on one host.",
       .choices = {"auto", "tcp", "local"}},
      {.name = "data-advertise",
       .doc = "Host, a name too, at which drivers of programs reach executors. Default: the one of "
              "--listen."},
      {.name = "cache-dir",
       .doc =
           "Archives, decoded data and indexes; a folder that others cannot change. Default: "
           "cache in --state-dir, else systemd's CACHE_DIRECTORY, else the user's cache folder."},
      {.name = "warm-executor",
       .kind = Kind::kBool,
       .fallback = "true",
       .doc = "Keep one executor process started in advance."},
      {.name = "check-timeout",
       .kind = Kind::kDuration,
       .fallback = "60s",
       .doc = "Limit of a job's check and of opening its data."},
      {.name = "stuck-timeout",
       .kind = Kind::kDuration,
       .fallback = "30s",
       .doc = "An executor that has work, ends none of it and uses no processor time for so long "
              "(1s or more) is killed, and its work runs elsewhere. 0: never."},
      {.name = "step-timeout",
       .kind = Kind::kDuration,
       .fallback = "10m",
       .doc =
           "The same for one that computes without an end, or waits for a slower member of its "
           "group: longer than any honest step. 0: never; without --stuck-timeout never either."},
      {.name = "executor",
       .doc = "The executor program. Default: muster-executor beside this one."},
  };
}

// From settings to a worker that can start executors; the coordinator hears when the strand runs.
Result<std::unique_ptr<WorkerDaemon>> WorkerDaemon::Start(Daemon& daemon, GrpcServer& grpc) {
  const DaemonConfig& config = daemon.config();
  worker::WorkerCore::Options options;
  options.worker_index = static_cast<std::uint32_t>(config.task.index);
  options.threads = ThreadsOf(config);
  options.advertised_host = config.values.String("data-advertise");
  options.link = config.values.String("link");
  MUSTER_TRY_ASSIGN(options.host_id, net::HostId());
  const std::string cache = CacheDirectory(config);
  MUSTER_TRY(MakeCache(cache));
  options.cache_directory = cache + "/data";
  options.warm = config.values.Bool("warm-executor");
  options.check_limit = config.values.Duration("check-timeout");
  options.stuck_limit = config.values.Duration("stuck-timeout");
  // What it runs it tells once a second: one that has just ended all of it would be killed.
  if (const Millis given = options.stuck_limit; given > Millis(0) && given < Millis(1'000)) {
    return InvalidArgument("{}: stuck-timeout is {} ms; give 1s or more, or 0 for never",
                           config.values.OriginOf("stuck-timeout").where, given.count());
  }
  options.step_limit = config.values.Duration("step-timeout");
  std::error_code error;
  std::filesystem::create_directories(options.cache_directory, error);
  if (error) {
    return FromErrno(error.value(), fmt::format("cache folder {}", options.cache_directory));
  }
  Places places{.cache = cache, .listen_host = {}, .socket_folder = {}};
  MUSTER_TRY_ASSIGN(places.listen_host, FirstAddress(config.listen.host));
  if (options.link != "tcp") {
    MUSTER_TRY_ASSIGN(places.socket_folder, MakeSocketFolder());
  }
  log::Info("executors have {}; cache in {}", Counted(options.threads, "thread"), cache);
  std::unique_ptr<WorkerDaemon> worker(
      new WorkerDaemon(daemon, grpc, std::move(options), std::move(places)));
  if (::access(worker->executor_program_.c_str(), X_OK) != 0) {
    return FromErrno(errno, fmt::format("executor program {}", worker->executor_program_));
  }
  worker->strand_.Post([self = worker.get()] {
    self->core_.Start();
    self->client_.Start();
    self->daemon_.FeedWatchdog(self->strand_);
    if (AdminPort* const admin = self->daemon_.admin()) {
      admin->Collect(self->strand_, [self](Samples& samples) { self->AddMetrics(samples); });
    }
  });
  return worker;
}

// Nothing goes to the coordinator before Start() has looked whether executors can be started; the
// caches are tidied from the beginning.
WorkerDaemon::WorkerDaemon(Daemon& daemon, GrpcServer& grpc, worker::WorkerCore::Options options,
                           Places places)
    : daemon_(daemon),
      grpc_(grpc),
      executor_program_(daemon.config().values.Given("executor")
                            ? daemon.config().values.String("executor")
                            : process::SiblingProgram("muster-executor")),
      listen_host_(std::move(places.listen_host)),
      socket_folder_(std::move(places.socket_folder)),
      data_cache_(options.cache_directory),
      fetch_(daemon.control(), strand_),
      archives_(places.cache + "/archives", Fetcher()),
      program_files_(places.cache + "/programs", Fetcher(), FileCache::Use::kProgram),
      client_({.coordinator = daemon.config().coordinator,
               .registration = MakeRegistration(daemon.config(), grpc.endpoint()),
               .explain = ExplainByTls(daemon.control())},
              strand_, *this, GrpcAttachStreams(daemon.control())),
      launches_({.worker_index = options.worker_index,
                 .threads = options.threads,
                 .listen_host = listen_host_,
                 .advertised_host = options.advertised_host,
                 .folder = fmt::format("{}/jobs/worker-{}", places.cache, options.worker_index),
                 .data_cache = data_cache_,
                 .token = daemon.token().value(),
                 .tls = daemon.tls() != nullptr},
                strand_, client_,
                FileCache(places.cache + "/launched", Fetcher(), FileCache::Use::kProgram)),
      core_(std::move(options), strand_, *this) {
  KeepTidy(files_, archives_);
  KeepTidy(files_, program_files_);
}

WorkerDaemon::~WorkerDaemon() {
  fetch_.Close();  // a file on its way would hold the threads that end here
  files_.Stop();
  strand_.Stop();
  launches_.Close();
  burials_.Stop();
  executors_.clear();
  programs_.clear();
  RemoveSocketFolder(socket_folder_);
}

FileCache::Fetch WorkerDaemon::Fetcher() {
  return [this](const std::string& sha256, const FileCache::Sink& sink) {
    return fetch_.Fetch(sha256, sink);
  };
}

void WorkerDaemon::Drain() {
  grpc_.SetReady(false);
  const auto grace = daemon_.config().values.Duration("drain-timeout");
  std::promise<void> closed;
  strand_.Post([this, grace, begin = strand_.Now(), &closed] {
    launches_.launches().NoteDraining();
    DrainInTurn(
        strand_, begin, grace,
        {[this](Millis limit, std::function<void()> then) {
           client_.Leave(daemon_.drain_reason(), limit * 9 / 10, std::move(then));
         },
         [this](Millis limit, std::function<void()> then) {
           launches_.launches().Drain(limit, std::move(then));
         },
         [this](Millis limit, std::function<void()> then) { core_.Drain(limit, std::move(then)); }},
        [this, &closed] { client_.Close(kGoodbye, [&closed] { closed.set_value(); }); });
  });
  closed.get_future().wait();  // bounded by the grace and the goodbye
}

// ---- From the coordinator

void WorkerDaemon::OnAttached(const v1::Welcome&) {
  grpc_.SetReady(true);
  TellStatus();
  core_.OnAttached();
  launches_.launches().OnAttached();
}

void WorkerDaemon::OnDetached(const Status& why) {
  grpc_.SetReady(false);
  daemon_.SetStatus(fmt::format("waiting for the coordinator: {}", Message(why)));
}

void WorkerDaemon::OnCommand(StreamId stream, const v1::Command& command) {
  if (!launches_.launches().OnCommand(stream, command)) core_.OnCommand(stream, command);
}

void WorkerDaemon::TellStatus() {
  if (!client_.welcome()) return;
  const std::size_t executors = executors_.size() + programs_.size();
  daemon_.SetStatus(fmt::format("attached, session {}: {} {}", client_.welcome()->session(),
                                Counted(executors, "executor"), executors == 1 ? "runs" : "run"));
}

void WorkerDaemon::FillHeartbeat(v1::Heartbeat& heartbeat) {
  TellStatus();
  heartbeat.set_resident_bytes(ResidentBytes());
  core_.FillHeartbeat(heartbeat);
  launches_.launches().FillHeartbeat(heartbeat);
  const std::uint64_t moved = fetch_.moved();
  if (std::exchange(told_moved_, moved) == moved) return;
  core_.NameFetching(heartbeat);
  launches_.launches().NameFetching(heartbeat);
}

void WorkerDaemon::AddMetrics(Samples& samples) const {
  AddAttachment(client_, samples);
  v1::Heartbeat now;
  core_.FillHeartbeat(now);
  launches_.launches().FillHeartbeat(now);
  samples.Add(Metric::kWorkerClosures, static_cast<double>(now.closures_done()));
  samples.Add(Metric::kWorkerExecutor, now.executor_pid() == 0 ? 0 : 1);
  for (const v1::JobBytes& held : now.job_bytes()) {
    samples.Add(Metric::kWorkerJobBytes, static_cast<double>(held.bytes()), {held.job_id()});
  }
}

void WorkerDaemon::OnRefused(const Status& why) { daemon_.Fail(why); }

void WorkerDaemon::OnDrain(const std::string& reason) {
  log::Info("{}: draining", reason);
  daemon_.Drain(reason);
}

// ---- For the core

void WorkerDaemon::PassLines(ProcessId process, const std::shared_ptr<process::LineGate>& lines) {
  const std::vector<process::LineGate::Line> taken = lines->Take();
  for (const process::LineGate::Line& line : taken) {
    core_.OnLine(process, UnixMicros(line.time), line.text);
  }
  if (taken.empty()) return;
  (void)strand_.RunAfter(kLinePause, [this, process, lines] { PassLines(process, lines); });
}

// What a process says, on the strand. `on_message` goes to the core there.
template <class Process>
typename Process::Events WorkerDaemon::EventsOf(ProcessId process,
                                                const std::shared_ptr<std::atomic<int>>& pid,
                                                auto on_message) {
  // Before the strand: a program that prints without end may not take the daemon's heartbeats.
  const auto lines = std::make_shared<process::LineGate>();
  typename Process::Events events;
  events.on_line = [this, process, lines](std::chrono::system_clock::time_point time,
                                          std::string line) {
    if (!lines->Add(time, std::move(line))) return;
    strand_.Post([this, process, lines] { PassLines(process, lines); });
  };
  events.on_message = [this, on_message](auto message) {
    strand_.Post([on_message, message = std::move(message)] { on_message(message); });
  };
  events.on_exit = [this, process, pid, lines](process::Exit exit) {
    // Here: of one that was killed the file goes as soon as its end is known.
    const std::optional<dispatch::RunningTable::Left> left = LeftBy(pid->load());
    // A model's closures have other numbers, those of steps.
    std::optional<std::vector<ClosureId>> running;
    if (left && std::is_same_v<Process, ProgramProcess>) {
      running.emplace();
      for (const auto& entry : left->running) running->push_back(entry.closure);
    }
    strand_.Post([this, process, lines, exit, running = std::move(running),
                  closures = left ? left->ended : 0] {
      PassLines(process, lines);
      core_.OnExited(process, exit.ToString(), exit.from_outside(), running, closures);
      Kill(process);  // what is left of it
    });
  };
  return events;
}

std::optional<dispatch::RunningTable::Left> WorkerDaemon::LeftBy(int pid) const {
  if (pid == 0 || socket_folder_.empty()) return std::nullopt;
  return dispatch::RunningTable::TakeFrom(fmt::format("{}/{}.running", socket_folder_, pid));
}

Result<int> WorkerDaemon::Launch(ProcessId process) {
  std::map<std::string, std::string> environment = WithoutSecrets();
  std::unique_ptr<process::WaitPage> page = process::WaitPage::ForChild(environment);
  const auto pid = std::make_shared<std::atomic<int>>(0);
  MUSTER_TRY_ASSIGN(
      auto executor,
      ExecutorProcess::Start(
          {.argv = {executor_program_}, .environment = std::move(environment)},
          EventsOf<ExecutorProcess>(process, pid, [this, process](const v1::FromExecutor& message) {
            core_.OnMessage(process, message);
          })));
  // It begins with its first message, which comes later.
  *pid = executor->pid();
  executors_[process] = std::move(executor);
  memory_.try_emplace(process, pid->load());
  wait_pages_[process] = std::move(page);
  return pid->load();
}

void WorkerDaemon::Complete(v1::ProgramStart& start) const {
  start.set_key(net::JobKey(daemon_.token().value(), start.job_id(), Epoch(start.epoch())));
  start.set_tls(daemon_.tls() != nullptr);
  start.set_listen_host(listen_host_);
  start.set_socket_directory(socket_folder_);
}

Result<int> WorkerDaemon::LaunchProgram(ProcessId process, const std::string& path,
                                        const v1::ProgramSpec& program,
                                        const v1::ProgramStart& given) {
  v1::ToProgram first;
  v1::ProgramStart& start = *first.mutable_start();
  start = given;
  Complete(start);
  const auto pid = std::make_shared<std::atomic<int>>(0);
  auto started = ProgramProcess::Start(
      ProgramChild(path, program, start, data_cache_),
      EventsOf<ProgramProcess>(process, pid, [this, process](const v1::FromProgram& message) {
        core_.OnProgram(process, message);
      }));
  if (!started.ok()) return ExplainStart(started.status(), path);
  *pid = (*started)->pid();
  (*started)->Send(std::move(first));
  programs_[process] = *std::move(started);
  memory_.try_emplace(process, pid->load());
  return pid->load();
}

template <class Process>
void WorkerDaemon::Bury(std::map<ProcessId, std::shared_ptr<Process>>& processes,
                        ProcessId process) {
  const auto found = processes.find(process);
  if (found == processes.end()) return;
  // An executor's socket, and its note of what it runs, have its process's number for a name.
  const std::string own = fmt::format("{}/{}", socket_folder_, found->second->pid());
  burials_.Bury(std::move(found->second), [own, any = !socket_folder_.empty()] {
    std::error_code none;
    if (any) std::filesystem::remove(own, none);
    if (any) std::filesystem::remove(own + ".running", none);
  });
  processes.erase(found);
}

void WorkerDaemon::Kill(ProcessId process) {
  Bury(executors_, process);
  Bury(programs_, process);
  wait_pages_.erase(process);
  memory_.erase(process);
}

std::optional<process::Wait> WorkerDaemon::WaitOf(ProcessId process) const {
  const auto found = wait_pages_.find(process);
  if (found == wait_pages_.end() || found->second == nullptr) return std::nullopt;
  return found->second->Get();
}

std::uint64_t WorkerDaemon::MemoryOf(ProcessId process) {
  const auto found = memory_.find(process);
  return found == memory_.end() ? 0 : found->second.Get(strand_.Now());
}

Result<Millis> WorkerDaemon::CpuTime(ProcessId process) const {
  if (const auto found = executors_.find(process); found != executors_.end()) {
    return process::CpuTime(found->second->pid());
  }
  if (const auto found = programs_.find(process); found != programs_.end()) {
    return process::CpuTime(found->second->pid());
  }
  return NotFound("the executor has ended");
}

void WorkerDaemon::Send(ProcessId process, const v1::ToExecutor& message) {
  if (const auto found = executors_.find(process); found != executors_.end()) {
    found->second->Send(message);
  }
}

void WorkerDaemon::SendProgram(ProcessId process, const v1::ToProgram& message) {
  if (const auto found = programs_.find(process); found != programs_.end()) {
    found->second->Send(message);
  }
}

void WorkerDaemon::Fetch(const std::string& sha256, worker::FileKind kind) {
  files_.Post([this, sha256, kind] {
    const FileCache& cache = kind == worker::FileKind::kProgram ? program_files_ : archives_;
    strand_.Post(
        [this, sha256, kind, path = cache.Get(sha256)] { core_.OnFetched(sha256, path, kind); });
  });
}

void WorkerDaemon::ToCoordinator(v1::DaemonMessage message) { client_.Send(std::move(message)); }

void WorkerDaemon::Reply(StreamId stream, v1::CommandResult result) {
  client_.Reply(stream, std::move(result));
}

}  // namespace muster::services
