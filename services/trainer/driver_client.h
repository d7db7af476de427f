// DriverApi over gRPC.
#pragma once

#include <memory>
#include <string>

#include "common/base/ids.h"
#include "services/trainer/driver_api.h"

namespace grpc {
class Channel;
}

namespace muster::services {
class Token;
}

namespace muster::trainer {

// Every call has a deadline; what it waits for is named in the error. `driver`: the number that
// this process was started with.
// Lifetime: `token` outlives the result.
std::unique_ptr<DriverApi> MakeDriverClient(std::shared_ptr<grpc::Channel> channel,
                                            const services::Token& token, std::string job_id,
                                            Incarnation driver);

}  // namespace muster::trainer
