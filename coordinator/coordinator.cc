#include "coordinator/coordinator.h"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include "common/base/utf8.h"
#include "common/base/wall_time.h"
#include "common/base/words.h"
#include "coordinator/launch_commands.h"

namespace muster::coordinator {
namespace {

constexpr std::chrono::hours kCollectEvery{24};

}  // namespace

Coordinator::Coordinator(Options options, Parts parts)
    : options_(std::move(options)),
      parts_(std::move(parts)),
      commands_(parts_.scheduler),
      members_({.lease = options_.lease,
                .heartbeat = options_.heartbeat,
                .reset_grace = Millis(500),
                .epoch = parts_.journal.epoch(),
                .tasks = options_.tasks,
                .expected = options_.expected},
               parts_.scheduler, *this),
      checker_(members_, commands_),
      marks_(options_.state_directory),
      world_{parts_.scheduler,
             parts_.journal.epoch(),
             members_,
             commands_,
             checker_,
             parts_.journal,
             parts_.logs,
             parts_.checkpoints,
             parts_.drivers,
             marks_,
             options_.jobs,
             parts_.on_event,
             [this] { AdmitJobs(); },
             [this] { OnSettled(); },
             /*draining=*/false,
             [this](const v1::Job& job) { return ClaimantOf(job); },
             [this](const TaskId& worker) {
               return static_cast<std::size_t>(
                   std::count_if(jobs_.begin(), jobs_.end(), [&](const auto& job) {
                     return !job.second->ended() && job.second->Occupies(worker);
                   }));
             },
             parts_.figures} {}

Coordinator::~Coordinator() = default;

void Coordinator::Drain(Millis limit, std::function<void()> done) {
  world_.draining = true;
  drained_ = std::move(done);
  for (const auto& [number, job] : jobs_) job->OnClusterDraining();
  (void)parts_.scheduler.RunAfter(limit, [this, here = lifeline_.Watch(), limit] {
    if (!here()) return;
    const std::string why =
        fmt::format("not within {:.1f} s", static_cast<double>(limit.count()) / 1000);
    for (const auto& [number, job] : jobs_) job->GiveUpCut(why);
    OnSettled();  // none may have been under way
  });
  OnSettled();
}

// Not from a job's own call: it is in the middle of something.
void Coordinator::OnSettled() {
  parts_.scheduler.Post([this, here = lifeline_.Watch()] {
    if (!here()) return;
    for (const Member* member : members_.Draining()) {
      const bool free = std::all_of(jobs_.begin(), jobs_.end(),
                                    [&](const auto& job) { return job.second->MayLeave(*member); });
      if (!free || !released_.insert(member->session).second) continue;
      v1::CoordinatorMessage message;
      (void)message.mutable_release();
      member->link->Send(message);
    }
    const bool settled = std::all_of(jobs_.begin(), jobs_.end(),
                                     [](const auto& job) { return job.second->Settled(); });
    if (settled && drained_) std::exchange(drained_, nullptr)();
  });
}

Result<std::unique_ptr<Coordinator>> Coordinator::Create(Options options, Parts parts) {
  std::unique_ptr<Coordinator> self(new Coordinator(std::move(options), std::move(parts)));
  self->parts_.journal.on_slow = [core = self.get(), here = self->lifeline_.Watch()](
                                     Millis waited, std::size_t rows) {
    if (!here()) return;
    for (const auto& [number, job] : core->jobs_) job->NoteSlowJournal(waited, rows);
  };
  // Both before any job is made: what it tells is written by the journal's thread.
  MUSTER_TRY_ASSIGN(std::vector<StoredJob> stored, self->parts_.journal.LoadJobs());
  MUSTER_TRY_ASSIGN(std::vector<v1::TakenOut> out, self->parts_.journal.LoadTakenOut());
  for (StoredJob& one : stored) {
    const JobNumber number(one.record.number());
    auto job = Job::Make(self->world_, std::move(one));
    self->by_id_[job->id()] = number;
    self->by_name_[job->record().job().name()] = number;
    if (!job->ended()) self->parts_.logs.Recall(job->id());
    job->NoteRestart(self->options_.before);
    self->last_number_ = std::max(self->last_number_, number);
    self->jobs_[number] = std::move(job);
  }
  for (v1::TakenOut& one : out) self->members_.TakeOut(std::move(one));
  self->AdmitJobs();
  self->KeepFiles();
  return self;
}

// Those that ended first go first: what has just ended is what people ask for. The row of the
// highest number stays, so that a restart uses that number no second time. Not from a job's own
// call: it is in the middle of something.
void Coordinator::ForgetJobs() {
  std::vector<JobNumber> ended;
  for (const auto& [number, job] : jobs_) {
    if (job->ended()) ended.push_back(number);
  }
  if (ended.size() <= options_.keep_jobs) return;
  std::ranges::stable_sort(
      ended, {}, [this](JobNumber number) { return jobs_.at(number)->record().job().ended_ms(); });
  for (std::size_t i = 0; i + options_.keep_jobs < ended.size(); ++i) {
    const Job& job = *jobs_.at(ended[i]);
    if (!job.forgettable() || ended[i] == jobs_.rbegin()->first) continue;  // next time
    const std::string id = job.id();
    // A row that cannot be deleted now is there again after a restart, and is tried again.
    parts_.journal.DeleteJob(id);
    parts_.logs.Forget(id);
    by_id_.erase(id);
    // A newer job may have the name.
    if (const auto named = by_name_.find(job.record().job().name());
        named != by_name_.end() && named->second == ended[i]) {
      by_name_.erase(named);
    }
    jobs_.erase(ended[i]);
  }
}

// Each day, and when it begins.
void Coordinator::KeepFiles() {
  if (!parts_.keep_files) return;
  std::set<std::string> used;
  for (const auto& [number, job] : jobs_) {
    used.merge(FilesOf(job->record().job().spec()));
  }
  parts_.keep_files(std::move(used));
  (void)parts_.scheduler.RunAfter(kCollectEvery, [this, here = lifeline_.Watch()] {
    if (here()) KeepFiles();
  });
}

std::size_t Coordinator::Running() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      jobs_, [](const auto& job) { return job.second->admitted() && !job.second->ended(); }));
}

void Coordinator::AdmitJobs() {
  parts_.scheduler.Post([this, here = lifeline_.Watch()] {
    if (here()) ForgetJobs();
  });
  if (world_.draining) return;
  std::size_t running = Running();
  // Those who wait, and whether each is to have a slot.
  std::vector<std::pair<JobNumber, bool>> waiting;
  for (const auto& [number, job] : jobs_) {
    if (job->ended() || job->admitted()) continue;
    const bool admit = running < options_.max_running_jobs && job->WantsSlot();
    running += admit ? 1 : 0;
    waiting.emplace_back(number, admit);
  }
  if (waiting.empty()) return;
  // Not from here: a job that ends is in the middle of something.
  parts_.scheduler.Post([this, here = lifeline_.Watch(), waiting = std::move(waiting)] {
    if (here()) TellTurns(waiting);
  });
}

void Coordinator::TellTurns(const std::vector<std::pair<JobNumber, bool>>& waiting) {
  // Another one may have been given a slot by then: tasks came one right after the other.
  std::size_t running = Running();
  for (const auto& [number, admit] : waiting) {
    const auto found = jobs_.find(number);
    if (found == jobs_.end()) continue;
    Job& job = *found->second;
    if (!admit || running >= options_.max_running_jobs) {
      job.AwaitTurn();
      continue;
    }
    const bool had_one = job.admitted() && !job.ended();
    job.Admit();
    if (!had_one && job.admitted() && !job.ended()) ++running;
  }
}

// --- Daemons.

Result<SessionId> Coordinator::Register(const v1::Register& info,
                                        std::shared_ptr<DaemonLink> link) {
  return members_.Register(info, std::move(link));
}

// Every message is a sign of life; what it says goes to whom it concerns. One of a session or a job
// that is over is dropped.
void Coordinator::OnMessage(SessionId session, v1::DaemonMessage message) {
  if (message.has_heartbeat()) {
    for (const std::uint64_t id : message.heartbeat().fetching()) {
      commands_.Renew(session, CommandId(id));
    }
    return members_.OnHeartbeat(session, message.heartbeat());
  }
  if (!members_.OnMessage(session)) return;
  const Member& member = *members_.Find(session);
  // A held one has nothing to say of work, but for what it still runs and has to end.
  if (!member.alive() && !message.has_draining() && !message.has_launched() &&
      !message.has_result()) {
    return;
  }
  switch (message.body_case()) {
    case v1::DaemonMessage::kResult:
      return commands_.OnResult(session, std::move(*message.mutable_result()));
    case v1::DaemonMessage::kExecutor: {
      const Result<Job*> job = FindById(message.executor().job_id());
      if (job.ok()) (*job)->OnExecutorEvent(member, message.executor());
      return;
    }
    case v1::DaemonMessage::kLog: {
      const Result<Job*> job = FindById(message.log().job_id());
      if (job.ok()) {
        const TaskId task =
            message.log().has_task() ? FromProto(message.log().task()) : member.task;
        parts_.logs.Append((*job)->id(), task.ToString(), message.log().lines(),
                           UnixMicros(parts_.scheduler.WallNow()));
      }
      return;
    }
    case v1::DaemonMessage::kLaunched:
      return OnLaunchEvent(member, message.launched());
    case v1::DaemonMessage::kDraining:
      return members_.OnDraining(session, message.draining().reason());
    default:
      return;
  }
}

// Processes of a job that nobody knows any more are ended, and those of a worker that was taken out
// while it was away: they have been given up with it.
void Coordinator::OnLaunchEvent(const Member& member, const v1::LaunchEvent& event) {
  const Result<Job*> job = FindById(event.job_id());
  if (member.alive() && job.ok() && (*job)->OnLaunchEvent(member, event)) return;
  commands_.Send(member, StopCommand(event.job_id(), LaunchNumber(event.launch()), Millis(0), true),
                 options_.jobs.command_limit, [](auto) {});
}

void Coordinator::OnStreamEnded(SessionId session) { members_.OnStreamEnded(session); }

void Coordinator::OnDaemonExit(const TaskId& task, std::uint32_t pid, const std::string& how) {
  members_.OnExit(task, pid, Utf8Beginning(how, kMostOfHow));
}

void Coordinator::TellOf(const Member& member, const std::string& what) {
  if (parts_.on_task) parts_.on_task(member.task, what);
}

void Coordinator::OnUp(const Member& member, const Arrival& arrival) {
  const std::string process =
      fmt::format("process {} on {}", member.info.pid(), member.info.hostname());
  const std::string gap = arrival.gap
                              ? fmt::format(", {:.1f} s after it was lost",
                                            std::chrono::duration<double>(*arrival.gap).count())
                              : "";
  TellOf(member,
         fmt::format("{}: {}{}", arrival.same_process ? "has connected again" : "has registered",
                     process, gap));
  for (const auto& [number, job] : jobs_) job->OnUp(member, arrival);
  DropLeftovers(member);
  AdmitJobs();
}

void Coordinator::DropLeftovers(const Member& ps) {
  for (const v1::HeldJob& held : ps.info.jobs()) {
    const auto known = by_id_.find(held.job_id());
    if (known != by_id_.end() && jobs_.at(known->second)->Uses(ps.task, ViewId(held.view())))
      continue;
    // A later view that is being made there meanwhile stays.
    commands_.Send(ps, DropCommand(held.job_id(), epoch(), ViewId(held.view())),
                   options_.jobs.command_limit, [](auto) {});
  }
}

void Coordinator::OnDraining(const Member& member, const std::string& reason) {
  TellOf(member, "drains: " + reason);
  for (const auto& [number, job] : jobs_) job->OnDraining(member);
  OnSettled();
}

void Coordinator::OnSessionEnded(SessionId session, const std::string& why) {
  commands_.OnSessionEnded(session, why);
}

void Coordinator::OnLost(const Member& member) {
  TellOf(member, (member.was_draining ? "has ended: " : "is lost: ") + member.how);
  for (const auto& [number, job] : jobs_) job->OnLost(member);
  released_.erase(member.session);
  if (members_.IsOut(member.task)) OnOut(member.task);
  OnSettled();
}

void Coordinator::OnStall(Millis slept) {
  for (const auto& [number, job] : jobs_) job->NoteStall(slept);
}

void Coordinator::OnDriverExit(const std::string& process, Incarnation driver, bool success,
                               const std::string& how) {
  if (const Result<Job*> job = FindById(JobAndTask(process).first); job.ok())
    (*job)->OnDriverExit(driver, success, how);
}

void Coordinator::OnDriverMessage(const std::string& process, Incarnation driver,
                                  const v1::FromProgram& message) {
  const Result<Job*> job = FindById(JobAndTask(process).first);
  if (job.ok()) (*job)->OnDriverMessage(driver, message);
}

void Coordinator::OnDriverLine(const std::string& process, std::int64_t time_us, std::string line) {
  const auto [job_id, task] = JobAndTask(process);
  const Result<Job*> job = FindById(job_id);
  if (!job.ok()) return;
  v1::LogLines lines;
  v1::LogLine& one = *lines.add_lines();
  one.set_time_us(time_us);
  one.set_text(std::move(line));
  parts_.logs.Append(job_id, task.empty() ? (*job)->driver_task() : task, lines.lines());
}

// --- Drivers and people.

Result<Job*> Coordinator::Find(const std::string& job) {
  const auto by_name = by_name_.find(job);
  const auto by_id = by_id_.find(job);
  if (by_name == by_name_.end()) return FindById(job);
  if (by_id != by_id_.end() && by_id->second != by_name->second) {
    return FailedPrecondition(
        "\"{}\" is the id of one job and the name of another, {}: give that id", job,
        jobs_.at(by_name->second)->id());
  }
  return jobs_.at(by_name->second).get();
}

Result<Job*> Coordinator::FindById(const std::string& id) {
  if (const auto found = by_id_.find(id); found != by_id_.end()) {
    return jobs_.at(found->second).get();
  }
  return NotFound("no job has the id or the name \"{}\" ({} known)", id,
                  Agreeing(jobs_.size(), "1 job is", std::to_string(jobs_.size()) + " jobs are"));
}

Result<ModelJob*> Coordinator::FindModel(const std::string& id) {
  MUSTER_TRY_ASSIGN(Job * job, FindById(id));
  if (ModelJob* model = job->AsModel()) return model;
  return FailedPrecondition("job {} trains no model: its driver is no muster-trainer", id);
}

muster::Status Coordinator::CheckName(const std::string& name) const {
  const auto found = by_id_.find(name);
  if (found == by_id_.end()) return Ok();
  return AlreadyExists("\"{}\" is the id of the job \"{}\": choose another name", name,
                       jobs_.at(found->second)->record().job().name());
}

Job* Coordinator::Named(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : jobs_.at(found->second).get();
}

Checkpoints::Claimant Coordinator::ClaimantOf(const v1::Job& job) const {
  Checkpoints::Claimant claimant;
  claimant.mark.set_cluster_id(parts_.journal.cluster_id());
  claimant.mark.set_job_id(job.id());
  claimant.mark.set_job_name(job.name());
  claimant.mark.set_since(UtcText(parts_.scheduler.WallNow()));
  claimant.mark.set_state_directory(options_.state_directory);
  claimant.live = LiveJobs();
  claimant.live.erase(job.id());
  return claimant;
}

std::set<std::string> Coordinator::LiveJobs() const {
  std::set<std::string> live;
  for (const auto& [number, job] : jobs_) {
    if (!job->ended()) live.insert(job->id());
  }
  return live;
}

v1::ListJobsReply Coordinator::List() const {
  v1::ListJobsReply reply;
  std::size_t bytes = 0;
  for (auto job = jobs_.rbegin(); job != jobs_.rend(); ++job) {
    v1::Job summary = job->second->Summary();
    bytes += summary.ByteSizeLong();
    if (bytes > kMostAnswerBytes) break;
    *reply.add_jobs() = std::move(summary);
  }
  return reply;
}

void Coordinator::ForEachJob(const std::function<void(const Job&)>& look) const {
  for (const auto& [number, job] : jobs_) look(*job);
}

v1::ClusterStatus Coordinator::Status() const {
  v1::ClusterStatus status;
  status.set_version(options_.version);
  status.set_epoch(epoch().value());
  status.set_pid(static_cast<std::uint32_t>(getpid()));
  status.set_grpc_address(grpc_address_);
  status.set_page_address(page_address_);
  status.set_state_directory(options_.state_directory);
  status.set_insecure_network(options_.insecure_network);
  for (const v1::TaskState& task : members_.Describe()) {
    *status.add_tasks() = StateOf(FromProto(task.task()));
  }
  if (const auto trouble = parts_.journal.trouble()) {
    v1::DiskTrouble& disk = *status.mutable_disk();
    disk.set_directory(options_.state_directory);
    disk.set_error(Message(trouble->error));
    disk.set_rows(trouble->rows);
    for (const std::string& job : trouble->jobs) disk.add_jobs(job);
    const auto ago = std::chrono::duration_cast<Millis>(parts_.scheduler.Now() - trouble->since);
    disk.set_since_ms(UnixMillis(parts_.scheduler.WallNow()) - ago.count());
  }
  std::uint32_t running = 0, pending = 0;
  for (const auto& [number, job] : jobs_) {
    if (job->ended()) continue;
    (job->record().job().state() == v1::JOB_STATE_PENDING ? pending : running) += 1;
  }
  status.set_jobs_running(running);
  status.set_jobs_pending(pending);
  return status;
}

void Coordinator::ListCheckpoints(const std::string& name,
                                  std::function<void(Result<v1::ListCheckpointsReply>)> then) {
  const Result<Job*> job = Find(name);
  if (!job.ok()) return then(job.status());
  v1::ListCheckpointsReply reply;
  reply.set_directory((*job)->CheckpointRoot());
  std::string newest;
  const auto& oldest_first = (*job)->checkpoints();
  for (auto info = oldest_first.rbegin(); info != oldest_first.rend(); ++info) {
    *reply.add_checkpoints() = *info;
    if (newest.empty() && info->refused().empty()) newest = info->directory();
  }
  if (newest.empty()) return then(std::move(reply));
  parts_.checkpoints.ReadManifest(
      newest, [reply = std::move(reply), then = std::move(then)](auto manifest) mutable {
        // A damaged one is the job's business; the list is still right.
        if (manifest.ok()) *reply.mutable_newest() = std::move(*manifest);
        then(std::move(reply));
      });
}

void Coordinator::ReadLogs(const std::string& name, const LogStore::Query& query,
                           std::function<void(Result<LogStore::Page>)> then) {
  const Result<Job*> job = Find(name);
  if (!job.ok()) return then(job.status());
  parts_.logs.Read((*job)->id(), query,
                   [this, here = lifeline_.Watch(), id = (*job)->id(), query,
                    then = std::move(then)](Result<LogStore::Page> page) {
                     if (!here()) return then(Unavailable("the coordinator has ended"));
                     const bool nothing = page.ok() && page->records.empty() && query.cursor == 0;
                     if (!nothing || query.task.empty()) return then(std::move(page));
                     const Result<Job*> now = Find(id);
                     const muster::Status known =
                         now.ok() ? CheckTask(**now, query.task) : now.status();
                     then(known.ok() ? std::move(page) : known);
                   });
}

muster::Status Coordinator::CheckTask(const Job& job, const std::string& task) const {
  if (task == job.driver_task() || parts_.logs.Knows(job.id(), task)) return Ok();
  std::vector<std::string> known{job.driver_task()};
  const v1::Job described = job.Describe();
  std::vector<v1::Task> tasks;
  for (const v1::LaunchedTask& launched : described.launch().tasks()) {
    tasks.push_back(launched.task());
  }
  // Those of the cluster are not a launched job's.
  if (!described.spec().has_launch()) {
    for (const v1::TaskState& state : described.tasks()) tasks.push_back(state.task());
  }
  for (const v1::Task& of_job : tasks) {
    const std::string one = fmt::format("{}:{}", of_job.type(), of_job.index());
    if (one == task) return Ok();
    if (one != job.driver_task()) known.push_back(one);
  }
  return NotFound("job {} has no task \"{}\"; it has {}", job.id(), task, Joined(known));
}

}  // namespace muster::coordinator
