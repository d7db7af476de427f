// Which errors send a closure round again, in the order of the table in dispatch/README.md.
#include "tests/support/catch.h"
#include "tests/unit/dispatch/core/fixture.h"

namespace muster::dispatch {
namespace {

using namespace std::chrono_literals;
using Outcome = ClosureDispatcher::Outcome;

struct OneWorker : Bench {
  explicit OneWorker(ClosureDispatcher::Options options = {}) : Bench(std::move(options)) {
    worker = dispatcher.AddWorker("worker:3", Incarnation(9), 1);
  }
  // What is handed out when the worker's pause is over.
  std::vector<Sent> Due() {
    now =
        std::max(now, dispatcher.next_timer() == TimePoint::max() ? now : dispatcher.next_timer());
    return Pump();
  }
  // When that is one closure.
  Sent Next() { return Due().at(0); }
  WorkerHandle worker;
};

TEST_CASE("an error of the user's function is the user's, whatever its code", "[dispatch][unit]") {
  const StatusCode code =
      GENERATE(StatusCode::kUnavailable, StatusCode::kAborted, StatusCode::kDeadlineExceeded,
               StatusCode::kUnknown, StatusCode::kCancelled, StatusCode::kOutOfRange);
  OneWorker bench;
  bench.Schedule();

  CHECK(bench.Failed(bench.Next(), MakeStatus(code, "thrown")) == Outcome::kFailed);

  CHECK(bench.dispatcher.Raise()->status.code() == code);
}

TEST_CASE("an input that holds an error fails the closure as an input error",
          "[dispatch][unit][CCE-07]") {
  OneWorker bench;
  const ResultSlab::Slot future = bench.ScheduleWanted();

  bench.Failed(bench.Next(), Unavailable("the dataset"), Origin::kInput);

  CHECK(bench.dispatcher.Raise()->origin == Origin::kInput);
  CHECK(bench.dispatcher.results().error(future)->origin == Origin::kInput);
}

TEST_CASE("trouble of a worker sends the closure to the front, and the worker pauses",
          "[dispatch][unit]") {
  OneWorker bench({.credit = {.least = 2, .most = 2}});
  for (int i = 0; i < 3; ++i) bench.Schedule();
  const std::vector<Sent> sent = bench.Pump();

  CHECK(bench.Failed(sent[0], Unavailable("shutting down"), Origin::kWorker) == Outcome::kAgain);

  CHECK(bench.Pump().empty());
  CHECK(bench.dispatcher.next_timer() == bench.now + 10ms);
  bench.now += 10ms;
  CHECK(bench.PumpIds() == std::vector<std::uint64_t>{1});
}

TEST_CASE("an error of a worker that another attempt cannot mend fails the closure",
          "[dispatch][unit]") {
  OneWorker bench;
  bench.Schedule();
  CHECK(bench.Failed(bench.Next(), ResourceExhausted("a result of 100 MB"), Origin::kWorker) ==
        Outcome::kFailed);
}

TEST_CASE("a parameter server may fail twice within the window, another one counts by itself",
          "[dispatch][unit][CCF-10]") {
  OneWorker bench;
  bench.Schedule();
  const Status gone = Unavailable("refused");

  CHECK(bench.Failed(bench.Next(), gone, Origin::kPs, "ps:0") == Outcome::kAgain);
  CHECK(bench.Failed(bench.Next(), gone, Origin::kPs, "ps:0") == Outcome::kAgain);
  CHECK(bench.Failed(bench.Next(), gone, Origin::kPs, "ps:1") == Outcome::kAgain);
  CHECK(bench.Failed(bench.Next(), gone, Origin::kPs, "ps:0") == Outcome::kFailed);

  const ClosureError raised = *bench.dispatcher.Raise();
  CHECK(raised.origin == Origin::kPs);
  CHECK(raised.task == "ps:0");
  CHECK(raised.retries == 3);
  CHECK(raised.status.code() == StatusCode::kUnavailable);
  CHECK(raised.ToString() == "UNAVAILABLE: closure 1: refused (ps:0, running, after 3 retries)");
}

TEST_CASE("what fails with a parameter server at once is one failure of it, for all closures",
          "[dispatch][unit][CCF-10]") {
  OneWorker bench({.credit = {.least = 4, .most = 4}});
  for (int i = 0; i < 4; ++i) bench.Schedule();
  const auto blip = [&](const std::string& server) {
    std::vector<Outcome> outcomes;
    for (const Sent& one : bench.Due()) {
      outcomes.push_back(bench.Failed(one, Unavailable("refused"), Origin::kPs, server));
    }
    return outcomes;
  };
  const std::vector<Outcome> all_again(4, Outcome::kAgain);

  CHECK(blip("ps:0") == all_again);
  CHECK(blip("ps:1") == all_again);
  CHECK(blip("ps:0") == all_again);
  CHECK(blip("ps:1") == all_again);
  CHECK(blip("ps:0").at(0) == Outcome::kFailed);

  const ClosureError raised = *bench.dispatcher.Raise();
  CHECK(raised.task == "ps:0");
  CHECK(raised.retries == 4);
}

TEST_CASE("a parameter server that stays away is lost though all that fails was handed out before",
          "[dispatch][unit][CCF-10]") {
  OneWorker bench({.credit = {.least = 200, .most = 200}});
  for (int i = 0; i < 200; ++i) bench.Schedule();
  const std::vector<Sent> sent = bench.Pump();
  REQUIRE(sent.size() == 200);
  // Each waits for the server as long as a call does.
  std::vector<Outcome> outcomes;
  while (outcomes.size() < 10 && (outcomes.empty() || outcomes.back() == Outcome::kAgain)) {
    bench.now += 10s;
    outcomes.push_back(
        bench.Failed(sent[outcomes.size()], Unavailable("silent"), Origin::kPs, "ps:0"));
  }

  CHECK(outcomes.size() == 3);
  CHECK(outcomes.back() == Outcome::kFailed);
}

TEST_CASE("blips of a parameter server further apart than the window are never fatal",
          "[dispatch][unit]") {
  OneWorker bench({.errors = {.ps_failures = 2, .window = 60s}});
  bench.Schedule();
  for (int i = 0; i < 20; ++i) {
    CHECK(bench.Failed(bench.Next(), Unavailable("refused"), Origin::kPs, "ps:0") ==
          Outcome::kAgain);
    bench.now += 60s;
  }
}

TEST_CASE("how often a server may fail can be said later, and what it has failed before counts",
          "[dispatch][unit][CCF-10]") {
  OneWorker bench;
  bench.Schedule();
  const auto fails = [&] {
    return bench.Failed(bench.Next(), Unavailable("refused"), Origin::kPs, "ps:0");
  };
  CHECK(fails() == Outcome::kAgain);
  CHECK(fails() == Outcome::kAgain);

  bench.dispatcher.set_errors({.ps_failures = 5, .window = 1h});
  bench.now += 30min;
  CHECK(fails() == Outcome::kAgain);
  CHECK(fails() == Outcome::kAgain);
  CHECK(fails() == Outcome::kFailed);

  CHECK(bench.dispatcher.Raise()->retries == 4);
}

TEST_CASE("a full parameter server is back-pressure and never fatal", "[dispatch][unit]") {
  OneWorker bench;
  bench.Schedule();
  for (int i = 0; i < 50; ++i) {
    CHECK(bench.Failed(bench.Next(), ResourceExhausted("window full"), Origin::kPs, "ps:0") ==
          Outcome::kAgain);
  }
}

TEST_CASE("a closure that always comes back is given up by count and time, whatever else is done",
          "[dispatch][unit]") {
  struct Case {
    Origin origin;
    Status error;
  };
  const auto one = GENERATE(values<Case>({{Origin::kPs, ResourceExhausted("window full")},
                                          {Origin::kPs, Unknown("odd")},
                                          {Origin::kWorker, Unavailable("out of its reach")}}));
  OneWorker bench(
      {.credit = {.least = 1, .most = 1}, .errors = {.returns = 30, .return_time = 10min}});
  const ResultSlab::Slot future = bench.ScheduleWanted();
  for (int i = 0; i < 100; ++i) bench.Schedule();
  const TimePoint begin = bench.now;
  std::vector<Sent> others;
  int times = 0;
  for (auto outcome = Outcome::kAgain; outcome == Outcome::kAgain; ++times) {
    std::vector<Sent> sent = bench.Due();
    REQUIRE(sent.at(0).closure == 1);
    others.insert(others.end(), sent.begin() + 1, sent.end());
    outcome = bench.Failed(sent[0], one.error, one.origin, "ps:0");
    bench.now += 15s;
    REQUIRE(times < 1'000);
  }
  for (const Sent& other : others) bench.Done(other);

  CHECK(times >= 30);
  CHECK(bench.now - begin >= 10min);
  CHECK(bench.now - begin < 11min);
  const auto raised = bench.dispatcher.Raise();
  REQUIRE(raised);
  CHECK(raised->status.code() == one.error.code());
  CHECK(raised->origin == one.origin);
  CHECK(Message(raised->status)
            .starts_with(fmt::format("closure 1: it has come back {} times in 6", times)));
  CHECK(bench.dispatcher.results().error(future)->status.code() == one.error.code());
}

TEST_CASE("a closure that comes back often in a short time, or seldom, goes on",
          "[dispatch][unit]") {
  OneWorker bench({.errors = {.returns = 30, .return_time = 10min}});
  bench.Schedule();
  const auto back = [&] {
    return bench.Failed(bench.Next(), Unavailable("a peer is away"), Origin::kWorker);
  };
  for (int i = 0; i < 200; ++i) CHECK(back() == Outcome::kAgain);
  CHECK(bench.Done(bench.Next()) == Outcome::kDone);
  bench.now += 1h;
  bench.Schedule();
  for (int i = 0; i < 29; ++i) {
    CHECK(back() == Outcome::kAgain);
    bench.now += 1min;
  }
  CHECK(bench.Done(bench.Next()) == Outcome::kDone);
}

TEST_CASE("deadlines may pass for fewer closures than a tenth of the workers", "[dispatch][unit]") {
  OneWorker few;
  few.Schedule();
  CHECK(few.Failed(few.Next(), DeadlineExceeded("slow"), Origin::kWorker) == Outcome::kFailed);

  OneWorker set({.errors = {.timeouts = 3}});
  set.Schedule();
  CHECK(set.Failed(set.Next(), DeadlineExceeded("slow"), Origin::kWorker) == Outcome::kAgain);
  CHECK(set.Failed(set.Next(), DeadlineExceeded("slow"), Origin::kPs, "ps:0") == Outcome::kAgain);
  CHECK(set.Failed(set.Next(), DeadlineExceeded("slow"), Origin::kWorker) == Outcome::kFailed);
}

TEST_CASE("of twenty workers one deadline may pass and of nineteen none", "[dispatch][unit]") {
  const int workers = GENERATE(19, 20);
  OneWorker bench;
  for (int i = 1; i < workers; ++i) {
    bench.dispatcher.AddWorker(fmt::format("worker:{}", 100 + i), Incarnation(1), 1);
  }
  bench.Schedule();
  const auto fails = [&] {
    return bench.Failed(bench.Next(), DeadlineExceeded("slow"), Origin::kWorker);
  };

  if (workers == 20) CHECK(fails() == Outcome::kAgain);
  CHECK(fails() == Outcome::kFailed);

  CHECK(bench.dispatcher.Raise()->status.code() == StatusCode::kDeadlineExceeded);
}

TEST_CASE("what a worker or a server has cancelled is put back and not reported",
          "[dispatch][unit]") {
  const Origin origin = GENERATE(Origin::kWorker, Origin::kPs);
  OneWorker bench;
  const ResultSlab::Slot future = bench.ScheduleWanted();

  for (int i = 0; i < 5; ++i) {
    const Status derived = Cancelled("its peer has failed");
    CHECK(bench.Failed(bench.Next(), derived, origin, origin == Origin::kPs ? "ps:0" : "") ==
          Outcome::kAgain);
    CHECK_FALSE(bench.dispatcher.Raise());
  }
  CHECK(bench.Done(bench.Next(), "its value") == Outcome::kDone);

  CHECK_FALSE(bench.dispatcher.Raise());
  CHECK(bench.ValueOf(future) == "its value");
}

TEST_CASE("the error says the worker, its incarnation and the retries", "[dispatch][unit]") {
  OneWorker bench;
  bench.Schedule();
  bench.Failed(bench.Next(), Aborted("superseded"), Origin::kWorker);
  bench.Failed(bench.Next(), Internal("broken"), Origin::kWorker);

  CHECK(bench.dispatcher.Raise()->ToString() ==
        "INTERNAL: closure 1: broken (worker:3, incarnation 9, running, after 1 retry)");
}

}  // namespace
}  // namespace muster::dispatch
