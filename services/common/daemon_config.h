// What every daemon is told: who it is, where it listens, where its coordinator is.
//
// Each setting comes from its flag, else its MUSTER_* variable, else the YAML file, else TF_CONFIG
// (task, listen, coordinator), else the default.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/environment.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/cluster/cluster_spec.h"
#include "common/config/settings.h"
#include "common/tls/context.h"
#include "services/common/network.h"

namespace muster::services {

// What sets one kind of daemon apart.
struct Role {
  std::string program;    // "muster-ps"
  std::string about;      // one line for --help
  std::string task_type;  // "ps"; "chief" is the coordinator
  // Another type of task that it may be; empty: none.
  std::string other_task_type = {};
  std::vector<config::Setting> settings = {};
};

struct DaemonConfig {
  TaskId task;
  Endpoint listen;
  // Empty for the coordinator itself.
  std::string coordinator;
  // From TF_CONFIG; the evaluator left out.
  std::optional<cluster::ClusterSpec> cluster;
  std::string token_file;
  std::string port_file;
  // Where it shows itself to people (services/admin); nullopt: nowhere.
  std::optional<Endpoint> admin;
  // By HTTPS; else by HTTP.
  bool admin_tls = false;
  std::string admin_port_file;
  std::string state_dir;
  bool insecure_network = false;
  // Not given: connections are in the clear.
  tls::Files tls;
  config::Values values;  // all settings, the role's too
};

// The settings of all daemons and those of `role`.
std::vector<config::Setting> DaemonSettings(const Role& role);

// Fills in the rest from TF_CONFIG and checks that it all goes together.
//   kInvalidArgument: a bad setting or TF_CONFIG; another role's task; no address; port 0 other
//   than by flag.  kFailedPrecondition: no coordinator, no token file, or an address beyond
//   loopback without TLS or --allow-insecure-network.
Result<DaemonConfig> MakeDaemonConfig(const Role& role, config::Values values,
                                      const Environment& environment);

}  // namespace muster::services
