// What is said where the kernel gives no further process or thread.
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace muster::process {

// kResourceExhausted: "<what>: <error>", and which limits there are. `error`: an errno, of fork()
// or of a thread's start. Threading: any.
Status NoMore(int error, std::string_view what);

}  // namespace muster::process
