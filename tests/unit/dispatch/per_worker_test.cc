// Values that each worker has one of.
#include "dispatch/core/attempt.h"

#include "tests/support/catch.h"
#include "tests/unit/dispatch/fixture.h"

namespace muster::dispatch {
namespace {

using State = ResultSlab::State;

struct TwoWorkers : Bench {
  TwoWorkers() {
    a = dispatcher.AddWorker("worker:0", Incarnation(1), 1);
    b = dispatcher.AddWorker("worker:1", Incarnation(1), 1);
  }
  State StateAt(ClosureId value, WorkerHandle worker) {
    return dispatcher.results().state(*dispatcher.per_worker().At(value, worker.index));
  }
  WorkerHandle a;
  WorkerHandle b;
};

TEST_CASE("a build goes to its own worker, before the queue, and join does not wait for it",
          "[dispatch][unit][CCQ-04]") {
  TwoWorkers bench;
  bench.Schedule();
  const ClosureId value = bench.dispatcher.per_worker().Create(4, BytesOf("data"));

  const std::vector<Sent> sent = bench.Pump();

  REQUIRE(sent.size() == 3);
  CHECK(sent[0].closure == value.value());
  CHECK(sent[0].worker == bench.a);
  CHECK(sent[1].closure == value.value());
  CHECK(sent[1].worker == bench.b);
  CHECK(sent[1].arguments == "data");
  CHECK(sent[2].closure == 1);
  bench.Done(sent[2]);
  CHECK(bench.dispatcher.idle());
  bench.Done(sent[0], "built");
  CHECK(bench.StateAt(value, bench.a) == State::kValue);
  CHECK(bench.StateAt(value, bench.b) == State::kNotReady);
}

TEST_CASE("a lost worker's values are aborted, and built again when it is back",
          "[dispatch][unit][CCF-06]") {
  TwoWorkers bench;
  const ClosureId value = bench.dispatcher.per_worker().Create(4, {});
  std::vector<Sent> sent = bench.Pump();
  bench.Done(sent[0]);
  bench.dispatcher.RemoveWorker(bench.a, Unavailable("killed"));

  CHECK(bench.StateAt(value, bench.a) == State::kAborted);
  const auto slot = *bench.dispatcher.per_worker().At(value, bench.a.index);
  CHECK(Message(bench.dispatcher.results().error(slot)->status)
            .starts_with("The corresponding function is aborted. Please reschedule"));
  CHECK(bench.Done(sent[0]) == ClosureDispatcher::Outcome::kStale);
  bench.a = bench.dispatcher.AddWorker("worker:0", Incarnation(2), 1);
  sent = bench.Pump();

  REQUIRE(sent.size() == 1);
  CHECK(ExecutionsOf(sent[0].attempt) == 2);
  CHECK(bench.StateAt(value, bench.a) == State::kNotReady);
  bench.Done(sent[0]);
  CHECK(bench.StateAt(value, bench.a) == State::kValue);
}

TEST_CASE("a value asked for while a worker is away is aborted there until it comes",
          "[dispatch][unit]") {
  TwoWorkers bench;
  bench.dispatcher.RemoveWorker(bench.b, Unavailable("killed"));
  const ClosureId value = bench.dispatcher.per_worker().Create(4, {});
  CHECK(bench.Pump().size() == 1);
  CHECK(bench.StateAt(value, bench.b) == State::kAborted);

  bench.b = bench.dispatcher.AddWorker("worker:1", Incarnation(2), 1);
  const WorkerHandle c = bench.dispatcher.AddWorker("worker:2", Incarnation(1), 1);

  CHECK(bench.Pump().size() == 2);
  CHECK(bench.StateAt(value, bench.b) == State::kNotReady);
  CHECK(bench.StateAt(value, c) == State::kNotReady);
}

TEST_CASE("an error of a build stays with its value and fails no queue",
          "[dispatch][unit][CCE-08]") {
  TwoWorkers bench;
  const ClosureId value = bench.dispatcher.per_worker().Create(4, {});
  std::vector<Sent> sent = bench.Pump();
  bench.Failed(sent[0], InvalidArgument("no such file"));
  bench.Failed(sent[1], Unavailable("executor restarts"), Origin::kWorker);

  CHECK(bench.StateAt(value, bench.a) == State::kError);
  CHECK_FALSE(bench.dispatcher.failed());
  sent = bench.Pump();  // the other is tried again, where it was
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].worker == bench.b);
}

TEST_CASE("a value that is released is forgotten everywhere", "[dispatch][unit][CCO-14]") {
  TwoWorkers bench;
  PerWorkerValues& values = bench.dispatcher.per_worker();
  const ClosureId value = values.Create(4, {});
  const std::vector<Sent> sent = bench.Pump();
  bench.Done(sent[0], "v");
  values.Release(value);

  CHECK(values.size() == 0);
  CHECK(bench.dispatcher.results().held() == 0);
  CHECK(bench.Done(sent[1]) == ClosureDispatcher::Outcome::kStale);
  CHECK(values.TakeReleased() == std::vector<ClosureId>{value});
  CHECK(values.TakeReleased().empty());
  bench.dispatcher.RemoveWorker(bench.a, Unavailable("gone"));
  bench.dispatcher.AddWorker("worker:0", Incarnation(2), 1);
  CHECK(bench.Pump().empty());
}

}  // namespace
}  // namespace muster::dispatch
