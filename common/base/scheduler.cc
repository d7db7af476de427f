#include "common/base/scheduler.h"

#include <map>
#include <thread>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/time_left.h"

namespace muster {

struct ThreadScheduler::State {
  Mutex mutex;
  Condition wake;
  std::map<std::pair<TimePoint, TimerId>, Task> timers MUSTER_GUARDED_BY(mutex);
  TimerId next MUSTER_GUARDED_BY(mutex) = 1;
  bool stopping MUSTER_GUARDED_BY(mutex) = false;
  std::thread thread;

  void Run() {
    MutexLock lock(mutex);
    while (!stopping) {
      if (timers.empty()) {
        wake.wait(mutex);
        continue;
      }
      const auto first = timers.begin();
      if (first->first.first > std::chrono::steady_clock::now()) {
        (void)wake.wait_until(mutex, TimePoint(first->first.first));
        continue;
      }
      Task task = std::move(first->second);
      timers.erase(first);
      lock.unlock();
      std::move(task)();
      task = nullptr;  // what it captured is destroyed without the lock
      lock.lock();
    }
  }
};

ThreadScheduler::ThreadScheduler() : state_(std::make_unique<State>()) {
  state_->thread = std::thread([state = state_.get()] { state->Run(); });
}

ThreadScheduler::~ThreadScheduler() { Stop(); }

void ThreadScheduler::Stop() {
  {
    const MutexLock lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

TimePoint ThreadScheduler::Now() const { return std::chrono::steady_clock::now(); }

std::chrono::system_clock::time_point ThreadScheduler::WallNow() const {
  return std::chrono::system_clock::now();
}

void ThreadScheduler::Post(Task task) { (void)RunAfter(Millis(0), std::move(task)); }

Scheduler::TimerId ThreadScheduler::RunAfter(Millis delay, Task task) {
  TimerId id;
  {
    const MutexLock lock(state_->mutex);
    id = state_->next++;
    // Somebody's "never" may be later than the clock goes.
    state_->timers.emplace(std::pair(After(delay), id), std::move(task));
  }
  state_->wake.notify_all();
  return id;
}

bool ThreadScheduler::Cancel(TimerId timer) {
  Task dropped;  // destroyed after the lock is gone
  const MutexLock lock(state_->mutex);
  for (auto it = state_->timers.begin(); it != state_->timers.end(); ++it) {
    if (it->first.second != timer) continue;
    dropped = std::move(it->second);
    state_->timers.erase(it);
    return true;
  }
  return false;
}

}  // namespace muster
