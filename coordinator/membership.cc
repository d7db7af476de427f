#include "coordinator/membership.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/words.h"

namespace muster::coordinator {
namespace {

double Seconds(TimePoint::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

const char* NameOf(Member::State state) {
  switch (state) {
    case Member::State::kUp:
      return "up";
    case Member::State::kDraining:
      return "draining";
    case Member::State::kHeld:
      return "drained";
    case Member::State::kLost:
      return "lost";
  }
  return "lost";
}

}  // namespace

std::string WhoTook(const v1::TakenOut& out) { return out.by().empty() ? "an operator" : out.by(); }

Membership::Membership(Options options, Scheduler& scheduler, Observer& observer)
    : options_(std::move(options)),
      scheduler_(scheduler),
      observer_(observer),
      last_look_(scheduler.Now()),
      forgiving_until_(last_look_) {
  tick_ = scheduler_.RunAfter(options_.heartbeat, [this] { Tick(); });
}

Membership::~Membership() {
  (void)scheduler_.Cancel(tick_);
  for (const auto& [session, timer] : grace_) (void)scheduler_.Cancel(timer);
}

// The task gets a new session. An older one of the same process is a lost connection, no more; one
// of another process is a task that was lost, and that process is refused from now on.
Result<SessionId> Membership::Register(const v1::Register& info, std::shared_ptr<DaemonLink> link) {
  const TaskId task = FromProto(info.task());
  const bool evaluator = task == kEvaluator;
  if (task.type != "ps" && task.type != "worker" && !evaluator) {
    return FailedPrecondition("{} cannot register: only ps, worker and {} can", task.ToString(),
                              kEvaluator.ToString());
  }
  // It takes no part in training: cluster specs do without it.
  if (!evaluator && !options_.tasks.empty() &&
      std::find(options_.tasks.begin(), options_.tasks.end(), task) == options_.tasks.end()) {
    return FailedPrecondition("{} is not in the coordinator's cluster spec, which has {}",
                              task.ToString(), Counted(options_.tasks.size(), "task"));
  }
  if (info.epoch() > options_.epoch.value()) {
    return FailedPrecondition(
        "{} has obeyed a coordinator of epoch {}; this one has epoch {}: another coordinator runs, "
        "or this one's state directory is an older copy",
        task.ToString(), info.epoch(), options_.epoch.value());
  }
  Arrival arrival;
  std::optional<SessionId> replaced;
  const auto known = members_.find(task);
  if (known != members_.end()) {
    Member& old = known->second;
    arrival.same_process = old.info.boot_id() == info.boot_id();
    if (!arrival.same_process) {
      std::set<std::string>& superseded = superseded_[task];
      if (old.attached() && superseded.contains(info.boot_id())) {
        return Aborted("process {} holds {} now; it is newer than process {}", old.info.pid(),
                       task.ToString(), info.pid());
      }
      if (superseded.size() >= 64) superseded.clear();
      superseded.insert(old.info.boot_id());
      superseded.erase(info.boot_id());
    }
    if (old.attached()) {
      const SessionId ended = old.session;
      if (const auto grace = grace_.find(ended); grace != grace_.end()) {
        (void)scheduler_.Cancel(grace->second);
        grace_.erase(grace);
      }
      old.link->End(Aborted("{} has registered again", task.ToString()));
      if (arrival.same_process) {
        sessions_.erase(ended);
        replaced = ended;
      } else {
        Lose(old, fmt::format("process {} has taken its place", info.pid()));
      }
    }
    if (!old.attached()) {
      arrival.gap = std::chrono::duration_cast<Millis>(scheduler_.Now() - old.lost_at);
    }
  }

  Member& member = members_[task];
  member = Member{};
  member.task = task;
  member.session = SessionId(InEpoch(options_.epoch, ++last_session_));
  member.info = info;
  member.last_heard = scheduler_.Now();
  member.link = std::move(link);
  sessions_[member.session] = task;

  v1::CoordinatorMessage message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_epoch(options_.epoch.value());
  welcome.set_session(member.session.value());
  welcome.set_heartbeat_ms(static_cast<std::uint32_t>(options_.heartbeat.count()));
  welcome.set_lease_ms(static_cast<std::uint32_t>(options_.lease.count()));
  member.link->Send(message);
  // Not before: who hears of it may ask this task again at once, which the old session has not
  // told.
  if (replaced) observer_.OnSessionEnded(*replaced, task.ToString() + " has connected again");
  const SessionId session = member.session;
  const auto out = out_.find(task);
  if (out != out_.end() && out->second.boot_id() != info.boot_id()) {
    out->second.clear_boot_id();
    member.state = Member::State::kHeld;
    observer_.OnHeld(member);
    return session;
  }
  observer_.OnUp(member, arrival);
  if (out != out_.end()) TellToDrain(member, out->second);
  return session;
}

void Membership::OnHeartbeat(SessionId session, const v1::Heartbeat& heartbeat) {
  Member* member = BySession(session);
  if (member == nullptr) return;
  Heard(*member);
  member->heartbeat = heartbeat;
  v1::CoordinatorMessage message;
  message.mutable_ack()->set_sequence(heartbeat.sequence());
  member->link->Send(message);
}

bool Membership::OnMessage(SessionId session) {
  Member* member = BySession(session);
  if (member == nullptr) return false;
  Heard(*member);
  return true;
}

void Membership::OnDraining(SessionId session, const std::string& reason) {
  Member* member = BySession(session);
  if (member == nullptr || member->state == Member::State::kDraining) return;
  // Nobody has anything there.
  if (member->state == Member::State::kHeld) return Release(*member);
  member->state = Member::State::kDraining;
  observer_.OnDraining(*member, reason);
}

void Membership::OnStreamEnded(SessionId session) {
  Member* member = BySession(session);
  if (member == nullptr) return;
  if (member->state == Member::State::kDraining) {
    Lose(*member, "it was drained");
    return;
  }
  if (grace_.contains(session)) return;
  NoticeStall();
  AwaitReturn(session);
}

void Membership::AwaitReturn(SessionId session) {
  const TimePoint forgiving = forgiving_until_;
  const Millis grace = scheduler_.Now() < forgiving ? options_.lease : options_.reset_grace;
  grace_[session] = scheduler_.RunAfter(grace, [this, session, forgiving] {
    NoticeStall();
    if (forgiving_until_ != forgiving) return AwaitReturn(session);  // nobody could answer it
    grace_.erase(session);
    if (Member* gone = BySession(session)) Lose(*gone, "its connection was reset");
  });
}

void Membership::OnExit(const TaskId& task, std::uint32_t pid, const std::string& how) {
  const auto found = members_.find(task);
  if (found == members_.end() || !found->second.attached() || found->second.info.pid() != pid) {
    return;
  }
  const bool drained = found->second.state == Member::State::kDraining;
  Lose(found->second, drained ? "it was drained" : how);
}

void Membership::Heard(Member& member) {
  member.last_heard = scheduler_.Now();
  member.silent_looks = 0;
}

void Membership::Tick() {
  tick_ = scheduler_.RunAfter(options_.heartbeat, [this] { Tick(); });
  NoticeStall();
  const TimePoint now = last_look_ = scheduler_.Now();
  const auto looks = static_cast<int>(options_.lease / options_.heartbeat);
  for (auto& [task, member] : members_) {
    if (member.attached() && ++member.silent_looks > looks) {
      Lose(member,
           fmt::format("nothing was heard of it for {:.1f} s", Seconds(now - member.last_heard)));
    }
  }
}

// A look that is late by less than half a lease is one look, as on any busy machine.
void Membership::NoticeStall() {
  const TimePoint now = scheduler_.Now();
  const TimePoint::duration slept = now - last_look_ - options_.heartbeat;
  if (slept <= options_.lease / 2) return;
  last_look_ = now;
  forgiving_until_ = now + options_.lease;
  for (auto& [task, member] : members_) {
    if (!member.attached()) continue;
    member.last_heard = std::min(now, member.last_heard + slept);
    member.silent_looks = 0;
  }
  observer_.OnStall(std::chrono::duration_cast<Millis>(slept));
}

void Membership::Lose(Member& member, const std::string& how) {
  const SessionId session = member.session;
  if (const auto grace = grace_.find(session); grace != grace_.end()) {
    (void)scheduler_.Cancel(grace->second);
    grace_.erase(grace);
  }
  sessions_.erase(session);
  const bool held = member.state == Member::State::kHeld;
  if (const auto out = out_.find(member.task);
      out != out_.end() && out->second.boot_id() == member.info.boot_id()) {
    out->second.clear_boot_id();
  }
  member.was_draining = member.state == Member::State::kDraining;
  member.state = Member::State::kLost;
  member.how = how;
  // Silence began when it was last heard: the gap that people see counts from there.
  member.lost_at = member.last_heard;
  member.link->End(Aborted("{} was given up: {}; register again", member.task.ToString(), how));
  member.link = nullptr;
  observer_.OnSessionEnded(session, member.task.ToString() + " was lost: " + how);
  if (!held) observer_.OnLost(member);
}

Member* Membership::BySession(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return nullptr;
  Member& member = members_.at(found->second);
  return member.session == session && member.attached() ? &member : nullptr;
}

const Member* Membership::Find(SessionId session) const {
  return const_cast<Membership*>(this)->BySession(session);
}

const Member* Membership::Find(const TaskId& task) const {
  const Member* member = Known(task);
  return member != nullptr && member->alive() ? member : nullptr;
}

const Member* Membership::Known(const TaskId& task) const {
  const auto found = members_.find(task);
  return found == members_.end() ? nullptr : &found->second;
}

std::string Membership::Unseen() const {
  return options_.epoch > Epoch(1) ? "has not registered since the coordinator's restart"
                                   : "has never registered";
}

std::vector<const Member*> Membership::Up(std::string_view type) const {
  std::vector<const Member*> up;
  for (const auto& [task, member] : members_) {
    if (task.type == type && member.state == Member::State::kUp) up.push_back(&member);
  }
  return up;
}

std::vector<std::string> Membership::MissingWorkers(std::size_t least) const {
  const std::size_t there = Up("worker").size();
  if (there == 0 || there >= least) return {};
  return {fmt::format("{} ({} of {} {} there)", Counted(least - there, "more worker"), there, least,
                      Agreeing(there, "is", "are"))};
}

std::vector<const Member*> Membership::Draining() const {
  std::vector<const Member*> draining;
  for (const auto& [task, member] : members_) {
    if (member.state == Member::State::kDraining) draining.push_back(&member);
  }
  return draining;
}

std::set<TaskId> Membership::Named() const {
  std::set<TaskId> tasks(options_.expected.begin(), options_.expected.end());
  for (const TaskId& task : options_.tasks) {
    if (task.type == "ps" || task.type == "worker") tasks.insert(task);
  }
  return tasks;
}

std::set<TaskId> Membership::Tasks() const {
  std::set<TaskId> tasks = Named();
  for (const auto& [task, member] : members_) tasks.insert(task);
  for (const auto& [task, record] : out_) tasks.insert(task);
  return tasks;
}

// Not a parameter server, whose variables somebody may wait for, and not one that was taken out,
// which is shown as that.
bool Membership::HasLeft(const TaskId& task) const {
  const Member* const member = Known(task);
  return member != nullptr && !member->attached() && member->was_draining &&
         task.type == "worker" && Out(task) == nullptr && !Named().contains(task);
}

std::vector<v1::TaskState> Membership::Describe() const {
  std::vector<v1::TaskState> states;
  for (const TaskId& task : Tasks()) {
    if (!HasLeft(task)) states.push_back(Describe(task));
  }
  return states;
}

v1::TaskState Membership::Describe(const TaskId& task) const {
  v1::TaskState state;
  *state.mutable_task() = ToProto(task);
  const v1::TakenOut* const out = Out(task);
  if (out != nullptr) {
    state.set_drained_by(out->by());
    state.set_drained_ms(out->since_ms());
  }
  const Member* member = Known(task);
  if (member == nullptr) {
    state.set_state(IsOut(task) ? "drained" : "never seen");
    return state;
  }
  const bool attached = member->attached();
  const bool gone = !attached && IsOut(task);
  state.set_state(gone ? "drained" : NameOf(member->state));
  state.set_pid(gone ? 0 : member->info.pid());
  state.set_session(member->session.value());
  state.set_hostname(member->info.hostname());
  state.set_grpc_address(member->info.grpc_address());
  state.set_insecure_network(member->info.insecure_network());
  state.set_version(member->info.version());
  state.set_executor_pid(attached ? member->heartbeat.executor_pid() : 0);
  state.set_closures_done(member->heartbeat.closures_done());
  state.set_resident_bytes(attached ? member->heartbeat.resident_bytes() : 0);
  if (attached) *state.mutable_job_bytes() = member->heartbeat.job_bytes();
  if (attached) *state.mutable_waits() = member->heartbeat.waits();
  return state;
}

// --- Tasks that are taken out.

void Membership::TellToDrain(const Member& member, const v1::TakenOut& out) {
  v1::CoordinatorMessage message;
  message.mutable_drain()->set_reason("taken out of work by " + WhoTook(out));
  member.link->Send(message);
}

void Membership::Release(const Member& member) {
  v1::CoordinatorMessage message;
  (void)message.mutable_release();
  member.link->Send(message);
}

void Membership::TakeOut(v1::TakenOut record) {
  const TaskId task = FromProto(record.task());
  const Member* const member = Known(task);
  // It may have been lost, or come anew, since the record was made.
  if (member != nullptr) record.set_boot_id(member->alive() ? member->info.boot_id() : "");
  const v1::TakenOut& out = out_[task] = std::move(record);
  if (member != nullptr && member->alive()) TellToDrain(*member, out);
}

bool Membership::LetIn(const TaskId& task) {
  if (out_.erase(task) == 0) return false;
  const auto found = members_.find(task);
  if (found == members_.end() || found->second.state != Member::State::kHeld) return true;
  found->second.state = Member::State::kUp;
  observer_.OnUp(found->second, Arrival{});
  return true;
}

const v1::TakenOut* Membership::Out(const TaskId& task) const {
  const auto found = out_.find(task);
  return found == out_.end() ? nullptr : &found->second;
}

bool Membership::IsOut(const TaskId& task) const {
  const v1::TakenOut* const out = Out(task);
  return out != nullptr && out->boot_id().empty();
}

bool Membership::Knows(const TaskId& task) const { return Tasks().contains(task); }

}  // namespace muster::coordinator
