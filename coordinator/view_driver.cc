// What the driver of an open view is told, what it says, and what it asks.
#include <algorithm>

#include "common/base/words.h"
#include "coordinator/driver_messages.h"
#include "coordinator/model_job.h"
#include "coordinator/view.h"
#include "coordinator/view_save.h"

namespace muster::coordinator {

// ---- What it is told

void View::OnDriverBegins() {
  work_.clear();
  reruns_ = drained_ = 0;
  TellMembers();
  v1::ToProgram message;
  *message.mutable_pace() = pace_;
  job_.Tell(message);
  if (!story_.record().stop_requested()) return;
  message.mutable_stop();
  job_.Tell(message);
}

void View::TellMembers() {
  v1::ToProgram message;
  v1::ProgramMembers& members = *message.mutable_members();
  members.set_version(++members_version_);
  for (const auto& [task, executor] : executors_) {
    if (executor.ready && TakesClosures(task))
      AddWorker(task, executor.number, executor.endpoint, members);
  }
  job_.Tell(message);
}

void View::SetPace() {
  if (!open()) return;
  auto kind = v1::ModelPace::KIND_FREE;
  if (waits_for_holders() || judging_ || saving_ != nullptr) {
    kind = v1::ModelPace::KIND_PAUSE;
  } else if (cut_ != Cut::kNone) {
    kind = v1::ModelPace::KIND_DRAIN;
  }
  if (kind == pace_.kind()) return;
  pace_.set_kind(kind);
  pace_.set_number(pace_.number() + 1);
  v1::ToProgram message;
  *message.mutable_pace() = pace_;
  job_.Tell(message);
}

// The verdict goes to the driver before the members without the executor, and its answer comes soon
// or never.
void View::AskWhatItHad(const Ended& ended, std::function<void(const Had&)> then) {
  if (!job_.HasDriver()) return then({});
  const std::uint64_t number = ++last_asked_;
  asked_[number] = std::move(then);
  v1::ToProgram message;
  v1::ExecutorVerdict& verdict = *message.mutable_verdict();
  verdict = VerdictOf(ended.task, ended.number, ended.cause, ended.how, ended.lines);
  verdict.set_number(number);
  job_.Tell(message);
  TellMembers();
  (void)world_.scheduler.RunAfter(world_.options.answer_limit, Guard([this, number] {
                                    v1::VerdictAnswer none;
                                    none.set_number(number);
                                    OnVerdictAnswer(none);
                                  }));
}

void View::AskWhatLostHad(const Member& lost, std::function<void(const Had&)> then) {
  const auto executor = executors_.extract(lost.task);
  if (executor.empty() || !executor.mapped().ready) return then({});
  AskWhatItHad({lost.task,
                executor.mapped().number,
                v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE,
                fmt::format("{} is lost: {}", lost.task.ToString(), lost.how),
                {}},
               std::move(then));
}

// ---- What it says

void View::OnVerdictAnswer(const v1::VerdictAnswer& answer) {
  const auto found = asked_.find(answer.number());
  if (found == asked_.end()) return;
  const auto then = std::move(found->second);
  asked_.erase(found);
  story_.parked().Recheck();
  Had had;
  for (const v1::Closure& closure : answer.closures()) had.closures.push_back(KeyOf(closure));
  if (answer.has_given_up()) had.given_up = Verdict{KeyOf(answer.given_up()), answer.why()};
  then(had);
}

void View::OnDriverGone() {
  while (phase_ != Phase::kGone && !asked_.empty()) {
    v1::VerdictAnswer none;
    none.set_number(asked_.begin()->first);
    OnVerdictAnswer(none);
  }
}

// How far it is; then whoever has waited for that goes on.
void View::OnReport(const v1::ModelReport& report) {
  if (!open()) return;
  v1::JobRecord& record = story_.record();
  position_.scheduled = std::max(position_.scheduled, report.scheduled());
  position_.done = std::max(position_.done, report.done());
  drained_ = report.drained();
  for (const v1::ExecutorWork& work : report.executors()) NoteWork(work);
  if (report.reruns() > reruns_) {
    v1::Job& job = *record.mutable_job();
    job.set_closures_rerun(job.closures_rerun() + report.reruns() - reruns_);
    reruns_ = report.reruns();
    story_.Touch();
  }
  std::erase_if(comebacks_, [this](const auto& one) {
    return one.first.kind == v1::CLOSURE_KIND_TRAIN && one.first.id <= position_.done;
  });
  record.set_steps_done(StepsDone());
  world_.marks.Set(JobNumber(record.number()), ViewId(story_.plan().view()), record.steps_done());
  for (const v1::ClosureNews& news : report.news()) {
    OnNews(news);
    if (!open()) return;
  }
  TryCut();
}

void View::NoteWork(const v1::ExecutorWork& work) {
  const Incarnation number(work.executor());
  v1::ExecutorWork& last = work_[number];
  const std::uint64_t closures = work.closures() - std::min(work.closures(), last.closures());
  const std::uint64_t steps = work.steps() - std::min(work.steps(), last.steps());
  last = work;
  const auto task = lasting_.executors.find(number);
  if (closures == 0 || task == lasting_.executors.end()) return;
  lasting_.closures_by[task->second] += closures;
  lasting_.settled += closures;
  const auto executor = executors_.find(task->second);
  if (executor == executors_.end() || executor->second.number != number) return;
  executor->second.crashes = executor->second.returned = 0;
  executor->second.trained = executor->second.trained || steps > 0;
}

void View::OnNews(const v1::ClosureNews& news) {
  switch (news.body_case()) {
    case v1::ClosureNews::kReturned:
      return OnReturned(news.returned());
    case v1::ClosureNews::kRerun: {
      const v1::ClosureNews::Rerun& rerun = news.rerun();
      const TaskId from = FromProto(rerun.from());
      story_.Tell(
          "CLOSURES_RERUN",
          fmt::format("{} of {} {} again: {}", Counted(rerun.closures(), "closure"),
                      from.ToString(), Agreeing(rerun.closures(), "runs", "run"), rerun.placed()),
          &from, {{"closures", std::to_string(rerun.closures())}, {"placed", rerun.placed()}});
      return;
    }
    case v1::ClosureNews::kFailed: {
      if (judging_) return;
      const v1::ClosureNews::Failed& failed = news.failed();
      const TaskId task = FromProto(failed.task());
      story_.Tell("CLOSURE_FAILED",
                  fmt::format("closure {} failed on {}: {}", failed.closure().id(), task.ToString(),
                              failed.why()),
                  &task, {{"closure", std::to_string(failed.closure().id())}});
      return;
    }
    default:
      return;
  }
}

// The driver rests that worker a little. One that has handed everything back for long gets another
// executor; a closure that always comes back fails the job.
void View::OnReturned(const v1::ClosureNews::Returned& returned) {
  const TaskId task = FromProto(returned.task());
  const ClosureKey key = KeyOf(returned.closure());
  const TimePoint now = world_.scheduler.Now();
  Comeback& comeback = comebacks_[key];
  if (comeback.times == 0 || !missing_.empty()) comeback = {0, lasting_.settled, now};
  ++comeback.times;
  if (const std::uint64_t others = lasting_.settled - comeback.settled_then;
      comeback.times >= kMostComebacks && others >= kManyOthers &&
      now - comeback.since >= world_.options.return_limit) {
    return job_.Fail(Unavailable(
        "closure {} has come back {} times in {} s without having run, while {} others were done; "
        "the last time from {}: {}. Submit the job again to go on from its last checkpoint",
        key.id, comeback.times, (now - comeback.since) / std::chrono::seconds(1), others,
        task.ToString(), returned.why()));
  }
  OnHandedBack(task, returned.why());
  const auto found = executors_.find(task);
  const Member* member = world_.members.Find(task);
  if (found == executors_.end() || member == nullptr) return;
  Executor& executor = found->second;
  // While a server is known to be away nobody can do better.
  if (executor.returned == 0 || !missing_.empty()) executor.returning_since = now;
  ++executor.returned;
  // One event for an outage, not one for each closure that meets it.
  if (missing_.empty() && now - unreachable_told_ > std::chrono::seconds(10)) {
    unreachable_told_ = now;
    story_.Tell("PEER_UNREACHABLE",
                fmt::format("{} hands closure {} back, which runs again: {}", task.ToString(),
                            key.id, returned.why()),
                &task, {{"closure", std::to_string(key.id)}});
  }
  if (now - executor.returning_since < world_.options.return_limit) return;
  const std::string what = fmt::format(
      "{} has handed {} closures back for {} s and has done none: its executor is started again",
      task.ToString(), executor.returned, world_.options.return_limit.count() / 1000);
  story_.Tell("EXECUTOR_RESTARTED", what, &task, {{"why", returned.why()}});
  RenewExecutor(*member, what);
}

// ---- What it asks

// Where the view is, for a driver that goes on from there.
v1::OpenJobReply View::Opened() {
  const v1::JobRecord& record = story_.record();
  v1::OpenJobReply reply;
  *reply.mutable_spec() = record.job().spec();
  *reply.mutable_plan() = record.plan();
  reply.set_training_examples(record.training_examples());
  reply.set_evaluation_examples(record.evaluation_examples());
  reply.set_workers(static_cast<std::uint32_t>(std::ranges::count_if(
      executors_, [](const auto& executor) { return executor.second.ready; })));
  reply.set_scheduled(position_.scheduled);
  reply.set_steps_done(StepsDone());
  reply.set_saved_step(SavedStep());
  if (saving_) reply.set_saving_step(saving_->step);
  if (position_.evaluated) reply.set_evaluated_step(*position_.evaluated);
  if (record.job().has_progress()) *reply.mutable_progress() = record.job().progress();
  return reply;
}

std::optional<Result<v1::BeginEvaluationReply>> View::BeginEvaluation(bool last) {
  if (!BuffersReady()) {
    if (!last) return std::nullopt;
    return ResourceExhausted("job {} waits for a worker's buffers to evaluate with: try again",
                             story_.id());
  }
  // Its closures have the numbers of those of the evaluation before.
  std::erase_if(comebacks_,
                [](const auto& one) { return one.first.kind == v1::CLOSURE_KIND_EVALUATE; });
  v1::BeginEvaluationReply reply;
  if (WorkerLocal()) {
    reply.set_buffers(buffers_version_);
    for (const auto& [task, executor] : executors_) {
      if (executor.ready) GiveBuffers(task);
    }
  }
  return reply;
}

}  // namespace muster::coordinator
