#include "services/common/daemon.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include <signal.h>
#include <unistd.h>

#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/version.h"
#include "common/base/whole_file.h"
#include "common/config/manual.h"
#include "common/process/standard_streams.h"
#include "common/rpc/names.h"
#include "common/telemetry/log.h"
#include "services/common/admin.h"
#include "services/common/notify.h"
#include "services/common/open_files.h"

namespace muster::services {
namespace {

// What a daemon may still do when its drain's time is over: say goodbye, flush rows.
constexpr std::chrono::microseconds kLastWork = std::chrono::seconds(15);

// How long what is said once waits for systemd's socket, which is full when a whole host begins:
// without READY=1 the unit would be taken for one that never came up. Below a lease.
constexpr Millis kSaidOnce{1'000};

// Signals are blocked in every thread and taken by one of ours, so that nothing runs in a handler.
// SIGHUP comes when the terminal ends from which a daemon was started; under nohup it stays
// ignored.
sigset_t StopSignals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::sigaddset(&signals, SIGINT);
  struct sigaction hang_up{};
  if (::sigaction(SIGHUP, nullptr, &hang_up) != 0 || hang_up.sa_handler != SIG_IGN) {
    ::sigaddset(&signals, SIGHUP);
  }
  return signals;
}

void WarnOfInsecureNetwork(const DaemonConfig& config) {
  log::Warning(
      "--allow-insecure-network: {} listens on {} without encryption. Whoever can read this "
      "network "
      "learns the cluster's token and sees every job, every parameter and every file; with the "
      "token "
      "they can run code on the workers as this user. Use it on a network that you alone control, "
      "behind a firewall; `muster status` shows it for each task",
      config.task.ToString(), config.listen.ToString());
}

void ConfigureLog(const DaemonConfig& config) {
  const std::string format = config.values.String("log-format");
  log::Configure(
      {.level = log::ParseLevel(config.values.String("log-level")).value_or(log::Level::kInfo),
       .format = format == "text"   ? log::Format::kText
                 : format == "json" ? log::Format::kJson
                                    : log::Format::kAuto,
       .fields = {{"task", config.task.ToString()}}});
}

int Complain(const Role& role, const Status& status, int code) {
  std::fprintf(stderr, "%s: %s\n", role.program.c_str(), Message(status).c_str());
  return code;
}

// Null: the settings ask for none. The errors of Listen().
Result<std::unique_ptr<AdminPort>> OpenAdminPort(const DaemonConfig& config,
                                                 const std::shared_ptr<tls::Context>& tls) {
  if (!config.admin) return std::unique_ptr<AdminPort>();
  Endpoint endpoint = *config.admin;
  MUSTER_TRY_ASSIGN(std::vector<net::Fd> listeners, Listen(endpoint));
  MUSTER_TRY_ASSIGN(const bool loopback, IsLoopback(endpoint.host));
  auto admin = std::make_unique<AdminPort>(
      AdminPort::Options{.task = config.task.ToString(),
                         .version = std::string(Version()),
                         .address = (config.admin_tls ? "https://" : "") + endpoint.ToString(),
                         .authorize = config.admin_tls ? TlsAdminGuard()
                                                       : ClearAdminGuard(endpoint.host, loopback),
                         .collect = [tls](Samples& samples) { AddCertificate(tls.get(), samples); },
                         .http = {.tls = config.admin_tls ? tls : nullptr}},
      std::move(listeners));
  log::Info("admin port on {}://{}/", config.admin_tls ? "https" : "http", endpoint.ToString());
  if (!config.admin_port_file.empty()) {
    MUSTER_TRY(ReplaceFile(config.admin_port_file, endpoint.ToString() + "\n"));
  }
  return admin;
}

Status CheckHolder(const DaemonConfig& config, const tls::Holder& holder) {
  const std::string task = config.task.ToString();
  if (holder.role == tls::Role::kNode && std::ranges::count(holder.names, task) > 0) return Ok();
  return PermissionDenied(
      "tls-cert: {} is the certificate of {}, and this is {}. Run: muster certs issue --node {}",
      config.tls.certificate, holder.ToString(), task, task);
}

// The daemon's certificate, which must be of its task; null: it has none.
Result<std::shared_ptr<tls::Context>> OpenTls(const DaemonConfig& config) {
  if (!config.tls.given()) return std::shared_ptr<tls::Context>();
  // The list, too; a daemon that runs is not ended by it.
  MUSTER_TRY(tls::CheckFiles(config.tls).status());
  return tls::Context::FromFiles(
      config.tls, [](const std::string& line) { log::Warning("TLS: {}", line); },
      [config](const tls::Holder& holder) { return CheckHolder(config, holder); });
}

// Each exit code says whether starting again may help: 2 and 78 (flags, settings) do not, 1 (a name
// that does not resolve, files that are being replaced) may.
int Run(const Role& role, int argc, char** argv, const std::function<Status(Daemon&)>& body) {
  const std::vector<config::Setting> settings = DaemonSettings(role);
  const Result<config::Flags> flags = config::ParseFlags(argc, argv, settings);
  if (!flags.ok()) return Complain(role, flags.status(), kExitFlags);
  if (flags->help) {
    std::fputs(config::HelpText(role.program, role.about, settings).c_str(), stdout);
    return kExitDrained;
  }
  if (flags->manual) {
    std::fputs(config::ManualOf(role.program, role.about, settings).c_str(), stdout);
    return kExitDrained;
  }
  if (flags->version) {
    std::printf("%s %s\n", role.program.c_str(), std::string(Version()).c_str());
    return kExitDrained;
  }
  if (flags->example_config) {
    std::fputs(config::ExampleConfig(role.program, settings).c_str(), stdout);
    return kExitDrained;
  }
  const Environment environment = ProcessEnvironment();
  Result<config::Values> values = config::Resolve(settings, *flags, environment);
  if (!values.ok()) return Complain(role, values.status(), kExitConfig);
  Result<DaemonConfig> config = MakeDaemonConfig(role, *std::move(values), environment);
  if (!config.ok()) {
    // A host that does not resolve may do so in a moment.
    const bool unresolved = config.status().code() == StatusCode::kNotFound;
    return Complain(role, config.status(), unresolved ? kExitFailed : kExitConfig);
  }
  Result<Token> token = Token::Read(config->token_file);
  if (!token.ok()) return Complain(role, token.status(), kExitConfig);

  Result<std::shared_ptr<tls::Context>> tls = OpenTls(*config);
  if (!tls.ok()) {
    // Settings that are missing stay so; files are being replaced, and clocks get set.
    const tls::Files& files = config->tls;
    const bool named = !files.ca.empty() && !files.certificate.empty() && !files.key.empty();
    return Complain(role, tls.status(), named ? kExitFailed : kExitConfig);
  }

  ConfigureLog(*config);
  if (config->insecure_network) WarnOfInsecureNetwork(*config);
  for (const std::string& line : config->values.Describe()) log::Debug("setting {}", line);
  const std::size_t open_files = RaiseOpenFiles();
  log::Info("may use {}", ReadLimits().ToString());
  Result<std::unique_ptr<AdminPort>> admin = OpenAdminPort(*config, *tls);
  if (!admin.ok()) {
    log::Error("{}", ToString(admin.status()));
    return kExitFailed;
  }
  Daemon daemon(*std::move(config), *std::move(token), *std::move(tls), environment, open_files,
                *std::move(admin));
  const Status status = body(daemon);
  if (!status.ok()) {
    log::Error("{}", ToString(status));
    if (status.code() == StatusCode::kInternal) return kExitBug;
    // Settings that do not go together, or not with what they name; and what is damaged stays so.
    const bool hopeless =
        status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kDataLoss;
    return hopeless ? kExitConfig : kExitFailed;
  }
  log::Info("stopped");
  return kExitDrained;
}

// systemd's WATCHDOG_USEC, halved, when it is meant for this process.
Millis WatchdogPause(const Environment& environment) {
  const std::string limit = environment("WATCHDOG_USEC").value_or("");
  const std::string pid = environment("WATCHDOG_PID").value_or("");
  if (!pid.empty() && pid != std::to_string(::getpid())) return Millis(0);
  const std::chrono::microseconds half(std::strtoull(limit.c_str(), nullptr, 10) / 2);
  return std::chrono::duration_cast<Millis>(half);
}

}  // namespace

struct Daemon::Stop {
  Mutex mutex;
  Condition changed;
  std::optional<Status> status MUSTER_GUARDED_BY(mutex);
  std::string reason MUSTER_GUARDED_BY(mutex);
  std::jthread signals;

  void Set(Status with) {
    {
      const MutexLock lock(mutex);
      if (!status) status = std::move(with);
    }
    changed.notify_all();
  }
};

// From here on a thread takes the signals that ask to end: the first one drains, whoever waits for
// what, and the next one ends the process.
Daemon::Daemon(DaemonConfig config, Token token, std::shared_ptr<tls::Context> tls,
               Environment environment, std::size_t open_files, std::unique_ptr<AdminPort> admin)
    : config_(std::move(config)),
      token_(std::move(token)),
      tls_(std::move(tls)),
      notify_socket_(environment("NOTIFY_SOCKET").value_or("")),
      watchdog_pause_(WatchdogPause(environment)),
      open_files_(open_files),
      // All come to the chief; the others' port is for health checks.
      most_connections_(config_.task.type == "chief" ? ConnectionsFor(open_files, 0.5, 4'096)
                                                     : ConnectionsFor(open_files, 0.125, 256)),
      admin_(std::move(admin)),
      stop_(std::make_unique<Stop>()) {
  stop_->signals = std::jthread([this](const std::stop_token& end) {
    const sigset_t signals = StopSignals();
    bool asked = false;
    bool after_hang_up = false;
    while (!end.stop_requested()) {
      const timespec pause{.tv_sec = 0, .tv_nsec = 100'000'000};
      const int number = ::sigtimedwait(&signals, nullptr, &pause);
      if (number <= 0) continue;
      // Sessions end by a SIGHUP, or some, and a SIGTERM behind them.
      if (asked && (number == SIGHUP || std::exchange(after_hang_up, false))) continue;
      if (asked) {
        log::Warning("second SIG{}: ending at once", ::sigabbrev_np(number));
        ::_exit(kExitFailed);
      }
      asked = true;
      after_hang_up = number == SIGHUP;
      log::Info("SIG{}: draining{}", ::sigabbrev_np(number),
                after_hang_up ? "" : " (once more ends at once)");
      Drain(fmt::format("SIG{}", ::sigabbrev_np(number)));
    }
  });
}

Daemon::~Daemon() = default;

void Daemon::Tell(std::string_view state, Millis patience) {
  (void)Notify(notify_socket_, state, patience);
}

void Daemon::Say(std::string_view status) {
  status_ = status;
  if (admin_) admin_->SetStatus(status_);
}

void Daemon::Ready(std::string_view status) {
  log::Info("{}", status);
  const MutexLock lock(status_mutex_);
  if (status_.empty()) Say(status);
  Tell(fmt::format("READY=1\nSTATUS={}", status_), kSaidOnce);
}

void Daemon::SetStatus(std::string_view status) {
  const MutexLock lock(status_mutex_);
  if (draining_ || status == status_) return;
  Say(status);
  Tell(fmt::format("STATUS={}", status));
}

void Daemon::SetReady(bool ready) const {
  if (admin_) admin_->SetReady(ready);
}

void Daemon::FeedAdminPort(Scheduler& strand) {
  admin_->Turned();
  (void)strand.RunAfter(AdminPort::kPulse, [this, &strand] { FeedAdminPort(strand); });
}

void Daemon::FeedWatchdog(Scheduler& strand) {
  if (admin_) FeedAdminPort(strand);
  FeedSystemd(strand);
}

void Daemon::FeedSystemd(Scheduler& strand) {
  if (watchdog_pause_ == Millis(0)) return;
  Tell("WATCHDOG=1");
  (void)strand.RunAfter(watchdog_pause_, [this, &strand] { FeedSystemd(strand); });
}

Status Daemon::Serve(std::string_view ready, const std::function<void()>& drain) {
  Ready(ready);
  const Status status = WaitForStop();
  if (status.ok()) drain();
  if (admin_) admin_->Close();
  return status;
}

Status Daemon::WaitForStop() {
  const MutexLock lock(stop_->mutex);
  while (!stop_->status) stop_->changed.wait(stop_->mutex);
  return *stop_->status;
}

void Daemon::Drain(const std::string& reason) {
  {
    const MutexLock lock(stop_->mutex);
    if (stop_->reason.empty()) stop_->reason = reason;
  }
  const MutexLock saying(status_mutex_);
  draining_ = true;
  Say("draining");
  // What the unit's own TimeoutStopSec does not know.
  const auto drain = config_.values.Duration<std::chrono::microseconds>("drain-timeout");
  Tell(fmt::format("STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC={}",
                   (drain + kLastWork).count()),
       kSaidOnce);
  stop_->Set(Ok());
}

std::string Daemon::drain_reason() const {
  const MutexLock lock(stop_->mutex);
  return stop_->reason;
}

void Daemon::Fail(Status status) { stop_->Set(std::move(status)); }

int RunDaemon(const Role& role, int argc, char** argv, const std::function<Status(Daemon&)>& body) {
  process::FillStandardStreams();
  const sigset_t signals = StopSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  rpc::UseSystemResolver();
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a file above the limit of its size is an error, like a full disk
  try {
    return Run(role, argc, argv, body);
  } catch (const std::exception& bug) {
    std::fprintf(stderr, "%s: a bug in Muster: %s\n", role.program.c_str(), bug.what());
    return kExitBug;
  }
}

}  // namespace muster::services
