// The closures of one view, as the trainer has them run; without links, so that its loop is tested
// against scripted ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "muster/v1/driver.pb.h"

namespace muster::trainer {

// Threading: one thread.
class Closures {
 public:
  virtual ~Closures() = default;

  // Queues `first` to `last`. Steps go on where those before them ended. `buffers`: see
  // v1.ClosureAssignment.
  //   A closure's own error; what was queued is cancelled then.
  virtual Status Schedule(v1::ClosureKind kind, std::uint64_t first, std::uint64_t last,
                          std::uint64_t buffers) = 0;
  // The results of what has ended, in the order of the schedule, from the oldest that had not.
  // Waits until about half of what is scheduled has ended, the oldest too, and at most for `limit`.
  //   A closure's own error, once nothing is in flight any more.
  virtual Result<std::vector<v1::ClosureResult>> Take(Millis limit) = 0;
  // Nothing more begins of what is queued but what belongs to a step that has begun.
  virtual void StopGiving() = 0;
  // After StopGiving(): all that had begun has ended; Take() has the last of it.
  virtual bool stands_still() = 0;
  // How many executors closures are given to now.
  virtual std::size_t workers() = 0;
  // A user has asked the job to stop.
  virtual bool stop_requested() const = 0;
  // Where they are, for a call that says so.
  virtual v1::ModelReport Position() = 0;
  // The same with the news that the coordinator has not been told; it is to be told them now.
  virtual v1::ModelReport Report() = 0;
};

}  // namespace muster::trainer
