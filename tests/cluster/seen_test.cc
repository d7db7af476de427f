// What people and their tools see of a cluster: probes, metrics, event files.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"
#include "tests/support/event_reader.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

// The answer of a daemon's admin port, whole; empty: nobody answers within 20 s.
std::string Get(const Cluster& cluster, const std::string& daemon, const std::string& path) {
  const std::string address = ReadAll(cluster.state() + "/" + daemon + ".admin");
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) return {};
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval limit{.tv_sec = 20, .tv_usec = 0};
  (void)::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  peer.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
  std::string text;
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  if (::connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof peer) == 0 &&
      ::send(fd, request.data(), request.size(), MSG_NOSIGNAL) > 0) {
    char bytes[4'096];
    for (ssize_t got = 0; (got = ::recv(fd, bytes, sizeof bytes, 0)) > 0;) {
      text.append(bytes, static_cast<std::size_t>(got));
    }
  }
  ::close(fd);
  return text;
}

// The value of a metric, by its name with labels; NaN: it is not there.
double Value(const std::string& metrics, const std::string& name) {
  const std::size_t at = metrics.find("\n" + name + " ");
  if (at == std::string::npos) return std::nan("");
  return std::stod(metrics.substr(at + name.size() + 2));
}

TEST_CASE("daemons are healthy and ready, and tell Prometheus of a job", "[cluster][admin]") {
  const Cluster cluster({.ps = 1, .workers = 1});
  const TempFolder folder;
  const SumJob sums(folder, 2'000, 10, 20, 300);
  for (const char* daemon : {"coordinator", "ps-0", "worker-0"}) {
    CAPTURE(daemon);
    CHECK(Get(cluster, daemon, "/healthz").starts_with("HTTP/1.1 200 "));
    CHECK(Get(cluster, daemon, "/readyz").starts_with("HTTP/1.1 200 "));
  }

  const std::string job = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(job, 500, seconds(60)));  // for some seconds
  const std::string server = Get(cluster, "ps-0", "/metrics");
  sums.Hurry();
  REQUIRE(cluster.Wait(job, seconds(120)) == 0);
  const std::string coordinator = Get(cluster, "coordinator", "/metrics");
  const std::string worker = Get(cluster, "worker-0", "/metrics");

  CAPTURE(coordinator, server, worker);
  const std::string of_job = "{job_id=\"" + job + "\"";
  CHECK(Value(coordinator, "muster_job_step" + of_job + "}") == static_cast<double>(sums.steps));
  CHECK(Value(coordinator, "muster_job_planned_steps" + of_job + "}") ==
        static_cast<double>(sums.steps));
  CHECK(Value(coordinator, "muster_job_info" + of_job + ",name=\"sums\",state=\"SUCCEEDED\"}") ==
        1);
  CHECK(Value(coordinator, "muster_coordinator_jobs{state=\"SUCCEEDED\"}") == 1);
  CHECK(Value(coordinator, "muster_coordinator_task_up{task=\"ps:0\"}") == 1);
  CHECK(Value(coordinator, "muster_ready") == 1);
  CHECK(Value(server, "muster_attached") == 1);
  CHECK(Value(server, "muster_ps_pushes_total" + of_job + "}") >= 100);
  CHECK(Value(server, "muster_ps_variables_bytes" + of_job + ",kind=\"values\"}") > 0);
  // Executors say once a second what they have done.
  CHECK(Value(worker, "muster_worker_closures_total") > 0);
  CHECK(Value(worker, "process_open_fds") > 3);
}

TEST_CASE("a job that went back to a checkpoint has each step once in its event files",
          "[cluster][figures]") {
  const Cluster cluster({.ps = 1, .workers = 1});
  const TempFolder folder;
  const SumJob sums(folder, 4'000, 10, 20, 1, "checkpoint: {every_steps: 200}\n");
  const std::string job = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(job, 1'000, seconds(120)));
  REQUIRE(cluster.Kill("ps:0", SIGKILL));
  REQUIRE(cluster.Wait(job, seconds(240)) == 0);

  const v1::Job described = cluster.Describe(job);
  const v1::Event* const told = FindEvent(described, "CURVES");
  REQUIRE(told != nullptr);
  CHECK(CountEvents(described, "CURVES") == 1);
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(told->fields().at("directory"))) {
    files.push_back(file.path());
  }
  std::sort(files.begin(), files.end());
  CHECK(files.size() >= 2);
  std::vector<std::int64_t> steps;
  for (const std::string& file : files) {
    for (const Event& event : ReadEvents(file)) {
      if (event.session_start) {
        std::erase_if(steps, [&](std::int64_t step) { return step >= event.step; });
      }
      if (event.tag == "loss") steps.push_back(event.step);
    }
  }
  REQUIRE_FALSE(steps.empty());
  CHECK(std::is_sorted(steps.begin(), steps.end()));
  CHECK(std::adjacent_find(steps.begin(), steps.end()) == steps.end());
  CHECK(steps.back() == static_cast<std::int64_t>(sums.steps));
  const std::string curves = Get(cluster, "coordinator", "/api/v1/jobs/" + job + "/curves");
  CHECK(curves.find("\"loss\":[[") != std::string::npos);
}

TEST_CASE("a daemon without its coordinator is healthy, and not ready", "[cluster][admin]") {
  const Cluster cluster({.ps = 1, .workers = 1});
  const int coordinator = cluster.PidOf("coordinator");  // one that stands still is in no status
  REQUIRE(::kill(coordinator, SIGSTOP) == 0);

  CHECK(Eventually(seconds(60), [&] {
    return Get(cluster, "worker-0", "/readyz").starts_with("HTTP/1.1 503 ");
  }));
  const std::string why = Get(cluster, "worker-0", "/readyz");
  CAPTURE(why);
  CHECK(why.find("waiting for the coordinator") != std::string::npos);
  CHECK(Get(cluster, "worker-0", "/healthz").starts_with("HTTP/1.1 200 "));
  CHECK(Eventually(seconds(60), [&] {
    return Value(Get(cluster, "ps-0", "/metrics"), "muster_attached") == 0;
  }));

  REQUIRE(::kill(coordinator, SIGCONT) == 0);
  CHECK(Eventually(seconds(60), [&] {
    return Get(cluster, "worker-0", "/readyz").starts_with("HTTP/1.1 200 ");
  }));
}

}  // namespace
}  // namespace muster::testing
