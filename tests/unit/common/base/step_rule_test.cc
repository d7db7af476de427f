#include "common/base/step_rule.h"

#include "tests/support/catch.h"

namespace muster {
namespace {

TEST_CASE("closures make steps of so many, the last of what is left", "[base][unit]") {
  const StepRule rule{.gradients = 4, .staleness = 0, .last = 10};
  CHECK(rule.StepOf(0) == 0);
  CHECK(rule.StepOf(1) == 1);
  CHECK(rule.StepOf(4) == 1);
  CHECK(rule.StepOf(5) == 2);
  CHECK(rule.EndOf(2) == 8);
  CHECK(rule.EndOf(3) == 10);
  CHECK(rule.RoundUp(0) == 0);
  CHECK(rule.RoundUp(8) == 8);
  CHECK(rule.RoundUp(9) == 10);
}

TEST_CASE("a step needs all steps but the newest k before it", "[base][unit]") {
  const StepRule synchronous{.gradients = 4, .staleness = 0, .last = 10};
  CHECK(synchronous.NeededFor(4) == 0);
  CHECK(synchronous.NeededFor(5) == 4);
  CHECK(synchronous.NeededFor(10) == 8);
  const StepRule stale{.gradients = 1, .staleness = 2};
  CHECK(stale.NeededFor(3) == 0);
  CHECK(stale.NeededFor(4) == 1);
  CHECK(stale.NeededFor(100) == 97);
  CHECK(StepRule().NeededFor(100) == 0);
}

TEST_CASE("whatever may begin finds ended what it needs, and the next closure always may",
          "[base][unit]") {
  for (const std::uint64_t gradients : {1, 2, 3, 7}) {
    for (const std::uint64_t staleness : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{5}}) {
      for (const std::uint64_t last :
           {std::uint64_t{1}, std::uint64_t{20}, std::uint64_t{21}, StepRule::kUnbounded}) {
        const StepRule rule{.gradients = gradients, .staleness = staleness, .last = last};
        for (std::uint64_t ended = 0; ended < std::min<std::uint64_t>(last, 40); ++ended) {
          const std::uint64_t limit = rule.Limit(ended);
          INFO(gradients << " " << staleness << " " << last << " " << ended << " " << limit);
          CHECK(limit > ended);
          CHECK(rule.NeededFor(limit) <= ended);
          if (limit < last) CHECK(rule.NeededFor(limit + 1) > ended);
        }
      }
    }
  }
  CHECK(StepRule().Limit(7) == StepRule::kUnbounded);
}

}  // namespace
}  // namespace muster
