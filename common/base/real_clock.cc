#include "common/base/real_clock.h"

namespace muster {
namespace {

class SystemClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
  std::chrono::system_clock::time_point WallNow() const override {
    return std::chrono::system_clock::now();
  }
};

}  // namespace

const Clock& RealClock() {
  // Never destroyed: threads that are left when the process exits ask it, too.
  static const SystemClock* const clock = new SystemClock;
  return *clock;
}

}  // namespace muster
