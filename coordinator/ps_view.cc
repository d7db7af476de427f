#include "coordinator/ps_view.h"

#include <algorithm>

#include "common/base/trouble.h"
#include "common/base/words.h"
#include "coordinator/allocation.h"
#include "coordinator/model_job.h"

namespace muster::coordinator {

// --- The kind.

bool PsKind::SpecNamesServers() const {
  const std::vector<TaskId>& tasks = world_.members.options().tasks;
  return std::any_of(tasks.begin(), tasks.end(),
                     [](const TaskId& task) { return task.type == "ps"; });
}

std::set<int> PsKind::Required() const {
  std::set<int> required;
  const auto require = [&](int index) {
    if (!world_.members.IsOut({"ps", index})) required.insert(index);
  };
  for (const TaskId& task : world_.members.options().tasks) {
    if (task.type == "ps") require(task.index);
  }
  if (!required.empty()) return required;
  if (!replan_) {
    for (const v1::PsAddress& ps : story_.plan().ps()) require(static_cast<int>(ps.index()));
  }
  if (!required.empty()) return required;
  if (!replan_) {
    for (const TaskId& task : world_.members.options().expected) {
      if (task.type == "ps") require(task.index);
    }
  }
  if (!required.empty()) return required;
  for (const Member* ps : world_.members.Up("ps")) required.insert(ps->task.index);
  return required;
}

std::vector<std::string> PsKind::Missing() const {
  // It begins with so many; what is begun goes on with those who are there.
  std::vector<std::string> missing;
  if (story_.plan().view() == 0) {
    missing = world_.members.MissingWorkers(story_.spec().strategy().workers());
  }
  const std::set<int> required = Required();
  if (required.empty()) missing.push_back("a parameter server");
  for (const int index : required) {
    const TaskId task{"ps", index};
    const Member* member = world_.members.Known(task);
    if (member != nullptr && member->state == Member::State::kUp) continue;
    // One that a view of before had, was there.
    const bool planned =
        std::any_of(story_.plan().ps().begin(), story_.plan().ps().end(),
                    [&](const v1::PsAddress& ps) { return static_cast<int>(ps.index()) == index; });
    std::string how =
        planned ? "has not come back since the coordinator's restart" : world_.members.Unseen();
    if (member != nullptr) how = member->alive() ? "is draining" : "lost: " + member->how;
    missing.push_back(fmt::format("{} ({})", task.ToString(), how));
  }
  return missing;
}

bool PsKind::MakeDo() {
  if (SpecNamesServers() || replan_ || world_.members.Up("ps").empty()) return false;
  replan_ = true;
  return true;
}

std::unique_ptr<View> PsKind::NewView(ModelJob& job) {
  return std::make_unique<PsView>(job, *this);
}

// --- Its view.

std::vector<v1::PsAddress> PsView::Servers() const {
  std::vector<v1::PsAddress> servers;
  for (const int index : kind_.Required()) {
    const Member* member = world_.members.Find({"ps", index});
    v1::PsAddress& address = servers.emplace_back();
    address.set_index(static_cast<std::uint32_t>(index));
    address.set_boot_id(member->info.boot_id());
    *address.mutable_data() = member->info.data();
  }
  return servers;
}

// Asks each server for its shards, and waits for all of them.
void PsView::MakeVariables(const std::string& restored_from) {
  struct Waiting {
    std::size_t left = 0;
    Status first;
  };
  auto waiting = std::make_shared<Waiting>();
  const std::vector<TaskId> servers = Holders();
  waiting->left = servers.size();
  for (const TaskId& task : servers) {
    auto answered = Guard([this, waiting, task, restored_from](Result<v1::CommandResult> result) {
      if (!result.ok() && waiting->first.ok()) {
        waiting->first = Annotate(result.status(), task.ToString());
      }
      if (--waiting->left > 0) return;
      // One that has answered may be gone by now.
      if (waiting->first.ok()) {
        if (const Status there = LookAtServers(); !there.ok()) {
          waiting->first = Unavailable("{}", Message(there));
        }
      }
      OnVariablesMade(waiting->first, restored_from);
    });
    const Member* server = world_.members.Find(task);
    if (server == nullptr) {  // lost since the plan was made
      world_.scheduler.Post([answered]() mutable { answered(Unavailable("it was lost")); });
      continue;
    }
    v1::Command command;
    v1::CreateVariables& create = *command.mutable_create_variables();
    *create.mutable_plan() = story_.plan();
    create.set_restore_from(restored_from);
    world_.commands.Send(*server, command, world_.options.restore_limit, answered);
  }
}

Status PsView::LookAtServers() const {
  for (const v1::PsAddress& planned : story_.plan().ps()) {
    const TaskId task{"ps", static_cast<int>(planned.index())};
    const Member* server = world_.members.Find(task);
    if (server == nullptr) return Unavailable("{} has not come back", task.ToString());
    if (server->info.boot_id() != planned.boot_id()) {
      return NotFound("{} is another process now (pid {}): its memory was lost", task.ToString(),
                      server->info.pid());
    }
  }
  return Ok();
}

// Each of them refuses from now on what executors of the earlier epoch still push.
void PsView::AskHolders() {
  // Whoever is not there now was waited for before the view began.
  if (const Status there = LookAtServers(); !there.ok()) {
    return OnHoldersAsked(NotFound("{}", Message(there)), {});
  }
  struct Waiting {
    std::size_t left = 0;
    Status first;
    std::vector<v1::AdoptReport> reports;
  };
  auto waiting = std::make_shared<Waiting>();
  const std::vector<TaskId> servers = Holders();
  waiting->left = servers.size();
  for (const TaskId& task : servers) {
    v1::Command command;
    v1::AdoptVariables& adopt = *command.mutable_adopt_variables();
    adopt.set_job_id(story_.id());
    adopt.set_epoch(world_.epoch.value());
    adopt.set_view(story_.plan().view());
    adopt.set_least_attempt(Attempt(world_.epoch, 0).value());
    auto answered = Guard([this, waiting, task](Result<v1::CommandResult> result) {
      if (result.ok()) {
        waiting->reports.push_back(std::move(*result->mutable_adopted()));
      } else if (waiting->first.ok() || !IsTransient(result.status().code())) {
        waiting->first = Annotate(result.status(), task.ToString());
      }
      if (--waiting->left > 0) return;
      // One that has answered may be gone by now, and may come back: it is asked again.
      if (waiting->first.ok()) waiting->first = LookAtServers();
      OnHoldersAsked(waiting->first, waiting->reports);
    });
    world_.commands.Send(*world_.members.Find(task), command, world_.options.command_limit,
                         answered);
  }
}

const v1::PsAddress* PsView::Planned(const TaskId& server) const {
  for (const v1::PsAddress& ps : story_.plan().ps()) {
    if (server.type == "ps" && static_cast<int>(ps.index()) == server.index) return &ps;
  }
  return nullptr;
}

std::vector<TaskId> PsView::Holders() const {
  std::vector<TaskId> holders;
  for (const v1::PsAddress& ps : story_.plan().ps()) {
    holders.push_back({"ps", static_cast<int>(ps.index())});
  }
  return holders;
}

std::string PsView::WhereVariablesLive() const {
  return Counted(static_cast<std::uint64_t>(story_.plan().ps_size()), "parameter server");
}

bool PsView::NeedsDrainingTask() const {
  const std::vector<TaskId> servers = Holders();
  if (std::any_of(servers.begin(), servers.end(),
                  [this](const TaskId& server) { return IsDraining(server); })) {
    return true;
  }
  // The last worker is needed for closures that have come back, and for what its module holds.
  return world_.members.Up("worker").empty() &&
         std::any_of(executors_.begin(), executors_.end(),
                     [this](const auto& one) { return IsDraining(one.first); });
}

bool PsView::Needs(const TaskId& task) const {
  if (task.type == "ps") return Planned(task) != nullptr;
  return world_.draining || world_.members.Up("worker").empty();
}

void PsView::StartExecutors() {
  if (!running()) return;
  StartExecutorsOn(MostWorkers(story_.spec().strategy()));
  for (const Member* worker : world_.members.Up("worker")) {
    if (!numbers_.contains(worker->task) || HasItNow(*worker)) continue;
    // It was lost and is back, with its executor, and another has its place.
    StopExecutor(world_, story_, *worker);
    numbers_.erase(worker->task);
    executors_.erase(worker->task);
  }
  RefreshReason();
}

bool PsView::NeedsAssign() const {
  if (assigned_ || adopted() || story_.plan().start_step() > 0 || !restored_from_.empty())
    return false;
  const auto& variables = story_.plan().variables();
  return std::any_of(variables.begin(), variables.end(), [](const v1::VariableLayout& variable) {
    return variable.initializer().kind() == v1::INITIALIZER_KIND_ARCHIVE;
  });
}

void PsView::FillStart(const TaskId& worker, v1::StartExecutor& start) {
  start.set_adopt(adopted());
  if (!NeedsAssign()) return;
  assigner_ = worker;
  start.set_assign_initial_values(true);
}

void PsView::OnReady(const TaskId& worker) {
  if (assigner_ != worker) return;
  assigned_ = true;
  assigner_.reset();
  StartExecutors();
}

void PsView::OnStartEnded(const TaskId& worker) {
  if (assigner_ == worker) assigner_.reset();
}

// Its closures go to others.
void PsView::OnWorkerLost(const Member& worker) {
  const TaskId task = worker.task;
  if (assigner_ == task) assigner_.reset();
  AskWhatLostHad(worker, [this, task, pid = worker.info.pid(), how = worker.how,
                          fields = FieldsOf(worker)](const Had& had) mutable {
    const std::size_t closures = had.closures.size();
    fields.emplace_back("closures", Ids(had.closures));
    story_.Tell(
        "WORKER_LOST",
        fmt::format("{} (process {}) was lost: {}; {} it had {} to others", task.ToString(), pid,
                    how, Counted(closures, "closure"), Agreeing(closures, "goes", "go")),
        &task, fields, world_.logs.Last(story_.id(), task.ToString()));
    if (had.given_up) GiveUp(*had.given_up, task, {});
  });
  StartExecutors();
}

// Nothing is given out until its process is back, or is given up.
void PsView::OnServerLost(const Member& server) {
  const TaskId task = server.task;
  if (Planned(task) == nullptr) return;
  missing_[task] = {server.session, server.how};
  const bool out = world_.members.IsOut(task);
  story_.Tell(
      "PS_LOST",
      fmt::format("{} (process {}) was lost: {}; the job {}", task.ToString(), server.info.pid(),
                  server.how, out ? "goes on without it" : "waits for it"),
      &task, FieldsOf(server), world_.logs.Last(story_.id(), task.ToString()));
  if (out) {  // not from here: the loss is still being told
    return world_.scheduler.Post(Guard([this, task] { OnServerOut(task); }));
  }
  // With ps_wait over, its process will hardly come back: make do with the others, if there are.
  (void)world_.scheduler.RunAfter(
      world_.options.ps_wait, Guard([this, task, session = server.session] {
        // It may have come back and been lost again: that loss has a timer of its own.
        const auto missing = missing_.find(task);
        if (missing == missing_.end() || missing->second.session != session) return;
        kind_.Replan();
        job_.EndView("PS_LOST",
                     fmt::format("{} was lost and has not come back for {} s", task.ToString(),
                                 world_.options.ps_wait.count() / 1000));
      }));
}

void PsView::OnServerOut(const TaskId& server) {
  if (!missing_.contains(server)) return;
  kind_.Replan();
  job_.EndView("PS_DRAINED", fmt::format("{} was taken out of work: the job goes on without it",
                                         server.ToString()));
}

void PsView::OnServerUp(const Member& server) {
  const v1::PsAddress* planned = Planned(server.task);
  if (planned == nullptr) return;
  missing_.erase(server.task);
  if (planned->boot_id() != server.info.boot_id()) {
    return job_.EndView("PS_LOST",
                        fmt::format("{} is another process now (pid {}): its memory was lost",
                                    server.task.ToString(), server.info.pid()));
  }
  RefreshReason();
  SetPace();
}

std::string PsView::Consequence(const std::vector<ClosureKey>& had) const {
  return fmt::format("{} it had {} again", Counted(had.size(), "closure"),
                     Agreeing(had.size(), "runs", "run"));
}

void PsView::RenewExecutor(const Member& worker, const std::string&) {
  const TaskId task = worker.task;
  StopExecutor(world_, story_, worker);
  Executor& executor = executors_[task];
  executor.returned = 0;
  RestartExecutorLater(task, ++executor.crashes);
  TellMembers();
  RefreshReason();
}

}  // namespace muster::coordinator
