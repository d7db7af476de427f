// The cluster, or a task that the job needs, was asked to end: what is in flight finishes, and a
// checkpoint of it is saved, so that nothing is done twice afterwards. The driver has no part in
// it.
#include <algorithm>

#include "coordinator/job.h"

namespace muster::coordinator {

bool Job::Leaving() const {
  if (phase_ != Phase::kOpen) return false;
  if (world_.draining) return true;
  const auto draining = [&](const TaskId& task) {
    const Member* member = world_.members.Find(task);
    return member != nullptr && member->state == Member::State::kDraining;
  };
  if (HasHome()) return home_ && draining(*home_);
  const auto& servers = record_.plan().ps();
  if (std::any_of(servers.begin(), servers.end(), [&](const v1::PsAddress& ps) {
        return draining({"ps", static_cast<int>(ps.index())});
      })) {
    return true;
  }
  // The last worker is needed for closures that have come back, and for what its module holds.
  return world_.members.Up("worker").empty() &&
         std::any_of(executors_.begin(), executors_.end(),
                     [&](const auto& one) { return draining(one.first); });
}

void Job::OnClusterDraining() {
  if (phase_ == Phase::kOpen) {
    Tell("CLUSTER_DRAINING",
         "the cluster was asked to end: closures in flight finish, then a checkpoint is saved");
  }
  UpdateCut();
}

void Job::OnDraining(const Member& member) {
  if (ended() || record_.plan().view() == 0) return;
  const TaskId task = member.task;
  Tell("TASK_DRAINING", fmt::format("{} was asked to end and is draining", task.ToString()), &task);
  UpdateCut();
  if (dispatcher_ && cut_ == Cut::kNone) dispatcher_->HoldWorker(task, TimePoint::max());
}

void Job::UpdateCut() {
  if (!Leaving()) {
    if (std::exchange(cut_, Cut::kNone) == Cut::kNone) return;
    RefreshReason();
    return Pump();
  }
  if (cut_ == Cut::kNone) cut_ = Cut::kWanted;
  RefreshReason();
  Pump();
  TryCut();
}

void Job::TryCut() {
  if (cut_ != Cut::kWanted || phase_ != Phase::kOpen) return;
  if (!missing_ps_.empty()) {
    return GiveUpCut(missing_ps_.begin()->first.ToString() + " is lost");
  }
  const std::uint64_t done = StepsDone();
  const std::uint64_t saved =
      position_.saved ? position_.saved->step() : record_.plan().start_step();
  if (saving_ || dispatcher_->queue().in_flight() > 0) return;
  if (done == saved) return SettleCut();
  // Steps below the newest that was given out may have come back.
  if (done < dispatcher_->last_step()) return;
  BeginSave(done, [this, weak = std::weak_ptr<Job*>(self_)](const auto& reply) {
    if (weak.expired()) return;
    if (!reply.ok()) return GiveUpCut(Message(reply.status()));
    if (!reply->failure().empty()) return GiveUpCut(reply->failure());
    TryCut();
  });
}

void Job::GiveUpCut(const std::string& why) {
  if (cut_ != Cut::kWanted) return;
  const std::uint64_t saved =
      position_.saved ? position_.saved->step() : record_.plan().start_step();
  Tell("DRAIN_UNSAVED",
       fmt::format("no checkpoint of step {} could be saved before the end: {}; the job will go on "
                   "from step {}",
                   StepsDone(), why, saved),
       nullptr,
       {{"step", std::to_string(StepsDone())}, {"saved", std::to_string(saved)}, {"why", why}});
  SettleCut();
}

void Job::SettleCut() {
  cut_ = Cut::kSettled;
  // The next coordinator tells by this how many steps were lost.
  (void)Persist();
  if (record_.stop_requested()) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               fmt::format("stopped as asked at step {}", StepsDone()));
  }
  RefreshReason();
  Pump();
  if (world_.on_settled) world_.on_settled();
}

bool Job::Settled() const { return phase_ != Phase::kOpen || cut_ == Cut::kSettled; }

bool Job::MayLeave(const Member& member) const {
  if (Settled()) return true;
  const TaskId& task = member.task;
  if (task.type == "ps") {
    const auto& servers = record_.plan().ps();
    return std::none_of(servers.begin(), servers.end(), [&](const v1::PsAddress& ps) {
      return static_cast<int>(ps.index()) == task.index;
    });
  }
  if (HasHome()) return home_ != task;
  return !world_.draining && !world_.members.Up("worker").empty();
}

}  // namespace muster::coordinator
