#include "services/common/daemon_config.h"

#include "common/base/task_name.h"
#include "common/cluster/tf_config.h"
#include "services/common/tls_files.h"

namespace muster::services {
namespace {

using config::Kind;

constexpr std::string_view kCoordinatorType = "chief";

Result<TaskId> ParseTask(const std::string& text, const std::string& where) {
  if (std::optional<TaskId> task = TaskIn(text)) return *std::move(task);
  return InvalidArgument("{}: task \"{}\" must be type:index, for example ps:0", where, text);
}

// The task by setting; the coordinator need not be told.
Result<std::optional<TaskId>> ToldTask(const Role& role, const config::Values& values) {
  if (values.Given("task")) {
    MUSTER_TRY_ASSIGN(TaskId task, ParseTask(values.String("task"), values.OriginOf("task").where));
    return std::optional(std::move(task));
  }
  if (role.task_type != kCoordinatorType) return std::optional<TaskId>();
  return std::optional(TaskId{.type = role.task_type, .index = 0});
}

Result<std::optional<cluster::TaskConfig>> ReadTfConfig(const Environment& environment,
                                                        const std::optional<TaskId>& told) {
  const std::optional<std::string> text = environment("TF_CONFIG");
  if (!text || text->empty()) return std::optional<cluster::TaskConfig>();
  Result<cluster::TaskConfig> parsed = cluster::FromTfConfig(*text, told);
  if (!parsed.ok()) {
    const std::string message = Message(parsed.status());
    if (message.starts_with("TF_CONFIG")) return parsed.status();
    return Annotate(parsed.status(), "TF_CONFIG");
  }
  return std::optional<cluster::TaskConfig>(*std::move(parsed));
}

Status ChooseTask(const Role& role, const std::optional<cluster::TaskConfig>& tf,
                  const std::optional<TaskId>& told, DaemonConfig& out) {
  const config::Values& values = out.values;
  std::string where = "TF_CONFIG";
  if (values.Given("task")) {
    where = values.OriginOf("task").where;
    out.task = *told;
  } else if (tf) {
    out.task = tf->task;
  } else if (told) {
    out.task = *told;
    where = "default";
  } else {
    return FailedPrecondition(
        "which task is this? Give --task {}:0 (or MUSTER_TASK), or set TF_CONFIG", role.task_type);
  }
  const bool other = !role.other_task_type.empty() && out.task.type == role.other_task_type;
  if (out.task.type != role.task_type && !other) {
    return InvalidArgument("{}: {} runs tasks of type \"{}\", not {}", where, role.program,
                           role.task_type, out.task.ToString());
  }
  return Ok();
}

Status ChooseListen(const std::optional<cluster::TaskConfig>& tf, DaemonConfig& out) {
  const config::Values& values = out.values;
  std::string text;
  std::string where = "TF_CONFIG";
  bool by_flag = false;
  if (values.Given("listen")) {
    text = values.String("listen");
    where = values.OriginOf("listen").where;
    by_flag = values.OriginOf("listen").layer == config::Origin::Layer::kFlag;
  } else if (tf) {
    const Result<std::string> own = tf->cluster.TaskAddress(out.task.type, out.task.index);
    if (own.ok()) text = *own;
  }
  if (text.empty()) {
    return FailedPrecondition(
        "where should {} listen? Give --listen 127.0.0.1:0 (a port of the system's choice) or "
        "list the task in TF_CONFIG",
        out.task.ToString());
  }
  Result<Endpoint> endpoint = ParseEndpoint(text);
  if (!endpoint.ok()) return Annotate(endpoint.status(), where);
  if (endpoint->port == 0 && !by_flag) {
    return InvalidArgument(
        "{}: address {}: port 0 is for the flag --listen only; others could not "
        "find this task",
        where, text);
  }
  out.listen = *std::move(endpoint);
  return Ok();
}

Status ChooseCoordinator(const Role& role, const std::optional<cluster::TaskConfig>& tf,
                         DaemonConfig& out) {
  if (role.task_type == kCoordinatorType) return Ok();
  std::string where = "TF_CONFIG, chief";
  if (out.values.Given("coordinator")) {
    out.coordinator = out.values.String("coordinator");
    where = out.values.OriginOf("coordinator").where;
  } else if (tf) {
    out.coordinator = tf->coordinator;
  }
  if (out.coordinator.empty()) {
    return FailedPrecondition(
        "where is the coordinator? {}. Give --coordinator host:port (or MUSTER_COORDINATOR)",
        tf ? "TF_CONFIG has no chief task" : "There is no TF_CONFIG");
  }
  const Result<Endpoint> endpoint = ParseEndpoint(out.coordinator);
  if (!endpoint.ok()) return Annotate(endpoint.status(), where);
  if (endpoint->port == 0) {
    return InvalidArgument("{}: coordinator {}: port 0 cannot be reached", where, out.coordinator);
  }
  return Ok();
}

Status RequireLoopback(const std::string& what, const std::string& host) {
  Result<bool> loopback = IsLoopback(host);
  if (!loopback.ok()) return Annotate(loopback.status(), what);
  if (*loopback) return Ok();
  return FailedPrecondition(
      "{} is not on loopback, and connections are not encrypted. Give --tls-ca, --tls-cert and "
      "--tls-key (docs/security.md), use 127.0.0.1, or --allow-insecure-network if every machine "
      "of "
      "that network may read the token and the data",
      what);
}

Status RequireLoopbackAdmin(const Endpoint& admin) {
  MUSTER_TRY_ASSIGN(const bool loopback, IsLoopback(admin.host));
  if (loopback) return Ok();
  return FailedPrecondition(
      "admin address {} is not on loopback, and the port is plain HTTP. Give --tls-ca, --tls-cert "
      "and --tls-key (docs/security.md), use 127.0.0.1, or --allow-insecure-admin if whoever "
      "reaches it may see jobs, curves and metrics",
      admin.ToString());
}

}  // namespace

std::vector<config::Setting> DaemonSettings(const Role& role) {
  std::vector<config::Setting> settings = {
      {.name = "task", .doc = "Which task this is, for example " + role.task_type + ":0."},
      {.name = "listen", .doc = "host:port for RPCs; port 0 lets the system choose."},
      {.name = "token-file", .doc = "File (mode 0600) with the cluster's token. Required."},
      {.name = "port-file", .doc = "Where to write host:port once it listens."},
      {.name = "admin-port",
       .kind = Kind::kInt,
       .doc =
           "Port for probes (/healthz, /readyz), /metrics and the coordinator's page; 0 lets the "
           "system choose. With tls-cert it speaks HTTPS, and all but the probes need a "
           "certificate. Default: none.",
       .least = 0,
       .most = 65'535},
      {.name = "admin-address",
       .fallback = "127.0.0.1",
       .doc = "Host of --admin-port; beyond loopback with tls-cert, --allow-insecure-admin, or "
              "--allow-insecure-network."},
      {.name = "allow-insecure-admin",
       .kind = Kind::kBool,
       .fallback = "false",
       .doc = "The admin port speaks HTTP, with tls-cert too, and may be beyond loopback: whoever "
              "reaches it may look, in the clear."},
      {.name = "admin-port-file",
       .doc = "Where to write host:port of --admin-port once it listens."},
      {.name = "state-dir", .doc = "Folder for what must outlive this process."},
      {.name = "allow-insecure-network",
       .kind = Kind::kBool,
       .fallback = "false",
       .doc = "Listen and connect beyond loopback, unencrypted."},
      {.name = "drain-timeout",
       .kind = Kind::kDuration,
       .fallback = "60s",
       .doc = "How long SIGTERM lets work finish."},
      {.name = "log-level",
       .fallback = "info",
       .doc = "Least level that is logged.",
       .choices = {"debug", "info", "warning", "error", "off"}},
      {.name = "log-format",
       .fallback = "auto",
       .doc = "auto: text on a terminal, JSON lines elsewhere.",
       .choices = {"auto", "text", "json"}},
  };
  for (config::Setting& setting : TlsSettings()) settings.push_back(std::move(setting));
  if (role.task_type != kCoordinatorType) {
    settings.push_back({.name = "coordinator", .doc = "host:port of the coordinator."});
  }
  settings.insert(settings.end(), role.settings.begin(), role.settings.end());
  return settings;
}

Result<DaemonConfig> MakeDaemonConfig(const Role& role, config::Values values,
                                      const Environment& environment) {
  MUSTER_TRY_ASSIGN(const std::optional<TaskId> told, ToldTask(role, values));
  MUSTER_TRY_ASSIGN(const std::optional<cluster::TaskConfig> tf, ReadTfConfig(environment, told));
  DaemonConfig out;
  out.values = std::move(values);
  MUSTER_TRY(ChooseTask(role, tf, told, out));
  MUSTER_TRY(ChooseListen(tf, out));
  MUSTER_TRY(ChooseCoordinator(role, tf, out));
  if (tf) out.cluster = tf->TrainingCluster();
  out.tls = TlsFilesOf(out.values);
  out.insecure_network = out.values.Bool("allow-insecure-network");
  if (out.insecure_network && out.tls.given()) {
    return InvalidArgument(
        "--allow-insecure-network is for connections that are not encrypted, and tls-ca, tls-cert "
        "and tls-key encrypt them: leave one of the two out");
  }
  if (!out.insecure_network && !out.tls.given()) {
    MUSTER_TRY(
        RequireLoopback(fmt::format("listen address {}", out.listen.ToString()), out.listen.host));
    if (!out.coordinator.empty()) {
      MUSTER_TRY(RequireLoopback(fmt::format("coordinator {}", out.coordinator),
                                 ParseEndpoint(out.coordinator)->host));
    }
  }
  if (out.values.Given("admin-port")) {
    out.admin = Endpoint{.host = out.values.String("admin-address"),
                         .port = static_cast<int>(out.values.Int("admin-port"))};
    const bool insecure = out.values.Bool("allow-insecure-admin");
    out.admin_tls = out.tls.given() && !insecure;
    if (!out.admin_tls && !out.insecure_network && !insecure) {
      MUSTER_TRY(RequireLoopbackAdmin(*out.admin));
    }
  }
  out.admin_port_file = out.values.String("admin-port-file");
  out.token_file = out.values.String("token-file");
  if (out.token_file.empty()) {
    return FailedPrecondition(
        "no token: give --token-file FILE (or MUSTER_TOKEN_FILE), a file of "
        "mode 0600 with the cluster's secret");
  }
  out.port_file = out.values.String("port-file");
  out.state_dir = out.values.String("state-dir");
  return out;
}

}  // namespace muster::services
