// When a job is saved by time, and how far ahead its closures may be scheduled until then: all that
// is scheduled must be done before a checkpoint can be cut.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/scheduler.h"

namespace muster::trainer {

// Threading: not thread-safe. Lifetime: `clock` outlives it.
class SaveTimer {
 public:
  // `every`: from the end of one save to the next; zero: never by time. `done`: steps so far.
  SaveTimer(const Clock& clock, Millis every, std::uint64_t done);

  // Something is saved by time.
  bool by_time() const { return every_.count() > 0; }
  bool due() const;
  // How many steps beyond `done` are likely to end before the next save is due, by the rate since
  // the last; never fewer than two for each of `workers`, which go on working, and no limit when
  // nothing is saved by time.
  std::uint64_t StepsUntilDue(std::uint64_t done, std::size_t workers) const;
  // A save was tried from `began` until now, with `done` steps done. The next is due `every` from
  // now, later when this one took long: saving takes at most a tenth of the time.
  void Saved(std::uint64_t done, TimePoint began);

  // Until a step has ended since the last save the rate before that one counts, so far.
  static constexpr std::uint64_t kUnproven = 64;

 private:
  // Steps a second since the last save.
  double RateUntil(TimePoint then, std::uint64_t done) const;

  const Clock& clock_;
  const Millis every_;
  TimePoint since_;  // of the last save, or the beginning
  TimePoint due_;
  std::uint64_t done_then_;
  double rate_ = 0;  // steps a second until the last save; 0: not known
};

}  // namespace muster::trainer
