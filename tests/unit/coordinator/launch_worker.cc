#include "tests/unit/coordinator/launch_worker.h"

#include <algorithm>
#include <csignal>
#include <utility>

namespace muster::coordinator::testing {
namespace {

constexpr int kLatencyMs = 10;
// What was told has been heard by then.
constexpr Millis kHeard{100};

}  // namespace

class LaunchWorker::Link : public DaemonLink {
 public:
  Link(LaunchWorker& worker, StreamId stream)
      : worker_(worker), alive_(worker.lifeline_.Watch()), stream_(stream) {}
  void Send(const v1::CoordinatorMessage& message) override {
    if (alive_()) worker_.FromCoordinator(stream_, message);
  }
  void End(const Status&) override {
    if (alive_()) worker_.OnEnded(stream_);
  }

 private:
  LaunchWorker& worker_;
  std::function<bool()> alive_;
  const StreamId stream_;
};

LaunchWorker::LaunchWorker(Cluster& cluster, LaunchChance& chance, TaskId task, std::string boot_id,
                           int pid)
    : cluster_(cluster),
      chance_(chance),
      task_(std::move(task)),
      boot_id_(std::move(boot_id)),
      pid_(pid),
      launches_({.worker_index = static_cast<std::uint32_t>(task_.index)}, cluster.time, *this) {}

void LaunchWorker::After(int millis, std::function<void()> then) {
  (void)cluster_.time.RunAfter(Millis(millis), lifeline_.Guard(std::move(then)));
}

// ---- The network.

void LaunchWorker::Connect() {
  if (connected() || cut_) return;
  v1::Register info;
  *info.mutable_task() = ToProto(task_);
  info.set_boot_id(boot_id_);
  info.set_pid(static_cast<std::uint32_t>(pid_));
  info.set_hostname("host");
  stream_ = StreamId(++last_stream_);
  ended_ = false;
  const Result<SessionId> session =
      cluster_.core->Register(info, std::make_shared<Link>(*this, stream_));
  REQUIRE(session.ok());
  session_ = *session;
}

void LaunchWorker::Disconnect() {
  stream_ = StreamId();
  session_ = SessionId();
  attached_.reset();
  ended_ = false;
  down_.clear();
  up_.clear();
}

void LaunchWorker::LoseCoordinator() {
  Disconnect();
  After(chance_.Upto(2'000), [this] { Connect(); });
}

void LaunchWorker::Reset(bool noticed) {
  const SessionId session = session_;
  LoseCoordinator();
  if (noticed && session != SessionId()) cluster_.core->OnStreamEnded(session);
}

void LaunchWorker::OnEnded(StreamId stream) {
  if (stream != stream_) return;
  if (cut_) {
    ended_ = true;
    return;
  }
  // Not inside the call.
  After(0, [this, stream] {
    if (stream == stream_) LoseCoordinator();
  });
}

void LaunchWorker::Mend() {
  cut_ = false;
  if (!connected()) return Connect();
  if (ended_) return LoseCoordinator();
  if (chance_.Upto(2) == 0) return Reset(chance_.Upto(1) == 0);
  while (!down_.empty()) DeliverDown();
  while (!up_.empty()) DeliverUp();
}

void LaunchWorker::FromCoordinator(StreamId stream, const v1::CoordinatorMessage& message) {
  if (message.has_ack() || stream != stream_) return;
  if (message.has_command()) chance_.OnSent(task_, message.command());
  down_.push_back(message);
  After(1 + chance_.Upto(kLatencyMs), [this, stream] {
    if (stream == stream_ && !cut_) DeliverDown();
  });
}

void LaunchWorker::ToCoordinator(v1::DaemonMessage message) {
  if (stream_ == StreamId()) return;
  up_.push_back(std::move(message));
  After(1 + chance_.Upto(kLatencyMs), [this, stream = stream_] {
    if (stream == stream_ && !cut_) DeliverUp();
  });
}

void LaunchWorker::DeliverDown() {
  if (down_.empty()) return;
  const v1::CoordinatorMessage message = std::move(down_.front());
  down_.pop_front();
  Obey(message);
}

void LaunchWorker::DeliverUp() {
  if (up_.empty()) return;
  const v1::DaemonMessage message = std::move(up_.front());
  up_.pop_front();
  cluster_.core->OnMessage(session_, message);
}

void LaunchWorker::Obey(const v1::CoordinatorMessage& message) {
  if (message.has_welcome()) {
    attached_ = cluster_.time.Now();
    if (draining_) Drain();
    launches_.OnAttached();
  } else if (message.has_release()) {
    chance_.OnReleased(task_);
  } else if (message.has_command()) {
    if (message.command().has_start_launch()) {
      starting_ = message.command().start_launch().launch();
    }
    const bool known = launches_.OnCommand(stream_, message.command());
    REQUIRE(known);
  }
}

void LaunchWorker::Reply(StreamId stream, v1::CommandResult result) {
  if (stream != stream_) return;
  v1::DaemonMessage message;
  *message.mutable_result() = std::move(result);
  ToCoordinator(std::move(message));
}

// Behind what it has to tell: then one beat fewer.
void LaunchWorker::Beat() {
  if (!attached_ || cut_ || !up_.empty()) return;
  v1::DaemonMessage message;
  message.mutable_heartbeat()->set_sequence(++beats_);
  launches_.NameFetching(*message.mutable_heartbeat());
  cluster_.core->OnMessage(session_, message);
}

void LaunchWorker::Drain() {
  draining_ = true;
  v1::DaemonMessage message;
  message.mutable_draining()->set_reason("SIGTERM");
  ToCoordinator(std::move(message));
  launches_.NoteDraining();
}

bool LaunchWorker::InContact() const {
  return !cut_ && attached_ && cluster_.time.Now() - *attached_ > kHeard;
}

// ---- Processes.

int LaunchWorker::Alive() const {
  return static_cast<int>(
      std::ranges::count_if(processes_, [](const auto& one) { return one.second.alive; }));
}

void LaunchWorker::Prepare(const std::string& job_id, LaunchNumber launch, const v1::LaunchSpec&,
                           std::uint32_t addresses) {
  holds_ = true;
  ran_ = false;
  // Its files are there, or have to come first.
  After(chance_.Upto(chance_.Upto(4) == 0 ? 3'000 : 30), [this, job_id, launch, addresses] {
    if (chance_.Upto(40) == 0) {
      return launches_.OnPrepared(job_id, launch, ResourceExhausted("the disk is full"));
    }
    std::vector<std::string> claimed;
    for (std::uint32_t i = 0; i < addresses; ++i) {
      claimed.push_back(fmt::format("127.0.0.1:{}", ++cluster_.last_port));
    }
    launches_.OnPrepared(job_id, launch, std::move(claimed));
  });
}

void LaunchWorker::WriteWorkers(const std::string& job_id, LaunchNumber launch,
                                const std::string&) {
  After(chance_.Upto(20), [this, job_id, launch] {
    starting_ = launch.value();
    launches_.OnWorkersWritten(job_id, launch, Ok());
  });
}

Status LaunchWorker::Run(worker::LaunchedId id, const std::string&, const v1::LaunchSpec&,
                         const v1::LaunchProcess& process) {
  if (chance_.Upto(40) == 0) return Unavailable("fork: Resource temporarily unavailable");
  const auto& environment = process.environment();
  LaunchedHere here;
  here.launch = starting_;
  here.place = process.task().index();
  here.restarts = static_cast<std::uint32_t>(std::stoul(environment.at("MUSTER_RESTARTS")));
  here.began = cluster_.time.Now();
  chance_.OnRun(task_, here);
  processes_[id] = here;
  ran_ = true;
  After(chance_.Upto(5),
        [this, id] { launches_.OnStarted(id, 9'000 + static_cast<int>(id.value())); });
  return Ok();
}

void LaunchWorker::Exit(worker::LaunchedId id, std::uint32_t code, std::uint32_t signal) {
  LaunchedHere& process = processes_.at(id);
  if (!std::exchange(process.alive, false)) return;
  const std::int64_t now =
      std::chrono::duration_cast<std::chrono::microseconds>(cluster_.time.Now().time_since_epoch())
          .count();
  launches_.OnExited(id, {.how = signal != 0 ? fmt::format("signal {}", signal)
                                             : fmt::format("exit code {}", code),
                          .code = code,
                          .signal = signal,
                          .time_us = now});
}

// Most end soon, some do not listen.
void LaunchWorker::Ask(worker::LaunchedId id) {
  processes_.at(id).asked = true;
  if (chance_.Upto(5) == 0) return;
  After(1 + chance_.Upto(1'500),
        [this, id] { chance_.Upto(3) == 0 ? Exit(id, 0, 0) : Exit(id, 0, SIGTERM); });
}

// Even a killed one may take long, where a disk does not answer.
void LaunchWorker::Kill(worker::LaunchedId id) {
  processes_.at(id).asked = true;
  After(1 + chance_.Upto(chance_.Upto(30) == 0 ? 40'000 : 20),
        [this, id] { Exit(id, 0, SIGKILL); });
}

void LaunchWorker::Die(bool told) {
  const SessionId session = session_;
  Disconnect();
  lifeline_.End();
  dead_ = true;
  holds_ = false;
  for (auto& [id, process] : processes_) process.alive = false;
  if (told) {
    cluster_.core->OnDaemonExit(task_, static_cast<std::uint32_t>(pid_), "signal SIGKILL");
  } else if (session != SessionId() && !cut_) {
    cluster_.core->OnStreamEnded(session);
  }
}

}  // namespace muster::coordinator::testing
