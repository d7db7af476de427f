// Makes libtorch's CPU allocations follow ArenaScope.
#pragma once

namespace muster::device {

// Installs the allocator; at the first call only. Memory that libtorch allocated before stays
// valid. Threading: any thread.
void InstallCpuAllocator();

}  // namespace muster::device
