// The part of `muster-bench schedule` about long arguments and values: how fast their bytes pass
// between a driver and an executor of this host, beside memcpy and a bare socket.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "common/base/status.h"

namespace muster::bench {

Result<nlohmann::ordered_json> MeasureBytes();

}  // namespace muster::bench
