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
#include <mutex>
#include <string>
#include <vector>

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
  void Refill(Time now);

  const Options options_;
  std::mutex mutex_;  // guards what follows
  std::vector<Line> lines_;
  std::deque<Line> tail_;
  std::size_t tail_bytes_ = 0;
  std::uint64_t dropped_ = 0;
  bool told_ = false;
  double line_credit_;
  double byte_credit_;
  Time refilled_{};
};

}  // namespace muster::process
