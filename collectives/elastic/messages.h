// Reports and groups as messages (proto/muster/v1/elastic.proto).
//
// Errors: kInvalidArgument, a peer's message is none that a worker sends.
#pragma once

#include "collectives/elastic/rendezvous.h"
#include "muster/v1/elastic.pb.h"

namespace muster::collectives {

v1::ElasticReport ToMessage(const WorkerReport& report);
v1::ElasticFormation ToMessage(const Formation& formation);
Result<WorkerReport> FromMessage(const v1::ElasticReport& message);
Result<Formation> FromMessage(const v1::ElasticFormation& message);

}  // namespace muster::collectives
