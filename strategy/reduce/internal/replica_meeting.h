// Collective calls of replicas meet where their other calls do.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "collectives/joint_group.h"
#include "collectives/local_group.h"
#include "strategy/core/replica_context.h"
#include "strategy/core/strategy.h"

namespace muster::internal {

// Lifetime: `context` outlives it.
class ReplicaMeeting final : public collectives::MeetingPlace {
 public:
  explicit ReplicaMeeting(ReplicaContext& context) : context_(context) {}
  void Meet(int, std::string call, void* arguments, const Joint& joint,
            collectives::Timeout timeout) override {
    context_.meet_any(std::move(call), arguments, joint, timeout);
  }

 private:
  ReplicaContext& context_;
};

// All replicas of a strategy, in whichever process, as one of them uses their group. Where a
// process has one, that is the group of processes itself. Threading: the replica's. Lifetime:
// `context` outlives it.
class AllReplicas {
 public:
  explicit AllReplicas(ReplicaContext& context) : meeting_(context) {
    const Strategy& strategy = context.strategy();
    const int replica = context.local_replica_id();
    const int replicas = strategy.num_local_replicas();
    collectives::Group* const between = strategy.collectives();
    if (between == nullptr) {
      group_ = &local_.emplace(meeting_, replica, replicas, strategy.torus());
    } else if (replicas == 1) {
      group_ = between;
    } else {
      group_ = &joint_.emplace(meeting_, replica, replicas, *between);
    }
  }
  AllReplicas(const AllReplicas&) = delete;
  AllReplicas& operator=(const AllReplicas&) = delete;

  collectives::Group* operator->() const { return group_; }

 private:
  ReplicaMeeting meeting_;
  std::optional<collectives::LocalGroup> local_;
  std::optional<collectives::JointGroup> joint_;
  collectives::Group* group_ = nullptr;
};

}  // namespace muster::internal
