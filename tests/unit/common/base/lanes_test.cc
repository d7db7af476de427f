#include "common/base/lanes.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <vector>

#include "tests/support/catch.h"

namespace muster {
namespace {

constexpr Millis kLong{20'000};

TEST_CASE("a lane that hangs holds up its own work alone", "[base][unit]") {
  ThreadScheduler strand;
  Lanes lanes(strand);
  auto hang = std::make_shared<std::promise<void>>();
  std::promise<void> other, after;
  lanes.Run("a", [hang] { hang->get_future().wait(); }, [] {});
  std::atomic<bool> behind = false;
  lanes.Run("a", [&behind] { behind = true; }, [&after] { after.set_value(); });

  lanes.Run("b", [] {}, [&other] { other.set_value(); });

  REQUIRE(other.get_future().wait_for(kLong) == std::future_status::ready);
  CHECK_FALSE(behind);
  hang->set_value();
  REQUIRE(after.get_future().wait_for(kLong) == std::future_status::ready);
  CHECK(behind);
  lanes.Stop(kLong);
}

TEST_CASE("pieces of one lane run in their order, and answers come on the strand", "[base][unit]") {
  ThreadScheduler strand;
  Lanes lanes(strand);
  auto ran = std::make_shared<std::vector<int>>();
  std::vector<int> answered;  // on the strand alone
  std::promise<void> done;
  for (int i = 0; i < 100; ++i) {
    lanes.Run(
        "a", [ran, i] { ran->push_back(i); },
        [&, i] {
          answered.push_back(i);
          if (i == 99) done.set_value();
        });
  }

  REQUIRE(done.get_future().wait_for(kLong) == std::future_status::ready);
  lanes.Stop(kLong);
  CHECK(*ran == answered);
  CHECK(std::is_sorted(ran->begin(), ran->end()));
}

TEST_CASE("stopping waits for no piece that hangs, and drops every answer", "[base][unit]") {
  auto hang = std::make_shared<std::promise<void>>();
  std::promise<void> began;
  const auto answer = std::make_shared<int>(0);
  {
    ThreadScheduler strand;
    Lanes lanes(strand);
    lanes.Run(
        "a",
        [hang, &began] {
          began.set_value();
          hang->get_future().wait();
        },
        [answer] { ++*answer; });
    lanes.Run("a", [answer] { ++*answer; }, [answer] { ++*answer; });
    REQUIRE(began.get_future().wait_for(kLong) == std::future_status::ready);

    lanes.Stop(Millis(1));

    CHECK(answer.use_count() == 1);
    lanes.Run("b", [answer] { ++*answer; }, [] {});
  }
  CHECK(*answer == 0);
  hang->set_value();
}

}  // namespace
}  // namespace muster
