#include "services/ps/ps_node.h"

#include <algorithm>
#include <utility>

#include "common/messages/status_proto.h"
#include "common/storage/file_system.h"
#include "muster/v1/cluster.pb.h"

namespace muster::services {

Result<std::unique_ptr<PsNode>> PsNode::Start(Options options) {
  ps::PsServer::Options server = options.server;
  const auto wanted = static_cast<std::size_t>(std::max(options.apply_helpers, 0));
  std::unique_ptr<PsNode> node(new PsNode(std::move(options)));
  if (node->pool_.helpers() < wanted && server.on_warning) {
    server.on_warning(fmt::format(
        "{} of {} threads that help with large gradients: no more can be had; they take longer",
        node->pool_.helpers(), wanted));
  }
  server.apply_pool = &node->pool_;
  MUSTER_TRY_ASSIGN(node->server_, ps::PsServer::Start(server));
  return node;
}

PsNode::PsNode(Options options) : index_(options.index), pool_(options.apply_helpers) {}

PsNode::~PsNode() { Stop(); }

void PsNode::Stop() {
  if (server_ != nullptr) server_->Stop();
}

v1::DataEndpoint PsNode::endpoint() const { return server_->endpoint(); }

v1::CommandResult PsNode::Execute(const v1::Command& command) {
  v1::CommandResult result;
  result.set_command_id(command.id());
  Status status;
  if (command.has_create_variables()) {
    status = Create(command.create_variables());
  } else if (command.has_save_variables()) {
    Result<v1::SaveReport> report = Save(command.save_variables());
    status = report.status();
    if (report.ok()) *result.mutable_saved() = *std::move(report);
  } else if (command.has_get_ps_report()) {
    Result<v1::PsReport> report = Report(command.get_ps_report().job_id());
    status = report.status();
    if (report.ok()) *result.mutable_ps() = *std::move(report);
  } else if (command.has_adopt_variables()) {
    Result<v1::AdoptReport> report = Adopt(command.adopt_variables());
    status = report.status();
    if (report.ok()) *result.mutable_adopted() = *std::move(report);
  } else if (command.has_drop_job()) {
    status = Drop(command.drop_job());
  } else {
    status = InvalidArgument("ps:{} was sent a command that is not for a parameter server", index_);
  }
  SetStatus(status, *result.mutable_status());
  return result;
}

Status PsNode::Obey(Epoch epoch) {
  if (epoch < epoch_) {
    return Aborted("ps:{} obeys epoch {} of the coordinator; this command is of epoch {}", index_,
                   epoch_, epoch);
  }
  epoch_ = epoch;
  return Ok();
}

Status PsNode::BeginEpoch(Epoch epoch) {
  {
    const MutexLock lock(mutex_);
    MUSTER_TRY(Obey(epoch));
  }
  server_->BeginEpoch(epoch);
  return Ok();
}

std::optional<Status> PsNode::Begin(const v1::JobPlan& plan) {
  // Gone when this returns, and without the lock: to unmap what is large takes a while, and
  // heartbeats go on meanwhile.
  std::shared_ptr<ps::JobShards> freed;
  const MutexLock lock(mutex_);
  if (Status status = Obey(Epoch(plan.epoch())); !status.ok()) return status;
  for (const v1::PsAddress& address : plan.ps()) {
    if (address.index() != index_ || boot_id_.empty() || address.boot_id() == boot_id_) continue;
    return Aborted("ps:{} is process {}; view {} of {} was planned for its predecessor {}", index_,
                   boot_id_, plan.view(), plan.job_id(), address.boot_id());
  }
  Job& job = jobs_[plan.job_id()];
  if (ViewId(plan.view()) < job.view) {
    return Aborted("ps:{} serves view {} of {}; this command is of view {}", index_, job.view,
                   plan.job_id(), plan.view());
  }
  if (ViewId(plan.view()) == job.view && Epoch(plan.epoch()) == job.epoch) return job.created;
  // The old view goes first: two of them would not fit in memory where one does.
  server_->Drop(JobNumber(plan.job_number()));
  freed = std::move(job.shards);
  job = Job{.number = JobNumber(plan.job_number()),
            .epoch = Epoch(plan.epoch()),
            .view = ViewId(plan.view()),
            .shards = nullptr,
            .created = Ok()};
  return std::nullopt;
}

Status PsNode::Create(const v1::CreateVariables& command) {
  const v1::JobPlan& plan = command.plan();
  if (std::optional<Status> answer = Begin(plan)) return *std::move(answer);
  Result<std::shared_ptr<ps::JobShards>> shards =
      ps::JobShards::Create(plan, index_, command.restore_from(), pool_);
  const MutexLock lock(mutex_);
  const auto found = jobs_.find(plan.job_id());
  if (found == jobs_.end()) {
    return FailedPrecondition("ps:{}: {} was dropped", index_, plan.job_id());
  }
  Job& job = found->second;
  if (!job.created.ok()) return job.created;  // dropped meanwhile
  if (!shards.ok()) {
    job.created = Annotate(
        shards.status(), fmt::format("ps:{} cannot make its shards of {}", index_, plan.job_id()));
    return job.created;
  }
  job.shards = *std::move(shards);
  v1::PsReport report;
  job.shards->ReportTotals(report);
  job.bytes = report.parameter_bytes() + report.slot_bytes();
  server_->Publish(JobNumber(plan.job_number()), job.shards);
  return Ok();
}

Result<PsNode::Job> PsNode::Find(const std::string& job_id) const {
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end() || found->second.shards == nullptr) {
    return NotFound("ps:{} holds no variables of {}", index_, job_id);
  }
  return found->second;
}

Result<v1::SaveReport> PsNode::Save(const v1::SaveVariables& command) {
  std::shared_ptr<ps::JobShards> shards;
  {
    const MutexLock lock(mutex_);
    MUSTER_TRY(Obey(Epoch(command.epoch())));
    MUSTER_TRY_ASSIGN(const Job job, Find(command.job_id()));
    if (ViewId(command.view()) != job.view) {
      return Aborted("ps:{} serves view {} of {}; this command is of view {}", index_, job.view,
                     command.job_id(), command.view());
    }
    shards = job.shards;
  }
  return shards->Save(command.step(), command.directory(), storage::RealFileSystem());
}

Result<v1::AdoptReport> PsNode::Adopt(const v1::AdoptVariables& command) {
  std::shared_ptr<ps::JobShards> shards;
  {
    const MutexLock lock(mutex_);
    MUSTER_TRY(Obey(Epoch(command.epoch())));
    const auto found = jobs_.find(command.job_id());
    if (found == jobs_.end() || found->second.shards == nullptr ||
        found->second.view != ViewId(command.view())) {
      return NotFound("ps:{} holds no variables of view {} of {}", index_, command.view(),
                      command.job_id());
    }
    found->second.epoch = Epoch(command.epoch());
    shards = found->second.shards;
  }
  v1::AdoptReport report;
  shards->Adopt(Attempt(command.least_attempt()), report);
  return report;
}

Result<v1::PsReport> PsNode::Report(const std::string& job_id) const {
  v1::PsReport report;
  for (const ps::ProgramUse& program : server_->programs()) {
    if (program.job_id != job_id) continue;
    report.set_parameter_bytes(program.bytes - program.slot_bytes - program.staged_bytes);
    report.set_slot_bytes(program.slot_bytes);
    report.set_staged_bytes(program.staged_bytes);
    return report;
  }
  Job job;
  {
    const MutexLock lock(mutex_);
    MUSTER_TRY_ASSIGN(job, Find(job_id));
  }
  job.shards->Report(report);
  AddCounters(job.number, report);
  return report;
}

void PsNode::AddCounters(JobNumber job, v1::PsReport& report) const {
  const ps::ServerCounters counters = server_->counters(job);
  report.set_pulls(counters.pulls);
  report.set_pushes(counters.pushes);
  report.set_duplicates_refused(counters.duplicates);
  report.set_step_waits(counters.step_waits);
  report.set_tcp_bytes_in(counters.tcp_bytes_in);
  report.set_tcp_bytes_out(counters.tcp_bytes_out);
  report.set_local_bytes_in(counters.local_bytes_in);
  report.set_local_bytes_out(counters.local_bytes_out);
}

std::map<std::string, v1::PsReport> PsNode::Totals() const {
  std::map<std::string, v1::PsReport> totals;
  const MutexLock lock(mutex_);
  for (const auto& [id, job] : jobs_) {
    if (job.shards == nullptr) continue;
    v1::PsReport& report = totals[id];
    job.shards->ReportTotals(report);
    AddCounters(job.number, report);
  }
  return totals;
}

Status PsNode::Drop(const v1::DropJob& command) {
  MUSTER_TRY(BeginEpoch(Epoch(command.epoch())));
  server_->DropProgram(command.job_id());
  std::shared_ptr<ps::JobShards> freed;  // without the lock
  const MutexLock lock(mutex_);
  MUSTER_TRY(Obey(Epoch(command.epoch())));
  // A program has no views, and nothing of it is made by command.
  if (command.view() == 0 && !jobs_.contains(command.job_id())) return Ok();
  Job& job = jobs_[command.job_id()];
  if (job.view > ViewId(command.view())) {
    return Aborted("ps:{} serves view {} of {}; this command is of view {}", index_, job.view,
                   command.job_id(), command.view());
  }
  server_->Drop(job.number);
  // The entry stays, or is made, without shards: it refuses older views, and of this view also a
  // command to make them that this one has overtaken.
  freed = std::exchange(job.shards, nullptr);
  job.view = ViewId(command.view());
  job.epoch = Epoch(command.epoch());
  job.created = FailedPrecondition("ps:{}: {} was dropped", index_, command.job_id());
  Forget(command.job_id(), job.view);
  return Ok();
}

void PsNode::Forget(const std::string& job_id, ViewId view) {
  dropped_.emplace_back(job_id, view);
  if (dropped_.size() <= kMostDropped) return;
  const auto over = jobs_.find(dropped_.front().first);
  const bool came_back = over == jobs_.end() || over->second.shards != nullptr ||
                         over->second.created.ok() || over->second.view != dropped_.front().second;
  if (!came_back) jobs_.erase(over);
  dropped_.pop_front();
}

void PsNode::FillRegistration(v1::Register& registration) const {
  for (const ps::ProgramUse& program : server_->programs()) {
    v1::HeldJob& held = *registration.add_jobs();
    held.set_job_id(program.job_id);
    held.set_epoch(program.epoch.value());
  }
  const MutexLock lock(mutex_);
  for (const auto& [id, job] : jobs_) {
    if (job.shards == nullptr) continue;
    v1::HeldJob& held = *registration.add_jobs();
    held.set_job_id(id);
    held.set_epoch(job.epoch.value());
    held.set_view(job.view.value());
  }
}

void PsNode::FillHeartbeat(v1::Heartbeat& heartbeat) const {
  const auto add = [&](const std::string& job_id, std::uint64_t bytes) {
    v1::JobBytes& entry = *heartbeat.add_job_bytes();
    entry.set_job_id(job_id);
    entry.set_bytes(bytes);
  };
  for (const ps::ProgramUse& program : server_->programs()) add(program.job_id, program.bytes);
  const MutexLock lock(mutex_);
  for (const auto& [id, job] : jobs_) {
    if (job.shards != nullptr) add(id, job.bytes + job.shards->staged_bytes());
  }
}

}  // namespace muster::services
