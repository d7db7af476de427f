// A process and what it has started. Threading: any thread.
#pragma once

#include <vector>

namespace muster::process {

// The process first, then its descendants; while they are looked for some come and go, also under
// numbers that were there before. Where the kernel does not tell children (CONFIG_PROC_CHILDREN),
// the process alone.
std::vector<int> FamilyOf(int pid);

}  // namespace muster::process
