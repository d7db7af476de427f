// Queue, attempts, window, credits and failure of the dispatcher, rule by rule.
#include "dispatch/core/attempt.h"

#include "tests/support/catch.h"
#include "tests/unit/dispatch/core/fixture.h"

namespace muster::dispatch {
namespace {

using namespace std::chrono_literals;
using Ids = std::vector<std::uint64_t>;
using Admission = ClosureDispatcher::Admission;
using Outcome = ClosureDispatcher::Outcome;

CreditOptions Fixed(std::uint32_t credit) { return {.least = credit, .most = credit}; }

TEST_CASE("closures go out in order, one to each worker before any gets its second",
          "[dispatch][unit]") {
  Bench bench;
  const WorkerHandle a = bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  const WorkerHandle b = bench.dispatcher.AddWorker("worker:1", Incarnation(1), 1);
  for (int i = 0; i < 6; ++i) bench.Schedule("x");

  const std::vector<Sent> sent = bench.Pump();

  REQUIRE(sent.size() == 4);  // each runs one and has the next at hand
  CHECK(sent[0].worker == a);
  CHECK(sent[1].worker == b);
  CHECK(sent[2].worker == a);
  CHECK(sent[0].closure == 1);
  CHECK(sent[3].closure == 4);
  CHECK(sent[0].arguments == "x");
  CHECK(bench.Pump().empty());
}

TEST_CASE("an attempt holds epoch, incarnation and executions and a result counts for it alone",
          "[dispatch][unit]") {
  Bench bench({.epoch = Epoch(7), .incarnation = 3});
  const WorkerHandle first = bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  bench.Schedule();
  const Sent old = bench.Pump().at(0);
  bench.dispatcher.RemoveWorker(first, Unavailable("gone"));
  bench.dispatcher.AddWorker("worker:0", Incarnation(2), 1);

  const Sent again = bench.Pump().at(0);

  CHECK(old.attempt == Attempt(std::uint64_t{7} << 32 | 3 << 16 | 1));
  CHECK(again.attempt == Attempt(std::uint64_t{7} << 32 | 3 << 16 | 2));
  CHECK(ExecutionsOf(again.attempt) == 2);
  CHECK(bench.Done(old) == Outcome::kStale);  // by a worker that left
  Sent forged = old;
  forged.worker = again.worker;
  CHECK(bench.Done(forged) == Outcome::kStale);  // by an attempt that is over
  forged = again;
  forged.worker = bench.dispatcher.AddWorker("worker:1", Incarnation(1), 1);
  CHECK(bench.Done(forged) == Outcome::kStale);  // by a worker that does not have it
  CHECK(bench.Done(again) == Outcome::kDone);
  CHECK(bench.Done(again) == Outcome::kStale);  // twice
}

TEST_CASE("a closure that comes back is the same closure, and done is false until it has ended",
          "[dispatch][unit][CCQ-01]") {
  Bench bench;
  WorkerHandle worker = bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  bench.Schedule("label");
  CHECK(bench.Pump().at(0).arguments == "label");
  bench.dispatcher.RemoveWorker(worker, Unavailable("gone"));
  CHECK_FALSE(bench.dispatcher.idle());
  bench.dispatcher.AddWorker("worker:0", Incarnation(2), 1);

  const Sent again = bench.Pump().at(0);

  CHECK(again.closure == 1);
  CHECK(again.arguments == "label");
  CHECK_FALSE(bench.dispatcher.idle());
  bench.Done(again);
  CHECK(bench.dispatcher.idle());
}

TEST_CASE("five closures put back once each by two workers run exactly once more",
          "[dispatch][unit][CCQ-02]") {
  Bench bench({.credit = Fixed(3)});
  const WorkerHandle a = bench.dispatcher.AddWorker("worker:0", Incarnation(1), 2);
  const WorkerHandle b = bench.dispatcher.AddWorker("worker:1", Incarnation(1), 2);
  for (int i = 0; i < 5; ++i) bench.Schedule();
  CHECK(bench.Pump().size() == 5);
  bench.dispatcher.RemoveWorker(a, Unavailable("gone"));
  bench.dispatcher.RemoveWorker(b, Unavailable("gone"));
  bench.dispatcher.AddWorker("worker:0", Incarnation(2), 2);
  bench.dispatcher.AddWorker("worker:1", Incarnation(2), 2);

  std::map<std::uint64_t, int> ends;
  for (const Sent& sent : bench.Pump()) {
    CHECK(ExecutionsOf(sent.attempt) == 2);
    if (bench.Done(sent) == Outcome::kDone) ++ends[sent.closure];
  }

  CHECK(ends.size() == 5);
  CHECK(bench.dispatcher.idle());
  CHECK(bench.dispatcher.succeeded() == 5);
}

TEST_CASE("what lost workers had comes back to the front, oldest first", "[dispatch][unit]") {
  Bench bench({.credit = Fixed(3)});
  const WorkerHandle a = bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  const WorkerHandle b = bench.dispatcher.AddWorker("worker:1", Incarnation(1), 1);
  for (int i = 0; i < 8; ++i) bench.Schedule();
  REQUIRE(bench.PumpIds() == Ids{1, 2, 3, 4, 5, 6});

  CHECK(NumbersOf(bench.dispatcher.RemoveWorker(b, Unavailable("gone"))) == Ids{2, 4, 6});
  CHECK(NumbersOf(bench.dispatcher.RemoveWorker(a, Unavailable("gone"))) == Ids{1, 3, 5});
  bench.dispatcher.AddWorker("worker:2", Incarnation(1), 1);
  bench.dispatcher.AddWorker("worker:3", Incarnation(1), 1);

  CHECK(bench.PumpIds() == Ids{1, 2, 3, 4, 5, 6});
}

TEST_CASE("closures come back into the order of ids whichever comes back first",
          "[dispatch][unit]") {
  Bench bench({.credit = Fixed(6)});
  bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  for (int i = 0; i < 8; ++i) bench.Schedule();
  const std::vector<Sent> sent = bench.Pump();
  REQUIRE(sent.size() == 6);

  const std::vector<std::size_t> order = GENERATE(std::vector<std::size_t>{0, 1, 2, 3, 4, 5},
                                                  std::vector<std::size_t>{5, 4, 3, 2, 1, 0},
                                                  std::vector<std::size_t>{3, 0, 4, 2, 5, 1});
  for (const std::size_t i : order) {
    CHECK(bench.Failed(sent[i], Unavailable("no room"), Origin::kWorker) == Outcome::kAgain);
  }
  bench.now += 1h;

  CHECK(bench.PumpIds() == Ids{1, 2, 3, 4, 5, 6});
}

TEST_CASE("a full queue and full argument bytes make schedule wait, in flight frees a place",
          "[dispatch][unit]") {
  Bench bench({.capacity = 3, .argument_bytes = 100});
  const std::string forty(40, 'x');
  CHECK(bench.dispatcher.Schedule(1, BytesOf(forty)).admission == Admission::kQueued);
  CHECK(bench.dispatcher.Schedule(1, BytesOf(forty)).admission == Admission::kQueued);
  CHECK(bench.dispatcher.Schedule(1, BytesOf(forty)).admission == Admission::kFull);
  CHECK(bench.dispatcher.argument_bytes() == 80);
  bench.Schedule();
  CHECK(bench.dispatcher.Schedule(1, {}).admission == Admission::kFull);

  bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  const std::vector<Sent> sent = bench.Pump();

  CHECK(bench.dispatcher.Schedule(1, {}).admission == Admission::kQueued);
  // Arguments are kept until their closure has settled, since it may have to run again.
  CHECK(bench.dispatcher.Schedule(1, BytesOf(forty)).admission == Admission::kFull);
  bench.Done(sent.at(0));
  CHECK(bench.dispatcher.Schedule(1, BytesOf(forty)).admission == Admission::kQueued);
}

TEST_CASE("no closure beyond the settled watermark and the window is handed out",
          "[dispatch][unit]") {
  Bench bench({.window = 4, .credit = Fixed(100)});
  bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  for (int i = 0; i < 10; ++i) bench.Schedule();
  const std::vector<Sent> sent = bench.Pump();
  REQUIRE(sent.size() == 4);

  bench.Done(sent[2]);
  bench.Done(sent[3]);
  bench.Done(sent[1]);
  CHECK(bench.dispatcher.settled() == ClosureId(0));
  CHECK(bench.Pump().empty());

  bench.Done(sent[0]);
  CHECK(bench.dispatcher.settled() == ClosureId(4));
  CHECK(bench.PumpIds() == Ids{5, 6, 7, 8});
}

TEST_CASE("a dispatcher with little room goes on when its places have been used again and again",
          "[dispatch][unit]") {
  Bench bench({.capacity = 3, .window = 4, .credit = Fixed(4)});
  bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  std::vector<Sent> sent;
  std::uint64_t done = 0;
  while (done < 20'000) {
    bench.Schedule();
    bench.Schedule();
    for (Sent& one : bench.Pump()) sent.push_back(std::move(one));
    // One is always left, so that the newest are beside the oldest.
    while (sent.size() > 1) {
      REQUIRE(sent.front().closure == ++done);
      REQUIRE(bench.Done(sent.front()) == Outcome::kDone);
      sent.erase(sent.begin());
    }
  }
  CHECK(bench.dispatcher.settled() == ClosureId(done));
  CHECK(bench.dispatcher.in_flight() == 1);
}

TEST_CASE("credit covers two round trips of tiny closures and stays small for long ones",
          "[dispatch][unit]") {
  Bench bench;
  const WorkerHandle worker = bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  CHECK(bench.dispatcher.credit(worker) == 2);

  bench.Schedule();
  Sent sent = bench.Pump().at(0);
  bench.now += 50us;
  bench.Done(sent, "", 1us);
  CHECK(bench.dispatcher.credit(worker) == 1 + 2 * 49);

  for (int i = 0; i < 40; ++i) {
    bench.Schedule();
    sent = bench.Pump().at(0);
    bench.now += 10ms + 49us;
    bench.Done(sent, "", 10ms);
  }
  CHECK(bench.dispatcher.credit(worker) == 2);

  // Never more than the most.
  for (int i = 0; i < 200; ++i) {
    bench.Schedule();
    sent = bench.Pump().at(0);
    bench.now += 1ms;
    bench.Done(sent, "", 100ns);
  }
  CHECK(bench.dispatcher.credit(worker) == 256);
}

TEST_CASE("a worker that runs several closures at a time may have one more than these",
          "[dispatch][unit]") {
  Bench bench;
  bench.dispatcher.AddWorker("worker:0", Incarnation(1), 4);
  for (int i = 0; i < 9; ++i) bench.Schedule();
  CHECK(bench.Pump().size() == 5);
}

TEST_CASE("a held worker gets nothing until its time", "[dispatch][unit]") {
  Bench bench;
  const WorkerHandle worker = bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  CHECK(bench.dispatcher.next_timer() == TimePoint::max());
  bench.dispatcher.HoldWorker(worker, bench.now + 1s);
  bench.Schedule();
  CHECK(bench.Pump().empty());
  CHECK(bench.dispatcher.next_timer() == bench.now + 1s);

  bench.now += 1s;

  CHECK(bench.Pump().size() == 1);
  CHECK(bench.dispatcher.next_timer() == TimePoint::max());
}

TEST_CASE("paused nothing goes out, draining only what is at most the newest", "[dispatch][unit]") {
  Bench bench({.credit = Fixed(3)});
  WorkerHandle worker = bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  for (int i = 0; i < 5; ++i) bench.Schedule();
  bench.dispatcher.set_paused(true);
  CHECK(bench.Pump().empty());
  bench.dispatcher.set_paused(false);
  REQUIRE(bench.PumpIds() == Ids{1, 2, 3});

  bench.dispatcher.RemoveWorker(worker, Unavailable("gone"));
  bench.dispatcher.set_draining(true);
  bench.dispatcher.AddWorker("worker:1", Incarnation(1), 1);
  Ids drained;
  for (std::vector<Sent> sent = bench.Pump(); !sent.empty(); sent = bench.Pump()) {
    CHECK(sent.size() == 1);  // one at a time
    drained.push_back(sent[0].closure);
    bench.Done(sent[0]);
  }

  CHECK(drained == Ids{1, 2, 3});
  CHECK(bench.dispatcher.queued() == 2);
  bench.dispatcher.set_draining(false);
  CHECK(bench.PumpIds() == Ids{4, 5});
}

TEST_CASE("the first failing closure is raised once and the rest are cancelled",
          "[dispatch][unit][CCE-01][CCE-03][CCE-05][CCE-11]") {
  Bench bench({.credit = Fixed(3)});
  bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  std::vector<ResultSlab::Slot> futures;
  for (int i = 0; i < 6; ++i) futures.push_back(bench.ScheduleWanted());
  const std::vector<Sent> sent = bench.Pump();
  ResultSlab& results = bench.dispatcher.results();

  CHECK(bench.Failed(sent[1], InvalidArgument("first")) == Outcome::kFailed);
  CHECK(bench.dispatcher.TakeCancel() == ClosureId(3));
  CHECK_FALSE(bench.dispatcher.TakeCancel().has_value());
  CHECK_FALSE(bench.dispatcher.Raise().has_value());  // two are in flight
  CHECK(bench.Pump().empty());
  CHECK(bench.Done(sent[0], "value") == Outcome::kDone);
  CHECK(bench.Failed(sent[2], InvalidArgument("second")) == Outcome::kFailed);
  const auto raised = bench.dispatcher.Raise();

  REQUIRE(raised.has_value());
  CHECK(Message(raised->status) == "closure 2: first");
  CHECK(raised->task == "worker:0");
  CHECK_FALSE(bench.dispatcher.Raise().has_value());
  CHECK(bench.ValueOf(futures[0]) == "value");
  CHECK(results.state(futures[1]) == ResultSlab::State::kError);
  CHECK(Message(results.error(futures[1])->status) == "closure 2: first");
  CHECK(Message(results.error(futures[2])->status) == "closure 3: second");
  CHECK(results.error(futures[3])->status.code() == StatusCode::kCancelled);
  CHECK(Message(results.error(futures[5])->status) ==
        "The corresponding function is cancelled. Please reschedule the function.");
  CHECK(bench.dispatcher.idle());
  CHECK(bench.dispatcher.settled() == ClosureId(6));

  // All is new.
  bench.ScheduleWanted();
  CHECK(bench.PumpIds() == Ids{7});
}

TEST_CASE("a closure scheduled after a failure is cancelled, one in flight too",
          "[dispatch][unit][CCE-02][CCE-04][CCE-06][CCE-10]") {
  Bench bench({.credit = Fixed(3)});
  bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  const ResultSlab::Slot slow = bench.ScheduleWanted();
  bench.ScheduleWanted();
  const std::vector<Sent> sent = bench.Pump();
  bench.Failed(sent[1], InvalidArgument("no"));

  const auto late = bench.dispatcher.Schedule(1, {});
  CHECK(late.admission == Admission::kFailed);
  CHECK(bench.dispatcher.results().error(late.result)->status.code() == StatusCode::kCancelled);
  CHECK(bench.Failed(sent[0], Cancelled("told to stop")) == Outcome::kCancelled);

  CHECK(bench.dispatcher.results().error(slow)->status.code() == StatusCode::kCancelled);
  CHECK(bench.dispatcher.Raise().has_value());
  CHECK(bench.dispatcher.idle());
}

TEST_CASE("a worker that is lost while the queue fails takes its closures along, cancelled",
          "[dispatch][unit][CCF-07]") {
  Bench bench({.credit = Fixed(3)});
  const WorkerHandle worker = bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  const ResultSlab::Slot first = bench.ScheduleWanted();
  bench.ScheduleWanted();
  bench.Failed(bench.Pump().at(1), InvalidArgument("the user's"));

  bench.dispatcher.RemoveWorker(worker, Unavailable("killed"));

  CHECK(bench.dispatcher.results().error(first)->status.code() == StatusCode::kCancelled);
  const auto raised = bench.dispatcher.Raise();
  REQUIRE(raised.has_value());
  CHECK(Message(raised->status) == "closure 2: the user's");
}

TEST_CASE("a value is kept with its future and ends with the last reference", "[dispatch][unit]") {
  Bench bench({.credit = Fixed(3)});
  bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  ResultSlab& results = bench.dispatcher.results();
  const ResultSlab::Slot kept = bench.ScheduleWanted();
  const ResultSlab::Slot dropped = bench.ScheduleWanted();
  bench.Schedule();
  const std::vector<Sent> sent = bench.Pump();
  CHECK((sent[0].flags & kFlagNoValue) == 0);
  CHECK((sent[2].flags & kFlagNoValue) != 0);
  results.Release(dropped);

  const std::string big(1000, 'v');
  for (const Sent& one : sent) bench.Done(one, big);

  CHECK(results.held() == 1);
  CHECK(bench.ValueOf(kept) == big);
  results.AddReference(kept);
  results.Release(kept);
  CHECK(results.held() == 1);
  results.Release(kept);
  CHECK(results.held() == 0);
}

TEST_CASE("a new incarnation goes on behind what is settled and runs no marked closure again",
          "[dispatch][unit]") {
  Bench bench(
      {.epoch = Epoch(2),
       .incarnation = 5,
       .credit = Fixed(100),
       .settled = ClosureId(100),
       .settled_beyond = {{ClosureId(102), ClosureId(103)}, {ClosureId(106), ClosureId(106)}}});
  bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  CHECK(bench.dispatcher.settled() == ClosureId(100));
  for (int i = 0; i < 8; ++i) bench.Schedule();

  const std::vector<Sent> sent = bench.Pump();

  Ids ids;
  for (const Sent& one : sent) ids.push_back(one.closure);
  CHECK(ids == Ids{101, 104, 105, 107, 108});
  for (const Sent& one : sent) bench.Done(one);
  CHECK(bench.dispatcher.settled() == ClosureId(108));
}

TEST_CASE("a closure that was handed out 65,535 times is given up", "[dispatch][unit]") {
  Bench bench;
  bench.Schedule();
  for (int i = 1; i <= kMostExecutions; ++i) {
    const WorkerHandle worker = bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
    REQUIRE(bench.Pump().size() == 1);
    bench.dispatcher.RemoveWorker(worker, Unavailable("gone"));
  }

  const auto raised = bench.dispatcher.Raise();

  REQUIRE(raised.has_value());
  CHECK(raised->status.code() == StatusCode::kInternal);
  CHECK(bench.dispatcher.idle());
}

TEST_CASE("a queue of 262,144 closures is one slab that is given back as it empties",
          "[dispatch][unit]") {
  Bench bench({.credit = Fixed(256)});
  bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  for (int i = 0; i < 262'144; ++i) REQUIRE(bench.Schedule("sixty-four bytes at most") != 0);
  CHECK(bench.dispatcher.Schedule(1, {}).admission == Admission::kFull);

  while (!bench.dispatcher.idle()) {
    for (const Sent& sent : bench.Pump()) REQUIRE(bench.Done(sent) == Outcome::kDone);
  }

  CHECK(bench.dispatcher.succeeded() == 262'144);
  CHECK(bench.dispatcher.argument_bytes() == 0);
}

TEST_CASE("closures wait for a worker for as long as they are told, and then fail",
          "[dispatch][unit][CCF-16]") {
  Bench bench({.worker_patience = std::chrono::hours(1)});
  const WorkerHandle a = bench.dispatcher.AddWorker("worker:0", Incarnation(1), 1);
  bench.Schedule();
  (void)bench.Pump();
  bench.dispatcher.RemoveWorker(a, Unavailable("killed"));
  const ResultSlab::Slot second = bench.ScheduleWanted();
  CHECK(bench.Pump().empty());
  const TimePoint lost = bench.now;
  CHECK(bench.dispatcher.next_timer() == lost + std::chrono::hours(1));

  // One that comes in time begins the hour anew.
  bench.now += std::chrono::minutes(59);
  const WorkerHandle b = bench.dispatcher.AddWorker("worker:1", Incarnation(1), 1);
  CHECK(bench.Pump().size() == 2);
  bench.dispatcher.RemoveWorker(b, Unavailable("killed"));
  CHECK(bench.Pump().empty());
  bench.now += std::chrono::minutes(59);
  CHECK(bench.Pump().empty());
  CHECK_FALSE(bench.dispatcher.failed());
  bench.now += std::chrono::minutes(1);
  CHECK(bench.Pump().empty());

  const auto raised = bench.dispatcher.Raise();
  REQUIRE(raised);
  CHECK(raised->status.code() == StatusCode::kUnavailable);
  CHECK(raised->origin == Origin::kWorker);
  CHECK(Message(raised->status).find("2 closures have waited 3600 s for a worker") !=
        std::string::npos);
  CHECK(Message(raised->status).find("worker:0, worker:1") != std::string::npos);
  CHECK(bench.dispatcher.results().state(second) == ResultSlab::State::kError);
  // All is new: an hour for what is scheduled now.
  bench.Schedule();
  CHECK(bench.Pump().empty());
  CHECK(bench.dispatcher.next_timer() == bench.now + std::chrono::hours(1));
}

}  // namespace
}  // namespace muster::dispatch
