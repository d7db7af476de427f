// Which task of a cluster is meant, and what it may have: words that daemons and programs share.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace muster {

// A task, in part or in whole, and how to speak to it ("grpc" gives "grpc://host:port").
struct ClusterTask {
  std::optional<std::string> task_type = {};
  std::optional<int> task_id = {};
  std::optional<std::string> rpc_layer = {};
};

// Type of accelerator -> how many: {"GPU": 2}.
using AcceleratorCounts = std::map<std::string, int>;

}  // namespace muster
