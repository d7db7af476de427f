#include "common/base/scheduler.h"

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"

namespace muster {
namespace {

TEST_CASE("fake time runs timers at their own moments and in order", "[base][unit]") {
  FakeScheduler scheduler;
  const TimePoint start = scheduler.Now();
  std::vector<std::string> ran;
  scheduler.RunAfter(Millis(20), [&] { ran.push_back("second"); });
  scheduler.RunAfter(Millis(10), [&] {
    ran.push_back("first");
    CHECK(scheduler.Now() - start == Millis(10));
  });
  const auto dropped = scheduler.RunAfter(Millis(15), [&] { ran.push_back("dropped"); });
  CHECK(scheduler.Cancel(dropped));

  scheduler.Advance(Millis(100));

  CHECK(ran == std::vector<std::string>{"first", "second"});
  CHECK_FALSE(scheduler.Cancel(dropped));
}

TEST_CASE("a thread scheduler runs posted functions in order, one at a time", "[base][unit]") {
  std::vector<int> ran;
  std::promise<void> done;
  ThreadScheduler scheduler;
  for (int i = 0; i < 100; ++i) scheduler.Post([&ran, i] { ran.push_back(i); });
  scheduler.RunAfter(Millis(1), [&] { done.set_value(); });

  done.get_future().wait();

  REQUIRE(ran.size() == 100);
  for (int i = 0; i < 100; ++i) CHECK(ran[i] == i);
}

TEST_CASE("a timer of a thread scheduler that is due when no clock goes any more does not run",
          "[base][unit]") {
  std::vector<std::string> ran;
  std::promise<void> done;
  ThreadScheduler scheduler;
  scheduler.RunAfter(Millis::max(), [&] { ran.push_back("never"); });
  const auto centuries = std::chrono::floor<Millis>(std::chrono::nanoseconds::max());
  scheduler.RunAfter(centuries, [&] { ran.push_back("in 292 years"); });
  scheduler.RunAfter(Millis(1), [&] {
    ran.push_back("soon");
    done.set_value();
  });

  done.get_future().wait();
  scheduler.Stop();

  CHECK(ran == std::vector<std::string>{"soon"});
}

TEST_CASE("stopping a thread scheduler drops what has not started", "[base][unit]") {
  auto witness = std::make_shared<int>(1);
  ThreadScheduler scheduler;
  scheduler.RunAfter(std::chrono::hours(1), [witness] {});

  scheduler.Stop();
  scheduler.Stop();

  CHECK(witness.use_count() >= 1);
}

}  // namespace
}  // namespace muster
