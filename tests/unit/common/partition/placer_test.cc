#include "common/partition/placer.h"

#include "tests/support/catch.h"

namespace muster::partition {
namespace {

using Servers = std::vector<std::uint32_t>;

TEST_CASE("the round goes on from one variable to the next, whatever their sizes",
          "[partition][unit][spec][SHV-03]") {
  Placer placer(2);
  const std::vector<std::uint64_t> four = {30, 30, 20, 20};
  const std::vector<std::uint64_t> one = {4};

  CHECK(placer.Place(four) == Servers{0, 1, 0, 1});
  CHECK(placer.Place(one) == Servers{0});
  CHECK(placer.Place(one) == Servers{1});
}

TEST_CASE("variables made one after another go round three servers", "[partition][unit]") {
  Placer placer(3);
  const std::vector<std::uint64_t> one = {4};

  Servers servers;
  for (int i = 0; i < 4; ++i) servers.push_back(placer.Place(one).front());
  CHECK(servers == Servers{0, 1, 2, 0});
}

TEST_CASE("by bytes each shard goes to the server with the fewest", "[partition][unit]") {
  constexpr auto kByBytes = Placer::Policy::kByBytes;
  Placer placer(3);
  const std::vector<std::uint64_t> large = {100};
  const std::vector<std::uint64_t> small = {10, 10, 10};

  CHECK(placer.Place(large, kByBytes) == Servers{0});
  CHECK(placer.Place(small, kByBytes) == Servers{1, 2, 1});
  placer.Remove(Servers{0}, large);
  CHECK(placer.Place(large, kByBytes) == Servers{0});
}

}  // namespace
}  // namespace muster::partition
