#include "collectives/packing.h"

#include <vector>

#include "collectives/hierarchy.h"
#include "tests/support/catch.h"

namespace muster::collectives {
namespace {

using Packs = std::vector<std::vector<std::size_t>>;
using Sizes = std::vector<std::optional<std::size_t>>;

TEST_CASE("a pack closes only after it exceeds the limit", "[spec][XDO-16]") {
  // float[2,4,4], int32[8], int64[10,10], int32[1].
  const Sizes sizes{128, 32, 800, 4};

  CHECK(GroupBySize(sizes, 200) == Packs{{0, 1, 2}, {3}});
  CHECK(GroupBySize(sizes, 160) == Packs{{0, 1, 2}, {3}});
  CHECK(GroupBySize(sizes, 159) == Packs{{0, 1}, {2}, {3}});
  CHECK(GroupBySize(sizes, 1) == Packs{{0}, {1}, {2}, {3}});
  CHECK(GroupBySize(sizes, 10000) == Packs{{0, 1, 2, 3}});
}

TEST_CASE("without a limit, or with a size that is unknown, there is one pack in order",
          "[spec][XDO-17]") {
  CHECK(GroupBySize(Sizes{128, 32, 800, 4}, 0) == Packs{{0, 1, 2, 3}});
  CHECK(GroupBySize(Sizes{128, std::nullopt, 800, 4}, 200) == Packs{{0, 1, 2, 3}});
  CHECK(GroupBySize(Sizes{}, 200).empty());
}

TEST_CASE("slices cover everything once, at borders of the grain", "[collectives][unit]") {
  for (const std::size_t count : {0, 1, 64, 65, 1000, 4096}) {
    for (const std::size_t parts : {1, 2, 3, 7}) {
      std::size_t at = 0;
      for (std::size_t part = 0; part < parts; ++part) {
        const Range slice = SliceOf(count, part, parts);
        CHECK(slice.begin == at);
        CHECK((slice.end % 64 == 0 || slice.end == count));
        at = slice.end;
      }
      CHECK(at == count);
    }
  }
  CHECK(SliceOf(1000, 0, 2) == Range{0, 512});
}

TEST_CASE("splits are equal and the last takes the rest", "[collectives][unit]") {
  CHECK(SplitOf(10, 0, 3) == Range{0, 3});
  CHECK(SplitOf(10, 1, 3) == Range{3, 6});
  CHECK(SplitOf(10, 2, 3) == Range{6, 10});
  CHECK(SplitOf(1, 0, 3) == Range{0, 0});
  CHECK(SplitOf(1, 2, 3) == Range{0, 1});
}

TEST_CASE("a range over buffers laid end to end falls into pieces", "[collectives][unit]") {
  const std::vector<std::size_t> counts{4, 0, 6, 2};
  using Pieces = std::vector<Piece>;

  CHECK(PiecesOf(counts, {0, 12}) == Pieces{{0, {0, 4}}, {2, {0, 6}}, {3, {0, 2}}});
  CHECK(PiecesOf(counts, {3, 5}) == Pieces{{0, {3, 4}}, {2, {0, 1}}});
  CHECK(PiecesOf(counts, {11, 12}) == Pieces{{3, {1, 2}}});
  CHECK(PiecesOf(counts, {5, 5}).empty());
}

TEST_CASE("buffer i has the root i mod n and the partner half a round further",
          "[collectives][unit]") {
  const auto is = [](std::size_t buffer, std::size_t members, std::size_t root, std::size_t partner,
                     Range own, Range other) {
    const HierarchicalRoute route = RouteOf(buffer, members);
    return route.root == root && route.partner == partner && route.root_members == own &&
           route.partner_members == other;
  };

  CHECK(is(0, 8, 0, 4, {0, 4}, {4, 8}));
  CHECK(is(3, 8, 3, 7, {0, 4}, {4, 8}));
  CHECK(is(5, 8, 5, 1, {4, 8}, {0, 4}));
  CHECK(is(9, 8, 1, 5, {0, 4}, {4, 8}));
  CHECK(is(3, 4, 3, 1, {2, 4}, {0, 2}));
  CHECK(is(1, 2, 1, 0, {1, 2}, {0, 1}));
  CHECK(is(0, 1, 0, 0, {0, 1}, {0, 0}));
  // An odd number: nobody is left out.
  CHECK(is(2, 3, 2, 0, {1, 3}, {0, 1}));
  CHECK(is(1, 3, 1, 0, {1, 3}, {0, 1}));
}

TEST_CASE("a hierarchical reduction equals a flat one", "[collectives][unit]") {
  for (std::size_t members = 1; members <= 8; ++members) {
    for (std::size_t buffer = 0; buffer < members; ++buffer) {
      for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
        std::vector<std::vector<double>> values(members, std::vector<double>(100));
        std::vector<const void*> sources;
        std::vector<void*> destinations;
        for (std::size_t m = 0; m < members; ++m) {
          for (std::size_t i = 0; i < 100; ++i) {
            values[m][i] = static_cast<double>(i * (m + 1));
          }
          sources.push_back(values[m].data());
          destinations.push_back(values[m].data());  // in place
        }

        HierarchicalReduce(reduction, DType::kFloat64, buffer, sources, destinations, {10, 90});

        const double sum = static_cast<double>(members * (members + 1)) / 2;
        const double factor =
            reduction == Reduction::kSum ? sum : sum / static_cast<double>(members);
        for (std::size_t m = 0; m < members; ++m) {
          CHECK(values[m][9] == 9.0 * static_cast<double>(m + 1));
          CHECK(values[m][90] == 90.0 * static_cast<double>(m + 1));
          for (std::size_t i = 10; i < 90; ++i) {
            REQUIRE(values[m][i] == Approx(static_cast<double>(i) * factor));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace muster::collectives
