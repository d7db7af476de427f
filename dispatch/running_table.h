// What an executor runs now, for whoever watches over it: a slot for each runner. In a file that
// others may read it outlives the process, whatever that ended by: what ran then is what may be to
// blame.
//
// Threading: a slot is written by its runner alone, all is read by any thread. What is read while a
// closure begins may be that one or the one before it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace muster::dispatch {

class RunningTable {
 public:
  struct Entry {
    ClosureId closure;
    Attempt attempt;
  };

  // `file`: its path, made anew; where it cannot be, and without one, the table is in memory alone
  // and there is no file.
  explicit RunningTable(std::size_t slots, const std::string& file = "");
  ~RunningTable();
  RunningTable(const RunningTable&) = delete;
  RunningTable& operator=(const RunningTable&) = delete;

  // What was in the file of a process that has ended.
  struct Left {
    std::vector<Entry> running;
    // Since the table was made; as whoever wrote it says.
    std::uint64_t ended = 0;
  };
  // The file is removed. Nothing: there is none.
  static std::optional<Left> TakeFrom(const std::string& file);

  void Begin(std::size_t slot, ClosureId closure, Attempt attempt) {
    slots_[slot].attempt.store(attempt.value(), std::memory_order_relaxed);
    slots_[slot].closure.store(closure.value(), std::memory_order_relaxed);
  }
  void End(std::size_t slot) {
    Slot& one = slots_[slot];
    one.closure.store(0, std::memory_order_relaxed);
    one.ended.store(one.ended.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  std::vector<Entry> Now() const {
    std::vector<Entry> running;
    for (std::size_t i = 0; i < size_; ++i) {
      const ClosureId closure(slots_[i].closure.load(std::memory_order_relaxed));
      if (closure == ClosureId()) continue;
      running.push_back({closure, Attempt(slots_[i].attempt.load(std::memory_order_relaxed))});
    }
    return running;
  }
  // Since the table was made.
  std::uint64_t ended() const {
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      all += slots_[i].ended.load(std::memory_order_relaxed);
    }
    return all;
  }

 private:
  // A cache line each: runners do not meet.
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> closure{0};  // 0: nothing runs
    std::atomic<std::uint64_t> attempt{0};
    std::atomic<std::uint64_t> ended{0};
  };

  const std::size_t size_;
  std::unique_ptr<Slot[]> own_;  // null: they are in the file
  Slot* slots_ = nullptr;
};

}  // namespace muster::dispatch
