#include "common/base/lifeline.h"

#include <functional>
#include <optional>
#include <string>

#include "tests/support/catch.h"

namespace muster {
namespace {

TEST_CASE("what is guarded runs while its lifeline lives and never afterwards", "[base][unit]") {
  std::optional<Lifeline> lifeline(std::in_place);
  std::string told;
  const std::function<void(const std::string&)> tell =
      lifeline->Guard([&](const std::string& what) { told += what; });

  tell("a");
  lifeline.reset();
  tell("b");

  CHECK(told == "a");
}

TEST_CASE("a cut ends what was guarded before it alone", "[base][unit]") {
  Lifeline lifeline;
  int before = 0, after = 0;
  const std::function<void()> old = lifeline.Guard([&] { ++before; });

  lifeline.Cut();
  const std::function<void()> fresh = lifeline.Guard([&] { ++after; });
  old();
  fresh();

  CHECK(before == 0);
  CHECK(after == 1);
}

}  // namespace
}  // namespace muster
