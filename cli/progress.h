// Shows a job that runs: one line that is redrawn on a terminal, else a line now and then; events
// of the job above it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/terminal.h"
#include "common/base/scheduler.h"
#include "muster/v1/jobs.pb.h"

namespace muster::cli {

// A program's: "1,200 closures  4,512/s  2 in flight  epoch 3"; a model's:
// "step 1200/2345 [#######.......]  51%  40,123 examples/s  loss 0.3821  ETA 12 s", cut to
// `columns`.
std::string ProgressLine(const v1::Job& job, int columns);

// Threading: not thread-safe. Lifetime: `terminal` and `clock` outlive it.
class ProgressView {
 public:
  // Without a terminal, progress is at most one line in this time.
  static constexpr std::chrono::seconds kQuiet{2};

  ProgressView(const Terminal& terminal, const Clock& clock) : terminal_(terminal), clock_(clock) {}

  void Show(const v1::Job& job);
  // A sentence of our own, on a line of its own.
  void Say(const std::string& sentence);
  // Makes room for lines of others; the next Show() draws again.
  void Yield();
  // Leaves the last line standing.
  void Finish();

 private:
  void Erase();

  const Terminal& terminal_;
  const Clock& clock_;
  bool drawn_ = false;
  std::string last_line_;
  std::string last_state_;
  TimePoint last_shown_{};
  std::uint64_t last_event_ = 0;
};

}  // namespace muster::cli
