// Where an executor, of a program or of a model, serves its driver; and what it tells its daemon of
// that.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dispatch/running_table.h"

#include "common/base/status.h"
#include "common/net/handshake.h"
#include "common/net/socket.h"
#include "common/tls/key_context.h"
#include "muster/v1/program.pb.h"

namespace muster::program {

// As `start` says: link, host, folder. In the order in which peers prefer them is theirs to say:
// TCP first, then the Unix socket.
//   kFailedPrecondition: a Unix socket alone is wanted, and no folder was given.
Result<std::vector<net::Listener>> ListenForDrivers(const v1::ProgramStart& start);
v1::DataEndpoint EndpointOf(const std::vector<net::Listener>& listeners,
                            const v1::ProgramStart& start);
// How the process's connections over TCP are encrypted: by the job's key; null: not at all.
std::shared_ptr<tls::KeyContext> TlsOf(const v1::ProgramStart& start);
// What it proves itself by to the others of its job.
net::Identity IdentityOf(const v1::ProgramStart& start);
// The file of this process's RunningTable, for its daemon; empty: there is no folder for it.
std::string RunningFile(const v1::ProgramStart& start);
v1::ProgramPulse PulseOf(const dispatch::RunningTable& running);

}  // namespace muster::program
