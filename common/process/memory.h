// What processes hold of memory, for the daemon that started them.
//
// Counted are heap, stacks and shared memory (RssAnon and RssShmem of /proc/<pid>/status); not what
// is mapped from files, which the kernel takes back when it likes. A page that several processes
// have counts for each. smaps_rollup would divide it among them, but walks all pages for that, with
// a lock held that the process needs, and waits for that lock: here nothing waits for a process.
//
// Threading: OwnMemory() from any thread, a MemoryGauge on one. Lifetime: values.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/base/scheduler.h"

namespace muster::process {

// Bytes that the process and all its descendants hold. 0: there is no such process. Where the
// kernel does not tell children (CONFIG_PROC_CHILDREN), of the process alone.
std::uint64_t OwnMemory(int pid);

// OwnMemory() of one process, read again so seldom that it may be asked for at any time: not within
// kLeastAge, nor before kShare times the processor time has passed that the last reading took.
class MemoryGauge {
 public:
  static constexpr std::chrono::seconds kLeastAge{1};
  static constexpr int kShare = 2'000;

  explicit MemoryGauge(int pid) : pid_(pid) {}
  std::uint64_t Get(TimePoint now);

 private:
  const int pid_;
  std::uint64_t bytes_ = 0;
  TimePoint due_ = TimePoint::min();
};

}  // namespace muster::process
