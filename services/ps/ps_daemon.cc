#include "services/ps/ps_daemon.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <future>

#include <unistd.h>

#include "common/base/limits.h"
#include "common/base/private_directory.h"
#include "common/messages/status_proto.h"
#include "common/net/host_id.h"
#include "common/telemetry/log.h"
#include "services/common/admin.h"
#include "services/common/attach_stream.h"
#include "services/common/open_files.h"
#include "services/common/registration.h"
#include "services/common/socket_folder.h"

namespace muster::services {
namespace {

constexpr Millis kGoodbye{2'000};
// At the end, for a command that runs; one whose disk hangs is left behind.
constexpr Millis kLastCommands{2'000};

// Commands of one job run one after another; forgetting it waits for nothing.
std::string LaneOf(const v1::Command& command) {
  if (command.has_create_variables()) return command.create_variables().plan().job_id();
  if (command.has_save_variables()) return command.save_variables().job_id();
  return "";
}

// Unix socket paths have room for some 100 characters, so a deep state directory will not do.
Result<std::string> SocketDirectory(const DaemonConfig& config) {
  const std::string given = config.values.String("socket-dir");
  if (given == "none") return std::string();
  if (!given.empty()) return given;
  constexpr std::size_t kRoomForName = 60;
  if (!config.state_dir.empty() && config.state_dir.size() < kRoomForName) return config.state_dir;
  return MakeSocketFolder();
}

// The default is for a machine; a container may have less.
std::uint64_t StageBudget(const config::Values& values) {
  constexpr std::uint64_t kPart = 4;
  const std::uint64_t budget = values.Size("stage-budget");
  const std::optional<std::uint64_t> memory = ReadLimits().memory_bytes;
  if (values.Given("stage-budget") || !memory) return budget;
  return std::min(budget, *memory / kPart);
}

v1::Register Registration(const Daemon& daemon, const GrpcServer& grpc, const PsNode& node) {
  v1::Register registration = MakeRegistration(daemon.config(), grpc.endpoint());
  *registration.mutable_data() = node.endpoint();
  return registration;
}

}  // namespace

std::vector<config::Setting> PsSettings() {
  using config::Kind;
  return {
      {.name = "data-listen",
       .doc = "host:port of the data plane. Default: the host of --listen, any port."},
      {.name = "data-advertise", .doc = "Host that workers connect to. Default: the one bound."},
      {.name = "socket-dir",
       .doc = "Folder for the Unix socket of local links, \"none\" for no local links. Default: "
              "--state-dir where its path has less than 60 bytes, else one of its own in systemd's "
              "RUNTIME_DIRECTORY, else in the temporary folder."},
      {.name = "stage-budget",
       .kind = Kind::kSize,
       .fallback = "256MiB",
       .doc =
           "Memory for transfers under way; senders wait for it. Not given: at most a quarter of "
           "the control group's memory.",
       .least = 1 << 20},
      {.name = "apply-threads",
       .kind = Kind::kInt,
       .fallback = "0",
       .doc =
           "Threads that apply large gradients. 0: one for each processor that the control group "
           "allows.",
       .least = 0,
       .most = 1024},
  };
}

// From settings to a server that listens; the coordinator hears of it when the strand runs.
Result<std::unique_ptr<PsDaemon>> PsDaemon::Start(Daemon& daemon, GrpcServer& grpc) {
  const config::Values& values = daemon.config().values;
  ps::PsServer::Options options;
  if (values.Given("data-listen")) {
    options.tcp_address = values.String("data-listen");
  } else {
    MUSTER_TRY_ASSIGN(const std::string host, FirstAddress(daemon.config().listen.host));
    options.tcp_address = Endpoint{.host = host, .port = 0}.ToString();
  }
  MUSTER_TRY_ASSIGN(Endpoint data, ParseEndpoint(options.tcp_address));
  MUSTER_TRY_ASSIGN(data.host, FirstAddress(data.host));
  options.tcp_address = data.ToString();
  if (!daemon.config().insecure_network && daemon.tls() == nullptr) {
    MUSTER_TRY_ASSIGN(const bool loopback, IsLoopback(data.host));
    if (!loopback) {
      return FailedPrecondition(
          "data plane {}: not on loopback, and not encrypted: give --tls-ca, --tls-cert and "
          "--tls-key, or see --allow-insecure-network",
          options.tcp_address);
    }
  }
  options.advertised_host = values.String("data-advertise");
  MUSTER_TRY_ASSIGN(options.unix_directory, SocketDirectory(daemon.config()));
  options.token = daemon.token().value();
  // Who comes has its job's key.
  if (daemon.tls() != nullptr) options.tls = tls::KeyContext::Make();
  MUSTER_TRY_ASSIGN(options.host_id, net::HostId());
  options.stage_budget_bytes = StageBudget(values);
  options.max_connections =
      static_cast<std::uint32_t>(ConnectionsFor(daemon.open_files(), 0.5, options.max_connections));
  options.on_warning = [](const std::string& line) { log::Warning("data plane: {}", line); };
  const int cores = UsableProcessors();
  const auto asked = static_cast<int>(values.Int("apply-threads"));
  const int helpers = (asked == 0 ? cores : asked) - 1;
  MUSTER_TRY_ASSIGN(auto node,
                    PsNode::Start({.server = std::move(options),
                                   .index = static_cast<std::uint32_t>(daemon.config().task.index),
                                   .apply_helpers = helpers}));
  std::unique_ptr<PsDaemon> result(new PsDaemon(daemon, grpc, std::move(node)));
  result->strand_.Post([self = result.get()] {
    self->client_.Start();
    self->daemon_.FeedWatchdog(self->strand_);
    if (AdminPort* const admin = self->daemon_.admin()) {
      admin->Collect(self->strand_, [self](Samples& samples) { self->AddMetrics(samples); });
    }
  });
  return result;
}

PsDaemon::PsDaemon(Daemon& daemon, GrpcServer& grpc, std::shared_ptr<PsNode> node)
    : daemon_(daemon),
      grpc_(grpc),
      registration_(Registration(daemon, grpc, *node)),
      node_(std::move(node)),
      client_({.coordinator = daemon.config().coordinator,
               .registration = registration_,
               .explain = ExplainByTls(daemon.control())},
              strand_, *this, GrpcAttachStreams(daemon.control())),
      work_(strand_) {
  node_->set_boot_id(registration_.boot_id());
  log::Info("data plane on {}{}", registration_.data().tcp_address(),
            registration_.data().unix_path().empty() ? std::string()
                                                     : " and " + registration_.data().unix_path());
}

PsDaemon::~PsDaemon() {
  work_.Stop(kLastCommands);
  strand_.Stop();
  node_->Stop();
  // The folder that was made for the socket alone; one that was given stays.
  const DaemonConfig& config = daemon_.config();
  const std::filesystem::path folder =
      std::filesystem::path(registration_.data().unix_path()).parent_path();
  if (!folder.empty() && !config.values.Given("socket-dir") && folder != config.state_dir) {
    (void)::rmdir(folder.c_str());
  }
}

void PsDaemon::Drain() {
  grpc_.SetReady(false);
  std::promise<void> closed;
  // Jobs whose variables are here are saved first.
  const auto limit = daemon_.config().values.Duration("drain-timeout") * 9 / 10;
  strand_.Post([this, limit, &closed] {
    client_.Leave(daemon_.drain_reason(), limit,
                  [this, &closed] { client_.Close(kGoodbye, [&closed] { closed.set_value(); }); });
  });
  closed.get_future().wait();  // bounded by the limit and kGoodbye
}

void PsDaemon::OnAttached(const v1::Welcome& welcome) {
  grpc_.SetReady(true);
  // Freeing what earlier epochs have left may take a while.
  work_.Run(
      "", [node = node_, epoch = welcome.epoch()] { (void)node->BeginEpoch(Epoch(epoch)); }, [] {});
  daemon_.SetStatus(fmt::format("attached, session {}", welcome.session()));
}

void PsDaemon::OnDetached(const Status& why) {
  // Workers go on pulling and pushing: only the coordinator may end a view.
  grpc_.SetReady(false);
  daemon_.SetStatus(fmt::format("waiting for the coordinator: {}", Message(why)));
}

void PsDaemon::OnCommand(StreamId stream, const v1::Command& command) {
  auto result = std::make_shared<v1::CommandResult>();
  result->set_command_id(command.id());
  SetStatus(ResourceExhausted("no thread can be started for the command"),
            *result->mutable_status());
  work_.Run(
      LaneOf(command), [node = node_, command, result] { *result = node->Execute(command); },
      [this, stream, result] {
        if (result->status().code() != 0) {
          log::Warning("command {}: {}", result->command_id(), result->status().message());
        }
        client_.Reply(stream, *result);
      });
}

void PsDaemon::FillRegistration(v1::Register& registration) {
  node_->FillRegistration(registration);
}

void PsDaemon::FillHeartbeat(v1::Heartbeat& heartbeat) {
  heartbeat.set_resident_bytes(ResidentBytes());
  node_->FillHeartbeat(heartbeat);
}

// What model jobs do here, and what programs have here: their reads and writes are not counted.
void PsDaemon::AddMetrics(Samples& samples) const {
  AddAttachment(client_, samples);
  const auto add = [&samples](Metric metric, std::uint64_t value,
                              std::initializer_list<std::string_view> labels) {
    samples.Add(metric, static_cast<double>(value), labels);
  };
  for (const ps::ProgramUse& program : node_->Programs()) {
    const std::uint64_t values = program.bytes - program.slot_bytes - program.staged_bytes;
    add(Metric::kPsVariablesBytes, values, {program.job_id, "values"});
    add(Metric::kPsVariablesBytes, program.slot_bytes, {program.job_id, "slots"});
    add(Metric::kPsStagedBytes, program.staged_bytes, {program.job_id});
  }
  for (const auto& [job, report] : node_->Totals()) {
    add(Metric::kPsVariablesBytes, report.parameter_bytes(), {job, "values"});
    add(Metric::kPsVariablesBytes, report.slot_bytes(), {job, "slots"});
    add(Metric::kPsStagedBytes, report.staged_bytes(), {job});
    add(Metric::kPsPulls, report.pulls(), {job});
    add(Metric::kPsPushes, report.pushes(), {job});
    add(Metric::kPsDuplicates, report.duplicates_refused(), {job});
    add(Metric::kPsStepWaits, report.step_waits(), {job});
    add(Metric::kPsBytes, report.tcp_bytes_in(), {job, "tcp", "in"});
    add(Metric::kPsBytes, report.tcp_bytes_out(), {job, "tcp", "out"});
    add(Metric::kPsBytes, report.local_bytes_in(), {job, "local", "in"});
    add(Metric::kPsBytes, report.local_bytes_out(), {job, "local", "out"});
  }
}

void PsDaemon::OnRefused(const Status& why) { daemon_.Fail(why); }

void PsDaemon::OnDrain(const std::string& reason) {
  log::Info("{}: draining", reason);
  daemon_.Drain(reason);
}

}  // namespace muster::services
