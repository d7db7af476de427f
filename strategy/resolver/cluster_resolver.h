// How a process finds out which cluster it is part of, whatever runs that cluster.
//
//   TFConfigClusterResolver resolver;  // reads TF_CONFIG
//   resolver.cluster_spec().num_tasks("worker");
//   resolver.task_type();              // "worker"
//
// docs/cluster.md says what each kind asks, and where it differs from TensorFlow's.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/cluster/cluster_task.h"

namespace muster {

namespace cluster {
class ClusterResolver;
}

// Which tasks a cluster has and where each listens: job -> index -> "host:port". A job is dense
// (indices 0..n-1) or sparse. A value.
class ClusterSpec {
 public:
  using Tasks = std::map<int, std::string>;

  ClusterSpec() = default;
  // dense({{"ps", {"a:1"}}, {"worker", {"b:1", "c:1"}}})
  static ClusterSpec dense(const std::map<std::string, std::vector<std::string>>& jobs);
  // INVALID_ARGUMENT: a negative index.
  static ClusterSpec sparse(std::map<std::string, Tasks> jobs);

  const std::map<std::string, Tasks>& as_map() const { return jobs_; }
  std::vector<std::string> jobs() const;  // sorted names
  // Each of these: INVALID_ARGUMENT for a job, or an index, that is not there.
  int num_tasks(const std::string& job) const;
  std::vector<int> task_indices(const std::string& job) const;
  std::string task_address(const std::string& job, int index) const;
  // By index, with nothing in the holes of a sparse job.
  std::vector<std::optional<std::string>> job_tasks(const std::string& job) const;
  // ClusterSpec({'ps': ['a:1'], 'worker': {3: 'b:1'}})
  std::string to_string() const;

  // Whether there is any job.
  explicit operator bool() const { return !jobs_.empty(); }
  bool operator==(const ClusterSpec&) const = default;

 private:
  std::map<std::string, Tasks> jobs_;
};

// The devices of all tasks that the server at `master` ("": this process) knows, by names such as
// /job:worker/replica:0/task:1/device:GPU:0. Throws DEADLINE_EXCEEDED when it does not answer.
using ListDevices = std::function<std::vector<std::string>(const std::string& master)>;

// What every resolver answers. Each call that needs an answer from outside asks anew. A resolver of
// one's own derives from this.
// Threading: one thread at a time.
class ClusterResolver {
 public:
  virtual ~ClusterResolver() = default;

  virtual ClusterSpec cluster_spec() = 0;
  // The address of the task that `task` names, with what it leaves open taken from this resolver;
  // "" is this process. INVALID_ARGUMENT: the cluster has no such task.
  virtual std::string master(const ClusterTask& task = {}) = 0;

  // Which task this process is; nothing when unknown.
  virtual std::optional<std::string> task_type() { return std::nullopt; }
  virtual std::optional<int> task_id() { return std::nullopt; }
  virtual std::optional<std::string> rpc_layer() { return std::nullopt; }
  // FAILED_PRECONDITION: this kind of resolver does not allow it.
  virtual void set_task_type(const std::string& type);
  virtual void set_task_id(int id);
  virtual void set_rpc_layer(const std::string& rpc_layer);

  // "google" or nothing, of old.
  virtual std::string environment() { return ""; }
  // Devices other than CPUs, of the task that `task` names; of all tasks when it is open.
  // FAILED_PRECONDITION: no way of listing devices was given.
  virtual AcceleratorCounts num_accelerators(const ClusterTask& task = {});
};

namespace internal {

// The kinds below: faces of what the daemons use, too.
class ResolverFace : public ClusterResolver {
 public:
  ~ResolverFace() override;
  ClusterSpec cluster_spec() override;
  std::string master(const ClusterTask& task = {}) override;
  std::optional<std::string> task_type() override;
  std::optional<int> task_id() override;
  std::optional<std::string> rpc_layer() override;
  void set_task_type(const std::string& type) override;
  void set_task_id(int id) override;
  void set_rpc_layer(const std::string& rpc_layer) override;
  std::string environment() override;
  AcceleratorCounts num_accelerators(const ClusterTask& task = {}) override;

 protected:
  struct Impl;
  explicit ResolverFace(std::unique_ptr<Impl> impl);
  const Impl& impl() const { return *impl_; }

 private:
  cluster::ClusterResolver& inner() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace internal

// TF_CONFIG, read anew on every call; not set: an empty cluster and no task.
// Every call: INVALID_ARGUMENT for a TF_CONFIG that is broken; the text says where.
// master(): FAILED_PRECONDITION when neither TF_CONFIG nor the caller says which task.
class TFConfigClusterResolver final : public internal::ResolverFace {
 public:
  struct Options {
    ClusterTask task = {};  // wins over TF_CONFIG, and the setters over both
    std::string environment = {};
    ListDevices list_devices = {};
  };
  TFConfigClusterResolver() : TFConfigClusterResolver(Options{}) {}
  explicit TFConfigClusterResolver(const Options& options);
};

// Gives back what it is given.
class SimpleClusterResolver final : public internal::ResolverFace {
 public:
  struct Options {
    std::string master = {};
    ClusterTask task = {};
    std::string environment = {};
    AcceleratorCounts num_accelerators = {};
  };
  explicit SimpleClusterResolver(const ClusterSpec& spec) : SimpleClusterResolver(spec, {}) {}
  SimpleClusterResolver(const ClusterSpec& spec, const Options& options);
};

// Several clusters as one. Of a job that two of them have, dense lists are put one behind the
// other; as soon as one is sparse, tasks keep their indices: ALREADY_EXISTS where they clash.
// `task` wins over the first resolver's. INVALID_ARGUMENT: no resolver, or a null one.
class UnionResolver final : public internal::ResolverFace {
 public:
  explicit UnionResolver(std::vector<std::shared_ptr<ClusterResolver>> resolvers,
                         const ClusterTask& task = {});
};

// The tasks of a Slurm job step. Reads the environment once.
//   FAILED_PRECONDITION: a SLURM_ variable is missing, or they and the options do not fit.
//   INVALID_ARGUMENT: a variable of another form, a negative number, a port beyond 65535.
class SlurmClusterResolver final : public internal::ResolverFace {
 public:
  struct Options {
    std::map<std::string, int> jobs = {};  // -> number of tasks; empty: all tasks are workers
    int port_base = 8888;                  // the k-th task of a node listens on port_base + k
    // Default: as many as CUDA_VISIBLE_DEVICES lists, else SLURM_GPUS_ON_NODE, else count_gpus().
    std::optional<int> gpus_per_node = {};
    std::optional<int> gpus_per_task = {};   // default: spread over the tasks of the fullest node
    std::optional<int> tasks_per_node = {};  // default: SLURM_STEP_TASKS_PER_NODE
    std::string rpc_layer = "grpc";
    std::function<int()> count_gpus = {};
  };
  SlurmClusterResolver() : SlurmClusterResolver(Options{}) {}
  explicit SlurmClusterResolver(const Options& options);

  // For CUDA_VISIBLE_DEVICES of this process: "0,1". Empty: no GPU.
  std::string visible_gpus() const;
};

// Amazon SageMaker: SM_HOSTS and SM_CURRENT_HOST make a cluster of workers.
// Every call: FAILED_PRECONDITION, these variables are missing or do not fit; INVALID_ARGUMENT,
// SM_HOSTS is not a list of names.
class SageMakerClusterResolver final : public internal::ResolverFace {
 public:
  struct Options {
    int port = 2223;
    ClusterTask task = {};
    ListDevices list_devices = {};
  };
  SageMakerClusterResolver() : SageMakerClusterResolver(Options{}) {}
  explicit SageMakerClusterResolver(const Options& options);
};

// The pods that label selectors pick. Every cluster_spec() asks the API server again.
//   FAILED_PRECONDITION: within a cluster, and the environment does not say where the API is; a
//   selected pod is not Running, or has no address.
//   INVALID_ARGUMENT: off a cluster without an endpoint.
//   UNAVAILABLE, DEADLINE_EXCEEDED: the server; the text has method and URL.
class KubernetesClusterResolver final : public internal::ResolverFace {
 public:
  struct Options {
    // Job -> label selectors. Pods of the first selector come first, those of one by name.
    std::map<std::string, std::vector<std::string>> selectors = {
        {"worker", {"job-name=tensorflow"}}};
    int port = 8470;
    std::string rpc_layer = "grpc";
    bool within_cluster = true;  // finds server, CA and token by itself
    std::string endpoint = {};   // https://host:port
    std::string ca_file = {};
    std::string token_file = {};     // off a cluster: empty is no token
    std::string pod_namespace = {};  // empty: all of them
    bool use_host_ip = false;
    std::chrono::milliseconds timeout{10'000};  // for all that one call asks
    ListDevices list_devices = {};
  };
  KubernetesClusterResolver() : KubernetesClusterResolver(Options{}) {}
  explicit KubernetesClusterResolver(const Options& options);
};

// Who asks Google's services. A file with a token wins; without one the metadata server gives out
// the virtual machine's. Both empty: nobody.
struct GoogleIdentity {
  std::string token_file = {};
  std::string metadata_endpoint = "http://metadata.google.internal";
  std::string ca_file = {};  // empty: the system's
};

// The running instances of a group of Compute Engine, sorted by address. set_task_type() is
// FAILED_PRECONDITION: the job that the group makes is fixed.
class GCEClusterResolver final : public internal::ResolverFace {
 public:
  struct Options {
    std::string project = {};
    std::string zone = {};
    std::string instance_group = {};
    int port = 8470;
    std::string task_type = "worker";
    int task_id = 0;
    std::string rpc_layer = "grpc";
    std::string endpoint = "https://compute.googleapis.com";
    GoogleIdentity identity = {};
    std::chrono::milliseconds timeout{30'000};  // for all that one call asks
    ListDevices list_devices = {};
  };
  explicit GCEClusterResolver(const Options& options);
};

// A Cloud TPU by name, or by the addresses of its workers, or the TPU of this host ("local").
//   INVALID_ARGUMENT: no TPU is named, or one half of a coordinator.
//   FAILED_PRECONDITION: the TPU is not READY; its master did not answer when asked for devices.
class TPUClusterResolver final : public internal::ResolverFace {
 public:
  struct Options {
    // Empty: KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, else TPU_NAME. "grpc://ip[:port],..": these workers,
    // without asking the service (port 8470 where open). "local": the cores of this process, which
    // strategy/tpu/tpu_system.h brings up.
    std::string tpu = {};
    std::string zone = {};     // empty: as the metadata server says
    std::string project = {};  // likewise
    std::string job_name = "worker";
    std::string coordinator_name = {};  // with its address: a job of one task, added to the cluster
    std::string coordinator_address = {};
    std::string endpoint = "https://tpu.googleapis.com";
    GoogleIdentity identity = {};
    std::chrono::milliseconds timeout{30'000};  // for all that one call asks
    int retries = 120;  // how often an unreachable master is asked again for its devices
    ListDevices list_devices = {};
  };
  TPUClusterResolver() : TPUClusterResolver(Options{}) {}
  explicit TPUClusterResolver(const Options& options);
};

}  // namespace muster
