// JobService.Backup: copies the coordinator's state into a file beside it, which has no name any
// more when it is sent, and ends with the call.
#pragma once

#include <string>

#include "services/coordinator/front.h"

namespace muster::coordinator {

grpc::ServerWriteReactor<v1::FileChunk>* StreamBackup(Front& front,
                                                      grpc::CallbackServerContext* context,
                                                      const std::string& state_directory);

}  // namespace muster::coordinator
