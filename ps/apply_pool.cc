#include "ps/apply_pool.h"

#include <algorithm>
#include <atomic>
#include <system_error>

namespace muster::ps {

struct ApplyPool::Job {
  Job(std::size_t count, absl::FunctionRef<void(std::size_t)> function)
      : pieces(count), body(function) {}

  // Takes pieces until none is left.
  void Work() {
    for (std::size_t i = next.fetch_add(1); i < pieces; i = next.fetch_add(1)) body(i);
  }

  const std::size_t pieces;
  const absl::FunctionRef<void(std::size_t)> body;
  std::atomic<std::size_t> next{0};
  int helpers = 0;  // under the pool's mutex
};

ApplyPool::ApplyPool(int helpers) {
  try {
    for (int i = 0; i < helpers; ++i) threads_.emplace_back([this] { Help(); });
  } catch (const std::system_error&) {  // no more threads: the same results take longer
  }
}

ApplyPool::~ApplyPool() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ApplyPool::Run(std::size_t pieces, absl::FunctionRef<void(std::size_t)> body) {
  Job job(pieces, body);
  if (pieces < 2 || threads_.empty()) {
    job.Work();
    return;
  }
  {
    const MutexLock lock(mutex_);
    jobs_.push_back(&job);
  }
  work_.notify_all();
  job.Work();
  // Only pieces that already run are waited for: each is short, and no helper waits for anything.
  const MutexLock lock(mutex_);
  const auto at = std::find(jobs_.begin(), jobs_.end(), &job);
  if (at != jobs_.end()) jobs_.erase(at);
  while (job.helpers > 0) finished_.wait(mutex_);
}

void ApplyPool::Help() {
  MutexLock lock(mutex_);
  while (true) {
    while (!stopping_ && jobs_.empty()) work_.wait(mutex_);
    if (stopping_) return;
    Job* job = jobs_.front();
    ++job->helpers;
    lock.unlock();
    job->Work();
    lock.lock();
    // Nothing is left to take, so nobody else need look at it.
    const auto at = std::find(jobs_.begin(), jobs_.end(), job);
    if (at != jobs_.end()) jobs_.erase(at);
    if (--job->helpers == 0) finished_.notify_all();
  }
}

}  // namespace muster::ps
