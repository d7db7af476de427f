// How late this machine wakes a thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace muster::testing {

// How late this machine wakes a thread that wants to run, while the object lives: what a limit on
// promptness has to allow when others use the processors too.
class Lateness {
 public:
  Lateness()
      : thread_([this] {
          using std::chrono::milliseconds;
          constexpr milliseconds kNap{5};
          while (!done_) {
            const auto begin = std::chrono::steady_clock::now();
            std::this_thread::sleep_for(kNap);
            const auto late = std::chrono::duration_cast<milliseconds>(
                std::chrono::steady_clock::now() - begin - kNap);
            worst_ms_ = std::max<std::int64_t>(worst_ms_, late.count());
          }
        }) {}
  ~Lateness() {
    done_ = true;
    thread_.join();
  }
  Lateness(const Lateness&) = delete;
  Lateness& operator=(const Lateness&) = delete;
  std::int64_t worst_ms() const { return worst_ms_; }

 private:
  std::atomic<bool> done_ = false;
  std::atomic<std::int64_t> worst_ms_ = 0;
  std::thread thread_;
};

}  // namespace muster::testing
