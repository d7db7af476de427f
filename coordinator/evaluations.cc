#include "coordinator/evaluations.h"

#include <algorithm>
#include <utility>

#include "common/base/trouble.h"
#include "common/base/words.h"

namespace muster::coordinator {
namespace {

// An evaluation takes as long as it takes: that it gets on its worker sees to, and a lost evaluator
// ends the command.
constexpr Millis kLongest = std::chrono::hours(24 * 7);
constexpr Millis kEvaluateAgain{1'000};
constexpr Millis kTellAfter{5'000};
constexpr int kMostFailures = 5;

// How often it is tried where `code` is the last try's.
int MostTries(StatusCode code) {
  // The model is to blame: another try finds the same.
  if (code == StatusCode::kInvalidArgument) return 1;
  // So are data that were changed, and damaged bytes; these may have been damaged on their way.
  if (code == StatusCode::kDataLoss) return 2;
  return kMostFailures;
}

bool Waits(const v1::CheckpointInfo& info) {
  return !info.has_evaluation() && info.unevaluated().empty() && info.refused().empty();
}

}  // namespace

const v1::CheckpointInfo* Evaluations::Next() const {
  const auto& all = story_.checkpoints();
  const auto found = std::find_if(all.begin(), all.end(), Waits);
  return found == all.end() ? nullptr : &*found;
}

const Member* Evaluations::Evaluator() const {
  const Member* member = world_.members.Find(kEvaluator);
  const bool up = member != nullptr && member->state == Member::State::kUp;
  return up && !world_.draining ? member : nullptr;
}

void Evaluations::Advance() {
  if (!story_.spec().evaluation().evaluator() || busy_) return;
  // The list is still that of the run that is given up.
  if (story_.record().begin_anew()) return;
  const Member* evaluator = Evaluator();
  if (evaluator == nullptr && !std::exchange(told_, true)) {
    // Where this coordinator has just begun it is on its way.
    (void)world_.scheduler.RunAfter(kTellAfter, [this, here = lifeline_.Watch()] {
      if (!here() || Evaluator() != nullptr || world_.draining) return;
      const char* const way = world_.members.Out(kEvaluator) != nullptr
                                  ? "was taken out (`muster undrain evaluator:0` lets it in)"
                                  : "is not there (`muster up --evaluator` starts one)";
      story_.Tell("EVALUATOR_AWAITED",
                  fmt::format("evaluator:0 {}: the job goes on, and its checkpoints are evaluated "
                              "when it comes",
                              way),
                  &kEvaluator);
    });
  }
  const v1::CheckpointInfo* next = Next();
  if (next == nullptr) return Finish("");
  // It ends soon, though not yet with the checkpoint that it was asked to save, and no answer would
  // find it. Submitted again it has this one evaluated.
  if (story_.record().stop_requested() && !then_) return;
  if (evaluator == nullptr) return AwaitEvaluator();
  told_ = false;
  (void)world_.scheduler.Cancel(std::exchange(wait_, 0));
  Send(*evaluator, *next);
}

void Evaluations::Send(const Member& evaluator, const v1::CheckpointInfo& info) {
  busy_ = true;
  evaluating_ = evaluator.session;
  v1::Command command;
  v1::EvaluateCheckpoint& evaluate = *command.mutable_evaluate_checkpoint();
  *evaluate.mutable_spec() = story_.spec();
  *evaluate.mutable_plan() = story_.plan();
  evaluate.mutable_plan()->set_start_step(info.step());
  evaluate.set_directory(info.directory());
  *evaluate.mutable_data() = story_.DataOn(evaluator.info.hostname());
  world_.commands.Send(evaluator, command, kLongest,
                       [this, here = lifeline_.Watch(), info,
                        session = evaluator.session](const Result<v1::CommandResult>& result) {
                         if (here()) OnAnswer(info, session, result);
                       });
}

void Evaluations::OnAnswer(const v1::CheckpointInfo& asked, SessionId session,
                           const Result<v1::CommandResult>& result) {
  busy_ = false;
  evaluating_ = SessionId();
  if (result.ok()) {
    OnEvaluated(asked, result->evaluation());
  } else {
    OnFailure(asked, session, result.status());
  }
  // It may have waited for this to leave.
  if (world_.on_settled) world_.on_settled();
}

bool Evaluations::MayLeave(const Member& member) const {
  return world_.draining || member.session != evaluating_;
}

// It has gone as it was asked to, or gives up what it has not ended in its --drain-timeout.
bool Evaluations::HasLeft() const {
  const Member* member = world_.members.Known(kEvaluator);
  return member != nullptr &&
         (member->state == Member::State::kDraining || (!member->alive() && member->was_draining));
}

void Evaluations::OnEvaluated(v1::CheckpointInfo info, const v1::EvaluationResult& result) {
  failures_ = 0;
  *info.mutable_evaluation() = result;
  story_.UpdateCheckpoint(info);
  *story_.record().mutable_job()->mutable_evaluation() = result;
  story_.Show(FiguresOf(result));
  Story::Fields fields{{"step", std::to_string(result.step())},
                       {"checkpoint", info.directory()},
                       {"examples", std::to_string(result.examples())},
                       {"loss", fmt::format("{}", result.loss())}};
  std::string text =
      fmt::format("the checkpoint of step {}: loss {:.4f}", result.step(), result.loss());
  const auto add = [&](const char* name, double value) {
    text += fmt::format(", {} {:.4f}", name, value);
    fields.emplace_back(name, fmt::format("{}", value));
  };
  if (result.has_accuracy()) add("accuracy", result.accuracy());
  if (result.has_auc()) add("auc", result.auc());
  story_.Tell("EVALUATED", fmt::format("{} on {}", text, Counted(result.examples(), "example")),
              &kEvaluator, fields);
  story_.Persist();
  Advance();
}

// A lost evaluator says nothing about the checkpoint; whatever else is wrong is tried again for a
// while, but for what the model or the data is to blame for.
void Evaluations::OnFailure(v1::CheckpointInfo info, SessionId session, const Status& why) {
  const auto& all = story_.checkpoints();
  const bool kept = std::any_of(all.begin(), all.end(), [&](const v1::CheckpointInfo& one) {
    return one.directory() == info.directory() && one.created_ms() == info.created_ms();
  });
  if (!kept) {
    failures_ = 0;
    return Advance();
  }
  const Story::Fields fields{{"step", std::to_string(info.step())},
                             {"checkpoint", info.directory()},
                             {"code", std::string(CodeName(why.code()))}};
  if (IsTransient(why.code()) && HasLeft()) {
    told_ = true;
    return Advance();
  }
  const Member* member = world_.members.Find(session);
  if (member == nullptr || member->state != Member::State::kUp) {
    story_.Tell("EVALUATOR_LOST",
                fmt::format("evaluator:0 was lost in the evaluation of the checkpoint of step {} "
                            "({}); it is made again when that is back",
                            info.step(), Message(why)),
                &kEvaluator, fields);
    told_ = true;
    return Advance();
  }
  const bool again = ++failures_ < MostTries(why.code());
  story_.Tell("EVALUATION_FAILED",
              fmt::format("the checkpoint of step {} could not be evaluated: {}; {}", info.step(),
                          Message(why), again ? "it is tried again" : "it is not tried again"),
              &kEvaluator, fields);
  if (again) {
    busy_ = true;
    (void)world_.scheduler.RunAfter(kEvaluateAgain, [this, here = lifeline_.Watch()] {
      if (!here()) return;
      busy_ = false;
      Advance();
    });
    return;
  }
  failures_ = 0;
  info.set_unevaluated(Message(why));
  story_.UpdateCheckpoint(info);
  Advance();
}

void Evaluations::WhenDone(std::function<void(const std::string& left)> then) {
  then_ = std::move(then);
  // Not inside this call.
  world_.scheduler.Post([this, here = lifeline_.Watch()] {
    if (here()) Advance();
  });
}

void Evaluations::AwaitEvaluator() {
  if (!then_ || wait_ != 0 || world_.draining) return;
  wait_ = world_.scheduler.RunAfter(world_.options.stop_grace, [this, here = lifeline_.Watch()] {
    if (!here()) return;
    wait_ = 0;
    const auto& all = story_.checkpoints();
    const auto left = static_cast<std::uint64_t>(std::count_if(all.begin(), all.end(), Waits));
    if (busy_ || Evaluator() != nullptr || left == 0) return Advance();
    Finish(fmt::format("{} {} not evaluated: evaluator:0 has not come within {} s",
                       Counted(left, "checkpoint"), Agreeing(left, "is", "are"),
                       world_.options.stop_grace.count() / 1'000));
  });
}

void Evaluations::Finish(const std::string& left) {
  if (then_) std::exchange(then_, nullptr)(left);
}

void Evaluations::Reset() {
  (void)world_.scheduler.Cancel(std::exchange(wait_, 0));
  busy_ = told_ = false;
  evaluating_ = SessionId();
  failures_ = 0;
  then_ = nullptr;
  lifeline_.Cut();
}

}  // namespace muster::coordinator
