#include "strategy/core/replica_context.h"

#include <c10/util/Type.h>

#include "device/placing.h"
#include "device/random.h"
#include "device/replica_group.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/context.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/strategy.h"

namespace muster {

ReplicaContext::ReplicaContext(Strategy& strategy, int replica, device::ReplicaGroup* group)
    : strategy_(strategy), first_(strategy.first_replica()), replica_(replica), group_(group) {}

int ReplicaContext::num_replicas_in_sync() const { return strategy_.num_replicas_in_sync(); }

torch::Device ReplicaContext::device() const { return strategy_.torch_device(replica_); }

void ReplicaContext::require_mine() const {
  const ReplicaContext* const current = get_replica_context();
  if (current == this) return;
  if (current == nullptr) {
    raise(
        FailedPrecondition("Need to be inside the replica context of replica {}: this thread is "
                           "in cross-replica context",
                           replica_id_in_sync_group()));
  }
  if (&current->strategy() != &strategy_) {
    raise(FailedPrecondition(
        "Mismatching Strategy: the replica context belongs to another strategy"));
  }
  raise(FailedPrecondition("Mismatching ReplicaContext: replica {}'s, used by replica {}",
                           replica_id_in_sync_group(), current->replica_id_in_sync_group()));
}

std::string ReplicaContext::readable(const std::type_info& type) {
  return c10::demangle(type.name());
}

std::string ReplicaContext::kind_at(const std::string& type, const void* address) {
  return fmt::format("{} at {}", type, address);
}

void ReplicaContext::meet_any(std::string kind, void* arguments,
                              const std::function<void(std::vector<void*>&)>& joint,
                              std::optional<std::chrono::milliseconds> timeout) {
  require_mine();
  if (group_ == nullptr) {
    std::vector<void*> alone{arguments};
    joint(alone);
    return;
  }
  // Whichever replica comes last does the joint work: with random numbers of no replica.
  const auto for_all = [&joint](std::vector<void*>& all) {
    const device::GeneratorPause pause;
    joint(all);
  };
  group_->Meet(replica_, {std::move(kind), arguments}, for_all, timeout);
}

void ReplicaContext::run_merged(const std::function<void(Strategy&)>& body) {
  const internal::FrameGuard merge({.kind = internal::Frame::Kind::kMerge, .strategy = &strategy_});
  // Whichever replica came last: what the function makes lies where the program's own values do.
  const device::PlaceScope here(device::Place{});
  body(strategy_);
}

}  // namespace muster
