// std::mutex and what goes with it, annotated: clang checks that what a mutex guards is touched
// with the mutex held (thread_annotations.h), and ThreadSanitizer sees the standard's own locks
// (absl::Mutex it does not). Names and behaviour are the standard's; a condition takes the mutex
// itself where the standard's takes a lock.
//
//   const MutexLock lock(mutex_);
//   while (queue_.empty()) arrived_.wait(mutex_);
//
// A loop rather than a predicate, so that the condition is checked, too. To wait for a stop token
// as well: std::condition_variable_any with the mutex as its lock, and a predicate that says
// MUSTER_REQUIRES(mutex_).
//
// Cost: that of the standard's types. Threading: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "common/base/thread_annotations.h"

namespace muster {

class MUSTER_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() MUSTER_ACQUIRE() { mutex_.lock(); }
  void unlock() MUSTER_RELEASE() { mutex_.unlock(); }
  bool try_lock() MUSTER_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

// For what may come back to its own lock while it holds it; a Mutex wherever that can be avoided.
class MUSTER_CAPABILITY("mutex") RecursiveMutex {
 public:
  RecursiveMutex() = default;
  RecursiveMutex(const RecursiveMutex&) = delete;
  RecursiveMutex& operator=(const RecursiveMutex&) = delete;

  void lock() MUSTER_ACQUIRE() { mutex_.lock(); }
  void unlock() MUSTER_RELEASE() { mutex_.unlock(); }
  bool try_lock() MUSTER_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  std::recursive_mutex mutex_;
};

// Holds a mutex until it goes; may let go of it, and take it again, in between.
template <class Lockable>
class MUSTER_SCOPED_CAPABILITY BasicMutexLock {
 public:
  explicit BasicMutexLock(Lockable& mutex) MUSTER_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~BasicMutexLock() MUSTER_RELEASE() {
    if (held_) mutex_.unlock();
  }
  BasicMutexLock(const BasicMutexLock&) = delete;
  BasicMutexLock& operator=(const BasicMutexLock&) = delete;

  void unlock() MUSTER_RELEASE() {
    mutex_.unlock();
    held_ = false;
  }
  void lock() MUSTER_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Lockable& mutex_;
  bool held_ = true;
};
using MutexLock = BasicMutexLock<Mutex>;
using RecursiveMutexLock = BasicMutexLock<RecursiveMutex>;

class Condition {
 public:
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

  // May also return without having been notified.
  void wait(Mutex& mutex) MUSTER_REQUIRES(mutex) {
    std::unique_lock held(mutex.mutex_, std::adopt_lock);
    condition_.wait(held);
    held.release();
  }
  // False when the time has come.
  template <class Time>
  [[nodiscard]] bool wait_until(Mutex& mutex, const Time& deadline) MUSTER_REQUIRES(mutex) {
    std::unique_lock held(mutex.mutex_, std::adopt_lock);
    const bool notified = condition_.wait_until(held, deadline) == std::cv_status::no_timeout;
    held.release();
    return notified;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace muster
