// Collective calls of replicas meet where their other calls do.
#pragma once

#include <string>
#include <utility>

#include "collectives/local_group.h"
#include "strategy/core/replica_context.h"

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

}  // namespace muster::internal
