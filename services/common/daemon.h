// The frame of a daemon: main() of each is RunDaemon() with a body.
//
//   int main(int argc, char** argv) {
//     return RunDaemon(kRole, argc, argv, [](Daemon& daemon) -> Status {
//       MUSTER_TRY_ASSIGN(auto node, Node::Start(daemon));
//       return daemon.Serve("listening", [&node] { node->Drain(); });
//     });
//   }
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "services/admin/admin_port.h"
#include "services/common/daemon_config.h"
#include "services/common/grpc_channel.h"
#include "services/common/grpc_server.h"
#include "services/common/token.h"

namespace muster::services {

enum ExitCode : int {
  kExitDrained = 0,
  kExitFailed = 1,
  kExitFlags = 2,
  kExitBug = 70,
  kExitConfig = 78,
};

// Threading: any thread.
class Daemon {
 public:
  // `open_files`: how many this process may have. `admin`: null without one.
  Daemon(DaemonConfig config, Token token, std::shared_ptr<tls::Context> tls,
         Environment environment, std::size_t open_files, std::unique_ptr<AdminPort> admin);
  ~Daemon();

  const DaemonConfig& config() const { return config_; }
  const Token& token() const { return token_; }
  // What connections of the data plane are encrypted with; null: nothing.
  const std::shared_ptr<tls::Context>& tls() const { return tls_; }
  // What the coordinator's other clients need.
  ControlPlane control() const {
    return {.coordinator = config_.coordinator, .token = token_, .tls = tls_};
  }
  GrpcServer::Options ServerOptions() const {
    return {.listen = config_.listen,
            .services = {},
            .port_file = config_.port_file,
            .tls = tls_,
            .most_connections = most_connections_,
            .on_ready = [this](bool ready) { SetReady(ready); }};
  }
  std::size_t open_files() const { return open_files_; }

  // Null: there is none. What is added to it is not used after Serve().
  AdminPort* admin() { return admin_.get(); }

  // Tells systemd, the log and the admin port that it serves now; and what it does, where
  // SetStatus() has not said so before, which knows better.
  void Ready(std::string_view status);
  // What it does: told when it is news, and not while it drains.
  void SetStatus(std::string_view status);

  // From now on `strand`, which does this daemon's work, tells that it turns: the admin port, for
  // /healthz, and systemd, twice as often as the unit's WatchdogSec asks for. `strand` has stopped
  // before this object goes.
  void FeedWatchdog(Scheduler& strand);

  // The life of a daemon whose parts have been started: Ready(ready), WaitForStop(), and `drain`
  // unless an error ended it.
  Status Serve(std::string_view ready, const std::function<void()>& drain);

  // Waits for SIGTERM, SIGINT or, unless it is ignored as under nohup, SIGHUP (OK: drain and
  // return) or for Fail() (that error). The next signal ends the process at once, but for what the
  // end of a terminal sends: SIGHUP again, and a SIGTERM behind it.
  Status WaitForStop();
  // The same as SIGTERM, for another reason; a signal that follows only goes on with it.
  void Drain(const std::string& reason);
  // Why it drains: "SIGTERM", or what Drain() was told. Empty: it does not.
  std::string drain_reason() const;
  // Ends WaitForStop() with an error. The first one counts.
  void Fail(Status status);

 private:
  struct Stop;
  void SetReady(bool ready) const;
  void FeedAdminPort(Scheduler& strand);
  void FeedSystemd(Scheduler& strand);
  void Tell(std::string_view state, Millis patience = Millis(0));
  void Say(std::string_view status) MUSTER_REQUIRES(status_mutex_);

  const DaemonConfig config_;
  const Token token_;
  const std::shared_ptr<tls::Context> tls_;
  const std::string notify_socket_;
  // Between two signs of life; 0: nobody wants them.
  const Millis watchdog_pause_;
  const std::size_t open_files_;
  const std::size_t most_connections_;
  const std::unique_ptr<AdminPort> admin_;
  // Held while it is told, so that what is said last is true.
  Mutex status_mutex_;
  std::string status_ MUSTER_GUARDED_BY(status_mutex_);
  bool draining_ MUSTER_GUARDED_BY(status_mutex_) = false;
  // Last: its thread uses the others.
  std::unique_ptr<Stop> stop_;
};

// Reads settings, sets up the log and the signals, runs `body`, and returns the exit code: 0 it
// returned OK, 1 an error (names that do not resolve and files of certificates included, which may
// be put right meanwhile), 2 bad flags, 78 bad configuration (token file included), 70 our bug.
int RunDaemon(const Role& role, int argc, char** argv, const std::function<Status(Daemon&)>& body);

}  // namespace muster::services
