// What a coordinator stands on: a driver, and who its workers are. Who implements it connects the
// driver to executors, again when they come back, and gives it verdicts.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/driver.h"

#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "strategy/cluster/internal/step_counter.h"

namespace muster::internal {

class ClusterLink {
 public:
  virtual ~ClusterLink() = default;
  virtual dispatch::Driver& driver() = 0;
  // Tasks of the workers that are there or have been, in order: "worker:0".
  virtual std::vector<std::string> workers() const = 0;
  // Workers first, then parameter servers, all that were ever there; whether each is there now.
  virtual std::vector<std::pair<std::string, bool>> tasks() const = 0;
  // Waits for the first worker; nullopt: as long as the cluster says.
  //   kDeadlineExceeded: none has come; says for whom it has waited.
  virtual Status await_workers(std::optional<TimePoint> deadline) = 0;

  StepCounter& steps() { return steps_; }

  // The cluster cannot run this program: calls of its coordinator throw this from now on.
  void Refuse(const Status& why) {
    const MutexLock lock(refused_mutex_);
    if (refused_.ok()) refused_ = why;
    is_refused_ = true;
  }
  Status refused() const {
    if (!is_refused_) return Ok();
    const MutexLock lock(refused_mutex_);
    return refused_;
  }

 private:
  StepCounter steps_;
  std::atomic<bool> is_refused_{false};
  mutable Mutex refused_mutex_;
  Status refused_ MUSTER_GUARDED_BY(refused_mutex_);
};

// This process's own.
//   kFailedPrecondition: it was not started by `muster submit`, or it is an executor.
Result<std::shared_ptr<ClusterLink>> process_link();

}  // namespace muster::internal
