#include "common/process/no_more.h"

#include <system_error>

namespace muster::process {

// EAGAIN elsewhere says "try at once"; here it is a limit, which user code shares with its daemon
// and may have used up for as long as it runs.
Status NoMore(int error, std::string_view what) {
  return ResourceExhausted(
      "{}: {} (processes and threads here are at their limit: TasksMax of the unit, pids.max of "
      "the control group, or ulimit -u; raise it, or start fewer)",
      what, std::generic_category().message(error));
}

}  // namespace muster::process
