// The process beside main() that evaluates its checkpoints: it takes no part in the job, and its
// end is nobody's but its own.
#include "coordinator/program_job.h"

namespace muster::coordinator {
namespace {

constexpr int kMostEvaluators = 5;
constexpr Millis kEvaluatorPause{1'000};

}  // namespace

std::string EvaluatorOf(const std::string& job_id) { return job_id + "@evaluator:0"; }

std::pair<std::string, std::string> JobAndTask(const std::string& process) {
  const std::size_t at = process.find('@');
  if (at == std::string::npos) return {process, ""};
  return {process.substr(0, at), process.substr(at + 1)};
}

void ProgramJob::StartEvaluator() {
  evaluator_.planned = false;
  if (!story_.spec().program().evaluator() || evaluator_.running || world_.draining) return;
  if (!driver_.running && !succeeds_) return;
  evaluator_.number = NextIncarnation(world_.epoch, drivers_started_);
  evaluator_.running = true;
  ProgramLaunch launch;
  launch.program = story_.spec().program();
  v1::ProgramStart& start = launch.start;
  start.set_role(v1::PROGRAM_ROLE_EVALUATOR);
  start.set_job_id(id());
  start.set_job_name(record().job().name());
  *start.mutable_task() = ToProto({"evaluator", 0});
  start.set_epoch(world_.epoch.value());
  start.set_incarnation(evaluator_.number.value());
  *start.mutable_strategy() = story_.spec().strategy();
  world_.logs.NoteStart(id(), FromProto(start.task()).ToString());
  if (const Status status = world_.drivers.StartProgram(launch); !status.ok()) {
    return OnEvaluatorExit(false, Message(status));
  }
  if (succeeds_) TellEvaluatorToEnd();
}

// When it has evaluated what there is.
void ProgramJob::TellEvaluatorToEnd() {
  v1::ToProgram stop;
  stop.mutable_stop()->set_grace_ms(static_cast<std::uint32_t>(world_.options.stop_grace.count()));
  world_.drivers.Send(EvaluatorOf(id()), stop);
}

void ProgramJob::OnEvaluatorMessage(const v1::FromProgram& message) {
  const TaskId task{"evaluator", 0};
  if (message.has_ready()) {
    const int pid = world_.drivers.Pid(EvaluatorOf(id()));
    story_.Tell("EVALUATOR_RUNNING", fmt::format("evaluator:0 runs as process {}", pid), &task,
                {{"pid", std::to_string(pid)}});
  }
  if (!message.has_evaluation()) return;
  evaluator_.ends = 0;
  const v1::ProgramEvaluation& evaluation = message.evaluation();
  const std::map<std::string, double> values(evaluation.values().begin(),
                                             evaluation.values().end());
  Story::Fields fields{{"checkpoint", evaluation.checkpoint()}};
  std::string text;
  for (const auto& [name, value] : values) {
    text += fmt::format("{} {} {:.6g}", text.empty() ? "" : ",", name, value);
    fields.emplace_back(name, fmt::format("{}", value));
  }
  story_.Tell("EVALUATED", fmt::format("{}:{}", evaluation.checkpoint(), text), &task, fields);
  story_.Persist();
}

// It is started again a few times, also when only it is left; the job goes on without it.
void ProgramJob::OnEvaluatorExit(bool success, const std::string& how) {
  evaluator_.running = false;
  evaluator_.number = Incarnation();
  if (phase_ != Phase::kBegun) return;
  if (!success) {
    const TaskId task{"evaluator", 0};
    story_.Tell("EVALUATOR_ENDED", "evaluator:0 has failed: " + how, &task, {{"how", how}},
                world_.logs.Last(id(), task.ToString()));
  }
  if (!success && ++evaluator_.ends < kMostEvaluators) return StartEvaluatorLater();
  if (succeeds_) End(v1::JOB_STATE_SUCCEEDED, Ok(), std::string(*succeeds_));
}

void ProgramJob::StartEvaluatorLater() {
  evaluator_.planned = true;
  (void)world_.scheduler.RunAfter(kEvaluatorPause, Guard([this] { StartEvaluator(); }));
}

// When the evaluator has evaluated what is left, or its grace is over. A coordinator that is
// started again meanwhile finds in the row that main() has ended well.
void ProgramJob::Succeed(const std::string& message) {
  if (!evaluator_.running && !evaluator_.planned) {
    return End(v1::JOB_STATE_SUCCEEDED, Ok(), message);
  }
  story_.record().set_trained(message);
  AwaitEvaluator();
  story_.Persist();
}

void ProgramJob::AwaitEvaluator() {
  phase_ = Phase::kBegun;
  succeeds_ = story_.record().trained();
  if (evaluator_.running) TellEvaluatorToEnd();
  story_.SetState(v1::JOB_STATE_RUNNING, "EVALUATING",
                  "main() has ended; evaluator:0 evaluates what is left");
  (void)world_.scheduler.RunAfter(world_.options.stop_grace, Guard([this] {
                                    if (succeeds_ && phase_ == Phase::kBegun) {
                                      End(v1::JOB_STATE_SUCCEEDED, Ok(), std::string(*succeeds_));
                                    }
                                  }));
}

}  // namespace muster::coordinator
