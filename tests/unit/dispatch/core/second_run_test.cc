// Closures that take long are executed a second time by workers that would have nothing to do.
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/seeds.h"
#include "tests/unit/dispatch/core/fixture.h"

namespace muster::dispatch {
namespace {

using namespace std::chrono_literals;

constexpr auto kTypical = 100ms;

struct SecondBench : Bench {
  explicit SecondBench(std::uint32_t second_runs = 1)
      : Bench({.second_runs = second_runs, .credit = {.least = 1, .most = 1}}) {
    first = dispatcher.AddWorker("worker:0", Incarnation(1), 1);
    second = dispatcher.AddWorker("worker:1", Incarnation(1), 1);
    // How long its closures take is known.
    ScheduleRepeatable();
    Done(Pump().at(0), "", kTypical);
  }
  ResultSlab::Slot ScheduleRepeatable() {
    return dispatcher.Schedule(1, {}, {}, 0, {.repeatable = true}).result;
  }
  // Two executions of one closure that takes long.
  struct Both {
    Sent first;
    Sent second;
    ResultSlab::Slot result;
  };
  Both RunTwice() {
    Both both;
    both.result = ScheduleRepeatable();
    both.first = Pump().at(0);
    now += 3 * kTypical;
    const std::vector<Sent> again = Pump();
    REQUIRE(again.size() == 1);
    both.second = again[0];
    return both;
  }
  WorkerHandle first;
  WorkerHandle second;
};

TEST_CASE("a closure that takes long is executed again, and what ends first counts",
          "[dispatch][unit]") {
  SecondBench bench;
  const auto both = bench.RunTwice();
  CHECK(both.second.closure == both.first.closure);
  CHECK(both.second.worker != both.first.worker);
  CHECK(both.second.attempt > both.first.attempt);
  CHECK(bench.dispatcher.in_flight() == 1);
  CHECK(bench.dispatcher.reruns() == 1);
  const bool second_wins = GENERATE(true, false);

  CHECK(bench.Done(second_wins ? both.second : both.first, "won") == Bench::Outcome::kDone);

  CHECK(bench.dispatcher.idle());
  CHECK(bench.ValueOf(both.result) == "won");
  // The other one's worker gets nothing before it has ended, and its result nobody wants.
  for (int i = 0; i < 3; ++i) bench.ScheduleRepeatable();
  const std::vector<Sent> next = bench.Pump();
  REQUIRE(next.size() == 2);
  for (const Sent& one : next) {
    CHECK(one.worker == (second_wins ? both.second : both.first).worker);
  }
  CHECK(bench.Done(second_wins ? both.first : both.second, "lost") == Bench::Outcome::kStale);
  CHECK(bench.ValueOf(both.result) == "won");
  CHECK(bench.PumpIds().size() == 1);
}

TEST_CASE("a closure is executed again only when it takes long, may be, and somebody is idle",
          "[dispatch][unit]") {
  SecondBench bench;
  SECTION("not before, and the timer says when") {
    bench.ScheduleRepeatable();
    REQUIRE(bench.Pump().size() == 1);
    CHECK(bench.dispatcher.next_timer() == bench.now + 3 * kTypical);
    bench.now += 3 * kTypical - 1ms;
    CHECK(bench.Pump().empty());
  }
  SECTION("not one that may not be") {
    bench.ScheduleWanted();
    REQUIRE(bench.Pump().size() == 1);
    bench.now += 1h;
    CHECK(bench.Pump().empty());
    CHECK(bench.dispatcher.next_timer() == TimePoint::max());
  }
  SECTION("not while others wait for the worker") {
    for (int i = 0; i < 4; ++i) bench.ScheduleRepeatable();
    REQUIRE(bench.Pump().size() == 4);
    bench.now += 1h;
    CHECK(bench.Pump().empty());
  }
  SECTION("no more of them at once than is said") {
    bench.dispatcher.AddWorker("worker:2", Incarnation(1), 1);
    bench.dispatcher.AddWorker("worker:3", Incarnation(1), 1);
    for (int i = 0; i < 2; ++i) bench.ScheduleRepeatable();
    REQUIRE(bench.Pump().size() == 2);
    bench.now += 1h;
    CHECK(bench.Pump().size() == 1);
    CHECK(bench.dispatcher.next_timer() == TimePoint::max());
  }
  SECTION("not while it is not known what its function takes") {
    bench.dispatcher.Schedule(2, {}, {}, 0, {.repeatable = true});
    REQUIRE(bench.Pump().size() == 1);
    bench.now += 1h;
    CHECK(bench.Pump().empty());
  }
}

TEST_CASE("when one of two executions is lost the other one goes on", "[dispatch][unit]") {
  SecondBench bench;
  const auto both = bench.RunTwice();
  const bool lose_first = GENERATE(true, false);
  const Sent& lost = lose_first ? both.first : both.second;
  const Sent& stays = lose_first ? both.second : both.first;

  bench.dispatcher.RemoveWorker(lost.worker, Unavailable("killed"));

  CHECK(bench.dispatcher.queued() == 0);
  CHECK(bench.dispatcher.in_flight() == 1);
  CHECK(bench.dispatcher.in_flight(stays.worker) == 1);
  CHECK(bench.Done(lost) == Bench::Outcome::kStale);
  CHECK(bench.Done(stays, "there") == Bench::Outcome::kDone);
  CHECK(bench.ValueOf(both.result) == "there");
  CHECK(bench.dispatcher.idle());
}

TEST_CASE("a closure is blamed for the executor that its second execution ends",
          "[dispatch][unit]") {
  SecondBench bench;
  const auto both = bench.RunTwice();
  const auto crash = [&](const WorkerHandle& worker) {
    const std::vector<ClosureId> running = {ClosureId(both.first.closure)};
    return bench.dispatcher.CrashWorker(worker == bench.first ? "worker:0" : "worker:1", "SIGSEGV",
                                        Suspects::Cause::kItself, running);
  };

  const auto ended = crash(both.second.worker);

  CHECK(ended.requeued.empty());
  CHECK(NumbersOf(ended.had) == std::vector{both.first.closure});
  SECTION("no other one is lost to it while it runs, and its success clears it") {
    bench.dispatcher.AddWorker("worker:2", Incarnation(1), 1);
    bench.now += 1h;
    CHECK(bench.Pump().empty());
    CHECK(bench.Done(both.first, "there") == Bench::Outcome::kDone);
    for (int i = 0; i < 2; ++i) bench.Schedule();
    CHECK(bench.Pump().size() == 2);
  }
  SECTION("it is given up as soon as one that had no second execution") {
    CHECK_FALSE(crash(both.first.worker).given_up);
    bench.first = bench.dispatcher.AddWorker("worker:0", Incarnation(2), 1);
    const std::vector<Sent> third = bench.Pump();
    REQUIRE(third.size() == 1);
    CHECK(crash(third[0].worker).given_up == ClosureId(both.first.closure));
  }
}

TEST_CASE("an error is raised when both executions of what has failed or was cancelled have ended",
          "[dispatch][unit]") {
  SecondBench bench;
  const auto both = bench.RunTwice();
  const bool own = GENERATE(true, false);
  if (own) {
    CHECK(bench.Failed(both.first, InvalidArgument("bad")) == Bench::Outcome::kFailed);
  } else {
    bench.dispatcher.AddWorker("worker:2", Incarnation(1), 1);
    bench.Schedule();
    bench.Failed(bench.Pump().at(0), InvalidArgument("bad"));
    CHECK(bench.dispatcher.TakeCancel());
    bench.Failed(both.first, Cancelled("it was told to end"));
  }

  CHECK_FALSE(bench.dispatcher.Raise());
  if (own) CHECK(bench.dispatcher.TakeCancel());
  const bool lost = GENERATE(true, false);
  if (lost) {
    bench.dispatcher.RemoveWorker(both.second.worker, Unavailable("killed"));
  } else {
    bench.Failed(both.second, Cancelled("it was told to end"));
  }
  CHECK(bench.dispatcher.Raise());
}

TEST_CASE("trouble of one of two executions is none of the closure's", "[dispatch][unit]") {
  SecondBench bench;
  const auto both = bench.RunTwice();
  const bool first = GENERATE(true, false);
  const Sent& troubled = first ? both.first : both.second;
  const Sent& other = first ? both.second : both.first;
  SECTION("of the cluster's") {
    bench.Failed(troubled, Unavailable("no such file yet"), Origin::kWorker);
  }
  SECTION("since the other one has written") {
    if (!first) return;
    bench.Failed(troubled, Aborted("closure 2: attempt 1 is superseded by attempt 2"));
  }
  CHECK_FALSE(bench.dispatcher.failed());
  CHECK(bench.Done(other, "there") == Bench::Outcome::kDone);
  CHECK(bench.ValueOf(both.result) == "there");
}

TEST_CASE("an execution that was superseded by one that is lost is repeated", "[dispatch][unit]") {
  SecondBench bench;
  const auto both = bench.RunTwice();
  bench.dispatcher.RemoveWorker(both.second.worker, Unavailable("killed"));
  CHECK(bench.Failed(both.first, Aborted("superseded")) == Bench::Outcome::kAgain);
  const std::vector<Sent> again = bench.Pump();
  REQUIRE(again.size() == 1);
  CHECK(again[0].attempt > both.second.attempt);
  // What the function itself throws is its own error.
  CHECK(bench.Failed(again[0], Aborted("by the user")) == Bench::Outcome::kFailed);
}

TEST_CASE("the error of a function counts, whichever execution has it", "[dispatch][unit]") {
  SecondBench bench;
  const auto both = bench.RunTwice();
  CHECK(bench.Failed(both.second, InvalidArgument("a bad batch")) == Bench::Outcome::kFailed);
  CHECK(bench.Done(both.first) == Bench::Outcome::kStale);
  const auto error = bench.dispatcher.Raise();
  REQUIRE(error);
  CHECK(error->status.code() == StatusCode::kInvalidArgument);
  CHECK(bench.dispatcher.idle());
}

// Workers come, go, stall and fail; every closure ends once, and none is forgotten.
void Simulate(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto upto = [&](std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n)(random);
  };
  Bench bench({.staleness = 0,
               .second_runs = static_cast<std::uint32_t>(1 + upto(2)),
               .credit = {.least = static_cast<std::uint32_t>(1 + upto(2)), .most = 4}});
  constexpr int kWorkers = 4;
  constexpr std::uint64_t kClosures = 60;
  std::vector<std::optional<WorkerHandle>> workers(kWorkers);
  const auto join = [&](int i) {
    workers[i] = bench.dispatcher.AddWorker("worker:" + std::to_string(i), Incarnation(1),
                                            static_cast<std::uint32_t>(1 + upto(1)));
  };
  for (int i = 0; i < kWorkers; ++i) join(i);
  std::multimap<TimePoint, Sent> running;
  std::map<std::uint64_t, int> done;
  std::uint64_t scheduled = 0;
  for (int turn = 0; turn < 20'000 && done.size() < kClosures; ++turn) {
    while (scheduled < kClosures && scheduled < done.size() + 12) {
      bench.dispatcher.Schedule(1, {}, {}, 1 + scheduled++ / 4, {.repeatable = true});
    }
    for (const Sent& one : bench.Pump()) {
      const auto takes = upto(9) == 0 ? 1s * (1 + upto(9)) : 1ms * (10 + upto(20));
      running.emplace(bench.now + takes, one);
    }
    TimePoint next = bench.dispatcher.next_timer();
    if (!running.empty()) next = std::min(next, running.begin()->first);
    REQUIRE(next != TimePoint::max());
    bench.now = std::max(bench.now, next);
    if (const int i = static_cast<int>(upto(kWorkers - 1)); upto(19) == 0 && workers[i]) {
      bench.dispatcher.RemoveWorker(*workers[i], Unavailable("killed"));
      join(i);
    }
    if (running.empty() || running.begin()->first > bench.now) continue;
    const Sent ended = running.begin()->second;
    running.erase(running.begin());
    if (upto(19) == 0) {
      bench.Failed(ended, Unavailable("away"), Origin::kWorker);
      continue;
    }
    if (bench.Done(ended, "", 20ms) == Bench::Outcome::kDone) ++done[ended.closure];
  }
  INFO("seed " << seed << ": " << done.size() << " ended");
  REQUIRE(done.size() == kClosures);
  for (const auto& [closure, times] : done) REQUIRE(times == 1);
  REQUIRE(bench.dispatcher.idle());
  // What goes on of the past ends, and all workers are as good as new.
  for (const auto& [at, sent] : running) REQUIRE(bench.Done(sent) == Bench::Outcome::kStale);
  bench.now += 1h;
  for (int i = 0; i < kWorkers; ++i) bench.Schedule();
  REQUIRE(bench.Pump().size() == kWorkers);
}

TEST_CASE("whatever happens to two executions, each closure ends once", "[dispatch][unit][sim]") {
  testing::EachSeed(1'000, Simulate);
}

}  // namespace
}  // namespace muster::dispatch
