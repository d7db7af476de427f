// The groups that the coordinator asks this executor into, one after another, as the steps take
// them: a group forms beside the steps that are made in the one before it.
//
// Threading: any thread. Form() by one at a time. A seat's group is used by one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/cost_model.h"
#include "collectives/group.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/socket.h"
#include "common/tls/key_context.h"

namespace muster::v1 {
class JoinGroup;
class StartExecutor;
}  // namespace muster::v1

namespace muster::executor {

class Seats {
 public:
  struct Seat {
    Generation generation = {};
    int rank = 0;
    // Null: this process is alone.
    std::shared_ptr<collectives::Group> group;
  };

  // Listens for members. UNAVAILABLE: no address could be had. And the errors of
  // collectives::CostsFrom().
  static Result<std::unique_ptr<Seats>> Open(const v1::StartExecutor& start);

  // host:port at which it waits for members.
  std::string address() const { return listener_.address; }

  // Finds the others; the seat is the newest from then on.
  //   UNAVAILABLE: it did not come about; names who has not come. ABORTED: an older generation, or
  //   the request means another executor.
  Status Form(const v1::JoinGroup& request);
  // Waits for a seat that is newer than this one. UNAVAILABLE: none until `deadline`.
  Result<Seat> Newer(Generation than, TimePoint deadline);
  // The same, for ever. Nothing: it stops.
  std::optional<Seat> Newer(Generation than);
  bool HasNewer(Generation than);
  // Ends all groups, and waits for seats.
  void Stop();

 private:
  Seats(const v1::StartExecutor& start, net::Listener listener,
        std::optional<collectives::LinkCosts> costs);
  void AbortAll(const Status& why) MUSTER_REQUIRES(mutex_);

  const std::string name_;
  const std::string key_;
  const std::shared_ptr<tls::KeyContext> tls_;
  const Incarnation executor_;
  const std::string wait_page_;
  const std::optional<collectives::LinkCosts> costs_;
  const net::Listener listener_;
  Mutex mutex_;
  Condition changed_;
  Seat newest_ MUSTER_GUARDED_BY(mutex_);
  // Those that steps may still be made in, or have been.
  std::vector<std::weak_ptr<collectives::Group>> formed_ MUSTER_GUARDED_BY(mutex_);
  bool stop_ MUSTER_GUARDED_BY(mutex_) = false;
};

}  // namespace muster::executor
