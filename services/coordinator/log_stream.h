// The stream of ReadLogs: pages of the log store, then, when following, what comes, until the job
// has ended.
#pragma once

#include "muster/v1/jobs.grpc.pb.h"
#include "services/coordinator/front.h"

namespace muster::coordinator {

// gRPC owns the result. Lifetime: `front` outlives it.
grpc::ServerWriteReactor<v1::LogRecord>* StreamLogs(Front& front,
                                                    grpc::CallbackServerContext* context,
                                                    const v1::ReadLogsRequest& request);

}  // namespace muster::coordinator
