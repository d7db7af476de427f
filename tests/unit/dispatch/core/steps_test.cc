// Closures of steps: which may go out while others have not ended.
#include "tests/support/catch.h"
#include "tests/unit/dispatch/core/fixture.h"

namespace muster::dispatch {
namespace {

using Ids = std::vector<std::uint64_t>;

struct StepBench : Bench {
  explicit StepBench(std::uint64_t staleness)
      : Bench({.staleness = staleness, .credit = {.least = 100, .most = 100}}) {
    worker = dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  }
  void ScheduleSteps(std::initializer_list<std::uint64_t> steps) {
    for (const std::uint64_t step : steps) (void)dispatcher.Schedule(1, {}, {}, step);
  }
  WorkerHandle worker;
};

TEST_CASE("a synchronous step goes out when the one before has ended", "[dispatch][unit]") {
  StepBench bench(0);
  bench.ScheduleSteps({1, 1, 2, 2, 3});

  const std::vector<Sent> first = bench.Pump();
  REQUIRE(first.size() == 2);
  bench.Done(first[1]);
  CHECK(bench.Pump().empty());
  bench.Done(first[0]);

  CHECK(bench.PumpIds() == Ids{3, 4});
}

TEST_CASE("with staleness k as many steps more are out", "[dispatch][unit]") {
  StepBench bench(2);
  bench.ScheduleSteps({1, 2, 3, 4, 5});
  const std::vector<Sent> first = bench.Pump();
  REQUIRE(first.size() == 3);
  bench.Done(first[1]);
  bench.Done(first[2]);
  CHECK(bench.Pump().empty());
  bench.Done(first[0]);
  CHECK(bench.PumpIds() == Ids{4, 5});
}

TEST_CASE("closures of no step keep their place and wait for no step", "[dispatch][unit]") {
  StepBench bench(0);
  bench.ScheduleSteps({0, 1, 0, 2, 0});
  CHECK(bench.PumpIds() == Ids{1, 2, 3});
}

TEST_CASE("a closure of no step that takes long holds up no step", "[dispatch][unit]") {
  StepBench bench(0);
  bench.ScheduleSteps({0, 1, 1, 0, 2, 2, 3});
  const std::vector<Sent> first = bench.Pump();
  REQUIRE(first.size() == 4);
  bench.Done(first[2]);
  bench.Done(first[1]);

  const std::vector<Sent> second = bench.Pump();

  REQUIRE(second.size() == 2);
  CHECK(second[0].closure == 5);
  bench.Done(second[0]);
  CHECK(bench.Pump().empty());
  bench.Done(second[1]);
  CHECK(bench.PumpIds() == Ids{7});
  CHECK(bench.dispatcher.settled() == ClosureId(0));
}

TEST_CASE("what a lost worker had of a step goes out before the next step", "[dispatch][unit]") {
  StepBench bench(0);
  const WorkerHandle other = bench.dispatcher.AddWorker("worker:1", Incarnation(1), 1);
  bench.ScheduleSteps({1, 1, 2});
  for (const Sent& one : bench.Pump()) {
    if (one.worker == bench.worker) bench.Done(one);
  }
  CHECK(bench.dispatcher.RemoveWorker(other, Unavailable("killed")).size() == 1);

  const std::vector<Sent> again = bench.Pump();

  REQUIRE(again.size() == 1);
  CHECK(again[0].closure == 2);
  bench.Done(again[0]);
  CHECK(bench.PumpIds() == Ids{3});
}

TEST_CASE("a cut is made at the end of a synchronous step", "[dispatch][unit]") {
  StepBench bench(0);
  bench.dispatcher.HoldWorker(bench.worker, bench.now + std::chrono::seconds(1));
  bench.dispatcher.AddWorker("worker:1", Incarnation(1), 1);
  bench.ScheduleSteps({1, 1, 1, 2});
  bench.dispatcher.set_draining(true);
  CHECK(bench.Pump().empty());
  bench.dispatcher.set_draining(false);
  // One closure of three is out when the cut is wanted.
  StepBench small(0);
  small.ScheduleSteps({1});
  const std::vector<Sent> first = small.Pump();
  small.ScheduleSteps({1, 1, 2});
  small.dispatcher.set_draining(true);
  CHECK(small.Pump().empty());  // one at a time
  small.Done(first.at(0));
  const std::vector<Sent> second = small.Pump();
  REQUIRE(second.size() == 1);
  small.Done(second[0]);
  const std::vector<Sent> third = small.Pump();
  REQUIRE(third.size() == 1);
  small.Done(third[0]);
  CHECK(small.Pump().empty());
  CHECK(small.dispatcher.settled() == ClosureId(3));
  CHECK(small.dispatcher.in_flight() == 0);
}

TEST_CASE("steps have ended when all closures of steps have, whatever others do",
          "[dispatch][unit]") {
  StepBench bench(1);
  CHECK(bench.dispatcher.steps_ended());
  bench.ScheduleSteps({0, 1, 2, 0});
  const std::vector<Sent> sent = bench.Pump();
  REQUIRE(sent.size() == 4);
  bench.Done(sent[2]);
  CHECK_FALSE(bench.dispatcher.steps_ended());
  bench.Done(sent[1]);

  CHECK(bench.dispatcher.steps_ended());
  CHECK(bench.dispatcher.in_flight() == 2);
}

TEST_CASE("a failure leaves no step behind", "[dispatch][unit]") {
  StepBench bench(0);
  bench.ScheduleSteps({1, 1, 2});
  const std::vector<Sent> first = bench.Pump();
  REQUIRE(first.size() == 2);
  bench.Failed(first[0], InvalidArgument("a bad batch"));
  bench.Done(first[1]);
  REQUIRE(bench.dispatcher.Raise().has_value());

  bench.ScheduleSteps({3});
  CHECK(bench.PumpIds() == Ids{4});
}

}  // namespace
}  // namespace muster::dispatch
