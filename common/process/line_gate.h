// Bounds what a child's output costs whoever takes it: lines wait here, not in a queue without end,
// and beyond a rate they are dropped and counted. The newest ones are kept always: they say why a
// process died.
//
// Threading: any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/base/mutex.h"

namespace muster::process {

class LineGate {
 public:
  using Time = std::chrono::system_clock::time_point;
  struct Options {
    // At once, and then in a second.
    std::size_t burst_lines = 2'000;
    std::size_t lines_per_second = 1'000;
    std::size_t burst_bytes = 1 << 20;
    std::size_t bytes_per_second = 512 << 10;
    // The newest of the lines that are beyond that are kept.
    std::size_t tail_lines = 20;
    std::size_t tail_bytes = 64 << 10;
  };
  struct Line {
    Time time;
    std::string text;
  };

  LineGate() : LineGate(Options()) {}
  explicit LineGate(Options options);

  // True: somebody must Take(); nobody has been told so yet.
  bool Add(Time time, std::string text);
  // What has come since the last time, with a line "(n lines dropped: ...)" where some are missing.
  // Nothing: the next Add() tells again.
  std::vector<Line> Take();

 private:
  void Refill(Time now) MUSTER_REQUIRES(mutex_);

  const Options options_;
  Mutex mutex_;
  std::vector<Line> lines_ MUSTER_GUARDED_BY(mutex_);
  std::deque<Line> tail_ MUSTER_GUARDED_BY(mutex_);
  std::size_t tail_bytes_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::uint64_t dropped_ MUSTER_GUARDED_BY(mutex_) = 0;
  bool told_ MUSTER_GUARDED_BY(mutex_) = false;
  double line_credit_ MUSTER_GUARDED_BY(mutex_);
  double byte_credit_ MUSTER_GUARDED_BY(mutex_);
  Time refilled_ MUSTER_GUARDED_BY(mutex_){};
};

}  // namespace muster::process
