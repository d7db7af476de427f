// What a daemon says of itself when it registers.
#pragma once

#include <cstdint>
#include <string>

#include "muster/v1/cluster.pb.h"
#include "services/common/daemon_config.h"
#include "services/common/network.h"

namespace muster::services {

// All but the data endpoint and the epoch. A boot id of its own for every call: call once.
v1::Register MakeRegistration(const DaemonConfig& config, const Endpoint& grpc);

// This process's, from /proc; 0 where that cannot be read.
std::uint64_t ResidentBytes();

}  // namespace muster::services
