// AttachStream over gRPC.
#pragma once

#include <functional>

#include "common/base/status.h"
#include "services/common/attach_client.h"
#include "services/common/grpc_channel.h"

namespace muster::services {

// Opens streams over one channel that connects again by itself.
OpenAttachStream GrpcAttachStreams(const ControlPlane& control);

// AttachClient::Options::explain: what a TLS handshake says, within seconds.
std::function<Status()> ExplainByTls(const ControlPlane& control);

}  // namespace muster::services
