// Statuses as they travel.
#pragma once

#include "common/base/status.h"
#include "muster/v1/common.pb.h"

namespace muster {

// What is not UTF-8 in the message (a script's own text may hold anything) is replaced: protobuf
// would refuse to read all that the status travels in.
void SetStatus(const Status& status, v1::StatusProto& proto);

// A code that is none of Status's is kUnknown.
[[nodiscard]] Status FromProto(const v1::StatusProto& proto);

}  // namespace muster
