#include "strategy/cluster/internal/watchdog.h"

#include <condition_variable>
#include <utility>

#include "common/base/environment_numbers.h"
#include "common/base/mutex.h"
#include "common/base/time_left.h"

namespace muster::internal {
namespace {

void Watch(const std::stop_token& stop, dispatch::Driver& driver, std::chrono::milliseconds timeout,
           const Watchdog::Tell& tell) {
  Mutex mutex;
  std::condition_variable_any ended;
  Standstill standstill;
  (void)standstill.Look(driver.counts());
  while (true) {
    {
      const MutexLock lock(mutex);
      ended.wait_for(mutex, stop, timeout, [] { return false; });
    }
    if (stop.stop_requested()) return;
    if (!standstill.Look(driver.counts())) continue;
    tell(fmt::format("no closure has ended for {} s: {}",
                     std::chrono::duration<double>(timeout).count(), driver.Waiting()));
  }
}

}  // namespace

Watchdog::Watchdog(dispatch::Driver& driver, std::chrono::milliseconds timeout, Tell tell)
    : thread_([&driver, timeout, tell = std::move(tell)](const std::stop_token& stop) {
        Watch(stop, driver, timeout, tell);
      }) {}

Result<std::optional<std::chrono::milliseconds>> Watchdog::timeout(
    const std::optional<std::chrono::milliseconds>& given, const Environment& environment) {
  auto timeout = given;
  if (!timeout) {
    MUSTER_TRY_ASSIGN(timeout, SecondsIn(environment, "TF_CLUSTER_COORDINATOR_WATCH_DOG_TIMEOUT"));
  }
  // A wait that goes beyond the clock would be over at once, again and again.
  const bool ends = timeout && timeout->count() > 0 && After(*timeout) < TimePoint::max();
  return ends ? timeout : std::nullopt;
}

}  // namespace muster::internal
