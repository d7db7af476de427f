// Calls that wait at a server for closures of an earlier step, over both kinds of link.
#include <atomic>
#include <future>

#include "ps/apply_pool.h"
#include "ps/job_shards.h"
#include "ps/step_signal.h"
#include "tests/support/catch.h"
#include "tests/unit/ps/client/small_cluster.h"

namespace muster::ps {
namespace {

using Catch::Matchers::Contains;
using testing::AddVariable;
using testing::Eventually;
using testing::kJob;
using testing::kW;
using testing::SmallCluster;

// Servers with real shards of a job that makes steps of `gradients` closures.
struct Stepwise {
  Stepwise(std::uint64_t gradients, std::uint64_t staleness, PsServer::Options options = {})
      : cluster(PlanOf(gradients, staleness), 2, std::move(options)) {
    cluster.plan().set_view(2);
    for (std::uint32_t i = 0; i < 2; ++i) {
      cluster.server(i).Publish(kJob,
                                std::move(JobShards::Create(cluster.plan(), i, "", pool)).value());
    }
  }

  static v1::JobPlan PlanOf(std::uint64_t gradients, std::uint64_t staleness) {
    v1::JobPlan plan;
    AddVariable(plan, "w", {4}, 2);
    plan.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_SGD);
    plan.mutable_optimizer()->set_learning_rate(1);
    plan.set_total_steps(100);
    plan.mutable_steps()->set_gradients(gradients);
    plan.mutable_steps()->set_staleness(staleness);
    for (auto& variable : *plan.mutable_variables()) {
      variable.set_dtype(v1::DTYPE_FLOAT32);
      variable.mutable_initializer()->set_kind(v1::INITIALIZER_KIND_ZEROS);
    }
    return plan;
  }
  std::unique_ptr<PsClient> Connect(LinkMode link) {
    auto client = cluster.Connect(link);
    INFO(ToString(client.status()));
    REQUIRE(client.ok());
    return *std::move(client);
  }
  static void Push(PsClient& client, std::uint64_t closure, float gradient) {
    std::ranges::fill(client.Gradient(0), gradient);
    const Status pushed = client.Push(ClosureId(closure), Attempt(1), kW, {});
    INFO(ToString(pushed));
    REQUIRE(pushed.ok());
  }
  std::uint64_t Waits() {
    return cluster.server(0).counters(kJob).step_waits +
           cluster.server(1).counters(kJob).step_waits;
  }

  ApplyPool pool{0};
  SmallCluster cluster;
};

TEST_CASE("a pull of a synchronous step waits until all gradients of the one before are in",
          "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  Stepwise job(2, 0);
  auto one = job.Connect(link);
  auto other = job.Connect(link);
  REQUIRE(one->PullDense(kW, ClosureId(1)).ok());
  CHECK(job.Waits() == 0);
  Stepwise::Push(*one, 1, 1);

  auto pulled = std::async(std::launch::async, [&] { return other->PullDense(kW, ClosureId(3)); });
  REQUIRE(Eventually([&] { return job.Waits() == 2; }));
  CHECK(pulled.wait_for(Millis(0)) == std::future_status::timeout);
  Stepwise::Push(*one, 2, 2);

  REQUIRE(pulled.get().ok());
  CHECK(other->Value(0)[0] == -3);
  CHECK(other->Value(0)[3] == -3);
}

TEST_CASE("with staleness k a pull is never further behind than k steps", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  Stepwise job(1, 2);
  auto one = job.Connect(link);
  auto other = job.Connect(link);
  for (const std::uint64_t closure : {1, 2, 3})
    REQUIRE(one->PullDense(kW, ClosureId(closure)).ok());
  CHECK(job.Waits() == 0);

  auto pulled = std::async(std::launch::async, [&] { return other->PullDense(kW, ClosureId(4)); });
  REQUIRE(Eventually([&] { return job.Waits() == 2; }));
  Stepwise::Push(*one, 2, 1);
  CHECK(pulled.wait_for(Millis(0)) == std::future_status::timeout);
  Stepwise::Push(*one, 1, 1);

  REQUIRE(pulled.get().ok());
  CHECK(other->Value(0)[0] == -2);
}

TEST_CASE("a wait for an earlier step ends in time and says which closure is missing",
          "[ps_client][unit]") {
  Stepwise job(2, 0, {.step_timeout = Millis(50)});
  auto client = job.Connect(LinkMode::kTcp);
  Stepwise::Push(*client, 1, 1);

  const Status waited = client->PullDense(kW, ClosureId(3));

  CHECK(waited.code() == StatusCode::kUnavailable);
  CHECK_THAT(Message(waited), Contains("closure 3 waits for closure 2, whose gradients have not"));
  // The connection goes on, for whoever has something to do.
  Stepwise::Push(*client, 2, 1);
  CHECK(client->PullDense(kW, ClosureId(3)).ok());
}

TEST_CASE("a push that is ahead of its step waits like a pull", "[ps_client][unit]") {
  Stepwise job(2, 0, {.step_timeout = Millis(50)});
  auto client = job.Connect(LinkMode::kLocal);
  std::ranges::fill(client->Gradient(0), 1.0F);
  CHECK(client->Push(ClosureId(3), Attempt(1), kW, {}).code() == StatusCode::kUnavailable);
  for (const std::uint64_t closure : {1, 2}) Stepwise::Push(*client, closure, 1);
  Stepwise::Push(*client, 3, 1);
}

// Shards that miss closure 1 until they are told that it is there.
class ShardsWithoutFirst : public testing::FakeShards {
 public:
  using FakeShards::FakeShards;
  std::optional<ClosureId> Missing(std::uint32_t, ClosureId) override {
    if (come) return std::nullopt;
    return ClosureId(1);
  }
  StepSignal* step_signal() override { return &signal; }

  std::atomic<bool> come{false};
  StepSignal signal;
};

TEST_CASE("a push of several frames waits no longer for its step than one of one frame",
          "[ps_client][unit]") {
  v1::JobPlan plan;
  // Each is a frame of its own over TCP.
  for (const char* name : {"a", "b", "c", "d"}) AddVariable(plan, name, {17 << 18}, 1);
  SmallCluster cluster(std::move(plan), 1, {.step_timeout = Millis(1'000)});
  const auto shards = std::make_shared<ShardsWithoutFirst>(cluster.plan(), 0);
  cluster.server(0).Publish(kJob, shards);
  PsClient::Options options = cluster.ClientOptions(LinkMode::kTcp);
  options.timeout = Millis(1'500);
  const auto client = PsClient::Connect(cluster.plan(), options);
  REQUIRE(client.ok());
  const std::vector<std::uint32_t> all = {0, 1, 2, 3};

  const Status waited = (*client)->Push(ClosureId(2), Attempt(1), all, {});

  CHECK(waited.code() == StatusCode::kUnavailable);
  CHECK_THAT(Message(waited), Contains("closure 2 waits for closure 1"));
  shards->come = true;
  CHECK((*client)->Push(ClosureId(2), Attempt(1), all, {}).ok());
  // All frames were answered before the client gave the connection up.
  CHECK(cluster.server(0).links().connections_accepted == 1);
}

TEST_CASE("a client that goes while it waits holds no connection", "[ps_client][unit]") {
  Stepwise job(1, 0, {.step_timeout = Millis(60'000)});
  PsClient::Options options = job.cluster.ClientOptions(LinkMode::kTcp);
  options.timeout = Millis(20);
  auto impatient = PsClient::Connect(job.cluster.plan(), options);
  // Connecting has as little time.
  REQUIRE(Eventually([&] {
    if (!impatient.ok()) impatient = PsClient::Connect(job.cluster.plan(), options);
    return impatient.ok();
  }));
  CHECK((*impatient)->PullDense(kW, ClosureId(2)).code() == StatusCode::kDeadlineExceeded);
  impatient->reset();

  CHECK(Eventually([&] {
    return job.cluster.server(0).links().connections_now == 0 &&
           job.cluster.server(1).links().connections_now == 0;
  }));
}

TEST_CASE("a server stops while calls wait", "[ps_client][unit]") {
  Stepwise job(1, 0, {.step_timeout = Millis(60'000)});
  auto client = job.Connect(LinkMode::kTcp);
  auto pulled = std::async(std::launch::async, [&] { return client->PullDense(kW, ClosureId(2)); });
  REQUIRE(Eventually([&] { return job.Waits() == 2; }));

  job.cluster.server(0).Stop();
  job.cluster.server(1).Stop();

  CHECK(pulled.get().code() == StatusCode::kUnavailable);
}

}  // namespace
}  // namespace muster::ps
