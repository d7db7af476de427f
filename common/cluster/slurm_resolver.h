// A cluster made of the tasks of a Slurm job step.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/environment.h"
#include "common/cluster/resolver.h"

namespace muster::cluster {

// "n[1-2],m5,o[3-4,6]" -> n1 n2 m5 o3 o4 o6; "n[0001-0003]" keeps the zeros. In the order given.
//   kInvalidArgument: any other form, or more than 65536 hosts.
[[nodiscard]] Result<std::vector<std::string>> ExpandHostList(std::string_view list);

// "3(x2),2" -> 3 3 2.
//   kInvalidArgument: any other form, or more than 65536 nodes.
[[nodiscard]] Result<std::vector<int>> ExpandTasksPerNode(std::string_view text);

// Task r of the step (SLURM_PROCID) is the r-th in Slurm's distribution of ranks: node by node in
// the order of the node list ("block"), or dealt to the nodes in turn, one or SLURM_DIST_PLANESIZE
// at a time ("cyclic" and "plane" in SLURM_DISTRIBUTION). The jobs, by name, take their tasks from
// the front of that sequence. The k-th task of a host, which may be listed twice, listens on
// port_base + k and sees gpus_per_task GPUs from the (k * gpus_per_task)-th on: of those that
// CUDA_VISIBLE_DEVICES lists where they were counted by it, else by number.
class SlurmResolver : public ClusterResolver {
 public:
  struct Options {
    // Job -> number of tasks. Empty: all tasks of the step are workers.
    std::map<std::string, int> jobs = {};
    int port_base = 8888;
    // Default: as many as CUDA_VISIBLE_DEVICES lists before what is no device, else
    // SLURM_GPUS_ON_NODE, else count_gpus().
    std::optional<int> gpus_per_node = {};
    // Default: gpus_per_node spread over the tasks of the fullest node.
    std::optional<int> gpus_per_task = {};
    // Default: SLURM_STEP_TASKS_PER_NODE.
    std::optional<int> tasks_per_node = {};
    std::string rpc_layer = "grpc";
    std::function<int()> count_gpus = {};
  };

  // Reads the environment once.
  //   kFailedPrecondition: a SLURM_ variable is missing, node list and tasks per node do not fit,
  //                        more GPUs are asked for than a node has, the jobs do not add up to
  //                        the step's tasks, or their distribution is another ("arbitrary").
  //   kInvalidArgument: a variable of another form, a negative number, a port beyond 65535.
  static Result<std::unique_ptr<SlurmResolver>> Create(const Environment& environment,
                                                       Options options);
  static Result<std::unique_ptr<SlurmResolver>> Create(const Environment& environment);

  Result<ClusterSpec> Cluster() override;
  // Which task this process is, is known once Cluster() was called.
  Result<AcceleratorCounts> NumAccelerators(const ClusterTask& = {}) override;

  // For CUDA_VISIBLE_DEVICES of this process: "0,1". Empty: no GPU.
  [[nodiscard]] std::string VisibleGpus() const;

 private:
  using Nodes = std::vector<std::pair<std::string, int>>;  // host, tasks; as listed
  struct Place {
    std::size_t node = 0;
    int local = 0;  // among the tasks of its host
  };
  struct Gpus {
    int per_node = 0;
    int per_task = 0;
    // What CUDA calls them; empty: 0, 1, ..
    std::vector<std::string> names;
  };
  static Result<Nodes> ReadNodes(const Environment& environment, const Options& options);
  // The place of each rank.
  static Result<std::vector<Place>> ReadPlaces(const Environment& environment, const Nodes& nodes);
  // Those of a node, to be spread over its tasks.
  static Result<Gpus> FindGpus(const Environment& environment, const Options& options);
  static Result<Gpus> ReadGpus(const Environment& environment, const Options& options,
                               int fullest_node);
  SlurmResolver(Options options, Nodes nodes, std::vector<Place> places, Gpus gpus, int rank);

  Options options_;
  Nodes nodes_;
  std::vector<Place> places_;
  Gpus gpus_;
  int rank_;
};

}  // namespace muster::cluster
