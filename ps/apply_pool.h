// Threads that help with one large array operation at a time, by fixed pieces: what a piece is
// never depends on the number of threads, so results do not either.
//
// Threading: Run() from any threads, at once too. Lifetime: no Run() may be under way at the end.
#pragma once

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

#include <absl/functional/function_ref.h>

#include "common/base/mutex.h"

namespace muster::ps {

class ApplyPool {
 public:
  // Helpers besides the callers' own threads; 0 is fine. Fewer, where so many threads cannot be
  // had.
  explicit ApplyPool(int helpers);
  ~ApplyPool();
  ApplyPool(const ApplyPool&) = delete;
  ApplyPool& operator=(const ApplyPool&) = delete;

  // Calls body(i) once for each i in [0, pieces), on this thread and on helpers that are free;
  // returns when all have returned. `body` must not call Run(). One piece runs without any wake.
  void Run(std::size_t pieces, absl::FunctionRef<void(std::size_t)> body);

  std::size_t helpers() const { return threads_.size(); }

 private:
  struct Job;
  void Help();

  Mutex mutex_;
  Condition work_;      // jobs_ or stopping_ changed
  Condition finished_;  // a helper has left a job
  std::deque<Job*> jobs_ MUSTER_GUARDED_BY(mutex_);
  bool stopping_ MUSTER_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace muster::ps
