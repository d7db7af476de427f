// Says when a driver's closures get nowhere.
//
// Threading: any thread; `tell` runs on one of its own. Lifetime: the driver outlives it; its end
// is that of its thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "dispatch/driver.h"

#include "common/base/environment.h"
#include "common/base/ids.h"
#include "common/base/status.h"

namespace muster::internal {

// Whether closures get nowhere, from one look at the driver's counts to the next. Not thread-safe.
class Standstill {
 public:
  // Closures were there now and at the look before, and none has ended in between.
  bool Look(const dispatch::Driver::Counts& counts) {
    const bool busy = counts.queued + counts.in_flight > 0;
    // One may take long while others end behind it, which the watermark does not say.
    const auto ended = std::tuple(counts.settled, counts.succeeded, counts.failed);
    const bool same = std::exchange(ended_, ended) == ended;
    return std::exchange(busy_, busy) && busy && same;
  }

 private:
  bool busy_ = false;
  std::tuple<ClosureId, std::uint64_t, bool> ended_;
};

class Watchdog {
 public:
  using Tell = std::function<void(const std::string& text)>;

  // Tells each time that closures were there for `timeout` and none has ended.
  Watchdog(dispatch::Driver& driver, std::chrono::milliseconds timeout, Tell tell);

  // `given`, else TF_CLUSTER_COORDINATOR_WATCH_DOG_TIMEOUT; nothing: there is none, or none that
  // the clock would reach.
  //   kInvalidArgument: that is no number of seconds.
  static Result<std::optional<std::chrono::milliseconds>> timeout(
      const std::optional<std::chrono::milliseconds>& given, const Environment& environment);

 private:
  std::jthread thread_;
};

}  // namespace muster::internal
