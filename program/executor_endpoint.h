// Where an executor, of a program or of a model, serves its driver; and what it tells its daemon of
// that.
#pragma once

#include <vector>

#include "dispatch/running_table.h"

#include "common/base/status.h"
#include "common/net/socket.h"
#include "muster/v1/program.pb.h"

namespace muster::program {

// As `start` says: link, host, folder. In the order in which peers prefer them is theirs to say:
// TCP first, then the Unix socket.
//   kFailedPrecondition: a Unix socket alone is wanted, and no folder was given.
Result<std::vector<net::Listener>> ListenForDrivers(const v1::ProgramStart& start);
v1::DataEndpoint EndpointOf(const std::vector<net::Listener>& listeners,
                            const v1::ProgramStart& start);
v1::ProgramPulse PulseOf(const dispatch::RunningTable& running);

}  // namespace muster::program
