#include "strategy/base/random.h"

#include <optional>
#include <vector>

#include "strategy/kinds/mirrored_strategy.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/replicas.h"

namespace muster {
namespace {

using testing::cpus;
using testing::id;

// What four parts draw when `devices` devices share them.
std::vector<torch::Tensor> DrawsOfParts(int devices) {
  torch::manual_seed(11);
  MirroredStrategy strategy(cpus(devices));
  StepSeed seed;
  const int each = 4 / devices;
  const auto drawn = strategy.run([&] {
    std::vector<torch::Tensor> draws;
    for (int part = id() * each; part < (id() + 1) * each; ++part) {
      const PartRandom random(seed, part);
      draws.push_back(torch::rand({3}));
    }
    return draws;
  });
  std::vector<torch::Tensor> all;
  for (const auto& draws : drawn.values()) all.insert(all.end(), draws.begin(), draws.end());
  return all;
}

TEST_CASE("what a part of a step draws is the same on any number of devices", "[strategy][unit]") {
  const std::vector<torch::Tensor> one = DrawsOfParts(1);
  for (const int devices : {2, 4}) {
    const std::vector<torch::Tensor> many = DrawsOfParts(devices);
    REQUIRE(many.size() == 4);
    for (std::size_t part = 0; part < 4; ++part) CHECK(many[part].equal(one[part]));
  }
  CHECK_FALSE(one[0].equal(one[1]));
}

TEST_CASE("a step that draws nothing takes none of the program's random numbers",
          "[strategy][unit]") {
  torch::manual_seed(3);
  const torch::Tensor expected = torch::rand({2});
  torch::manual_seed(3);
  {
    StepSeed seed;
    const PartRandom random(seed, 5);
  }
  CHECK(torch::rand({2}).equal(expected));
}

}  // namespace
}  // namespace muster
