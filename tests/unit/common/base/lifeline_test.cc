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

TEST_CASE("who watches a lifeline knows whether it was cut since", "[base][unit]") {
  std::optional<Lifeline> lifeline(std::in_place);
  const auto early = lifeline->Watch();
  CHECK(early());
  lifeline->Cut();
  const auto late = lifeline->Watch();
  CHECK_FALSE(early());
  CHECK(late());

  lifeline.reset();

  CHECK_FALSE(late());
}

TEST_CASE("after its end a lifeline guards nothing any more", "[base][unit]") {
  Lifeline lifeline;
  int runs = 0;
  const std::function<void()> before = lifeline.Guard([&] { ++runs; });
  lifeline.End();
  const std::function<void()> after = lifeline.Guard([&] { ++runs; });

  before();
  after();

  CHECK(runs == 0);
  CHECK_FALSE(lifeline.Watch()());
}

}  // namespace
}  // namespace muster
