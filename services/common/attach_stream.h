// AttachStream over gRPC.
#pragma once

#include "services/common/attach_client.h"
#include "services/common/grpc_channel.h"

namespace muster::services {

// Opens streams over one channel that connects again by itself.
OpenAttachStream GrpcAttachStreams(const ControlPlane& control);

}  // namespace muster::services
