// Client and servers over both kinds of link, in one process.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "tests/support/catch.h"
#include "tests/unit/ps/client/small_cluster.h"

namespace muster::ps {
namespace {

using testing::AddVariable;
using testing::kJob;
using testing::SmallCluster;

constexpr std::uint32_t kMatrix = 0;
constexpr std::uint32_t kScalar = 1;
constexpr std::uint32_t kTable = 2;

v1::JobPlan SmallPlan() {
  v1::JobPlan plan;
  AddVariable(plan, "matrix", {5, 3}, 2);
  AddVariable(plan, "scalar", {}, 1);
  AddVariable(plan, "table", {10, 2}, 2, true);
  return plan;
}

std::vector<float> Numbers(std::size_t n, float first = 0) {
  std::vector<float> numbers(n);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

std::vector<float> Copy(std::span<const float> values) { return {values.begin(), values.end()}; }

void SetGradient(PsClient& client, std::uint32_t variable, float value) {
  std::ranges::fill(client.Gradient(variable), value);
}

Status PushAll(PsClient& client, std::uint64_t closure, std::uint64_t attempt = 1) {
  const std::vector<std::uint32_t> dense = {kMatrix, kScalar};
  const std::vector<RowGradient> rows = {{.variable = kTable, .ids = {}, .rows = {}}};
  return client.Push(ClosureId(closure), Attempt(attempt), dense, rows);
}

}  // namespace

TEST_CASE("what was assigned is pulled, whole, over either link", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp, LinkMode::kAuto);
  SmallCluster cluster(SmallPlan());
  auto client = cluster.Connect(link);
  REQUIRE(client.ok());

  REQUIRE((*client)->Assign(kMatrix, Numbers(15)).ok());
  REQUIRE((*client)->Assign(kScalar, Numbers(1, 42)).ok());
  auto other = cluster.Connect(link);
  REQUIRE(other.ok());
  const std::vector<std::uint32_t> both = {kMatrix, kScalar};
  REQUIRE((*other)->PullDense(both).ok());

  CHECK(Copy((*other)->Value(kMatrix)) == Numbers(15));
  CHECK(Copy((*other)->Value(kScalar)) == Numbers(1, 42));
  CHECK(reinterpret_cast<std::uintptr_t>((*other)->Value(kMatrix).data()) % 64 == 0);
}

TEST_CASE("a closure is applied once, however often it is pushed", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  SmallCluster cluster(SmallPlan());
  auto client = cluster.Connect(link);
  REQUIRE(client.ok());
  SetGradient(**client, kMatrix, 1);
  SetGradient(**client, kScalar, 2);

  REQUIRE(PushAll(**client, 1).ok());
  REQUIRE(PushAll(**client, 1).ok());
  REQUIRE(PushAll(**client, 1, 2).ok());
  REQUIRE(PushAll(**client, 2, 2).ok());
  const std::vector<std::uint32_t> both = {kMatrix, kScalar};
  REQUIRE((*client)->PullDense(both).ok());

  CHECK(Copy((*client)->Value(kMatrix)) == std::vector<float>(15, -2));
  CHECK(Copy((*client)->Value(kScalar)) == std::vector<float>(1, -4));
  CHECK(cluster.server(0).counters(kJob).duplicates == 6);
  CHECK(cluster.server(1).counters(kJob).duplicates == 4);
}

TEST_CASE("an older attempt is refused with kAborted", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  SmallCluster cluster(SmallPlan());
  auto client = cluster.Connect(link);
  REQUIRE(client.ok());

  REQUIRE(PushAll(**client, 1, 5).ok());
  const Status late = PushAll(**client, 1, 4);

  CHECK(late.code() == StatusCode::kAborted);
  CHECK(Message(late).find("ps:0") != std::string::npos);
  CHECK(PushAll(**client, 2, 4).ok());
}

TEST_CASE("rows come and go in the order of their ids", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  const std::vector<std::int64_t> ids =
      GENERATE(std::vector<std::int64_t>{0, 4, 5, 9}, std::vector<std::int64_t>{9, 0, 5, 4},
               std::vector<std::int64_t>{7}, std::vector<std::int64_t>{});
  SmallCluster cluster(SmallPlan());
  auto client = cluster.Connect(link);
  REQUIRE(client.ok());
  auto buffer = (*client)->RowGradientBuffer(kTable, ids.size());
  REQUIRE(buffer.ok());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    (*buffer)[2 * i] = static_cast<float>(-ids[i]);
    (*buffer)[2 * i + 1] = static_cast<float>(ids[i]);
  }

  const std::vector<RowGradient> rows = {{.variable = kTable, .ids = ids, .rows = *buffer}};
  REQUIRE((*client)->Push(ClosureId(1), Attempt(1), {}, rows).ok());
  const std::vector<std::int64_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto table = (*client)->PullRows(kTable, all);
  REQUIRE(table.ok());
  std::vector<float> expected(20, 0);
  for (const std::int64_t id : ids) {
    expected[static_cast<std::size_t>(2 * id)] = static_cast<float>(id);
    expected[static_cast<std::size_t>(2 * id + 1)] = static_cast<float>(-id);
  }
  CHECK(Copy(*table) == expected);
  const auto some = (*client)->PullRows(kTable, ids);
  REQUIRE(some.ok());

  REQUIRE(some->size() == 2 * ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK((*some)[2 * i] == static_cast<float>(ids[i]));
    CHECK((*some)[2 * i + 1] == static_cast<float>(-ids[i]));
  }
}

TEST_CASE("an id beyond the table is refused before anything is sent", "[ps_client][unit]") {
  SmallCluster cluster(SmallPlan());
  auto client = cluster.Connect(LinkMode::kAuto);
  REQUIRE(client.ok());
  const std::vector<std::int64_t> ids = {3, 10};

  const auto rows = (*client)->PullRows(kTable, ids);

  CHECK(rows.status().code() == StatusCode::kOutOfRange);
  CHECK(Message(rows.status()).find("id 10 at position 1 is not in [0, 10)") != std::string::npos);
  CHECK((*client)->PullRows(kMatrix, ids).status().code() == StatusCode::kInvalidArgument);
  CHECK((*client)->Value(kTable).empty());
  const std::vector<std::uint32_t> table = {kTable};
  CHECK((*client)->PullDense(table).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a variable larger than a frame's target travels whole", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  v1::JobPlan plan;
  // 12 MiB and four of 24 MiB on one server: several frames each way over TCP.
  AddVariable(plan, "a", {3 << 20}, 1);
  for (const char* name : {"b", "c", "d", "e"}) AddVariable(plan, name, {6 << 20}, 1);
  SmallCluster cluster(plan, 1, {.stage_budget_bytes = 64U << 20});
  auto client = cluster.Connect(link);
  REQUIRE(client.ok());
  const std::vector<std::uint32_t> all = {0, 1, 2, 3, 4};
  for (const std::uint32_t v : all) {
    auto gradient = (*client)->Gradient(v);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = -static_cast<float>((i + v) % 1000);
    }
  }

  REQUIRE((*client)->Push(ClosureId(1), Attempt(1), all, {}).ok());
  REQUIRE((*client)->PullDense(all).ok());

  for (const std::uint32_t v : all) {
    const auto value = (*client)->Value(v);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < value.size(); ++i) {
      wrong += value[i] != static_cast<float>((i + v) % 1000);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("bytes are counted by the link that carried them", "[ps_client][unit]") {
  v1::JobPlan plan;
  AddVariable(plan, "w", {1 << 20}, 2);
  const std::uint64_t bytes = 4U << 20;
  const std::vector<std::uint32_t> w = {0};
  SmallCluster cluster(plan);

  auto local = cluster.Connect(LinkMode::kLocal);
  REQUIRE(local.ok());
  REQUIRE((*local)->Push(ClosureId(1), Attempt(1), w, {}).ok());
  REQUIRE((*local)->PullDense(w).ok());
  CHECK((*local)->bytes().local == 2 * bytes);
  CHECK((*local)->bytes().tcp == 0);
  // Tensor bytes never enter a socket: all of both servers' Unix traffic is headers.
  CHECK(cluster.server(0).links().unix_socket_bytes + cluster.server(1).links().unix_socket_bytes <
        8192);
  const ServerCounters after_local = cluster.server(0).counters(kJob);
  CHECK(after_local.local_bytes_in == bytes / 2);
  CHECK(after_local.local_bytes_out == bytes / 2);
  CHECK(after_local.tcp_bytes_in + after_local.tcp_bytes_out == 0);

  auto tcp = cluster.Connect(LinkMode::kTcp);
  REQUIRE(tcp.ok());
  REQUIRE((*tcp)->Push(ClosureId(2), Attempt(1), w, {}).ok());
  REQUIRE((*tcp)->PullDense(w).ok());
  CHECK((*tcp)->bytes().tcp == 2 * bytes);
  CHECK((*tcp)->bytes().local == 0);
  const ServerCounters after_tcp = cluster.server(0).counters(kJob);
  CHECK(after_tcp.tcp_bytes_in == bytes / 2);
  CHECK(after_tcp.tcp_bytes_out == bytes / 2);
  CHECK(after_tcp.local_bytes_in == bytes / 2);
}

TEST_CASE("a pull under concurrent pushes holds whole updates only", "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  v1::JobPlan plan;
  AddVariable(plan, "w", {200'000}, 1);
  const std::vector<std::uint32_t> w = {0};
  SmallCluster cluster(plan, 1);
  std::atomic<bool> stop{false};
  std::atomic<int> failures{0};
  const auto push = [&](std::uint64_t first) {
    auto client = cluster.Connect(link);
    if (!client.ok()) {
      ++failures;
      return;
    }
    SetGradient(**client, 0, 1);
    for (std::uint64_t closure = first; !stop; closure += 2) {
      if (!(*client)->Push(ClosureId(closure), Attempt(1), w, {}).ok()) ++failures;
    }
  };
  std::thread one(push, 1);
  std::thread two(push, 2);

  auto reader = cluster.Connect(link);
  REQUIRE(reader.ok());
  int torn = 0;
  for (int i = 0; i < 100; ++i) {
    if (!(*reader)->PullDense(w).ok()) ++failures;
    const auto value = (*reader)->Value(0);
    torn += std::ranges::any_of(value, [&](float v) { return v != value[0]; });
  }
  stop = true;
  one.join();
  two.join();

  CHECK(torn == 0);
  CHECK(failures == 0);
}

}  // namespace muster::ps
