// Clusters that Google's services know: instance groups of Compute Engine, and Cloud TPUs.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/environment.h"
#include "common/cluster/google_api.h"
#include "common/cluster/resolver.h"

namespace muster::cluster {

// The running instances of a group are one job. Every call of Cluster() asks the service again.
class GceResolver : public ClusterResolver {
 public:
  struct Options {
    std::string project;
    std::string zone;
    std::string instance_group;
    int port = 8470;
    std::string task_type = "worker";
    int task_id = 0;
    std::string rpc_layer = "grpc";
    std::string endpoint = "https://compute.googleapis.com";
    GoogleIdentity identity = {};
    std::chrono::milliseconds timeout{30'000};  // for all that one call of Cluster() asks
    DeviceLister* devices = nullptr;
  };
  explicit GceResolver(Options options);

  // Sorted by address: 10.0.0.9 before 10.0.0.10.
  //   kInvalidArgument: no such port.  kFailedPrecondition: an instance has no address.
  //   kUnavailable: an answer of another form. And what FetchJson returns.
  Result<ClusterSpec> Cluster() override;
  //   kFailedPrecondition: always; the job that the group makes is fixed.
  Status SetTaskType(const std::string& type) override;

 private:
  Result<std::vector<std::string>> ListInstances(GoogleApi& api) const;
  Result<std::string> AddressOf(GoogleApi& api, const std::string& instance) const;
  Result<std::vector<std::string>> AddressesOf(const GoogleApi& api,
                                               const std::vector<std::string>& instances) const;

  Options options_;
};

// A Cloud TPU by name, or by the addresses of its workers, or the TPU of this host ("local").
class TpuResolver : public ClusterResolver {
 public:
  struct Options {
    // Empty: KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, else TPU_NAME. "local": the TPU of this host.
    // "grpc://ip[:port],..": these workers, without asking the service (port 8470 where open).
    std::string tpu = {};
    std::string zone = {};     // empty: as the metadata server says
    std::string project = {};  // likewise
    std::string job_name = "worker";
    // Both or none: a job of one task, added to the cluster.
    std::string coordinator_name = {};
    std::string coordinator_address = {};
    std::string endpoint = "https://tpu.googleapis.com";
    GoogleIdentity identity = {};
    std::chrono::milliseconds timeout{30'000};  // for all that one call of Cluster() asks
    // How often an unreachable master is asked again for its devices.
    int retries = 120;
    DeviceLister* devices = nullptr;
  };
  //   kInvalidArgument: no TPU is named, one half of a coordinator, or one with the workers' name.
  static Result<std::unique_ptr<TpuResolver>> Create(const Environment& environment,
                                                     Options options);

  // Asks the service again on every call. Empty for "local".
  //   kFailedPrecondition: the TPU is not READY.
  //   kUnavailable: an answer of another form. And what FetchJson returns.
  Result<ClusterSpec> Cluster() override;
  // "" for "local".
  Result<std::string> Master(const ClusterTask& choice = {}) override;
  // {"TPU": cores of each host}.
  //   kFailedPrecondition: the hosts have different numbers of cores; or the master did not answer
  //                        (kDeadlineExceeded) `retries` times and once more.
  Result<AcceleratorCounts> NumAccelerators(const ClusterTask& choice = {}) override;

 private:
  explicit TpuResolver(Options options);
  Result<std::vector<std::string>> Workers() const;
  Result<std::vector<std::string>> WorkersByService() const;
  Result<std::vector<std::string>> ListDevicesWithRetries();
  bool IsLocal() const { return options_.tpu == "local"; }

  Options options_;
};

}  // namespace muster::cluster
