// Servers that are away, killed, stopped or only busy, as a client sees them.
#include <array>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include "common/net/fd.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/ps/client/small_cluster.h"

namespace muster::ps {
namespace {

using testing::Eventually;
using testing::HeldShards;
using testing::kJob;
using testing::kToken;
using testing::kW;
using testing::OneVariable;
using testing::SmallCluster;

}  // namespace

TEST_CASE("a lost connection is made again and the request repeated", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kAuto, LinkMode::kTcp);
  SmallCluster cluster(OneVariable(), 1);
  auto client = cluster.Connect(link);
  REQUIRE(client.ok());
  REQUIRE((*client)->Push(ClosureId(1), Attempt(1), kW, {}).ok());

  cluster.Restart(0);

  CHECK((*client)->Push(ClosureId(1), Attempt(1), kW, {}).ok());
  CHECK((*client)->PullDense(kW).ok());
}

TEST_CASE("a server that is gone is named at once", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  SmallCluster cluster(OneVariable(), 1);
  const std::string address = cluster.server(0).endpoint().tcp_address();
  auto client = cluster.Connect(link);
  REQUIRE(client.ok());

  cluster.server(0).Stop();
  const Status lost = (*client)->PullDense(kW);

  CHECK(lost.code() == StatusCode::kUnavailable);
  CHECK(Message(lost).find("ps:0 (" + address + ")") != std::string::npos);
}

namespace {

// A server whose shards say on `told` that an apply has begun, and never end it.
class StuckShards final : public testing::FakeShards {
 public:
  StuckShards(const v1::JobPlan& plan, int told) : FakeShards(plan, 0), told_(told) {}
  Result<ApplyOutcome> ApplyDense(std::uint32_t, PushId, std::span<const float>) override {
    (void)!::write(told_, "x", 1);
    for (;;) ::pause();
  }

 private:
  int told_;
};

std::string ReadLine(int fd) {
  std::string line;
  for (char c = 0; ::read(fd, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

// In a child process: serves a plan with one variable, writes its address to `to_parent`.
[[noreturn]] void ServeForEver(const v1::JobPlan& plan, const std::string& directory,
                               int to_parent) {
  PsServer::Options options;
  options.unix_directory = directory;
  options.token = kToken;
  options.host_id = *net::HostId();
  auto server = PsServer::Start(options);
  if (!server.ok()) ::_exit(1);
  (*server)->Publish(kJob, std::make_shared<StuckShards>(plan, to_parent));
  const v1::DataEndpoint endpoint = (*server)->endpoint();
  const std::string lines = endpoint.tcp_address() + "\n" + endpoint.unix_path() + "\n";
  (void)!::write(to_parent, lines.data(), lines.size());
  for (;;) ::pause();
}

}  // namespace

namespace {

// A server in a process of its own that never ends a push, and the plan that names it.
struct OtherProcess {
  OtherProcess() {
    plan = OneVariable(100'000);
    plan.set_job_id(testing::kJobId);
    plan.set_job_number(kJob.value());
    plan.set_view(1);
    std::array<int, 2> pipe{};
    REQUIRE(::pipe(pipe.data()) == 0);
    from_child = net::Fd(pipe[0]);
    to_parent = net::Fd(pipe[1]);
    child = ::fork();
    if (child == 0) ServeForEver(plan, directory.path(), pipe[1]);
    v1::PsAddress& address = *plan.add_ps();
    address.mutable_data()->set_tcp_address(ReadLine(from_child.get()));
    address.mutable_data()->set_unix_path(ReadLine(from_child.get()));
    address.mutable_data()->set_host_id(*net::HostId());
  }
  ~OtherProcess() {
    (void)::kill(child, SIGKILL);
    (void)::waitpid(child, nullptr, 0);
  }
  // As soon as it has begun a push.
  std::thread SignalInPush(int signal) {
    return std::thread([this, signal] {
      char begun = 0;
      (void)!::read(from_child.get(), &begun, 1);
      (void)::kill(child, signal);
    });
  }
  std::string name() const { return "ps:0 (" + plan.ps(0).data().tcp_address() + ")"; }

  const muster::testing::TempFolder directory;
  v1::JobPlan plan;
  net::Fd from_child;
  net::Fd to_parent;
  pid_t child = -1;
};

}  // namespace

TEST_CASE("a server killed in the middle of a push is named", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  OtherProcess server;
  auto client = PsClient::Connect(server.plan, {.key = testing::ModelKey(),
                                                .link = link,
                                                .host_id = *net::HostId(),
                                                .timeout = Millis(20'000)});
  REQUIRE(client.ok());
  std::thread killer = server.SignalInPush(SIGKILL);

  const TimePoint start = std::chrono::steady_clock::now();
  const Status pushed = (*client)->Push(ClosureId(1), Attempt(1), kW, {});

  killer.join();
  CHECK(pushed.code() == StatusCode::kUnavailable);
  CHECK(Message(pushed).find(server.name()) != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < Millis(5'000));
}

TEST_CASE("a server that is stopped gives no sign of life and is not waited for",
          "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  OtherProcess server;
  auto client = PsClient::Connect(server.plan, {.key = testing::ModelKey(),
                                                .link = link,
                                                .host_id = *net::HostId(),
                                                .timeout = Millis(60'000),
                                                .ping_after = Millis(100),
                                                .ping_limit = Millis(500)});
  REQUIRE(client.ok());
  std::thread stopper = server.SignalInPush(SIGSTOP);

  const TimePoint start = std::chrono::steady_clock::now();
  const Status pushed = (*client)->Push(ClosureId(1), Attempt(1), kW, {});

  stopper.join();
  CHECK(pushed.code() == StatusCode::kDeadlineExceeded);
  INFO(ToString(pushed));
  CHECK(Message(pushed).find("push of closure 1, request 1 for 1 shard") == 0);
  CHECK(Message(pushed).find(server.name() + ": no answer, and no greeting to a new connection") !=
        std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < Millis(20'000));
}

TEST_CASE("a server that is busy with a request is waited for, it greets meanwhile",
          "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  SmallCluster cluster(OneVariable(), 1);
  const auto shards = std::make_shared<HeldShards>(cluster.plan(), 0);
  cluster.server(0).Publish(kJob, shards);
  PsClient::Options options = cluster.ClientOptions(link);
  options.ping_after = Millis(10);
  auto client = PsClient::Connect(cluster.plan(), options);
  REQUIRE(client.ok());
  std::thread releaser([&] {
    (void)Eventually([&] { return cluster.server(0).links().connections_accepted >= 4; });
    shards->release.set_value();
  });

  const Status pushed = (*client)->Push(ClosureId(1), Attempt(1), kW, {});

  releaser.join();
  INFO(ToString(pushed));
  CHECK(pushed.ok());
  CHECK(cluster.server(0).links().connections_accepted >= 4);
  CHECK(cluster.warnings().empty());
}

}  // namespace muster::ps
