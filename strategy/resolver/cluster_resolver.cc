#include "strategy/resolver/cluster_resolver.h"

#include <utility>

#include "common/cluster/basic_resolvers.h"
#include "common/cluster/google_resolvers.h"
#include "common/cluster/kubernetes_resolver.h"
#include "common/cluster/resolver.h"
#include "common/cluster/slurm_resolver.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/logical_devices.h"

namespace muster {
namespace {

cluster::ClusterSpec Inner(const ClusterSpec& spec) {
  return value_of(cluster::ClusterSpec::Create(spec.as_map()));
}
ClusterSpec Outer(const cluster::ClusterSpec& spec) { return ClusterSpec::sparse(spec.jobs()); }

cluster::GoogleIdentity Inner(const GoogleIdentity& identity) {
  return {.token_file = identity.token_file,
          .metadata_endpoint = identity.metadata_endpoint,
          .ca_file = identity.ca_file};
}

// What user code returns or throws, as below strategy/.
template <class F>
auto ResultOf(const F& call) -> Result<decltype(call())> {
  try {
    return call();
  } catch (const Error& error) {
    return ToStatus(error);
  }
}

class Lister final : public cluster::DeviceLister {
 public:
  explicit Lister(muster::ListDevices list) : list_(std::move(list)) {}
  Result<std::vector<std::string>> ListDevices(const std::string& master) override {
    return ResultOf([&] { return list_(master); });
  }

 private:
  const muster::ListDevices list_;
};

// A resolver of the public API below strategy/: a member of a union.
class Member final : public cluster::ClusterResolver {
 public:
  explicit Member(std::shared_ptr<muster::ClusterResolver> face)
      : cluster::ClusterResolver({}), face_(std::move(face)) {}

  Result<cluster::ClusterSpec> Cluster() override {
    return ResultOf([&] { return Inner(face_->cluster_spec()); });
  }
  Result<std::string> Master(const ClusterTask& choice) override {
    return ResultOf([&] { return face_->master(choice); });
  }
  Result<std::optional<std::string>> TaskType() override {
    return ResultOf([&] { return face_->task_type(); });
  }
  Result<std::optional<int>> TaskId() override {
    return ResultOf([&] { return face_->task_id(); });
  }
  Result<std::optional<std::string>> RpcLayer() override {
    return ResultOf([&] { return face_->rpc_layer(); });
  }
  std::string EnvironmentName() const override { return face_->environment(); }
  Result<AcceleratorCounts> NumAccelerators(const ClusterTask& choice) override {
    return ResultOf([&] { return face_->num_accelerators(choice); });
  }

 private:
  const std::shared_ptr<muster::ClusterResolver> face_;
};

[[noreturn]] void RaiseFixed(std::string_view what) {
  raise(FailedPrecondition("this resolver does not allow another {}", what));
}

}  // namespace

ClusterSpec ClusterSpec::dense(const std::map<std::string, std::vector<std::string>>& jobs) {
  return Outer(cluster::ClusterSpec::Dense(jobs));
}

ClusterSpec ClusterSpec::sparse(std::map<std::string, Tasks> jobs) {
  ClusterSpec spec;
  spec.jobs_ = value_of(cluster::ClusterSpec::Create(std::move(jobs))).jobs();
  return spec;
}

std::vector<std::string> ClusterSpec::jobs() const {
  std::vector<std::string> names;
  for (const auto& [name, tasks] : jobs_) names.push_back(name);
  return names;
}

int ClusterSpec::num_tasks(const std::string& job) const {
  return value_of(Inner(*this).NumTasks(job));
}
std::vector<int> ClusterSpec::task_indices(const std::string& job) const {
  return value_of(Inner(*this).TaskIndices(job));
}
std::string ClusterSpec::task_address(const std::string& job, int index) const {
  return value_of(Inner(*this).TaskAddress(job, index));
}
std::vector<std::optional<std::string>> ClusterSpec::job_tasks(const std::string& job) const {
  return value_of(Inner(*this).JobTasks(job));
}
std::string ClusterSpec::to_string() const { return Inner(*this).ToString(); }

void ClusterResolver::set_task_type(const std::string&) { RaiseFixed("task type"); }
void ClusterResolver::set_task_id(int) { RaiseFixed("task id"); }
void ClusterResolver::set_rpc_layer(const std::string&) { RaiseFixed("rpc layer"); }
AcceleratorCounts ClusterResolver::num_accelerators(const ClusterTask&) {
  raise(FailedPrecondition("this resolver was given no way of listing devices"));
}

namespace internal {

struct ResolverFace::Impl {
  // make(lister) makes the resolver below strategy/; no function is a null lister.
  template <class Make>
  static std::unique_ptr<Impl> With(const ListDevices& list, const Make& make) {
    auto impl = std::make_unique<Impl>();
    if (list) impl->lister = std::make_unique<Lister>(list);
    impl->resolver = make(impl->lister.get());
    return impl;
  }

  std::unique_ptr<Lister> lister;  // outlives the resolver
  std::unique_ptr<cluster::ClusterResolver> resolver;
};

ResolverFace::ResolverFace(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ResolverFace::~ResolverFace() = default;
cluster::ClusterResolver& ResolverFace::inner() const { return *impl_->resolver; }

ClusterSpec ResolverFace::cluster_spec() { return Outer(value_of(inner().Cluster())); }
std::string ResolverFace::master(const ClusterTask& task) { return value_of(inner().Master(task)); }
std::optional<std::string> ResolverFace::task_type() { return value_of(inner().TaskType()); }
std::optional<int> ResolverFace::task_id() { return value_of(inner().TaskId()); }
std::optional<std::string> ResolverFace::rpc_layer() { return value_of(inner().RpcLayer()); }
void ResolverFace::set_task_type(const std::string& type) {
  raise_unless_ok(inner().SetTaskType(type));
}
void ResolverFace::set_task_id(int id) { raise_unless_ok(inner().SetTaskId(id)); }
void ResolverFace::set_rpc_layer(const std::string& rpc_layer) {
  raise_unless_ok(inner().SetRpcLayer(rpc_layer));
}
std::string ResolverFace::environment() { return inner().EnvironmentName(); }
AcceleratorCounts ResolverFace::num_accelerators(const ClusterTask& task) {
  return value_of(inner().NumAccelerators(task));
}

}  // namespace internal

TFConfigClusterResolver::TFConfigClusterResolver(const Options& options)
    : ResolverFace(Impl::With(options.list_devices, [&](cluster::DeviceLister* devices) {
        return std::make_unique<cluster::TfConfigResolver>(
            ProcessEnvironment(),
            cluster::TfConfigResolver::Options{
                .task = options.task, .environment_name = options.environment, .devices = devices});
      })) {}

SimpleClusterResolver::SimpleClusterResolver(const ClusterSpec& spec, const Options& options)
    : ResolverFace(Impl::With({}, [&](cluster::DeviceLister*) {
        return std::make_unique<cluster::SimpleResolver>(
            Inner(spec),
            cluster::SimpleResolver::Options{.master = options.master,
                                             .task = options.task,
                                             .environment_name = options.environment,
                                             .accelerators = options.num_accelerators});
      })) {}

UnionResolver::UnionResolver(std::vector<std::shared_ptr<ClusterResolver>> resolvers,
                             const ClusterTask& task)
    : ResolverFace(Impl::With({}, [&](cluster::DeviceLister*) {
        std::vector<std::unique_ptr<cluster::ClusterResolver>> members;
        for (auto& one : resolvers) {
          members.push_back(one == nullptr ? nullptr : std::make_unique<Member>(std::move(one)));
        }
        return value_of(cluster::UnionResolver::Create(std::move(members), task));
      })) {}

SlurmClusterResolver::SlurmClusterResolver(const Options& options)
    : ResolverFace(Impl::With({}, [&](cluster::DeviceLister*) {
        return value_of(cluster::SlurmResolver::Create(ProcessEnvironment(),
                                                       {.jobs = options.jobs,
                                                        .port_base = options.port_base,
                                                        .gpus_per_node = options.gpus_per_node,
                                                        .gpus_per_task = options.gpus_per_task,
                                                        .tasks_per_node = options.tasks_per_node,
                                                        .rpc_layer = options.rpc_layer,
                                                        .count_gpus = options.count_gpus}));
      })) {}

std::string SlurmClusterResolver::visible_gpus() const {
  return static_cast<const cluster::SlurmResolver&>(*impl().resolver).VisibleGpus();
}

SageMakerClusterResolver::SageMakerClusterResolver(const Options& options)
    : ResolverFace(Impl::With(options.list_devices, [&](cluster::DeviceLister* devices) {
        return std::make_unique<cluster::SageMakerResolver>(
            ProcessEnvironment(),
            cluster::SageMakerResolver::Options{
                .port = options.port, .task = options.task, .devices = devices});
      })) {}

KubernetesClusterResolver::KubernetesClusterResolver(const Options& options)
    : ResolverFace(Impl::With(options.list_devices, [&](cluster::DeviceLister* devices) {
        return value_of(cluster::KubernetesResolver::Create(
            ProcessEnvironment(),
            {.selectors = options.selectors,
             .port = options.port,
             .rpc_layer = options.rpc_layer,
             .location = options.within_cluster ? cluster::ExecutableLocation::kWithinCluster
                                                : cluster::ExecutableLocation::kOffCluster,
             .endpoint = options.endpoint,
             .ca_file = options.ca_file,
             .token_file = options.token_file,
             .pod_namespace = options.pod_namespace,
             .use_host_ip = options.use_host_ip,
             .timeout = options.timeout,
             .devices = devices}));
      })) {}

GCEClusterResolver::GCEClusterResolver(const Options& options)
    : ResolverFace(Impl::With(options.list_devices, [&](cluster::DeviceLister* devices) {
        return std::make_unique<cluster::GceResolver>(
            cluster::GceResolver::Options{.project = options.project,
                                          .zone = options.zone,
                                          .instance_group = options.instance_group,
                                          .port = options.port,
                                          .task_type = options.task_type,
                                          .task_id = options.task_id,
                                          .rpc_layer = options.rpc_layer,
                                          .endpoint = options.endpoint,
                                          .identity = Inner(options.identity),
                                          .timeout = options.timeout,
                                          .devices = devices});
      })) {}

namespace {

// Those of this process's TPU ("local", which the environment may say, too: its master is nobody
// else's), where nobody says how others are listed.
ListDevices ListerOf(const TPUClusterResolver::Options& options) {
  if (options.list_devices) return options.list_devices;
  return [](const std::string& master) {
    if (!master.empty()) {
      raise(FailedPrecondition("this resolver was given no way of listing the devices of {}",
                               master));
    }
    return list_logical_devices("TPU");
  };
}

}  // namespace

TPUClusterResolver::TPUClusterResolver(const Options& options)
    : ResolverFace(Impl::With(ListerOf(options), [&](cluster::DeviceLister* devices) {
        return value_of(cluster::TpuResolver::Create(
            ProcessEnvironment(), {.tpu = options.tpu,
                                   .zone = options.zone,
                                   .project = options.project,
                                   .job_name = options.job_name,
                                   .coordinator_name = options.coordinator_name,
                                   .coordinator_address = options.coordinator_address,
                                   .endpoint = options.endpoint,
                                   .identity = Inner(options.identity),
                                   .timeout = options.timeout,
                                   .retries = options.retries,
                                   .devices = devices}));
      })) {}

}  // namespace muster
