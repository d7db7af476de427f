// What a program on TPUs hears of the end that is coming.
//
//   muster::initialize_tpu_system({.topology = "2x2x1x2"});
//   muster::PreemptionWatcher watcher;
//   while (!watcher.preemption_message()) train_step();
//   save();
//   watcher.block_until_worker_exit();
//
// PreemptionCheckpointHandler (strategy/train/preemption.h) does that for a whole loop, and for
// several workers.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace muster {

// Where no TPU cores are up when it is made it watches nothing. Threading: any thread.
class PreemptionWatcher {
 public:
  // While it lives SIGTERM does not end the process.
  PreemptionWatcher();
  ~PreemptionWatcher();
  PreemptionWatcher(const PreemptionWatcher&) = delete;
  PreemptionWatcher& operator=(const PreemptionWatcher&) = delete;

  // Nothing until the process is asked to end since the watcher was made; then how.
  std::optional<std::string> preemption_message() const;

  // Returns when the process that has started this one is gone: of a launched job the worker's
  // daemon, which ends what it has started. Has no deadline: a program calls it when nothing is
  // left to do but to be ended. At once where nothing is watched.
  void block_until_worker_exit() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
