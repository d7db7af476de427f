// What processes wait for, as heartbeats tell it.
#pragma once

#include "common/process/wait_page.h"
#include "muster/v1/cluster.pb.h"

namespace muster::worker {

// Whose it is remains to be said.
inline v1::CollectiveWait ToProto(const process::Wait& wait) {
  v1::CollectiveWait proto;
  proto.set_generation(wait.generation.value());
  proto.set_operation(wait.operation);
  proto.set_call(wait.call);
  proto.set_awaited(wait.awaited);
  proto.set_lasts_ms(static_cast<std::uint64_t>(wait.lasts.count()));
  proto.set_limit_ms(static_cast<std::uint64_t>(wait.limit.count()));
  return proto;
}

}  // namespace muster::worker
