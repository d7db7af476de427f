#include "services/trainer/dispatched_closures.h"

#include <algorithm>
#include <utility>

#include "dispatch/wire.h"
#include "program/model_functions.h"
#include <fmt/core.h>

#include "common/messages/steps.h"

namespace muster::trainer {
namespace {

using SteadyClock = std::chrono::steady_clock;

// While steps end, the coordinator hears of it this often.
constexpr Millis kReportEvery{50};
// Scheduling waits this long for room; there is a window of hundreds, and room for hundreds of
// thousands.
constexpr std::chrono::minutes kRoom{1};

dispatch::Driver::Pace PaceOf(v1::ModelPace::Kind kind) {
  switch (kind) {
    case v1::ModelPace::KIND_DRAIN:
      return dispatch::Driver::Pace::kDrain;
    case v1::ModelPace::KIND_PAUSE:
      return dispatch::Driver::Pace::kPause;
    default:
      return dispatch::Driver::Pace::kFree;
  }
}

}  // namespace

DispatchedClosures::DispatchedClosures(const v1::ProgramStart& start, DriverPipe& pipe,
                                       const v1::OpenJobReply& opened)
    : pipe_(pipe),
      steps_(StepsOf(opened.plan())),
      second_runs_(opened.plan().steps().speculative()),
      next_(opened.steps_done() + 1),
      scheduled_(std::max(opened.scheduled(), opened.steps_done())),
      done_(opened.steps_done()),
      reported_done_(done_),
      links_(
          start,
          {.dispatch = {.staleness = steps_.staleness,
                        .second_runs = second_runs_,
                        // The coordinator, which knows whether a server is away, is quicker.
                        .errors = {.return_time = std::chrono::hours(1)},
                        .settled = ClosureId(opened.steps_done()),
                        .given = ClosureId(opened.scheduled()),
                        .name =
                            [this](ClosureId number) { return NameOf(story_.ClosureOf(number)); }},
           .functions = program::ModelFunctions().hash(),
           .watcher = &story_}) {
  listener_ = std::thread([this] { Listen(); });
}

// ---- What the coordinator says

void DispatchedClosures::Listen() {
  while (const auto message = pipe_.Next()) {
    switch (message->body_case()) {
      case v1::ToProgram::kMembers:
        (void)links_.SetMembers(message->members());
        break;
      case v1::ToProgram::kVerdict:
        OnVerdict(message->verdict());
        break;
      case v1::ToProgram::kPace:
        OnPace(message->pace());
        break;
      case v1::ToProgram::kStop:
        stop_ = true;
        break;
      default:
        break;  // of a later release
    }
  }
}

void DispatchedClosures::OnPace(const v1::ModelPace& pace) {
  const MutexLock lock(pace_mutex_);
  pace_ = pace;
  SetPace();
}

void DispatchedClosures::SetPace() {
  const dispatch::Driver::Pace asked = PaceOf(pace_.kind());
  const bool free = asked == dispatch::Driver::Pace::kFree;
  links_.driver().SetPace(stopping_ && free ? dispatch::Driver::Pace::kDrain : asked);
}

void DispatchedClosures::StopGiving() {
  const MutexLock lock(pace_mutex_);
  stopping_ = true;
  SetPace();
}

bool DispatchedClosures::stands_still() { return links_.driver().counts().drained; }

// Says what the executor had: by then it is with others, or given up.
void DispatchedClosures::OnVerdict(const v1::ExecutorVerdict& verdict) {
  const dispatch::ClosureDispatcher::Crash crash = links_.OnVerdict(verdict);
  v1::FromProgram message;
  v1::VerdictAnswer& answer = *message.mutable_answer();
  answer.set_number(verdict.number());
  for (const ClosureId number : crash.had) *answer.add_closures() = story_.ClosureOf(number);
  if (crash.given_up) {
    *answer.mutable_given_up() = story_.ClosureOf(*crash.given_up);
    answer.set_why(crash.why);
  }
  pipe_.Send(message);
}

// ---- What the trainer asks

Status DispatchedClosures::Schedule(v1::ClosureKind kind, std::uint64_t first, std::uint64_t last,
                                    std::uint64_t buffers) {
  story_.NoteSchedule(next_, kind, first);
  if (kind == v1::CLOSURE_KIND_TRAIN && last > scheduled_) {
    scheduled_ = last;
    SendReport();
  }
  const bool trains = kind == v1::CLOSURE_KIND_TRAIN;
  v1::ClosureAssignment assignment;
  assignment.mutable_closure()->set_kind(kind);
  assignment.set_buffers(buffers);
  std::vector<std::byte> arguments;
  for (std::uint64_t id = first; id <= last; ++id) {
    assignment.mutable_closure()->set_id(id);
    arguments.resize(assignment.ByteSizeLong());
    assignment.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(arguments.data()));
    auto value = links_.driver().Schedule(
        program::ModelFunction(kind), arguments, SteadyClock::now() + kRoom, {},
        trains ? steps_.StepOf(id) : 0, {.repeatable = trains && second_runs_ > 0});
    if (!value.ok()) return Failed(value.status());
    pending_.push_back({.closure = assignment.closure(), .value = *std::move(value)});
    next_ = next_.Next();
  }
  return Ok();
}

Result<std::vector<v1::ClosureResult>> DispatchedClosures::Take(Millis limit) {
  const TimePoint deadline = SteadyClock::now() + limit;
  if (!pending_.empty()) {
    (void)pending_[(pending_.size() - 1) / 2].value.Fetch(deadline);
    // Nothing is taken before it, though half of what comes after it may have ended.
    const dispatch::RemoteValue& oldest = pending_.front().value;
    if (oldest.state() == dispatch::ResultSlab::State::kNotReady) (void)oldest.Fetch(deadline);
  }
  std::uint64_t pace = 0;
  {
    const MutexLock lock(pace_mutex_);
    if (pace_.kind() == v1::ModelPace::KIND_DRAIN) pace = pace_.number();
  }
  const dispatch::Driver::Counts counts = links_.driver().counts();
  if (counts.failed) {
    const Status raised = links_.driver().Join(deadline);
    const bool runs_on =
        raised.code() == StatusCode::kDeadlineExceeded && !dispatch::ErrorOf(raised);
    if (!runs_on && !raised.ok()) return Failed(raised);
  }
  std::vector<v1::ClosureResult> results;
  MUSTER_TRY(TakeEnded(results));
  const bool drained_now = counts.drained && pace != 0 && pace != drained_;
  if (drained_now) drained_ = pace;
  const bool due = done_ != reported_done_ && SteadyClock::now() - reported_at_ >= kReportEvery;
  if (drained_now || due || story_.HasNews()) SendReport();
  return results;
}

Status DispatchedClosures::TakeEnded(std::vector<v1::ClosureResult>& results) {
  while (!pending_.empty() &&
         pending_.front().value.state() != dispatch::ResultSlab::State::kNotReady) {
    Pending& front = pending_.front();
    const auto value = front.value.Fetch();
    // The queue has failed, and will be asked for why.
    if (!value.ok()) return Ok();
    v1::ClosureResult& result = results.emplace_back();
    if (!result.ParseFromArray(value->data(), static_cast<int>(value->size()))) {
      return Internal("{}: its executor has answered what is no result", NameOf(front.closure));
    }
    *result.mutable_closure() = front.closure;
    Count(result);
    pending_.pop_front();
  }
  return Ok();
}

void DispatchedClosures::Count(const v1::ClosureResult& result) {
  v1::ExecutorWork& work = work_[Incarnation(result.executor())];
  work.set_executor(result.executor());
  work.set_closures(work.closures() + 1);
  if (result.closure().kind() != v1::CLOSURE_KIND_TRAIN) return;
  work.set_steps(work.steps() + 1);
  done_ = result.closure().id();
}

Status DispatchedClosures::Failed(const Status& raised) {
  const std::optional<dispatch::ClosureError> error = dispatch::ErrorOf(raised);
  if (!error) return raised;
  v1::Closure failed;
  for (const Pending& one : pending_) {
    if (one.value.state() == dispatch::ResultSlab::State::kNotReady) continue;
    // Others are cancelled for it, or have failed after it, with errors of their own.
    if (one.value.Fetch().status() != raised) continue;
    failed = one.closure;
    break;
  }
  const std::string name = NameOf(failed);
  std::string why = Message(raised);
  if (why.starts_with(name + ": ")) why.erase(0, name.size() + 2);
  story_.OnFailed(error->task, failed, why);
  return MakeStatus(raised.code(), fmt::format("{} on {}: {}", name, error->task, why));
}

// ---- Reports

v1::ModelReport DispatchedClosures::Position() {
  v1::ModelReport report;
  report.set_scheduled(scheduled_);
  report.set_done(done_);
  report.set_drained(drained_);
  report.set_reruns(links_.driver().counts().reruns);
  for (const auto& [number, work] : work_) *report.add_executors() = work;
  return report;
}

v1::ModelReport DispatchedClosures::Report() {
  v1::ModelReport report = Position();
  for (v1::ClosureNews& one : story_.TakeNews()) *report.add_news() = std::move(one);
  return report;
}

void DispatchedClosures::SendReport() {
  v1::FromProgram message;
  *message.mutable_model() = Report();
  reported_done_ = done_;
  reported_at_ = SteadyClock::now();
  pipe_.Send(message);
}

}  // namespace muster::trainer
