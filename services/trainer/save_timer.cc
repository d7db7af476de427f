#include "services/trainer/save_timer.h"

#include <algorithm>

namespace muster::trainer {

SaveTimer::SaveTimer(const Clock& clock, Millis every, std::uint64_t done)
    : clock_(clock),
      every_(every),
      since_(clock.Now()),
      due_(every.count() > 0 ? since_ + every : TimePoint::max()),
      done_then_(done) {}

bool SaveTimer::due() const { return clock_.Now() >= due_; }

std::uint64_t SaveTimer::StepsUntilDue(std::uint64_t done, std::size_t workers) const {
  if (!by_time()) return UINT64_MAX;
  // Where a step takes long each one beyond them puts off the save by as much.
  const std::uint64_t least = 2 * std::max<std::uint64_t>(1, workers);
  const TimePoint now = clock_.Now();
  if (now >= due_) return least;
  const double left = std::chrono::duration<double>(due_ - now).count();
  if (done <= done_then_ || now <= since_) {
    return std::max(least, std::min(kUnproven, static_cast<std::uint64_t>(rate_ * left)));
  }
  return std::max(least, static_cast<std::uint64_t>(RateUntil(now, done) * left));
}

double SaveTimer::RateUntil(TimePoint then, std::uint64_t done) const {
  return static_cast<double>(done - done_then_) /
         std::chrono::duration<double>(then - since_).count();
}

void SaveTimer::Saved(std::uint64_t done, TimePoint began) {
  if (done > done_then_ && began > since_) rate_ = RateUntil(began, done);
  since_ = clock_.Now();
  done_then_ = done;
  if (!by_time()) return;
  constexpr int kTimesTheSave = 9;
  const auto took = std::chrono::ceil<Millis>(since_ - began);
  due_ = since_ + std::max(every_, kTimesTheSave * took);
}

}  // namespace muster::trainer
