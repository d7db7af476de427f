// The workers of a launched job, and the processes on them.
#include <algorithm>
#include <map>
#include <string_view>

#include "common/base/host_port.h"
#include "common/base/job_limits.h"
#include "common/base/trouble.h"
#include "common/base/words.h"
#include "coordinator/allocation.h"
#include "coordinator/launch_commands.h"
#include "coordinator/launch_job.h"

namespace muster::coordinator {
namespace {

// So often, and so many times running, all that run are seen to wait for who has ended.
constexpr Millis kLook{1'000};
constexpr int kLooksInRow = 3;
// Between two looks whether a worker that has come has told what it has.
constexpr Millis kNews{250};
constexpr const char* kWithoutThem = "it has not come back with its processes";

std::string PortOf(const std::string& address) { return address.substr(address.rfind(':') + 1); }

// Whether `each` processes on a worker can be started that are all told `bytes` of addresses: how
// long these are is known only when workers have claimed them.
Status CanBeTold(std::size_t processes, std::size_t each, std::size_t bytes) {
  if (job_limits::CanBeTold(bytes, each)) return Ok();
  return InvalidArgument(
      "{}, {} on each worker, are more than can be told of each other: the addresses of all are {} "
      "bytes in the TF_CONFIG of each, at most {} for a process and {} for a worker; run it on "
      "fewer workers (--workers MIN:MAX), or with fewer processes on each "
      "(--processes-per-worker)",
      Counted(processes, "process"), each, bytes, job_limits::kMostAddressBytes,
      job_limits::kMostStartBytes);
}

}  // namespace

// --- Beginning.

// The least busy first; their ranks follow their indexes.
std::vector<const Member*> LaunchJob::Choose() const {
  const v1::StrategySpec& strategy = story_.spec().strategy();
  std::vector<const Member*> fit = FreeWorkers(world_, fitness_);
  if (fit.size() < std::max<std::size_t>(1, strategy.workers())) return {};
  const std::size_t most = MostWorkers(strategy);
  if (most > 0 && fit.size() > most) fit.resize(most);
  std::stable_sort(fit.begin(), fit.end(),
                   [](const Member* a, const Member* b) { return a->task < b->task; });
  return fit;
}

std::vector<const Member*> LaunchJob::Workers() const {
  std::vector<const Member*> workers;
  for (const Rank& rank : ranks_) {
    const Member* worker = world_.members.Find(rank.worker);
    if (worker == nullptr || worker->session != rank.session) continue;
    if (workers.empty() || workers.back() != worker) workers.push_back(worker);
  }
  return workers;
}

void LaunchJob::SendPrepare() {
  const std::vector<const Member*> workers = Workers();
  if (workers.size() * PerWorker() != ranks_.size()) {
    return RetryAfter(Millis(250), "WAITING_FOR_TASKS", "a worker was lost before it could begin");
  }
  waiting_ = workers.size();
  for (const Member* worker : workers) {
    v1::Command command;
    v1::PrepareLaunch& prepare = *command.mutable_prepare_launch();
    prepare.set_job_id(id());
    prepare.set_launch(number_.value());
    *prepare.mutable_spec() = launch();
    // The first worker has the address where all meet, too.
    prepare.set_addresses(PerWorker() + (worker->task == ranks_.front().worker ? 1 : 0));
    world_.commands.Send(
        *worker, command, world_.options.command_limit,
        Guard([this, task = worker->task](const auto& result) { OnPrepared(task, result); }));
  }
}

void LaunchJob::OnPrepared(const TaskId& worker, const Result<v1::CommandResult>& result) {
  if (stage_ != Stage::kPreparing) return;
  if (!result.ok()) return LeaveOut(worker, result.status());
  std::vector<std::string> addresses(result->launch().addresses().begin(),
                                     result->launch().addresses().end());
  const bool first = worker == ranks_.front().worker;
  if (addresses.size() != PerWorker() + (first ? 1 : 0)) {
    return LeaveOut(worker, Internal("{} addresses of {}", addresses.size(), PerWorker()));
  }
  if (first) master_ = addresses.back();
  auto next = addresses.begin();
  for (Rank& rank : ranks_) {
    if (rank.worker == worker) rank.address = *next++;
  }
  if (--waiting_ == 0) SendStart();
}

// What was begun is given up everywhere; the job fails only when every worker says that the job
// itself is wrong.
void LaunchJob::LeaveOut(const TaskId& worker, const Status& why, bool is_there) {
  for (const Member* other : Workers()) SendStop(*other, Millis(0));
  if (IsTransient(why.code()) && !is_there) {
    return RetryAfter(Millis(250), "STARTING_PROCESSES",
                      fmt::format("{}: {}", worker.ToString(), Message(why)));
  }
  (void)NoteUnfit(worker, why);
  if (fitness_.AllRefuse(world_.members.Up("worker"))) {
    return Refuse(Annotate(why, worker.ToString()));
  }
  RetryAfter(Millis(250), "NO_FIT_WORKER", fmt::format("{}: {}", worker.ToString(), Message(why)));
}

v1::LaunchProcess LaunchJob::ProcessOf(std::size_t number, const std::string& addresses,
                                       const std::map<std::size_t, std::string>& hosts) const {
  v1::LaunchProcess process = ProcessAt(number, addresses, hosts, ranks_.size());
  (*process.mutable_environment())["MASTER_ADDR"] = HostIn(master_);
  (*process.mutable_environment())["MASTER_PORT"] = PortOf(master_);
  return process;
}

// All addresses are known: each worker is told its processes' places among all of them.
void LaunchJob::SendStart() {
  std::size_t bytes = 0;
  // Made once: for each of thousands it would hold up the strand for seconds.
  std::string addresses;
  std::map<std::size_t, std::string> hosts;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    bytes += ranks_[i].address.size() + std::string_view("\"\", ").size();
    addresses += fmt::format("{}\"{}\"", i == 0 ? "[" : ", ", ranks_[i].address);
    hosts[i] = ranks_[i].hostname;
  }
  addresses += "]";
  if (const Status fits = CanBeTold(ranks_.size(), PerWorker(), bytes); !fits.ok()) {
    return Refuse(fits);
  }
  stage_ = Stage::kStarting;
  Show();
  const std::vector<const Member*> workers = Workers();
  waiting_ = workers.size();
  for (const Member* worker : workers) {
    v1::Command command;
    v1::StartLaunch& start = *command.mutable_start_launch();
    start.set_job_id(id());
    start.set_launch(number_.value());
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].worker == worker->task) {
        *start.add_processes() = ProcessOf(i, addresses, hosts);
      }
    }
    world_.commands.Send(*worker, command, world_.options.command_limit,
                         Guard([this, task = worker->task](const auto& result) {
                           OnStarted(task, result.status());
                         }));
  }
}

// The job runs when the last worker has answered; one that cannot is left out, and all begin anew.
void LaunchJob::OnStarted(const TaskId& worker, const Status& status) {
  if (stage_ != Stage::kStarting) return;
  if (!status.ok()) {
    const std::vector<const Member*> there = Workers();
    const bool is_there = std::ranges::find(there, worker, &Member::task) != there.end();
    // A worker that was lost is told by OnLost(). One that is there could not start a process.
    if (!is_there && IsTransient(status.code())) return;
    return LeaveOut(worker, status, is_there);
  }
  fitness_.Forget(worker);
  if (--waiting_ > 0) return;
  stage_ = Stage::kRunning;
  v1::Job& job = *story_.record().mutable_job();
  if (job.started_ms() == 0) job.set_started_ms(story_.WallMs());
  const std::vector<std::string> names = [this] {
    std::vector<std::string> all;
    for (const Member* one : Workers()) all.push_back(one->task.ToString());
    return all;
  }();
  story_.Tell(
      "JOB_RUNNING",
      fmt::format("{} on {}{}", Counted(ranks_.size(), "process"), Joined(names, kMostNamed),
                  job.restarts() > 0
                      ? fmt::format(" (begun anew {})", Counted(job.restarts(), "time"))
                      : ""),
      nullptr,
      {{"processes", std::to_string(ranks_.size())}, {"restarts", std::to_string(job.restarts())}});
  Show();
  story_.SetState(v1::JOB_STATE_RUNNING, "", "");
  story_.Persist();
  Evaluate();
}

// --- What becomes of them.

bool LaunchJob::AllSettled() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.settled(); });
}

// What a worker says of a process. An event of a launch that is over answers itself: the worker is
// told to end what it still has of it.
bool LaunchJob::OnLaunchEvent(const Member& member, const v1::LaunchEvent& event) {
  const LaunchNumber told(event.launch());
  // The launch is over: the worker was away when it was stopped.
  if (told != number_ || phase_ != Phase::kBegun) {
    if (told <= number_ || ended()) {
      world_.commands.Send(member, StopCommand(id(), told, Millis(0), ended()),
                           world_.options.command_limit, [](auto) {});
    }
    return true;
  }
  const std::size_t number = event.task().index();
  if (number >= ranks_.size() || ranks_[number].worker != member.task) return true;
  Rank& rank = ranks_[number];
  // It was given up with its worker, which is back with it: it ends as the others do.
  if (!rank.lost.empty()) {
    if (event.kind() == v1::LaunchEvent::KIND_STARTED) SendStop(member, GraceLeft());
    return true;
  }
  const bool first = rank.session == SessionId();
  rank.session = member.session;
  if (event.pid() != 0) rank.pid = event.pid();
  // It was not there when the others were asked to end.
  if (first && stage_ == Stage::kEnding && event.kind() == v1::LaunchEvent::KIND_STARTED) {
    SendStop(member, GraceLeft());
  }
  if (event.kind() == v1::LaunchEvent::KIND_EXITED && !rank.end) {
    rank.end = event;
    preempted_ = preempted_ || (event.asked() && member.state == Member::State::kDraining);
    if (rank.failed() && !event.asked()) {
      const TaskId task{"worker", static_cast<int>(number)};
      story_.Tell("PROCESS_ENDED", fmt::format("{} {}", NameOf(rank), EndOf(rank)), &task,
                  {{"pid", std::to_string(rank.pid)},
                   {"how", event.how()},
                   {"worker", rank.worker.ToString()},
                   {"hostname", rank.hostname}},
                  {event.last_lines().begin(), event.last_lines().end()});
    }
    if (world_.on_settled) world_.on_settled();
  }
  Show();
  if (rank.end) story_.Persist();  // its worker may not be there to say it again
  Evaluate();
  return true;
}

void LaunchJob::OnLost(const Member& member) {
  if (phase_ != Phase::kBegun || !Occupies(member.task)) return;
  if (stage_ == Stage::kPreparing) {
    return LeaveOut(member.task, Unavailable("it was lost: {}", member.how));
  }
  for (Rank& rank : ranks_) {
    if (rank.worker == member.task && !rank.settled()) rank.lost = member.how;
  }
  story_.Tell("WORKER_LOST",
              fmt::format("{} (process {}) was lost: {}; its processes with it",
                          member.task.ToString(), member.info.pid(), member.how),
              &member.task,
              {{"pid", std::to_string(member.info.pid())},
               {"session", std::to_string(member.session.value())},
               {"how", member.how}});
  Show();
  Evaluate();
}

// A worker that is the same process as before tells what it has; another one has nothing.
void LaunchJob::OnArrival(const Member& member, const Arrival& arrival) {
  if (!arrival.same_process) fitness_.Forget(member.task);
  if (phase_ != Phase::kBegun || !Occupies(member.task)) return;
  AwaitNews(member.task, member.session);
  if (stage_ == Stage::kAdopting) return;
  if (!arrival.same_process) {
    for (Rank& rank : ranks_) {
      if (rank.worker != member.task || rank.settled()) continue;
      // A coordinator that was started again does not know which process it was.
      if (rank.session != SessionId()) rank.lost = "it was started anew";
    }
    return Evaluate();
  }
  for (Rank& rank : ranks_) {
    if (rank.worker == member.task) rank.session = member.session;
  }
  // What was on its way to it may have been lost with the old stream.
  if (stage_ == Stage::kEnding) SendStop(member, GraceLeft());
  if (stage_ == Stage::kPreparing || stage_ == Stage::kStarting) {
    LeaveOut(member.task, Unavailable("it has registered again"));
  }
}

void LaunchJob::Evaluate() {
  const auto failed = [](const Rank& rank) { return rank.failed(); };
  switch (stage_) {
    case Stage::kAdopting:
      if (std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
            return rank.session != SessionId() || rank.settled();
          })) {
        OnAdopted();
      }
      return;
    case Stage::kStarting:
    case Stage::kRunning:
      if (std::any_of(ranks_.begin(), ranks_.end(), failed))
        return BeginEnding(EndGraceOf(launch()));
      if (AllSettled()) return Conclude();
      if (stage_ == Stage::kRunning && std::ranges::any_of(ranks_, &Rank::settled)) WatchTheRest();
      return;
    case Stage::kEnding:
      if (AllSettled()) Conclude();
      return;
    default:
      return;
  }
}

// Who forms a group without a limit waits for a process that has ended as for one that is late.
void LaunchJob::WatchTheRest() {
  if (watched_ == number_) return;
  watched_ = number_;
  LookAtTheRest(0);
}

void LaunchJob::LookAtTheRest(int seen) {
  (void)world_.scheduler.RunAfter(kLook, Guard([this, number = number_, seen] {
                                    if (stage_ != Stage::kRunning || number_ != number) return;
                                    const int times = TheRestWaits() ? seen + 1 : 0;
                                    if (times < kLooksInRow) return LookAtTheRest(times);
                                    for (Rank& rank : ranks_) rank.awaited = rank.settled();
                                    Evaluate();
                                  }));
}

bool LaunchJob::TheRestWaits() const {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    if (rank.settled()) continue;
    const Member* const worker = world_.members.Find(rank.worker);
    if (worker == nullptr || !worker->attached() || worker->session != rank.session) return false;
    // One with a limit ends by itself; elastic workers, of no generation, may go on without.
    const bool waits =
        std::ranges::any_of(worker->heartbeat.waits(), [&](const v1::CollectiveWait& wait) {
          return wait.job_id() == id() && wait.task().index() == i && wait.generation() > 0 &&
                 wait.operation() == 0 && wait.limit_ms() == 0;
        });
    if (!waits) return false;
  }
  return true;
}

// A worker tells what it has at once (worker/launches.h), before its first heartbeat. Processes of
// which it has said nothing by then have gone with the daemon that it was before.
void LaunchJob::AwaitNews(const TaskId& worker, SessionId session) {
  const auto unheard = [worker](const Rank& rank) {
    return rank.worker == worker && rank.session == SessionId() && !rank.settled();
  };
  if (std::ranges::none_of(ranks_, unheard)) return;
  (void)world_.scheduler.RunAfter(kNews, Guard([this, worker, session, unheard] {
                                    const Member* const member = world_.members.Find(worker);
                                    if (member == nullptr || member->session != session) return;
                                    if (member->heartbeat.sequence() == 0) {
                                      return AwaitNews(worker, session);
                                    }
                                    for (Rank& rank : ranks_) {
                                      if (unheard(rank)) rank.lost = kWithoutThem;
                                    }
                                    Show();
                                    Evaluate();
                                  }));
}

void LaunchJob::OnAdoptLimit() {
  if (stage_ != Stage::kAdopting && stage_ != Stage::kEnding) return;
  for (Rank& rank : ranks_) {
    if (rank.session == SessionId() && !rank.settled()) rank.lost = kWithoutThem;
  }
  stage_ == Stage::kAdopting ? OnAdopted() : Evaluate();
}

// All that was begun before this coordinator is known again, or will not come.
void LaunchJob::OnAdopted() {
  stage_ = Stage::kRunning;
  Show();
  if (std::none_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.failed(); })) {
    cluster_ended_ = false;
    story_.Tell(
        "JOB_RUNNING",
        fmt::format("{} have gone on without the coordinator", Counted(ranks_.size(), "process")),
        nullptr,
        {{"processes", std::to_string(ranks_.size())},
         {"restarts", std::to_string(record().job().restarts())}});
    story_.SetState(v1::JOB_STATE_RUNNING, "", "");
  }
  Evaluate();
}

// --- Ending.

void LaunchJob::BeginEnding(Millis grace) {
  stage_ = Stage::kEnding;
  for (const Member* worker : Workers()) SendStop(*worker, grace);
  (void)world_.scheduler.RunAfter(grace + kEndMargin, Guard([this, ending = ++endings_] {
                                    if (stage_ != Stage::kEnding || endings_ != ending) return;
                                    for (Rank& rank : ranks_) {
                                      rank.silent = !rank.settled();
                                    }
                                    Conclude();
                                  }));
  if (AllSettled()) Conclude();
}

void LaunchJob::SendStop(const Member& worker, Millis grace) {
  world_.commands.Send(worker, StopCommand(id(), number_, grace), grace + kEndMargin, [](auto) {});
}

}  // namespace muster::coordinator
