// The files of a process of ours whose parent has told it by its environment.
#pragma once

#include "common/base/environment.h"
#include "common/tls/context.h"

namespace muster::tls {

// MUSTER_TLS_CA, MUSTER_TLS_CERT, MUSTER_TLS_KEY, MUSTER_TLS_ALLOWED; what is not set is empty.
Files FilesFrom(const Environment& environment);

}  // namespace muster::tls
