// Variables of programs on real parameter servers: what their clients see when daemons are killed.
#include <algorithm>
#include <csignal>
#include <vector>

#include "common/net/handshake.h"
#include "common/net/host_id.h"
#include "ps/client/program_client.h"
#include "tests/cluster/harness.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kRows = 1000;

// "data plane on 127.0.0.1:4711 and /tmp/..." in the daemon's log, the last one.
ps::ProgramClient::Server ServerOf(const Cluster& cluster, std::uint32_t index) {
  const std::string log = ReadAll(fmt::format("{}/logs/ps-{}.log", cluster.state(), index));
  const std::string before = "data plane on ";
  const std::size_t at = log.rfind(before) + before.size();
  const std::string line = log.substr(at, log.find('\n', at) - at);
  const std::size_t end = line.find(" and ");
  return {.target = {.index = index,
                     .tcp_address = line.substr(0, end),
                     .unix_path = end == std::string::npos ? "" : line.substr(end + 5),
                     .host_id = *net::HostId()}};
}

// A driver or an executor of the job "words", which this coordinator does not know.
std::unique_ptr<ps::ProgramClient> Client(const Cluster& cluster) {
  std::string token = ReadAll(cluster.state() + "/token");
  token.pop_back();
  const std::uint64_t epoch = cluster.Status().epoch();
  auto client = ps::ProgramClient::Open({ServerOf(cluster, 0), ServerOf(cluster, 1)},
                                        {.job_id = "words",
                                         .key = net::JobKey(token, "words", Epoch(epoch)),
                                         .epoch = Epoch(epoch),
                                         .incarnation = Incarnation(1),
                                         .host_id = *net::HostId()});
  INFO(ToString(client.status()));
  REQUIRE(client.ok());
  return *std::move(client);
}

ps::VariableHandle Make(ps::ProgramClient& client) {
  const std::vector<float> value(kRows, 2.5F);
  const auto made = client.Create({.name = "w", .shape = {kRows}, .servers = {0, 1}},
                                  std::as_bytes(std::span(value)));
  REQUIRE(made.ok());
  return *made;
}

Status Read(ps::ProgramClient& client, const ps::VariableHandle& variable) {
  std::vector<float> into(kRows);
  const ps::ReadRequest read{.variable = variable, .into = std::as_writable_bytes(std::span(into))};
  MUSTER_TRY(client.Read(std::span(&read, 1)));
  return into == std::vector<float>(kRows, 2.5F) ? Ok() : DataLoss("other values");
}

TEST_CASE("a parameter server that is killed is lost for a program's clients, at once and for good",
          "[cluster]") {
  const Cluster cluster({.ps = 2, .workers = 1});
  const auto driver = Client(cluster);
  const auto executor = Client(cluster);
  const ps::VariableHandle w = Make(*driver);
  const auto found = executor->Find("w");
  REQUIRE(found.ok());
  REQUIRE(Read(*executor, *found).ok());
  REQUIRE(Eventually(seconds(10), [&] {
    const v1::ClusterStatus status = cluster.Status();
    return std::ranges::count_if(status.tasks(), [](const v1::TaskState& task) {
             return task.job_bytes_size() == 1 && task.job_bytes(0).job_id() == "words" &&
                    task.job_bytes(0).bytes() == kRows / 2 * sizeof(float);
           }) == 2;
  }));
  const int before = cluster.PidOf("ps:1");

  REQUIRE(cluster.Kill("ps:1", SIGKILL));
  for (const auto& [client, variable] :
       {std::pair(driver.get(), w), std::pair(executor.get(), *found)}) {
    const auto start = std::chrono::steady_clock::now();
    const Status lost = Read(*client, variable);
    CHECK(lost.code() == StatusCode::kUnavailable);
    CHECK(Message(lost).find("ps:1 (") != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - start < seconds(5));
  }
  // Another process takes its place, and is not taken for it.
  REQUIRE(Eventually(seconds(60), [&] {
    const int now = cluster.PidOf("ps:1");
    return now != 0 && now != before;
  }));
  CHECK(Read(*driver, w).code() == StatusCode::kUnavailable);
  CHECK(Client(cluster)->Find("w").status().code() == StatusCode::kNotFound);
}

TEST_CASE("a program's variables are freed when the coordinator begins a new epoch", "[cluster]") {
  const Cluster cluster({.ps = 2, .workers = 1});
  const std::uint64_t epoch = cluster.Status().epoch();
  const auto driver = Client(cluster);
  const ps::VariableHandle w = Make(*driver);
  REQUIRE(Read(*driver, w).ok());

  REQUIRE(cluster.Kill("coordinator", SIGKILL));
  REQUIRE(Eventually(seconds(60), [&] { return Read(*driver, w).code() == StatusCode::kAborted; }));
  REQUIRE(Eventually(seconds(60), [&] { return cluster.Status().epoch() > epoch; }));
  const auto again = Client(cluster);
  CHECK(again->Find("w").status().code() == StatusCode::kNotFound);
  CHECK(Read(*again, Make(*again)).ok());
}

}  // namespace
}  // namespace muster::testing
