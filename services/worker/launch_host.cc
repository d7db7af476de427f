#include "services/worker/launch_host.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "collectives/costs_file.h"
#include "common/base/mutex.h"
#include "common/base/wall_time.h"
#include "common/base/whole_file.h"
#include "common/cluster/job_key.h"
#include "common/cluster/worker_book.h"
#include "common/data/cache.h"
#include "common/net/handshake.h"
#include "common/process/memory.h"
#include "common/telemetry/log.h"
#include "services/common/network.h"
#include "services/common/program_child.h"

namespace muster::services {
namespace {

namespace fs = std::filesystem;
using worker::LaunchedId;

// Between two looks at what a process has written.
constexpr Millis kLookPause{100};
// For a guard to start its command and say which process that is.
constexpr Millis kPidLimit{60'000};
constexpr Millis kLaunchedCloseLimit{5'000};

// Whether the command is in PATH here, or the file that it names is.
bool IsHere(const std::string& command) {
  if (command.find('/') != std::string::npos) return ::access(command.c_str(), X_OK) == 0;
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  while (true) {
    const std::size_t colon = rest.find(':');
    const std::string candidate = fmt::format("{}/{}", rest.substr(0, colon), command);
    if (::access(candidate.c_str(), X_OK) == 0) return true;
    if (colon == std::string_view::npos) return false;
    rest.remove_prefix(colon + 1);
  }
}

// Whether it is a line of Muster's own log (common/telemetry/log_format.h) and no error: no reason
// for a process to end, and often the last thing on stderr where a program tells its end elsewhere.
bool IsLogBelowError(std::string_view line) {
  constexpr std::string_view kForm = "00:00:00.000 I ";
  if (line.size() < kForm.size()) return false;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const char c = line[i];
    const bool fits = kForm[i] == '0'   ? c >= '0' && c <= '9'
                      : kForm[i] == 'I' ? c == 'D' || c == 'I' || c == 'W'
                                        : c == kForm[i];
    if (!fits) return false;
  }
  return true;
}

// The number that a guard writes when its command runs; 0: it wrote none, or not in time.
int ReadPid(int fd) {
  const TimePoint end = std::chrono::steady_clock::now() + kPidLimit;
  std::string text;
  while (text.find('\n') == std::string::npos) {
    const auto left = std::chrono::ceil<Millis>(end - std::chrono::steady_clock::now()).count();
    pollfd polled{fd, POLLIN, 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(std::max<Millis::rep>(0, left)));
    if (ready < 0 && errno == EINTR) continue;
    char letter = 0;
    if (ready <= 0 || ::read(fd, &letter, 1) <= 0) break;
    text += letter;
  }
  return std::atoi(text.c_str());
}

// As it is where that cannot be said: the daemon's own folder may have been deleted.
std::string Absolute(const std::string& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  return error ? path : whole.string();
}

}  // namespace

// A process, and what its threads have left for the strand.
struct LaunchHost::Running {
  std::unique_ptr<process::WaitPage> page;  // null: it could not be had
  std::optional<process::MemoryGauge> memory;
  Mutex mutex;
  std::string last_error MUSTER_GUARDED_BY(mutex);
  // Goes first: until it has, its thread may have a line for the above.
  std::unique_ptr<process::Child> child;
};

LaunchHost::LaunchHost(Options options, ThreadScheduler& strand, AttachClient& client,
                       FileCache files)
    : options_(std::move(options)),
      guard_(process::SiblingProgram("muster-guard")),
      cache_(std::move(files)),
      strand_(strand),
      client_(client),
      launches_({.worker_index = options_.worker_index}, strand, *this) {
  // What a daemon before this one has left: its processes have ended with it.
  files_.Post([folder = options_.folder] {
    std::error_code none;
    (void)fs::remove_all(folder, none);
  });
  KeepTidy(files_, cache_);
}

LaunchHost::~LaunchHost() { Close(); }

void LaunchHost::Close() {
  // Before the threads, one of which may wait for what a guard says.
  for (const auto& [id, running] : running_) (void)running->child->Signal(SIGQUIT);
  for (const auto& [id, running] : running_) (void)running->child->Wait(kLaunchedCloseLimit);
  running_.clear();
  files_.Stop();
  looks_.Stop();
  begun_.Stop();
  reaper_.Stop();
}

std::string LaunchHost::FolderOf(const std::string& job_id) const {
  return fmt::format("{}/{}", options_.folder, job_id);
}

std::string LaunchHost::WorkersFileOf(const std::string& job_id) const {
  return fmt::format("{}/{}.workers", options_.folder, job_id);
}

void LaunchHost::Look(const v1::LaunchSpec& spec, std::function<void(const Status&)> then) {
  looks_.Post([this, spec, then = std::move(then)] {
    strand_.Post([found = FindCommand(spec), then] { then(found); });
  });
}

Status LaunchHost::FindCommand(const v1::LaunchSpec& spec) const {
  if (!spec.sha256().empty() || IsHere(spec.command())) return Ok();
  return NotFound(
      "worker:{} has no command \"{}\" in its PATH: install it on this host, or give the path of a "
      "file here that is sent",
      options_.worker_index, spec.command());
}

// ---- Files and addresses

Status LaunchHost::Place(const std::string& folder, const v1::LaunchSpec& spec) const {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return FromErrno(error.value(), fmt::format("working folder {}", folder));
  (void)fs::permissions(folder, fs::perms::owner_all, error);
  const auto place = [&](const std::string& path, const std::string& sha256) -> Status {
    MUSTER_TRY_ASSIGN(const std::string cached, cache_.Get(sha256));
    const std::string target = folder + "/" + path;
    std::error_code failed;
    fs::create_directories(fs::path(target).parent_path(), failed);
    fs::remove(target, failed);  // the one of the launch before may be open still
    if (!fs::copy_file(cached, target, failed)) {
      return FromErrno(failed.value(), fmt::format("working folder: {}", target));
    }
    return Ok();
  };
  for (const v1::LaunchFile& file : spec.files()) {
    MUSTER_TRY(place(file.path(), file.sha256()));
  }
  return spec.sha256().empty() ? Ok() : place(spec.command(), spec.sha256());
}

Result<std::vector<std::string>> LaunchHost::ClaimAddresses(const std::string& job_id,
                                                            std::uint32_t count) {
  MUSTER_TRY_ASSIGN(std::vector<process::PortClaim> claims,
                    ports_.Claim(options_.listen_host, count));
  std::vector<std::string> addresses;
  const std::string& host =
      options_.advertised_host.empty() ? options_.listen_host : options_.advertised_host;
  for (const process::PortClaim& claim : claims) {
    addresses.push_back(Endpoint{host, claim.port()}.ToString());
  }
  claims_[job_id] = std::move(claims);
  return addresses;
}

void LaunchHost::Prepare(const std::string& job_id, LaunchNumber launch, const v1::LaunchSpec& spec,
                         std::uint32_t addresses) {
  files_.Post([this, job_id, launch, spec, addresses, folder = FolderOf(job_id)] {
    Status ready = Place(folder, spec);
    if (ready.ok()) ready = FindCommand(spec);
    strand_.Post([this, job_id, launch, addresses, ready = std::move(ready)] {
      // Stopped or replaced meanwhile: nobody would release what is claimed for it.
      if (!launches_.Awaits(job_id, launch)) return;
      if (!ready.ok()) return launches_.OnPrepared(job_id, launch, ready);
      launches_.OnPrepared(job_id, launch, ClaimAddresses(job_id, addresses));
    });
  });
}

void LaunchHost::Release(const std::string& job_id) { claims_.erase(job_id); }

void LaunchHost::Forget(const std::string& job_id) {
  Release(job_id);
  files_.Post([folder = FolderOf(job_id)] {
    std::error_code none;
    (void)fs::remove_all(folder, none);
  });
  // Behind what is being written to it.
  begun_.Post([workers = WorkersFileOf(job_id)] {
    std::error_code none;
    (void)fs::remove(workers, none);
  });
}

// In the place of what is there, so that who reads it finds one or the other.
void LaunchHost::WriteWorkers(const std::string& job_id, LaunchNumber launch,
                              const std::string& text) {
  begun_.Post([this, job_id, launch, text, path = WorkersFileOf(job_id)] {
    strand_.Post([this, job_id, launch, written = ReplaceFile(path, text)] {
      launches_.OnWorkersWritten(job_id, launch, written);
    });
  });
}

// ---- Processes

namespace {

std::string KeyText(const std::string& key) {
  std::string text;
  for (const char byte : key) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

}  // namespace

// The daemon's own without what is Muster's, but for the costs of collectives, then what the job
// says.
std::map<std::string, std::string> LaunchHost::EnvironmentOf(
    const std::string& job_id, const v1::LaunchSpec& spec, const v1::LaunchProcess& process) const {
  std::map<std::string, std::string> environment = WithoutMuster();
  // About the host's links, whoever uses them. The job's folder is another one than the daemon's.
  if (const char* costs = std::getenv(collectives::kCostsVariable); costs != nullptr && *costs) {
    environment[collectives::kCostsVariable] = Absolute(costs);
  }
  if (!options_.data_cache.empty()) {
    environment[data::kCacheVariable] = Absolute(options_.data_cache);
  }
  const std::uint32_t together = std::max(1U, spec.processes_per_worker());
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    environment["OMP_NUM_THREADS"] = std::to_string(std::max(1U, options_.threads / together));
  }
  // Else lines of Python come when the process ends.
  if (std::getenv("PYTHONUNBUFFERED") == nullptr) environment["PYTHONUNBUFFERED"] = "1";
  for (const auto& [name, value] : spec.environment()) environment[name] = value;
  if (spec.elastic()) environment[cluster::kWorkerBookVariable] = Absolute(WorkersFileOf(job_id));
  for (const auto& [name, value] : process.environment()) environment[name] = value;
  // One for the whole job, whichever of its launches a process belongs to.
  environment[cluster::kJobKeyVariable] = KeyText(net::JobKey(options_.token, job_id, Epoch(0)));
  if (options_.tls) environment[cluster::kJobTlsVariable] = "1";
  return environment;
}

// Gives up the claims of this job's ports, which its processes take now, and starts one of them.
Status LaunchHost::Run(LaunchedId id, const std::string& job_id, const v1::LaunchSpec& spec,
                       const v1::LaunchProcess& process) {
  for (process::PortClaim& claim : claims_[job_id]) claim.Open();
  process::Child::Options child;
  const bool sent = !spec.sha256().empty();
  child.argv = {guard_, "--cwd", FolderOf(job_id), "--", (sent ? "./" : "") + spec.command()};
  child.argv.insert(child.argv.end(), spec.arguments().begin(), spec.arguments().end());
  child.environment = EnvironmentOf(job_id, spec, process);
  // `--env CUDA_VISIBLE_DEVICES=` hides what is there: to take the variable away would show all.
  for (const auto& [name, value] : spec.environment()) {
    if (value.empty()) child.empty_variables.insert(name);
  }
  child.oom_score = kProgramOomScore;
  // Before the strand: a program that prints without end may not take the daemon's heartbeats.
  const auto lines = std::make_shared<process::LineGate>();
  const auto running = std::make_shared<Running>();
  running->page = process::WaitPage::ForChild(child.environment);
  child.on_line = [this, id, lines](std::chrono::system_clock::time_point time, std::string line) {
    if (!lines->Add(time, std::move(line))) return;
    strand_.Post([this, id, lines] { PassLines(id, lines); });
  };
  child.on_error_line = [to_lines = child.on_line, raw = running.get()](
                            std::chrono::system_clock::time_point time, std::string line) {
    if (line.find_first_not_of(" \t") != std::string::npos && !IsLogBelowError(line)) {
      const MutexLock lock(raw->mutex);
      raw->last_error = line;
    }
    to_lines(time, std::move(line));
  };
  child.on_exit = [this, id, lines, weak = std::weak_ptr(running)](process::Exit exit) {
    const auto now = std::chrono::system_clock::now();
    strand_.Post([this, id, lines, weak, exit, now] {
      PassLines(id, lines);
      const std::shared_ptr<Running> ended = weak.lock();
      if (ended == nullptr) return;
      worker::LaunchedEnd end{.how = exit.ToString(),
                              .code = static_cast<std::uint32_t>(exit.code),
                              .signal = static_cast<std::uint32_t>(exit.signal),
                              .time_us = UnixMicros(now)};
      {
        const MutexLock lock(ended->mutex);
        end.last_error = ended->last_error;
      }
      using Verdict = process::WaitPage::Verdict;
      const Verdict verdict = ended->page == nullptr ? Verdict::kNone : ended->page->verdict();
      end.final = verdict == Verdict::kFinal;
      end.too_late = verdict == Verdict::kTooLate;
      launches_.OnExited(id, end);
      running_.erase(id);
      // Its destructor waits for its thread: not on the strand, which makes the heartbeats.
      reaper_.Post([ended] {});
    });
  };
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FromErrno(errno, "pipe");
  child.descriptors = {{ends[1], 3}};
  Result<std::unique_ptr<process::Child>> started = process::Child::Start(std::move(child));
  ::close(ends[1]);
  if (!started.ok()) {
    ::close(ends[0]);
    return Annotate(started.status(), "muster-guard");
  }
  running->child = *std::move(started);
  // The guard's, to which children go whose own parent has ended.
  running->memory.emplace(running->child->pid());
  running_[id] = running;
  begun_.Post([this, id, fd = ends[0]] {
    const int pid = ReadPid(fd);
    ::close(fd);
    if (pid != 0) strand_.Post([this, id, pid] { launches_.OnStarted(id, pid); });
  });
  return Ok();
}

void LaunchHost::Signal(LaunchedId id, int signal) {
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  if (const Status sent = found->second->child->Signal(signal); !sent.ok()) {
    log::Debug("to a launched process: {}", Message(sent));
  }
}

std::optional<process::Wait> LaunchHost::WaitOf(LaunchedId id) const {
  const auto found = running_.find(id);
  if (found == running_.end() || found->second->page == nullptr) return std::nullopt;
  return found->second->page->Get();
}

std::uint64_t LaunchHost::MemoryOf(LaunchedId id) {
  const auto found = running_.find(id);
  return found == running_.end() ? 0 : found->second->memory->Get(strand_.Now());
}

void LaunchHost::Ask(LaunchedId id) { Signal(id, SIGTERM); }

void LaunchHost::Kill(LaunchedId id) { Signal(id, SIGQUIT); }

void LaunchHost::PassLines(LaunchedId id, const std::shared_ptr<process::LineGate>& lines) {
  const std::vector<process::LineGate::Line> taken = lines->Take();
  for (const process::LineGate::Line& line : taken) {
    launches_.OnLine(id, UnixMicros(line.time), line.text);
  }
  if (taken.empty()) return;
  (void)strand_.RunAfter(kLookPause, [this, id, lines] { PassLines(id, lines); });
}

void LaunchHost::ToCoordinator(v1::DaemonMessage message) { client_.Send(std::move(message)); }

void LaunchHost::Reply(StreamId stream, v1::CommandResult result) {
  client_.Reply(stream, std::move(result));
}

}  // namespace muster::services
