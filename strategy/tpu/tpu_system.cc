#include "strategy/tpu/tpu_system.h"

#include <fmt/ranges.h>

#include "common/base/environment.h"
#include "common/telemetry/log.h"
#include "device/tpu.h"
#include "strategy/base/internal/raise.h"
#include "strategy/resolver/cluster_resolver.h"

namespace muster {
namespace {

// One task with all cores of the mesh.
Topology TopologyOf(const TpuMesh& mesh) {
  std::vector<int> shape(mesh.begin(), mesh.end());
  Topology::Devices devices(1);
  for (int core = 0; core < internal::product_of(shape); ++core) {
    devices[0].push_back(internal::digits_of(core, shape, {3, 0, 1, 2}));
  }
  return {std::move(shape), std::move(devices)};
}

}  // namespace

Topology initialize_tpu_system(const TpuSystemOptions& options) {
  device::TpuCores& cores = device::TpuCores::OfProcess();
  std::string wanted = options.topology;
  if (wanted.empty()) wanted = ProcessEnvironment()(kTpuTopologyVariable).value_or("");
  const auto up = cores.mesh();
  if (wanted.empty() && !up.has_value()) {
    raise(
        FailedPrecondition("this process has no TPU: say which one to emulate, by a topology such "
                           "as 2x2x1x2 or by MUSTER_TPU_TOPOLOGY=2x2x1x2 in the environment"));
  }
  const TpuMesh mesh = wanted.empty() ? *up : value_of(ParseTpuMesh(wanted));
  if (!value_of(cores.Start(mesh))) {
    log::Warning("the TPU system {} has already been initialized; what lies on its cores stays",
                 fmt::join(mesh, "x"));
  }
  return TopologyOf(mesh);
}

Topology initialize_tpu_system(ClusterResolver& resolver, const TpuSystemOptions& options) {
  if (const ClusterSpec spec = resolver.cluster_spec()) {
    raise(Unimplemented(
        "the TPU of {} is that of other hosts, for which there is no runtime yet: with tpu "
        "\"local\" this process emulates one",
        spec.to_string()));
  }
  return initialize_tpu_system(options);
}

void shutdown_tpu_system() { raise_unless_ok(device::TpuCores::OfProcess().Stop()); }

Topology internal::current_topology() {
  const auto mesh = device::TpuCores::OfProcess().mesh();
  if (!mesh.has_value()) {
    raise(FailedPrecondition("no TPU cores are up: call initialize_tpu_system() first"));
  }
  return TopologyOf(*mesh);
}

}  // namespace muster
