// The driver of one view of a model job: schedules the closures of every step, joins at checkpoints
// and evaluations, and ends the job. What another one in its place must know the coordinator has:
// it goes on there.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "muster/v1/driver.pb.h"
#include "services/trainer/closures.h"
#include "services/trainer/driver_api.h"

namespace muster::trainer {

// Threading: one thread. Lifetime: `api`, `clock` and closures outlive it.
class Trainer {
 public:
  // The closures of the view that was opened.
  using MakeClosures = std::function<Closures&(const v1::OpenJobReply&)>;
  struct Options {
    // Closures that are scheduled and not done, at most.
    std::uint64_t window = 512;
    // Between two progress reports.
    Millis report_every{500};
    // One wait for closures, at most.
    Millis join_slice{50};
    // A checkpoint after which nothing comes is tried so often, with a rest in between, when the
    // disk is full: without it the trained parameters are lost.
    int final_attempts = 5;
    Millis rest{3'000};
    std::function<void(Millis)> sleep = [](Millis time) { std::this_thread::sleep_for(time); };
  };

  Trainer(DriverApi& api, MakeClosures make, const Clock& clock, Options options)
      : api_(api), make_(std::move(make)), clock_(clock), options_(options) {}

  // Runs the job to its end, from wherever the driver before this one has left it. OK: the job has
  // ended and the coordinator knows (succeeded, failed or cancelled), or this driver has nothing to
  // do any more: its view has ended, or another one has taken its place. An error: the coordinator
  // is out of reach.
  Status Run();

 private:
  struct View;

  Status RunView(const v1::OpenJobReply& opened);
  // What the driver before this one has left: steps that it may have begun, a checkpoint on its
  // way.
  Status TakeOver(View& view);
  // Trains steps up to and with `cut`; fewer when a stop is requested or a checkpoint is due by
  // time. Nothing is in flight then.
  Status TrainUntil(View& view, std::uint64_t cut);
  Status Drain(View& view);
  Status StandStill(View& view);
  Status SaveCheckpoint(View& view);
  Result<std::optional<v1::EvaluationResult>> Evaluate(View& view);
  // Takes what has ended; a long wait is reported, never silent.
  Result<std::vector<v1::ClosureResult>> Take(View& view, const std::string& phase);
  Status TakeSteps(View& view, const std::string& phase);
  Status Report(View& view, const std::string& phase, const v1::EvaluationResult* evaluation);

  DriverApi& api_;
  const MakeClosures make_;
  const Clock& clock_;
  const Options options_;
};

}  // namespace muster::trainer
