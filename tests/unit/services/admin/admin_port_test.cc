#include "services/admin/admin_port.h"

#include "tests/support/catch.h"
#include "tests/unit/services/admin/http_client.h"

namespace muster::services {
namespace {

using testing::Get;

struct Port {
  Port() {
    testing::Listener listener;
    number = listener.port;
    std::vector<net::Fd> listeners;
    listeners.push_back(std::move(listener.fd));
    port = std::make_unique<AdminPort>(
        AdminPort::Options{.task = "worker:1",
                           .version = "1.2.3",
                           .authorize =
                               [](const HttpRequest& request) {
                                 return request.host == "stranger" ? PermissionDenied("go away")
                                                                   : Ok();
                               }},
        std::move(listeners));
  }
  int number = 0;
  std::unique_ptr<AdminPort> port;
};

TEST_CASE_METHOD(Port, "a daemon is healthy once its loop turns, and ready when it says so",
                 "[admin]") {
  CHECK(Get(number, "/healthz").starts_with("HTTP/1.1 503 "));
  CHECK(Get(number, "/readyz").starts_with("HTTP/1.1 503 "));

  port->Turned();
  port->SetStatus("waiting for the coordinator");
  CHECK(Get(number, "/healthz").starts_with("HTTP/1.1 200 "));
  CHECK(Get(number, "/readyz").starts_with("HTTP/1.1 503 "));
  CHECK(Get(number, "/readyz").ends_with("waiting for the coordinator\n"));

  port->SetReady(true);
  CHECK(Get(number, "/readyz").starts_with("HTTP/1.1 200 "));
}

TEST_CASE("a daemon whose loop has stopped turning is not healthy, and is again when it turns",
          "[admin]") {
  testing::Listener listener;
  const int number = listener.port;
  std::vector<net::Fd> listeners;
  listeners.push_back(std::move(listener.fd));
  AdminPort port({.task = "worker:1",
                  .version = "1.2.3",
                  .authorize = [](const HttpRequest&) { return Ok(); },
                  .still = Millis(50)},
                 std::move(listeners));
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const auto health = [&](std::string_view wanted, const auto& before) {
    std::string answer;
    do {
      before();
      answer = Get(number, "/healthz");
    } while (!answer.starts_with(wanted) && std::chrono::steady_clock::now() < limit);
    return answer;
  };

  port.Turned();
  const std::string still = health("HTTP/1.1 503 ", [] {});
  CHECK(still.find("the strand that does the work has not turned for ") != std::string::npos);
  // By the strand alone: that somebody says what it does, or that it serves, is no turn of it.
  port.SetReady(true);
  port.SetStatus("serves");
  CHECK(Get(number, "/healthz").starts_with("HTTP/1.1 503 "));

  CHECK(health("HTTP/1.1 200 ", [&] { port.Turned(); }).ends_with("ok\n"));
}

TEST_CASE_METHOD(Port, "metrics hold what the strand adds, and come without it when it is stuck",
                 "[admin][metrics]") {
  ThreadScheduler strand;
  std::atomic<bool> free{false};
  port->Collect(strand, [](Samples& samples) { samples.Add(Metric::kWorkerClosures, 7); });

  CHECK(
      Get(number, "/metrics").find("muster_build_info{version=\"1.2.3\",task=\"worker:1\"} 1\n") !=
      std::string::npos);
  CHECK(Get(number, "/metrics").find("closures") == std::string::npos);

  port->Turned();
  CHECK(Get(number, "/metrics").find("muster_worker_closures_total 7\n") != std::string::npos);

  // A strand that does not come to it: 503 in time, and everything else still answers.
  strand.Post([&free] { free.wait(false); });
  CHECK(Get(number, "/metrics").starts_with("HTTP/1.1 503 "));
  CHECK(Get(number, "/healthz").starts_with("HTTP/1.1 200 "));
  CHECK(Get(number, "/metrics").find("muster_loop_age_seconds") != std::string::npos);
  free = true;
  free.notify_all();
  port->Close();
}

TEST_CASE_METHOD(Port, "a path belongs to the longest prefix, and to nobody without one",
                 "[admin]") {
  port->Serve("/api/",
              [](const HttpRequest&, const HttpRespond& respond) { respond({.body = "api"}); });
  port->Serve("/api/jobs",
              [](const HttpRequest&, const HttpRespond& respond) { respond({.body = "jobs"}); });

  CHECK(Get(number, "/api/jobs/1").ends_with("\r\n\r\njobs"));
  CHECK(Get(number, "/api/status").ends_with("\r\n\r\napi"));
  CHECK(Get(number, "/elsewhere").starts_with("HTTP/1.1 404 "));
}

TEST_CASE_METHOD(Port, "whom the guard does not know gets its sentence and nothing else",
                 "[admin]") {
  port->SetReady(true);
  for (const char* path : {"/", "/healthz", "/readyz", "/metrics"}) {
    CAPTURE(path);
    const std::string answer = Get(number, path, "stranger");
    CHECK(answer.starts_with("HTTP/1.1 403 "));
    CHECK(answer.ends_with("\r\n\r\ngo away\n"));
  }
}

}  // namespace
}  // namespace muster::services
