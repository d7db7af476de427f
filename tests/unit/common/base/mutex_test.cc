#include "common/base/mutex.h"

#include <chrono>
#include <thread>

#include "tests/support/catch.h"

namespace muster {
namespace {

// What a mutex and a condition are for.
class Box {
 public:
  void Put(int value) {
    {
      const MutexLock lock(mutex_);
      value_ = value;
    }
    filled_.notify_all();
  }
  int Take() {
    const MutexLock lock(mutex_);
    while (value_ == 0) filled_.wait(mutex_);
    return value_;
  }
  bool TakeBefore(std::chrono::steady_clock::time_point deadline) {
    const MutexLock lock(mutex_);
    while (value_ == 0) {
      if (!filled_.wait_until(mutex_, deadline)) return false;
    }
    return true;
  }
  bool Free() {
    const bool free = mutex_.try_lock();
    if (free) mutex_.unlock();
    return free;
  }
  // Whether the mutex was free between unlock() and lock().
  bool LetGo() {
    MutexLock lock(mutex_);
    lock.unlock();
    const bool free = Free();
    lock.lock();
    return free;
  }

 private:
  Mutex mutex_;
  Condition filled_;
  int value_ MUSTER_GUARDED_BY(mutex_) = 0;
};

TEST_CASE("a condition gives the mutex to whoever notifies and has it again afterwards",
          "[base][unit]") {
  Box box;
  int taken = 0;

  std::thread taker([&] { taken = box.Take(); });
  box.Put(7);
  taker.join();

  CHECK(taken == 7);
  CHECK(box.Free());
}

TEST_CASE("a wait that nobody ends is over at its deadline with the mutex held until the end",
          "[base][unit]") {
  Box box;

  CHECK_FALSE(box.TakeBefore(std::chrono::steady_clock::now() + std::chrono::milliseconds(1)));

  CHECK(box.Free());
}

TEST_CASE("a lock may let go of its mutex and take it again", "[base][unit]") {
  Box box;

  CHECK(box.LetGo());

  CHECK(box.Free());
}

TEST_CASE("a recursive mutex lets its holder in again", "[base][unit]") {
  RecursiveMutex mutex;
  int entered = 0;

  const auto enter = [&](const auto& self, int depth) -> void {
    const RecursiveMutexLock lock(mutex);
    ++entered;
    if (depth > 1) self(self, depth - 1);
  };
  enter(enter, 3);

  CHECK(entered == 3);
  const bool free = mutex.try_lock();
  CHECK(free);
  if (free) mutex.unlock();
}

}  // namespace
}  // namespace muster
