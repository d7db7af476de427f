// A model's job between its views: how it begins one, what it learns over them, how it stops.
#include "coordinator/model_job.h"

#include <algorithm>

namespace muster::coordinator {
namespace {

// For a task to let go of the job.
constexpr Millis kDropLimit{30'000};
constexpr const char* kDriverTooSlow =
    "stopped: its driver had not ended in the time it was given; the steps since the last "
    "checkpoint are lost";

}  // namespace

ModelJob::ModelJob(World& world, StoredJob stored)
    : Job(world, std::move(stored)), evaluations_(world, story_), kind_(Kind::Make(world, story_)) {
  // Twice a second the row learns how many steps are done; the mark knows each of them.
  const ViewId view(record().plan().view());
  const auto steps = world_.marks.Get(JobNumber(record().number()), view);
  if (steps && view > ViewId()) {
    story_.record().set_steps_done(std::max(record().steps_done(), *steps));
  }
  kind_->set_adopts(!ended() && record().plan().view() > 0 && !record().begin_anew() &&
                    record().trained().empty());
}

ModelJob::~ModelJob() = default;

std::string ModelJob::AfterRestart() const {
  if (!record().trained().empty()) return "evaluator:0 evaluates what is left";
  return "when its tasks are back the job goes on by itself, from where it stood or, if variables "
         "of "
         "it are lost, from its last checkpoint";
}

void ModelJob::GoOnAfterRestart() {
  if (!record().trained().empty()) return AwaitEvaluations();
  story_.SetState(record().plan().view() > 0 ? v1::JOB_STATE_RESTORING : v1::JOB_STATE_PENDING,
                  "COORDINATOR_RESTARTED", "waiting for its tasks");
  if (!record().stop_requested()) return;
  // It goes on to save what is done, if its variables come back in time.
  (void)world_.scheduler.RunAfter(world_.options.stop_grace, [this, here = lifeline_.Watch()] {
    if (!here() || ended() || (view_ && view_->open())) return;
    if (!record().stop_requested()) return;  // it has been submitted again since
    End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
        "stopped; the coordinator was restarted and the job's tasks have not come back in time, so "
        "the steps since the last checkpoint are lost");
  });
}

std::string ModelJob::Forget(bool anew) {
  // The old driver is on its way out, and its end nobody's concern.
  driver_ = Driver();
  driver_failures_ = 0;
  driver_lost_at_.reset();
  kind_->Reset();
  kind_->set_adopts(false);
  evaluations_.Reset();
  story_.record().clear_trained();
  lasting_.fitness.Clear();
  lasting_.save_failure.clear();
  lasting_.without_room = 0;
  lasting_.lost_from = 0;
  if (!anew) return "submitted again: the job goes on from its newest checkpoint";
  story_.record().set_steps_done(0);
  story_.record().mutable_job()->clear_evaluation();
  lasting_.closures_by.clear();
  story_.ForgetRefusals();
  return "submitted again with --restart: the job begins anew at step 0";
}

std::string ModelJob::MakeDo() {
  return kind_->MakeDo() ? "goes on with the parameter servers that are there" : "";
}

Status ModelJob::TakeCheck(const CheckOutcome& outcome) {
  v1::JobRecord& row = story_.record();
  row.clear_parameters();
  for (const v1::VariableLayout& variable : outcome.parameters) *row.add_parameters() = variable;
  row.mutable_data()->clear();
  row.mutable_data()->insert(outcome.data.begin(), outcome.data.end());
  row.set_training_examples(outcome.training_examples);
  row.set_evaluation_examples(outcome.evaluation_examples);
  return Ok();
}

// --- Views.

void ModelJob::Begin() {
  evaluations_.Advance();
  BeginView();
}

void ModelJob::BeginView() {
  EndDriver();
  Drop();
  phase_ = Phase::kBegun;
  view_ = kind_->NewView(*this);
  view_->Begin();
}

// The view may be in the middle of a call, so it goes when that has ended.
void ModelJob::Leave() {
  if (!view_) return;
  view_->Leave();
  world_.scheduler.Post([this, here = lifeline_.Watch(), number = record().plan().view(),
                         view = std::shared_ptr<View>(std::move(view_))] {
    // Whoever waits for one of its checkpoints opens the job again, or ends.
    if (here()) view->RefuseSaves(CheckView(ViewId(number)));
  });
}

bool ModelJob::TasksAreThere() {
  if (MissingTasks().empty()) return true;
  WaitAgain();
  Advance();
  return false;
}

void ModelJob::OnViewOpen() {
  if (world_.figures != nullptr) {
    const std::string folder = story_.FiguresFolder();
    world_.figures->GoOn(id(), folder, record().steps_done());
    if (!record().job().has_progress()) {  // the first time
      story_.Tell("CURVES", "curves of loss, metrics and rates: tensorboard --logdir " + folder,
                  nullptr, {{"directory", folder}});
    }
  }
  if (!driver_.running) StartDriver();
  if (record().stop_requested()) EndAfter(world_.options.stop_grace, kDriverTooSlow);
}

void ModelJob::EndView(const std::string& reason, const std::string& message) {
  if (ended()) return;
  if (record().stop_requested()) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               "stopped; " + message + ", so the steps since the last checkpoint are lost");
  }
  EndDriver();
  WaitAgain();
  story_.SetState(v1::JOB_STATE_RESTORING, reason, message);
  story_.Persist();
  story_.parked().Recheck();
  if (world_.on_settled) world_.on_settled();
  Advance();
}

bool ModelJob::Uses(const TaskId& ps, ViewId view) const {
  const v1::JobPlan& plan = record().plan();
  if (ended() || view != ViewId(plan.view()) || !record().trained().empty()) return false;
  return std::any_of(plan.ps().begin(), plan.ps().end(), [&](const v1::PsAddress& one) {
    return static_cast<int>(one.index()) == ps.index;
  });
}

// --- What happens to its tasks.

void ModelJob::OnArrival(const Member& member, const Arrival& arrival) {
  // Whoever started it anew may have mended what was wrong there.
  if (!arrival.same_process) lasting_.fitness.Forget(member.task);
  if (member.task == kEvaluator) evaluations_.Advance();
  if (view_) view_->OnUp(member, arrival);
}

void ModelJob::OnTaskDraining(const TaskId& task) {
  if (view_) view_->OnDraining(task);
}

void ModelJob::OnTaskOut(const TaskId& task) {
  if (view_) view_->OnOut(task);
}

void ModelJob::OnClusterDraining() {
  if (!view_) return;
  if (view_->open()) {
    story_.Tell(
        "CLUSTER_DRAINING",
        "the cluster was asked to end: closures in flight finish, then a checkpoint is saved");
  }
  view_->UpdateCut();
}

void ModelJob::OnLost(const Member& member) {
  if (view_) view_->OnLost(member);
}

void ModelJob::OnExecutorEvent(const Member& member, const v1::ExecutorEvent& event) {
  if (view_) view_->OnExecutorEvent(member, event);
}

void ModelJob::GiveUpCut(const std::string& why) {
  if (view_) view_->GiveUpCut(why);
}

// --- The end.

Story::Fields ModelJob::CloseProgress() {
  v1::Job& job = *story_.record().mutable_job();
  // The driver reports twice a second, and may not have come to it.
  if (job.has_progress() || record().steps_done() > 0) {
    job.mutable_progress()->clear_phase();
    if (job.progress().step() < record().steps_done()) {
      job.mutable_progress()->set_step(record().steps_done());
    }
    job.mutable_progress()->set_total_steps(record().plan().total_steps());
  }
  return {{"step", std::to_string(record().steps_done())}};
}

void ModelJob::LetGo() {
  if (world_.figures != nullptr) world_.figures->End(id());
  evaluations_.Reset();
  ReleaseTasks();
  world_.checkpoints.Release(CheckpointRoot(), world_.claimant(record().job()).mark);
  const bool finished = driver_.finished || !record().trained().empty();
  if (driver_.running || finished) world_.drivers.Stop(id(), Millis(finished ? 5'000 : 1'000));
}

void ModelJob::ReleaseTasks() {
  for (const Member* worker : world_.members.Up("worker")) {
    View::StopExecutor(world_, story_, *worker);
  }
  const v1::JobPlan& plan = record().plan();
  for (const v1::PsAddress& address : plan.ps()) {
    const Member* ps = world_.members.Find({"ps", static_cast<int>(address.index())});
    if (ps == nullptr) continue;
    world_.commands.Send(*ps, DropCommand(id(), world_.epoch, ViewId(plan.view())), kDropLimit,
                         [](auto) {});
  }
}

// An open view saves a checkpoint first, within `grace`, and its driver ends the job.
void ModelJob::BeginStop(Millis grace) {
  if (!record().trained().empty()) {
    return End(v1::JOB_STATE_SUCCEEDED, Ok(),
               record().trained() + "; stopped before all checkpoints were evaluated");
  }
  if (!view_ || !view_->open() || view_->waits_for_holders()) {
    return End(v1::JOB_STATE_CANCELLED, Cancelled("stopped as asked"),
               fmt::format("stopped while it was not training ({})", record().job().message()));
  }
  // Saved already, and nothing will be given out.
  if (view_->cut_is_settled()) return view_->SettleCut();
  story_.SetState(v1::JOB_STATE_STOPPING, "STOP_REQUESTED", "saving a checkpoint, then ends");
  v1::ToProgram message;
  message.mutable_stop()->set_grace_ms(static_cast<std::uint32_t>(grace.count()));
  Tell(message);
  EndAfter(grace.count() > 0 ? grace : world_.options.stop_grace, kDriverTooSlow);
}

void ModelJob::DescribeWorker(const TaskId& worker, v1::TaskState& state) const {
  const auto done = lasting_.closures_by.find(worker);
  state.set_closures_done(done == lasting_.closures_by.end() ? 0 : done->second);
  state.set_executor_pid(view_ ? view_->ExecutorPid(worker) : 0);
}

}  // namespace muster::coordinator
