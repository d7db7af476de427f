// Closures that end executors: run alone, cleared or given up.
#include "tests/support/catch.h"
#include "tests/unit/dispatch/fixture.h"

namespace muster::dispatch {
namespace {

using namespace std::chrono_literals;
using Cause = Suspects::Cause;
using Ids = std::vector<std::uint64_t>;

struct Cluster : Bench {
  explicit Cluster(int workers, std::uint32_t credit = 2)
      : Bench({.credit = {.least = credit, .most = credit}}) {
    for (int i = 0; i < workers; ++i) Join(i);
  }
  static std::string Name(int i) { return "worker:" + std::to_string(i); }
  void Join(int i) { handles[i] = dispatcher.AddWorker(Name(i), Incarnation(1), 1); }
  ClosureDispatcher::Crash Crash(int i, Cause cause = Cause::kItself,
                                 std::vector<ClosureId> running = {}) {
    return dispatcher.CrashWorker(Name(i), "signal SIGSEGV", cause, running);
  }
  std::map<int, WorkerHandle> handles;
};

TEST_CASE("suspects run alone and first, and nothing else begins before they are cleared",
          "[dispatch][unit]") {
  Cluster cluster(2);
  for (int i = 0; i < 8; ++i) cluster.Schedule();
  const std::vector<Sent> before = cluster.Pump();
  REQUIRE(before.size() == 4);  // 1 and 3 on worker 0

  CHECK(NumbersOf(cluster.Crash(0).requeued) == Ids{1, 3});
  CHECK(cluster.Pump().empty());  // worker 1 is not free
  cluster.Done(before[1]);
  cluster.Done(before[3]);
  const std::vector<Sent> first = cluster.Pump();
  REQUIRE(first.size() == 1);
  CHECK(first[0].closure == 1);
  cluster.Join(0);
  CHECK(cluster.Pump().empty());  // 3 is better off where it has not crashed, the rest is held

  cluster.Done(first[0]);
  const std::vector<Sent> second = cluster.Pump();
  REQUIRE(second.size() == 1);
  CHECK(second[0].closure == 3);
  CHECK(second[0].worker == cluster.handles[1]);
  cluster.Done(second[0]);
  CHECK(cluster.PumpIds() == Ids{5, 6, 7, 8});
}

TEST_CASE("only what the executor was running is suspect, when that is known", "[dispatch][unit]") {
  Cluster cluster(1, 4);
  for (int i = 0; i < 4; ++i) cluster.Schedule();
  cluster.Pump();
  CHECK(NumbersOf(cluster.Crash(0, Cause::kItself, {ClosureId(2)}).requeued) == Ids{1, 2, 3, 4});
  cluster.Join(0);

  const std::vector<Sent> alone = cluster.Pump();

  REQUIRE(alone.size() == 1);
  CHECK(alone[0].closure == 2);
  cluster.Done(alone[0]);
  CHECK(cluster.PumpIds() == Ids{1, 3, 4});
}

TEST_CASE("a verdict that comes after the link has broken blames what was in flight",
          "[dispatch][unit]") {
  Cluster cluster(1);
  for (int i = 0; i < 3; ++i) cluster.Schedule();
  cluster.Pump();
  cluster.dispatcher.RemoveWorker(cluster.handles[0], Unavailable("closed"));
  cluster.Crash(0);
  cluster.Join(0);

  CHECK(cluster.PumpIds() == Ids{1});  // alone
}

TEST_CASE("a lost link alone makes no suspects", "[dispatch][unit]") {
  Cluster cluster(1);
  for (int i = 0; i < 3; ++i) cluster.Schedule();
  cluster.Pump();
  cluster.dispatcher.RemoveWorker(cluster.handles[0], Unavailable("closed"));
  cluster.Join(0);
  CHECK(cluster.PumpIds() == Ids{1, 2});
}

TEST_CASE(
    "a closure that ends its executor three times is given up, on two workers or the only one",
    "[dispatch][unit]") {
  const int workers = GENERATE(1, 2);
  Cluster cluster(workers);
  const ResultSlab::Slot future = cluster.ScheduleWanted();
  std::optional<ClosureId> given_up;
  for (int crash = 1; crash <= 3; ++crash) {
    const std::vector<Sent> sent = cluster.Pump();
    REQUIRE(sent.size() == 1);
    const int where = sent[0].worker == cluster.handles[0] ? 0 : 1;
    given_up = cluster.Crash(where).given_up;
    cluster.Join(where);
    CHECK(given_up.has_value() == (crash == 3));
  }

  const auto raised = cluster.dispatcher.Raise();
  REQUIRE(raised.has_value());
  CHECK(raised->status.code() == StatusCode::kInternal);
  CHECK(raised->origin == Origin::kUser);
  CHECK(Message(raised->status).starts_with("closure 1 has ended its executor 3 times"));
  CHECK(cluster.dispatcher.results().state(future) == ResultSlab::State::kError);
}

TEST_CASE("ends that somebody else may have brought about need six, each alone",
          "[dispatch][unit]") {
  Cluster cluster(1);
  cluster.Schedule();
  for (int end = 1; end <= 6; ++end) {
    REQUIRE(cluster.Pump().size() == 1);
    CHECK(cluster.Crash(0, Cause::kOutside).given_up.has_value() == (end == 6));
    cluster.Join(0);
  }
}

TEST_CASE("a closure that succeeds is cleared and the counts begin anew", "[dispatch][unit]") {
  Cluster cluster(1, 2);
  for (int round = 0; round < 10; ++round) {
    cluster.Schedule();
    cluster.Schedule();
    for (int crash = 0; crash < 2; ++crash) {
      cluster.Pump();
      CHECK_FALSE(cluster.Crash(0).given_up.has_value());
      cluster.Join(0);
    }
    while (!cluster.dispatcher.idle()) {
      for (const Sent& sent : cluster.Pump()) cluster.Done(sent);
    }
  }
}

TEST_CASE("five crashes of any closures without a success in between give the last one up",
          "[dispatch][unit]") {
  Cluster cluster(3, 3);
  for (int i = 0; i < 30; ++i) cluster.Schedule();
  int crashes = 0;
  std::optional<ClosureId> given_up;
  while (!given_up && crashes < 10) {
    const int where = crashes % 3;
    cluster.Pump();
    if (cluster.dispatcher.in_flight(cluster.handles[where]) > 0) {
      given_up = cluster.Crash(where).given_up;
      cluster.Join(where);
    }
    ++crashes;
  }
  CHECK(given_up.has_value());
  CHECK(cluster.dispatcher.failed());
}

TEST_CASE("three closures without an end in a row give the last one up", "[dispatch][unit]") {
  Cluster cluster(3);
  for (int i = 0; i < 3; ++i) cluster.Schedule();
  REQUIRE(cluster.Pump().size() == 3);

  CHECK_FALSE(cluster.Crash(0, Cause::kEndless).given_up.has_value());
  CHECK_FALSE(cluster.Crash(1, Cause::kEndless).given_up.has_value());
  CHECK(cluster.Crash(2, Cause::kEndless).given_up == ClosureId(3));
}

TEST_CASE("a suspect goes elsewhere first, but not to a worker that is held for good",
          "[dispatch][unit]") {
  Cluster cluster(2);
  cluster.Schedule();
  cluster.Pump();
  cluster.Crash(0);
  cluster.Join(0);
  cluster.dispatcher.HoldWorker(cluster.handles[1], TimePoint::max());

  const std::vector<Sent> sent = cluster.Pump();

  REQUIRE(sent.size() == 1);
  CHECK(sent[0].worker == cluster.handles[0]);
}

}  // namespace
}  // namespace muster::dispatch
