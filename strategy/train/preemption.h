// Training that ends, saved, when a worker is asked to end: by its scheduler, by `muster` when a
// host is drained, by a person. Of a strategy of several workers all agree on the step.
//
//   muster::Checkpoint checkpoint;
//   checkpoint.track(net);
//   checkpoint.track(optimizer);
//   muster::PreemptionCheckpointHandler handler(strategy, checkpoint, "/shared/train");
//   while (handler.total_run_calls() < 10'000) {
//     handler.run([&] { train_step(); });
//   }
//
// run() counts its calls, and the checkpoint keeps the count: a process that begins anew goes on
// where the last one was saved.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "strategy/train/checkpoint.h"

namespace muster {

class Strategy;

// With which the process ends when it has saved; for schedulers that start it again.
inline constexpr int kPreemptedExitCode = 42;

struct TerminationConfig {
  // Whether this process was asked to end. None: it has got SIGTERM since the handler was made.
  std::function<bool()> termination_watcher = nullptr;
  // Called on every worker when all is saved. None: the process ends with kPreemptedExitCode. When
  // it returns training goes on, and further notices are passed over.
  std::function<void()> exit = nullptr;
  // So long training goes on after the notice, having saved at once; then it saves again and exits.
  std::chrono::milliseconds grace_period{0};
  // In place of the handler's own checkpoint, on every worker. What it saves the program restores.
  std::function<void()> save = nullptr;
};

// Threading: one thread; all workers make the same calls. Lifetime: the strategy outlives it.
class PreemptionCheckpointHandler {
 public:
  // Restores the newest checkpoint in `directory`, where the chief writes, unless config.save does.
  //   INVALID_ARGUMENT: no directory, or a grace period below 0.
  //   And the errors of CheckpointManager::restore_latest().
  PreemptionCheckpointHandler(Strategy& strategy, const Checkpoint& checkpoint,
                              const std::string& directory, TerminationConfig config = {});
  ~PreemptionCheckpointHandler();
  PreemptionCheckpointHandler(const PreemptionCheckpointHandler&) = delete;
  PreemptionCheckpointHandler& operator=(const PreemptionCheckpointHandler&) = delete;

  // Calls `step`, which is one of training, outside run() of the strategy. Before it, if a worker
  // was asked to end, saves and exits as the config says: all workers before the same step. What
  // `step`, config.save or config.termination_watcher throws on one worker all of them throw: the
  // others as INTERNAL with its text, in whatever call they were.
  template <class Step>
  std::invoke_result_t<Step> run(Step&& step) {
    save_checkpoint_if_preempted();
    if constexpr (std::is_void_v<std::invoke_result_t<Step>>) {
      guarded([&] { step(); });
    } else {
      std::optional<std::invoke_result_t<Step>> result;
      guarded([&] { result = step(); });
      return *std::move(result);
    }
  }

  // What run() does before its step, for loops that have none: a call of all workers.
  void save_checkpoint_if_preempted();

  // Steps that run() has done, those before the checkpoint that was restored included.
  std::uint64_t total_run_calls() const;

 private:
  void guarded(const std::function<void()>& step);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
