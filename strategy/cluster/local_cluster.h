// Workers on threads of this process: to try a program, to debug it and to test its functions
// without a cluster.
//
//   muster::ClusterCoordinator coordinator(muster::local_cluster(2));
//
// Closures go to these workers as they go to processes, through sockets and as bytes. But globals
// are this process's, workers share its cores, and a function that crashes ends it.
//
// Threading: any thread. Lifetime: lives as long as its coordinator; what runs then is cancelled
// and waited for.
#pragma once

#include <cstdint>
#include <memory>

namespace muster {

namespace internal {
class ClusterLink;
}  // namespace internal

// `workers` that run `closures_per_worker` at a time, "worker:0" and so on.
//   INVALID_ARGUMENT: none of them, or none at a time.  UNAVAILABLE: no descriptors are left.
//   RESOURCE_EXHAUSTED: no threads are.
std::shared_ptr<internal::ClusterLink> local_cluster(int workers, int closures_per_worker = 1);

}  // namespace muster
