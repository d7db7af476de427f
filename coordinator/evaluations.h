// The checkpoints of a model's job that evaluator:0 evaluates, one after the other and the oldest
// first, beside training (evaluation.evaluator).
//
// What was found stands with the checkpoint in the journal: an evaluator, or a coordinator, that is
// started again goes on with those that have no figures yet. A checkpoint that retention has
// removed by then is passed over. Nothing here waits for anything, and nothing of the job waits for
// it but its end (WhenDone).
//
// Threading: the coordinator's strand. Lifetime: World and Story outlive it; timers and answers of
// one that is gone do nothing.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/lifeline.h"
#include "coordinator/story.h"
#include "coordinator/world.h"

namespace muster::coordinator {

class Evaluations {
 public:
  Evaluations(World& world, Story& story) : world_(world), story_(story) {}

  // Looks for something to do. To be called whenever there may be: the job begins, checkpoints of
  // the run before it are set aside, one is saved, evaluator:0 has come. Not for a job that was
  // asked to stop while it trained.
  void Advance();
  // `then` comes once: nothing is left, or evaluator:0 has been away so long (stop_grace) that what
  // is left is given up. `left`: that in words, else empty.
  void WhenDone(std::function<void(const std::string& left)> then);
  // Not while it evaluates, unless the cluster ends: that takes as long as it takes, and the next
  // coordinator goes on with it.
  bool MayLeave(const Member& member) const;
  // The job has ended, or begins again: answers that are on their way count no more.
  void Reset();

 private:
  const v1::CheckpointInfo* Next() const;
  // Null: it is not there, or about to go.
  const Member* Evaluator() const;
  bool HasLeft() const;
  void Send(const Member& evaluator, const v1::CheckpointInfo& info);
  void OnAnswer(const v1::CheckpointInfo& asked, SessionId session,
                const Result<v1::CommandResult>& result);
  void OnEvaluated(v1::CheckpointInfo info, const v1::EvaluationResult& result);
  void OnFailure(v1::CheckpointInfo info, SessionId session, const Status& why);
  void AwaitEvaluator();
  void Finish(const std::string& left);

  World& world_;
  Story& story_;
  bool busy_ = false;
  // Who has an evaluation in hand.
  SessionId evaluating_;
  // It was told that there is no evaluator.
  bool told_ = false;
  // How often the one that is tried now has failed.
  int failures_ = 0;
  Scheduler::TimerId wait_ = 0;
  std::function<void(const std::string&)> then_;
  // Timers and answers of before a Reset() do nothing.
  Lifeline lifeline_;
};

}  // namespace muster::coordinator
