#include "collectives/process/crowd.h"

#include <sched.h>

namespace muster::collectives {

bool Crowded(int members) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int processors = ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  return members > processors;
}

}  // namespace muster::collectives
