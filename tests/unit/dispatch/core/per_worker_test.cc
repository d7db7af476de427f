// Values that each worker has one of.
#include <algorithm>

#include "dispatch/core/attempt.h"

#include "tests/support/catch.h"
#include "tests/unit/dispatch/core/fixture.h"

namespace muster::dispatch {
namespace {

using namespace std::chrono_literals;
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

TEST_CASE("what is given up without having run leaves its turn to the next", "[dispatch][unit]") {
  Bench bench({.worker_patience = 1s});
  const ClosureId value = bench.dispatcher.per_worker().Create(4, {});
  const auto schedule = [&] { (void)bench.dispatcher.Schedule(1, {}, std::span(&value, 1)); };
  schedule();
  CHECK(bench.Pump().empty());
  bench.now += 2s;
  CHECK(bench.Pump().empty());
  REQUIRE(bench.dispatcher.Raise());

  const WorkerHandle worker = bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  schedule();

  const std::vector<Sent> sent = bench.Pump();
  REQUIRE(sent.size() == 2);
  CHECK(sent[1].worker == worker);
  CHECK(sent[1].arguments == std::string(8, '\0'));  // the first turn
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
  CHECK(bench.Pump().empty());  // the other is tried again, where it was, after a pause
  bench.now = bench.dispatcher.next_timer();
  sent = bench.Pump();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].worker == bench.b);
}

TEST_CASE("builds pause while a parameter server is away, and say when it is lost",
          "[dispatch][unit][CCE-08][CCF-10]") {
  TwoWorkers bench;
  const ClosureId value = bench.dispatcher.per_worker().Create(4, {});
  const auto all_fail = [&](const Status& status) {
    const std::vector<Sent> sent = bench.Pump();
    CHECK(sent.size() == 2);
    for (const Sent& one : sent) bench.Failed(one, status, Origin::kPs, "ps:0");
    CHECK(bench.Pump().empty());
    CHECK(bench.dispatcher.next_timer() > bench.now);
    bench.now += 2s;
  };
  for (int i = 0; i < 10; ++i) all_fail(ResourceExhausted("no room"));
  all_fail(Unavailable("refused"));
  all_fail(Unavailable("refused"));
  CHECK_FALSE(bench.dispatcher.failed());
  CHECK(bench.StateAt(value, bench.a) == State::kNotReady);

  all_fail(Unavailable("refused"));
  const auto raised = bench.dispatcher.Raise();
  REQUIRE(raised);
  CHECK(raised->origin == Origin::kPs);
  CHECK(raised->task == "ps:0");
  CHECK(raised->status.code() == StatusCode::kUnavailable);

  // It is there again.
  for (const Sent& one : bench.Pump()) bench.Done(one);
  CHECK(bench.StateAt(value, bench.a) == State::kValue);
  CHECK(bench.StateAt(value, bench.b) == State::kValue);
}

// Worker 0's executor ends while it builds the value, and the next one begins with that again.
struct EndedByBuild : TwoWorkers {
  using Cause = Suspects::Cause;
  void EndAndReplace(Cause cause, std::vector<ClosureId> running) {
    (void)dispatcher.CrashWorker("worker:0", "signal SIGSEGV", cause, running);
    a = dispatcher.AddWorker("worker:0", Incarnation(++incarnation), 1);
    sent = Pump();
  }
  std::size_t SentTo(WorkerHandle worker, ClosureId closure) const {
    return static_cast<std::size_t>(std::ranges::count_if(sent, [&](const Sent& one) {
      return one.worker == worker && one.closure == closure.value();
    }));
  }
  std::uint32_t incarnation = 1;
  std::vector<Sent> sent = {};
};

TEST_CASE("a build that ends one executor after another is given up there and fails the queue",
          "[dispatch][unit]") {
  EndedByBuild bench;
  const ClosureId value = bench.dispatcher.per_worker().Create(4, {});
  bench.Done(bench.Pump()[1]);
  bench.Schedule();
  for (int i = 0; i < 2; ++i) {
    bench.EndAndReplace(EndedByBuild::Cause::kItself, {value});
    CHECK(bench.SentTo(bench.a, value) == 1);
    CHECK_FALSE(bench.dispatcher.failed());
  }

  bench.EndAndReplace(EndedByBuild::Cause::kItself, {value});

  CHECK(bench.dispatcher.failed());
  CHECK(bench.SentTo(bench.a, value) == 0);
  CHECK(bench.StateAt(value, bench.a) == State::kError);
  CHECK(bench.StateAt(value, bench.b) == State::kValue);
  for (const Sent& one : bench.sent) bench.Done(one);
  bench.dispatcher.RemoveWorker(bench.b, Unavailable("killed"));  // it has the closure
  const auto raised = bench.dispatcher.Raise();
  REQUIRE(raised);
  CHECK(raised->origin == Origin::kUser);
  CHECK(raised->phase == Phase::kBuild);
  CHECK(raised->task == "worker:0");
  CHECK(Message(raised->status) ==
        "a per-worker value of worker:0 is given up there: its build has ended its executor 3 "
        "times, the last time by signal SIGSEGV");

  // Nor by the executors that come later, and the rest goes on.
  bench.EndAndReplace(EndedByBuild::Cause::kOutside, {});
  CHECK(bench.StateAt(value, bench.a) == State::kError);
  const std::uint64_t next = bench.Schedule();
  bench.sent = bench.Pump();
  REQUIRE(bench.sent.size() == 1);
  CHECK(bench.sent[0].closure == next);
  bench.Done(bench.sent[0]);
  CHECK_FALSE(bench.dispatcher.failed());
}

TEST_CASE("executors that are killed from outside six times in one build give it up as well",
          "[dispatch][unit]") {
  EndedByBuild bench;
  const ClosureId value = bench.dispatcher.per_worker().Create(4, {});
  bench.Done(bench.Pump()[1]);
  const auto end = [&](int times) {
    for (int i = 0; i < times; ++i) bench.EndAndReplace(EndedByBuild::Cause::kOutside, {value});
  };
  end(5);
  CHECK_FALSE(bench.dispatcher.failed());
  // It has come to an end: the next ones are others.
  REQUIRE(bench.SentTo(bench.a, value) == 1);
  bench.Done(bench.sent[0]);
  // What ran is known to be none of it.
  for (int i = 0; i < 7; ++i) bench.EndAndReplace(EndedByBuild::Cause::kItself, {ClosureId()});
  CHECK_FALSE(bench.dispatcher.failed());

  end(5);
  CHECK_FALSE(bench.dispatcher.failed());
  end(1);
  CHECK(bench.dispatcher.failed());
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
  CHECK(values.TakeReleased() == std::vector<ClosureId>{value});
  CHECK(values.TakeReleased().empty());
  // One that was being built is there only now.
  CHECK(bench.Done(sent[1]) == ClosureDispatcher::Outcome::kStale);
  CHECK(values.TakeReleased() == std::vector<ClosureId>{value});
  bench.dispatcher.RemoveWorker(bench.a, Unavailable("gone"));
  bench.dispatcher.AddWorker("worker:0", Incarnation(2), 1);
  CHECK(bench.Pump().empty());
}

}  // namespace
}  // namespace muster::dispatch
