// What a process is called in errors that others read, too.
#pragma once

#include <memory>
#include <string>

#include "strategy/resolver/cluster_resolver.h"

namespace muster::internal {

// "worker:1", as the cluster calls this process: a chief makes ranks other numbers than the workers
// have. `otherwise`, where the resolver is null, knows no task, or throws: whoever tells others of
// an error does so all the same.
std::string task_name(const std::shared_ptr<ClusterResolver>& resolver, std::string otherwise);

}  // namespace muster::internal
