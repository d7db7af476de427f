// Says when a driver's closures get nowhere.
//
// Threading: any thread; `tell` runs on one of its own. Lifetime: the driver outlives it; its end
// is that of its thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "dispatch/driver.h"

#include "common/base/environment.h"
#include "common/base/status.h"

namespace muster::internal {

class Watchdog {
 public:
  using Tell = std::function<void(const std::string& text)>;

  // Tells each time that closures were there for `timeout` and none has ended.
  Watchdog(dispatch::Driver& driver, std::chrono::milliseconds timeout, Tell tell);

  // `given`, else TF_CLUSTER_COORDINATOR_WATCH_DOG_TIMEOUT; nothing: there is none.
  //   kInvalidArgument: that is no number of seconds.
  static Result<std::optional<std::chrono::milliseconds>> timeout(
      const std::optional<std::chrono::milliseconds>& given, const Environment& environment);

 private:
  std::jthread thread_;
};

}  // namespace muster::internal
