// Closures that lost their executor and wait for the word how it ended.
//
// A link breaks some milliseconds before its verdict is there. A closure that ended its executor
// would take the next one in the meantime, and all that a cluster has in no time, before anybody
// could count: so one that lost an executor before waits.
//
// Threading: not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>

#include "common/base/ids.h"
#include "common/base/scheduler.h"

namespace muster::dispatch {

class AwaitedVerdicts {
 public:
  // A verdict that has not come by then will not: a link may break without an end, and nobody may
  // be there to tell (the coordinator is away). A lost worker is noticed in less.
  static constexpr std::chrono::seconds kPatience{5};

  bool empty() const { return awaited_.empty(); }
  bool Contains(ClosureId closure) const { return awaited_.contains(closure); }

  void Add(ClosureId closure, std::uint32_t worker) { awaited_[closure] = {worker, std::nullopt}; }
  // The verdict about that worker's executor is there, or it is back without one.
  void OnVerdict(std::uint32_t worker) {
    std::erase_if(awaited_, [&](const auto& one) { return one.second.worker == worker; });
  }
  // Those who have waited long enough wait no longer. The patience begins at the first call.
  void Expire(TimePoint now) {
    for (auto& [closure, wait] : awaited_) {
      if (!wait.until) wait.until = now + kPatience;
    }
    std::erase_if(awaited_, [&](const auto& one) { return *one.second.until <= now; });
  }
  // When to call Expire() next; TimePoint::max(): never.
  TimePoint next() const {
    TimePoint next = TimePoint::max();
    for (const auto& [closure, wait] : awaited_) next = std::min(next, wait.until.value_or(next));
    return next;
  }
  void Clear() { awaited_.clear(); }

 private:
  struct Wait {
    std::uint32_t worker = 0;
    std::optional<TimePoint> until;
  };
  std::map<ClosureId, Wait> awaited_;
};

}  // namespace muster::dispatch
