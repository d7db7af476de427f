// The port at which people and their tools look at a daemon:
//
//   /healthz   200 while the strand that does its work turns (503: it has not begun yet, or stands
//              still): for liveness and startup probes. It says nothing of other processes.
//   /readyz    200 while the daemon serves and is attached; 503 says what it waits for.
//   /metrics   for Prometheus.
//   and what the daemon adds with Serve(). Nothing can be changed through it.
//
// It speaks HTTP, or HTTPS (Options::http); who may ask for what is Options::authorize's to say.
//
// Threading: any thread; Close() from one that is not a handler's. Lifetime: strand and handlers
// outlive Close().
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "services/admin/http_server.h"
#include "services/admin/metrics.h"

namespace muster::services {

class AdminPort {
 public:
  // A strand that has not turned for so long stands still.
  static constexpr Millis kStill{10'000};
  static constexpr std::string_view kHealth = "/healthz";
  static constexpr std::string_view kReadiness = "/readyz";
  // How often it says that it turns.
  static constexpr Millis kPulse{500};

  struct Options {
    std::string task;  // "worker:1"
    std::string version;
    // Where it listens, for people: host:port, https:// before it where it speaks that.
    std::string address = {};
    // Who may ask for what; not OK: 403 with the message. The one place where that is decided.
    std::function<Status(const HttpRequest&)> authorize;
    // Adds to /metrics, on any thread; empty: nothing.
    std::function<void(Samples&)> collect = {};
    Millis still = kStill;
    HttpServer::Options http = {};
  };
  using Collector = std::function<void(Samples&)>;

  AdminPort(Options options, std::vector<net::Fd> listeners);
  ~AdminPort();

  const std::string& address() const { return options_.address; }
  // The strand says that it turns. Until the first time /healthz fails.
  void Turned() { turned_ = std::chrono::steady_clock::now().time_since_epoch().count(); }
  void SetReady(bool ready) { ready_ = ready; }
  // What the daemon does, for /readyz.
  void SetStatus(std::string status);

  // Adds to /metrics what `collect` says, on `strand`; a strand that stands still is left out.
  void Collect(Scheduler& strand, Collector collect);
  // Answers paths that begin with `prefix`; the longest that fits counts.
  void Serve(std::string prefix, HttpHandler handler);

  // Hears who was refused what, on the server's thread.
  void OnRefused(std::function<void(const HttpRequest&, const Status&)> hear);

  // Ends what runs; afterwards no strand and no handler is touched. Idempotent.
  void Close();

 private:
  void Answer(const HttpRequest& request, HttpRespond respond);
  HttpReply Health() const;
  HttpReply Readiness() const;
  void Metrics(HttpRespond respond);
  // nullopt: it has not begun.
  std::optional<Millis> LoopAge() const;

  const Options options_;
  std::atomic<std::chrono::steady_clock::rep> turned_{0};
  std::atomic<bool> ready_{false};
  mutable Mutex mutex_;
  std::string status_ MUSTER_GUARDED_BY(mutex_) = "starting";
  Scheduler* strand_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  std::shared_ptr<Collector> collect_ MUSTER_GUARDED_BY(mutex_);
  std::vector<std::pair<std::string, HttpHandler>> handlers_ MUSTER_GUARDED_BY(mutex_);
  std::function<void(const HttpRequest&, const Status&)> on_refused_ MUSTER_GUARDED_BY(mutex_);
  // Last: its thread uses the others.
  std::unique_ptr<HttpServer> server_;
};

}  // namespace muster::services
