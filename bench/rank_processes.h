// A group of processes of this host, the ranks, to measure in.
#pragma once

#include <functional>

#include "collectives/group.h"
#include "collectives/process/group_spec.h"
#include "common/base/status.h"

namespace muster::bench {

// body(group) in each of `ranks` processes; rank 0 is this one, and its status is what comes back.
// `spec` says how data travels and what it costs.
Status InRanks(int ranks, collectives::GroupSpec spec,
               const std::function<Status(collectives::Group&)>& body);

}  // namespace muster::bench
