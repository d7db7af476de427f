// Write sets that are flushed again with more in them, and those of very many writes.
#include <vector>

#include "muster/v1/job_spec.pb.h"
#include "tests/support/catch.h"
#include "tests/unit/ps/client/program_cluster.h"

namespace muster::ps {
namespace {

using testing::ProgramCluster;
using testing::Raw;
using testing::ReadAll;

using Longs = std::vector<std::int64_t>;

VariableHandle MakeLongs(ProgramClient& client, const std::string& name,
                         const std::vector<std::uint32_t>& servers) {
  return client
      .Create({.name = name,
               .dtype = DType::kInt64,
               .shape = {static_cast<std::int64_t>(servers.size())},
               .servers = servers},
              Raw(Longs(servers.size())))
      .value();
}

}  // namespace

TEST_CASE("what is written after a flush that failed is not lost with what was sent",
          "[ps_client][unit]") {
  ProgramCluster cluster(2);
  const auto driver = cluster.Client();
  const VariableHandle count = MakeLongs(*driver, "count", {0, 1});
  ProgramClient::Options hasty = cluster.Options();
  hasty.timeout = Millis(1'000);
  const auto executor = cluster.Open(hasty).value();
  // The second server takes the closure for one too far ahead.
  const auto servers = cluster.Servers();
  const auto first = ProgramClient::Open({servers[0]}, cluster.Options()).value();
  first->SetSettled(ClosureId(10'000));
  REQUIRE(first->Settle().ok());
  WriteSet set(ClosureId(70'000), Attempt(1));
  REQUIRE(set.Update(count, ElementOp::kAdd, {Raw(Longs{1, 1})}).ok());
  REQUIRE_FALSE(executor->Flush(set).ok());

  REQUIRE(set.Update(count, ElementOp::kAdd, {Raw(Longs{10, 10})}).ok());
  driver->SetSettled(ClosureId(10'000));
  REQUIRE(driver->Settle().ok());
  REQUIRE(executor->Flush(set).ok());
  CHECK(set.empty());
  CHECK(ReadAll<std::int64_t>(*driver, count) == Longs{11, 11});

  // The number of the next one is the next.
  REQUIRE(set.Update(count, ElementOp::kAdd, {Raw(Longs{100, 100})}).ok());
  REQUIRE(executor->Flush(set).ok());
  CHECK(ReadAll<std::int64_t>(*driver, count) == Longs{111, 111});
}

TEST_CASE("sets of several that write for a closure count once, whoever is first the second time",
          "[ps_client][unit]") {
  ProgramCluster cluster(2);
  const auto client = cluster.Client();
  const VariableHandle count = MakeLongs(*client, "count", {0, 1});
  const auto add = [&](WriteSet& set, std::int64_t number) {
    REQUIRE(set.Update(count, ElementOp::kAdd, {Raw(Longs{number, number})}).ok());
  };
  const auto run = [&](std::uint64_t attempt, bool second_first) {
    WriteSet set(ClosureId(1), Attempt(attempt));
    WriteSet first(set, 1);
    WriteSet second(set, 2);
    add(set, 1);
    for (int round = 0; round < 2; ++round) {
      add(first, 10);
      add(second, 100);
      REQUIRE(client->Flush(second_first ? second : first).ok());
      CHECK(set.empty());
      REQUIRE(client->Flush(second_first ? first : second).ok());
    }
    add(set, 1'000);
    REQUIRE(client->Flush(set).ok());
  };

  run(1, false);
  CHECK(ReadAll<std::int64_t>(*client, count) == Longs{1'221, 1'221});
  run(2, true);
  CHECK(ReadAll<std::int64_t>(*client, count) == Longs{1'221, 1'221});
}

TEST_CASE("of several sets that read over a gradient of their closure none is sent for it",
          "[ps_client][unit]") {
  ProgramCluster cluster(2);
  const auto client = cluster.Client();
  const VariableHandle count = MakeLongs(*client, "count", {0, 1});
  const VariableHandle weights =
      client->Create({.name = "w", .shape = {2}, .servers = {0}}, Raw(std::vector<float>{1, 1}))
          .value();
  v1::OptimizerSpec sgd;
  sgd.set_kind(v1::OPTIMIZER_KIND_SGD);
  REQUIRE(client->Attach(std::span(&weights, 1), sgd).ok());
  // Whoever reads first has read for both.
  const auto run = [&](std::uint64_t attempt, bool second_reads) {
    WriteSet set(ClosureId(1), Attempt(attempt));
    WriteSet first(set, 1);
    WriteSet second(set, 2);
    REQUIRE(set.Gradient(weights, {Raw(std::vector<float>{1, 1})}, 0.5).ok());
    REQUIRE(first.Update(count, ElementOp::kAdd, {Raw(Longs{10, 10})}).ok());
    REQUIRE(second.Update(count, ElementOp::kAdd, {Raw(Longs{100, 100})}).ok());
    CHECK(ReadAll<float>(*client, weights, second_reads ? &second : &first) ==
          std::vector<float>{0.5, 0.5});
    set.Take(first);
    set.Take(second);
    REQUIRE(client->Flush(set).ok());
  };

  run(1, false);
  run(2, true);
  CHECK(ReadAll<std::int64_t>(*client, count) == Longs{110, 110});
}

TEST_CASE("a set that lies over another one shows the writes of both, the other one's first",
          "[ps_client][unit]") {
  ProgramCluster cluster(2);
  const auto client = cluster.Client();
  const VariableHandle count = MakeLongs(*client, "count", {0, 1});
  WriteSet set(ClosureId(1), Attempt(1));
  WriteSet over(set, 1);
  REQUIRE(set.Update(count, ElementOp::kAssign, {Raw(Longs{5, 6})}).ok());
  CHECK(ReadAll<std::int64_t>(*client, count, &over) == Longs{5, 6});
  REQUIRE(over.Update(count, ElementOp::kMul, {Raw(Longs{10, 10})}).ok());

  CHECK(ReadAll<std::int64_t>(*client, count, &over) == Longs{50, 60});
  CHECK(ReadAll<std::int64_t>(*client, count, &set) == Longs{5, 6});
  CHECK(ReadAll<std::int64_t>(*client, count) == Longs{0, 0});
  REQUIRE(client->Flush(over).ok());
  CHECK(ReadAll<std::int64_t>(*client, count) == Longs{50, 60});
}

TEST_CASE("more writes to one shard than a frame has room for count once", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  constexpr std::int64_t kMany = 70'000;
  ProgramCluster cluster(1);
  const auto client = cluster.Client(link);
  const VariableHandle many = MakeLongs(*client, "many", {0});
  const VariableHandle few = MakeLongs(*client, "few", {0});
  const Longs one = {1};
  const auto run = [&](WriteSet set) {
    bool added = true;
    for (std::int64_t i = 0; i < kMany; ++i) {
      added = added && set.Update(many, ElementOp::kAdd, {Raw(one)}).ok();
    }
    REQUIRE(added);
    REQUIRE(set.Update(few, ElementOp::kAdd, {Raw(one)}).ok());
    REQUIRE(client->Flush(set).ok());
    REQUIRE(set.Update(few, ElementOp::kAdd, {Raw(one)}).ok());
    REQUIRE(client->Flush(set).ok());
  };

  run(WriteSet(ClosureId(1), Attempt(1)));
  run(WriteSet(ClosureId(1), Attempt(2)));
  CHECK(ReadAll<std::int64_t>(*client, many) == Longs{kMany});
  CHECK(ReadAll<std::int64_t>(*client, few) == Longs{2});
  // Those of no closure count each time.
  run(WriteSet());
  run(WriteSet());
  CHECK(ReadAll<std::int64_t>(*client, many) == Longs{3 * kMany});
  CHECK(ReadAll<std::int64_t>(*client, few) == Longs{6});
}

}  // namespace muster::ps
