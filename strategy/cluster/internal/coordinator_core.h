// What handles of one coordinator share, and what remote and per-worker values are inside.
//
// Threading: any thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dispatch/driver.h"

#include "common/base/scheduler.h"
#include "common/base/time_left.h"
#include "strategy/cluster/cluster_coordinator.h"
#include "strategy/cluster/internal/cluster_link.h"
#include "strategy/cluster/internal/watchdog.h"

namespace muster::internal {

class CoordinatorCore : public std::enable_shared_from_this<CoordinatorCore> {
 public:
  // `silence`: that after which a watchdog tells; nothing: there is none.
  CoordinatorCore(std::shared_ptr<ClusterLink> link, const CoordinatorOptions& options,
                  std::optional<std::chrono::milliseconds> silence);

  // The one of a link: made now, or the one that is there.
  //   kFailedPrecondition: that one has other options.  kInvalidArgument: the environment holds no
  //   number where it should.
  static Result<std::shared_ptr<CoordinatorCore>> of(
      const std::shared_ptr<ClusterLink>& link, const std::optional<CoordinatorOptions>& options);

  dispatch::Driver& driver() { return link_->driver(); }
  ClusterLink& link() { return *link_; }
  const std::shared_ptr<ClusterLink>& shared_link() const { return link_; }
  const CoordinatorOptions& options() const { return options_; }
  TimePoint until(const Deadline& deadline) const { return until(deadline, options_.timeout); }
  // When a wait that begins now ends: `deadline`, else the timeout, else never.
  static TimePoint until(const Deadline& deadline,
                         const std::optional<std::chrono::milliseconds>& timeout) {
    if (deadline) return *deadline;
    return timeout ? After(*timeout) : TimePoint::max();
  }

 private:
  const std::shared_ptr<ClusterLink> link_;
  const CoordinatorOptions options_;
  std::optional<Watchdog> watchdog_;
};

class Remote {
 public:
  Remote(dispatch::RemoteValue value, std::optional<std::chrono::milliseconds> timeout)
      : value_(std::move(value)), timeout_(timeout) {}

  const dispatch::RemoteValue& value() const { return value_; }
  TimePoint until(const Deadline& deadline) const {
    return CoordinatorCore::until(deadline, timeout_);
  }

 private:
  dispatch::RemoteValue value_;
  std::optional<std::chrono::milliseconds> timeout_;
};

// A per-worker value, which ends with this. It keeps those that its builds use: a worker that comes
// back builds it anew.
class PerWorker {
 public:
  PerWorker(const std::shared_ptr<CoordinatorCore>& core, std::uint32_t function, ClosureId id,
            PerWorkerList uses, bool shared = false)
      : core_(core),
        link_(core->shared_link()),
        function_(function),
        id_(id),
        uses_(std::move(uses)),
        shared_(shared) {}
  ~PerWorker();
  PerWorker(const PerWorker&) = delete;
  PerWorker& operator=(const PerWorker&) = delete;

  ClosureId id() const { return id_; }
  std::uint32_t function() const { return function_; }
  // A pass that all workers share: closures have turns of it.
  bool shared() const { return shared_; }
  // CANCELLED (thrown): its coordinator is gone.
  std::shared_ptr<CoordinatorCore> core() const;

 private:
  const std::weak_ptr<CoordinatorCore> core_;
  // Its driver has the value, whether or not there is a coordinator: the link of a process stays.
  const std::weak_ptr<ClusterLink> link_;
  const std::uint32_t function_;
  const ClosureId id_;
  const PerWorkerList uses_;
  const bool shared_;
};

// Throws what a closure's status says, as the class that fits.
[[noreturn]] void raise_closure(const Status& status);
inline void raise_closure_unless_ok(const Status& status) {
  if (!status.ok()) raise_closure(status);
}
// FAILED_PRECONDITION (thrown): in a closure, where `what` has no place.
void refuse_in_closure(const char* what);

}  // namespace muster::internal
