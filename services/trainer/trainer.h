// The driver of a model job: schedules the closures of every step, joins at checkpoints and
// evaluations, and ends the job. Holds no state that the coordinator does not have: a trainer that
// is started again goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "muster/v1/driver.pb.h"
#include "services/trainer/driver_api.h"

namespace muster::trainer {

// Threading: one thread. Lifetime: `api` and `clock` outlive it.
class Trainer {
 public:
  struct Options {
    // Closures that are scheduled and not done, at most.
    std::uint64_t window = 512;
    // Between two progress reports.
    Millis report_every{500};
    // One wait for closures; between two waits the window is filled again.
    Millis join_slice{50};
    // A checkpoint after which nothing comes is tried so often, with a rest in between, when the
    // disk is full: without it the trained parameters are lost.
    int final_attempts = 5;
    Millis rest{3'000};
    std::function<void(Millis)> sleep = [](Millis time) { std::this_thread::sleep_for(time); };
  };

  Trainer(DriverApi& api, const Clock& clock, Options options)
      : api_(api), clock_(clock), options_(options) {}

  // Runs the job to its end, over as many views as it takes, from wherever the driver before this
  // one has left it. OK: the job has ended and the coordinator knows (succeeded, failed or
  // cancelled), or another driver has taken this one's place. An error: the coordinator is out of
  // reach.
  Status Run();

 private:
  struct View;

  Status RunView(const v1::OpenJobReply& opened);
  // What the driver before this one has left: a checkpoint on its way, closures in flight.
  Status TakeOver(View& view);
  // Trains steps up to and with `cut`; fewer when a stop is requested or a checkpoint is due by
  // time. Nothing is in flight then.
  Status TrainUntil(View& view, std::uint64_t cut);
  Status Drain(View& view);
  Status SaveCheckpoint(View& view);
  Result<v1::EvaluationResult> Evaluate(View& view);
  struct Scores;
  Result<Scores> ScoreAll(View& view, std::uint64_t batches);
  Status Report(View& view, const std::string& phase, const v1::EvaluationResult* evaluation);
  Status ReportIfDue(View& view, const std::string& phase);
  Status ScheduleAll(View& view, const std::vector<v1::Closure>& closures);

  DriverApi& api_;
  const Clock& clock_;
  const Options options_;
};

}  // namespace muster::trainer
