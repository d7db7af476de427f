#include "bench/pin.h"

#include <cerrno>

#include <sched.h>

namespace muster::bench {

Status PinTo(std::size_t nth) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return FromErrno(errno, "sched_getaffinity");
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || nth-- > 0) continue;
    CPU_SET(cpu, &one);
    if (::sched_setaffinity(0, sizeof(one), &one) == 0) return Ok();
    return FromErrno(errno, "sched_setaffinity");
  }
  return FailedPrecondition("--pin needs two processors; this process may use {}",
                            CPU_COUNT(&allowed));
}

}  // namespace muster::bench
