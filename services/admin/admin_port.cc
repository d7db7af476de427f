#include "services/admin/admin_port.h"

#include <utility>

#include <fmt/format.h>

namespace muster::services {
namespace {

// As Prometheus asks for it.
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
// A strand that has not turned for so long is not waited for: a scrape has a limit of its own.
constexpr Millis kCollectLimit{2'000};

double Seconds(Millis time) { return static_cast<double>(time.count()) / 1000; }

}  // namespace

AdminPort::AdminPort(Options options, std::vector<net::Fd> listeners)
    : options_(std::move(options)),
      server_(HttpServer::Start(options_.http, std::move(listeners),
                                [this](const HttpRequest& request, HttpRespond respond) {
                                  Answer(request, std::move(respond));
                                })) {}

AdminPort::~AdminPort() { Close(); }

void AdminPort::Close() {
  if (server_) server_->Close();
  const MutexLock lock(mutex_);
  strand_ = nullptr;
  collect_.reset();
  handlers_.clear();
  on_refused_ = nullptr;
}

void AdminPort::SetStatus(std::string status) {
  const MutexLock lock(mutex_);
  status_ = std::move(status);
}

void AdminPort::Collect(Scheduler& strand, Collector collect) {
  const MutexLock lock(mutex_);
  strand_ = &strand;
  collect_ = std::make_shared<Collector>(std::move(collect));
}

void AdminPort::Serve(std::string prefix, HttpHandler handler) {
  const MutexLock lock(mutex_);
  handlers_.emplace_back(std::move(prefix), std::move(handler));
}

void AdminPort::OnRefused(std::function<void(const HttpRequest&, const Status&)> hear) {
  const MutexLock lock(mutex_);
  on_refused_ = std::move(hear);
}

std::optional<Millis> AdminPort::LoopAge() const {
  const std::chrono::steady_clock::rep turned = turned_;
  if (turned == 0) return std::nullopt;
  return std::chrono::duration_cast<Millis>(std::chrono::steady_clock::now().time_since_epoch() -
                                            std::chrono::steady_clock::duration(turned));
}

HttpReply AdminPort::Health() const {
  const std::optional<Millis> age = LoopAge();
  if (!age) return {.status = 503, .body = "starting\n"};
  if (*age > options_.still) {
    return {.status = 503,
            .body = fmt::format("the strand that does the work has not turned for {:.1f} s\n",
                                Seconds(*age))};
  }
  return {.body = "ok\n"};
}

HttpReply AdminPort::Readiness() const {
  const MutexLock lock(mutex_);
  return {.status = ready_ ? 200 : 503, .body = status_ + "\n"};
}

// The strand's part may not come: then the rest goes without it, and says for how long it stands
// still.
void AdminPort::Metrics(HttpRespond respond) {
  Samples samples;
  samples.Add(Metric::kBuildInfo, 1, {options_.version, options_.task});
  samples.Add(Metric::kReady, ready_ ? 1 : 0);
  const std::optional<Millis> age = LoopAge();
  if (age) samples.Add(Metric::kLoopAge, Seconds(*age));
  AddProcess(samples);
  if (options_.collect) options_.collect(samples);
  Scheduler* strand = nullptr;
  std::shared_ptr<Collector> collect;
  {
    const MutexLock lock(mutex_);
    strand = strand_;
    collect = collect_;
  }
  if (strand == nullptr || !age || *age > kCollectLimit) {
    return respond({.body = samples.Text(), .type = kMetricsType});
  }
  strand->Post([samples = std::move(samples), collect, respond = std::move(respond)]() mutable {
    (*collect)(samples);
    respond({.body = samples.Text(), .type = kMetricsType});
  });
}

void AdminPort::Answer(const HttpRequest& request, HttpRespond respond) {
  if (const Status allowed = options_.authorize(request); !allowed.ok()) {
    std::function<void(const HttpRequest&, const Status&)> hear;
    {
      const MutexLock lock(mutex_);
      hear = on_refused_;
    }
    if (hear) hear(request, allowed);
    return respond({.status = 403, .body = Message(allowed) + "\n"});
  }
  if (request.path == kHealth) return respond(Health());
  if (request.path == kReadiness) return respond(Readiness());
  if (request.path == "/metrics") return Metrics(std::move(respond));
  HttpHandler found;
  {
    const MutexLock lock(mutex_);
    std::size_t longest = 0;
    for (const auto& [prefix, handler] : handlers_) {
      if (!request.path.starts_with(prefix) || prefix.size() < longest) continue;
      longest = prefix.size();
      found = handler;
    }
  }
  if (found) return found(request, std::move(respond));
  respond({.status = 404, .body = "not here; there are /healthz, /readyz and /metrics\n"});
}

}  // namespace muster::services
