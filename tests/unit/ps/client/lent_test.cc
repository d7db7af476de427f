// Reads that are lent where the server has put them; and what passes through the kernel for it.
#include <cstring>
#include <numeric>
#include <set>

#include "ps/client/link_arena.h"
#include "ps/client/program_client.h"
#include "tests/support/catch.h"
#include "tests/unit/ps/client/program_cluster.h"

namespace muster::ps {
namespace {

using testing::ProgramCluster;
using testing::Raw;

std::vector<float> Counting(std::size_t n, float first = 0) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

VariableHandle MakeOn(ProgramClient& client, const std::string& name,
                      const std::vector<float>& value, const std::vector<std::uint32_t>& servers) {
  const auto made = client.Create(
      {.name = name, .shape = {static_cast<std::int64_t>(value.size())}, .servers = servers},
      Raw(value));
  REQUIRE(made.ok());
  return *made;
}

Lent Borrow(ProgramClient& client, const VariableHandle& variable, WriteSet* own = nullptr) {
  Lent lent;
  const ReadRequest request{.variable = variable, .lend = &lent};
  const Status status = client.Read(std::span(&request, 1), own);
  INFO(ToString(status));
  REQUIRE(status.ok());
  return lent;
}

std::vector<float> ValuesOf(const Lent& lent) {
  std::vector<float> values(lent.bytes.size() / sizeof(float));
  std::memcpy(values.data(), lent.bytes.data(), lent.bytes.size());
  return values;
}

}  // namespace

TEST_CASE("what is lent stays as it was read, whatever comes after, on every link",
          "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  // One shard, and two; less than a page, and more than a huge one.
  const std::size_t n = GENERATE(std::size_t{5}, std::size_t{700'000});
  const std::vector<std::uint32_t> servers =
      GENERATE(std::vector<std::uint32_t>{1}, std::vector<std::uint32_t>{0, 1});
  ProgramCluster cluster(2);
  auto driver = cluster.Client(link);
  const VariableHandle w = MakeOn(*driver, "w", Counting(n), servers);

  const Lent first = Borrow(*driver, w);
  for (int i = 0; i < 3; ++i) {
    WriteSet writes;
    REQUIRE(writes.Update(w, ElementOp::kAdd, {Raw(std::vector<float>(n, 1))}).ok());
    REQUIRE(driver->Flush(writes).ok());
    (void)Borrow(*driver, w);
  }
  const Lent last = Borrow(*driver, w);
  CHECK(ValuesOf(first) == Counting(n));
  CHECK(ValuesOf(last) == Counting(n, 3));
  // Also when its client has gone.
  driver.reset();
  CHECK(ValuesOf(first) == Counting(n));
}

TEST_CASE("what a closure has written stands in what it is lent, and in nobody else's",
          "[ps_client][unit]") {
  const LinkMode link = GENERATE(LinkMode::kLocal, LinkMode::kTcp);
  const ElementOp op = GENERATE(ElementOp::kAdd, ElementOp::kAssign);
  ProgramCluster cluster(1);
  const auto driver = cluster.Client(link);
  const VariableHandle w = MakeOn(*driver, "w", Counting(3), {0});
  WriteSet own(ClosureId(1), Attempt(1));
  REQUIRE(own.Update(w, op, {Raw(Counting(3, 10))}).ok());

  const std::vector<float> expected =
      op == ElementOp::kAdd ? std::vector<float>{10, 12, 14} : Counting(3, 10);
  CHECK(ValuesOf(Borrow(*driver, w, &own)) == expected);
  CHECK(ValuesOf(Borrow(*driver, w)) == Counting(3));
}

TEST_CASE("rows can be lent, too", "[ps_client][unit]") {
  ProgramCluster cluster(2);
  const auto driver = cluster.Client();
  const VariableHandle w = MakeOn(*driver, "w", Counting(8), {0, 1});
  const std::vector<std::int64_t> ids = {7, 0, 3};
  Lent lent;
  const ReadRequest request{.variable = w, .rows = true, .ids = ids, .lend = &lent};
  REQUIRE(driver->Read(std::span(&request, 1)).ok());
  CHECK(ValuesOf(lent) == std::vector<float>{7, 0, 3});
}

TEST_CASE("blocks of a link's arena are apart while they are kept, and used again afterwards",
          "[ps_client][unit]") {
  const auto arena = LinkArena::Create(true);
  REQUIRE(arena.ok());
  constexpr std::size_t kSizes[] = {1, 100, 4096, 5000, std::size_t{3} << 20};
  std::set<std::byte*> places;
  {
    std::vector<Lent> kept;
    for (int round = 0; round < 3; ++round) {
      for (const std::size_t size : kSizes) {
        kept.push_back((*arena)->Lend(size));
        REQUIRE(kept.back().bytes.size() == size);
        std::memset(kept.back().bytes.data(), static_cast<int>(kept.size()), size);
      }
    }
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const auto expected = static_cast<std::byte>(i + 1);
      CHECK(kept[i].bytes.front() == expected);
      CHECK(kept[i].bytes.back() == expected);
      places.insert(kept[i].bytes.data());
    }
  }
  for (const std::size_t size : kSizes) {
    CHECK(places.contains((*arena)->Lend(size).bytes.data()));
  }
}

TEST_CASE("what does not fit the lent part of an arena is not lent of it", "[ps_client][unit]") {
  const auto arena = LinkArena::Create(true);
  REQUIRE(arena.ok());
  CHECK((*arena)->Lend(std::size_t{1} << 40).owner == nullptr);
  const Lent small = (*arena)->Lend(8);
  CHECK(small.owner != nullptr);
}

TEST_CASE("requests on a local link pass through memory, the kernel carries wakes alone",
          "[ps_client][unit]") {
  ProgramCluster cluster(1);
  const auto driver = cluster.Client(LinkMode::kLocal);
  const VariableHandle w = MakeOn(*driver, "w", Counting(16), {0});
  const std::uint64_t before = cluster.server(0).links().unix_socket_bytes;
  constexpr std::uint64_t kReads = 500;
  for (std::uint64_t i = 0; i < kReads; ++i) (void)Borrow(*driver, w);
  // Headers alone would be 160 bytes a request.
  CHECK(cluster.server(0).links().unix_socket_bytes - before < kReads * 4);
}

}  // namespace muster::ps
