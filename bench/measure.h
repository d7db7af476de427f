// Timing for the benchmarks: an operation is repeated for a short while in each round, a round's
// figure is the median operation, and what is printed is the median of the rounds with the least
// and the most of them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <sys/resource.h>

#include "common/base/status.h"

namespace muster::bench {

inline constexpr int kRounds = 5;

// What a program ends with that has measured and printed: figures that did not get to stdout, whose
// disk is full, are no success.
inline int Told(int code) {
  if ((std::fflush(stdout) == 0 && std::ferror(stdout) == 0) || code != 0) return code;
  std::fputs("error: the figures could not be written to standard output\n", stderr);
  return 1;
}

struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};

inline Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  return {values[values.size() / 2], values.front(), values.back()};
}

inline double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// What this process has had of processors, in seconds.
struct CpuSeconds {
  double user = 0;
  double system = 0;

  static CpuSeconds SoFar() {
    rusage used{};
    (void)::getrusage(RUSAGE_SELF, &used);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return {seconds(used.ru_utime), seconds(used.ru_stime)};
  }
  CpuSeconds operator-(const CpuSeconds& before) const {
    return {user - before.user, system - before.system};
  }
};

// Seconds that one operation takes: the median of those that fit into `window` (three at least).
inline Result<double> MedianSeconds(const std::function<Status()>& operation,
                                    std::chrono::milliseconds window) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  const auto end = Clock::now() + window;
  while (seconds.size() < 3 || Clock::now() < end) {
    const auto start = Clock::now();
    MUSTER_TRY(operation());
    seconds.push_back(SecondsSince(start));
  }
  return SpreadOf(std::move(seconds)).median;
}

// Operations by name, measured round robin, so that a slow minute of the machine hits all alike.
class Measurements {
 public:
  void Add(const std::string& name, std::function<Status()> operation) {
    operations_.push_back({name, std::move(operation), {}});
  }

  Status Run(std::chrono::milliseconds window) {
    for (int round = 0; round < kRounds; ++round) {
      for (Operation& operation : operations_) {
        // The first round's first call warms up.
        if (round == 0) MUSTER_TRY(operation.run());
        auto seconds = MedianSeconds(operation.run, window);
        if (!seconds.ok()) return Annotate(seconds.status(), operation.name);
        operation.seconds.push_back(*seconds);
      }
    }
    return Ok();
  }

  // How many seconds one operation takes; zeros for one that was not added.
  Spread Seconds(const std::string& name) const {
    for (const Operation& operation : operations_) {
      if (operation.name == name) return SpreadOf(operation.seconds);
    }
    return {};
  }

 private:
  struct Operation {
    std::string name;
    std::function<Status()> run;
    std::vector<double> seconds;
  };
  std::vector<Operation> operations_;
};

}  // namespace muster::bench
