#include "ps/step_sum.h"

#include <algorithm>
#include <bit>
#include <random>

#include "tests/support/catch.h"

namespace muster::ps {
namespace {

// Its numbers differ so much in size that every order of adding them has other bits.
std::vector<float> Gradient(std::mt19937& random, std::size_t n) {
  std::vector<float> values(n);
  for (float& value : values) {
    value = std::ldexp(std::uniform_real_distribution<float>(-1, 1)(random),
                       std::uniform_int_distribution<int>(-20, 20)(random));
  }
  return values;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(a, b, [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

TEST_CASE("gradients are added in the order of closures, whichever comes first", "[ps][unit]") {
  constexpr std::size_t kElements = 100;
  std::mt19937 random(7);
  ApplyPool pool(1);
  StepSum sum(kElements, 1, /*rows=*/false, ClosureId(1), pool);
  std::uint64_t first = 1;
  for (int step = 0; step < 20; ++step) {
    std::vector<std::vector<float>> gradients;
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < 6; ++i) {
      gradients.push_back(Gradient(random, kElements));
      order.push_back(i);
    }
    std::ranges::shuffle(order, random);
    for (const std::size_t i : order) REQUIRE(sum.Add(ClosureId(first + i), {}, gradients[i]).ok());

    std::vector<float> expected = gradients[0];
    for (std::size_t i = 1; i < gradients.size(); ++i) {
      for (std::size_t k = 0; k < kElements; ++k) expected[k] += gradients[i][k];
    }
    first += gradients.size();
    CHECK(sum.next() == ClosureId(first));
    CHECK(SameBits(sum.values(), expected));
    sum.Clear();
    CHECK(sum.values().empty());
  }
  // The sum, and five that waited, once for all steps.
  CHECK(sum.bytes() <= 6 * kElements * sizeof(float));
}

TEST_CASE("closures without a gradient of a whole shard add nothing, whenever they come",
          "[ps][unit]") {
  ApplyPool pool(1);
  StepSum sum(2, 1, /*rows=*/false, ClosureId(1), pool);
  const std::vector<float> a{1, 2};
  const std::vector<float> b{10, 20};
  REQUIRE(sum.Add(ClosureId(1), {}, a).ok());
  sum.Clear();

  // The first of its step, and one that waits behind it.
  REQUIRE(sum.Add(ClosureId(3), {}, {}).ok());
  REQUIRE(sum.Add(ClosureId(4), {}, b).ok());
  REQUIRE(sum.Add(ClosureId(2), {}, {}).ok());
  CHECK(sum.next() == ClosureId(5));
  CHECK(SameBits(sum.values(), b));
  sum.Clear();
  // Nobody's step has no sum, not that of the step before.
  REQUIRE(sum.Add(ClosureId(5), {}, {}).ok());
  CHECK(sum.values().empty());
  REQUIRE(sum.Add(ClosureId(7), {}, b).ok());
  REQUIRE(sum.Add(ClosureId(6), {}, a).ok());
  CHECK(SameBits(sum.values(), std::vector<float>{11, 22}));
}

TEST_CASE("a closure that comes again once it has been added counts once", "[ps][unit]") {
  const bool rows = GENERATE(false, true);
  ApplyPool pool(1);
  StepSum sum(2, 1, rows, ClosureId(1), pool);
  std::vector<std::int64_t> ids;
  if (rows) ids = {0, 1};
  const std::vector<float> a{1, 2};
  const std::vector<float> b{10, 20};
  REQUIRE(sum.Add(ClosureId(1), ids, a).ok());
  const std::uint64_t bytes = sum.bytes();

  // As one does that was told that there was no memory for those behind it.
  REQUIRE(sum.Add(ClosureId(1), ids, a).ok());

  CHECK(sum.next() == ClosureId(2));
  CHECK(sum.bytes() == bytes);
  CHECK(SameBits(sum.values(), a));
  REQUIRE(sum.Add(ClosureId(2), ids, b).ok());
  CHECK(SameBits(sum.values(), std::vector<float>{11, 22}));
}

TEST_CASE("rows of several closures are added row by row in their order", "[ps][unit]") {
  std::mt19937 random(7);
  ApplyPool pool(1);
  StepSum sum(1'000'000, 3, /*rows=*/true, ClosureId(11), pool);
  const auto a = Gradient(random, 6);
  const auto c = Gradient(random, 6);
  REQUIRE(sum.Add(ClosureId(13), std::vector<std::int64_t>{5, 2}, c).ok());
  CHECK(sum.next() == ClosureId(11));
  CHECK(sum.bytes() > 0);
  REQUIRE(sum.Add(ClosureId(12), {}, {}).ok());
  REQUIRE(sum.Add(ClosureId(11), std::vector<std::int64_t>{2, 9}, a).ok());

  CHECK(sum.next() == ClosureId(14));
  CHECK(std::ranges::equal(sum.ids(), std::vector<std::int64_t>{2, 9, 5}));
  const std::vector<float> expected{a[0] + c[3], a[1] + c[4], a[2] + c[5], a[3], a[4],
                                    a[5],        c[0],        c[1],        c[2]};
  CHECK(SameBits(sum.values(), expected));
  sum.Clear();
  CHECK(sum.bytes() == 0);
}

}  // namespace
}  // namespace muster::ps
