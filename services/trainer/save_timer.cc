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

std::uint64_t SaveTimer::StepsUntilDue(std::uint64_t done) const {
  if (every_.count() == 0) return UINT64_MAX;
  const TimePoint now = clock_.Now();
  if (done <= done_then_ || now <= since_ || now >= due_) return kLeast;
  const double share = std::chrono::duration<double>(due_ - now) / (now - since_);
  return std::max(kLeast,
                  static_cast<std::uint64_t>(share * static_cast<double>(done - done_then_)));
}

void SaveTimer::Saved(std::uint64_t done, TimePoint began) {
  since_ = clock_.Now();
  done_then_ = done;
  if (every_.count() == 0) return;
  constexpr int kTimesTheSave = 9;
  const auto took = std::chrono::ceil<Millis>(since_ - began);
  due_ = since_ + std::max(every_, kTimesTheSave * took);
}

}  // namespace muster::trainer
