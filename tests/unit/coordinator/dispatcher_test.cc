#include "coordinator/dispatcher.h"

#include "tests/support/catch.h"

namespace muster::coordinator {
namespace {

struct Dispatching {
  FakeScheduler clock;
  std::vector<std::pair<TaskId, v1::ClosureAssignment>> sent;
  Dispatcher dispatcher{{.job_id = "job-1", .view = 3, .epoch = Epoch(5)},
                        clock,
                        [this](const TaskId& task, const v1::ClosureAssignment& assignment) {
                          sent.emplace_back(task, assignment);
                        }};
  const TaskId w0{"worker", 0};
  const TaskId w1{"worker", 1};

  void Put(std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t id = from; id <= to; ++id) {
      (void)dispatcher.queue().Put({v1::CLOSURE_KIND_TRAIN, id});
    }
    dispatcher.Pump();
  }
  static v1::ClosureResult ResultOf(const v1::ClosureAssignment& assignment,
                                    StatusCode code = StatusCode::kOk) {
    v1::ClosureResult result;
    result.set_view(assignment.view());
    *result.mutable_closure() = assignment.closure();
    result.set_attempt(assignment.attempt());
    result.mutable_status()->set_code(static_cast<int>(code));
    return result;
  }
};

TEST_CASE("Every worker gets one closure before any gets its second", "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.dispatcher.AddWorker(f.w1);

  f.Put(1, 10);
  REQUIRE(f.sent.size() == 4);
  CHECK(f.sent[0].first == f.w0);
  CHECK(f.sent[1].first == f.w1);
  CHECK(f.sent[2].first == f.w0);
  CHECK(f.sent[0].second.attempt() >> 32 == 5);
  CHECK(f.sent[0].second.view() == 3);
}

TEST_CASE("A synchronous step is given out when the one before has ended, lost closures first",
          "[coordinator][unit]") {
  FakeScheduler clock;
  std::vector<std::pair<TaskId, v1::ClosureAssignment>> sent;
  Dispatcher dispatcher({.job_id = "job-1",
                         .view = 3,
                         .epoch = Epoch(5),
                         .in_flight_per_worker = 2,
                         .steps = {.gradients = 2, .staleness = 0, .last = 15},
                         .start = 10},
                        clock, [&](const TaskId& task, const v1::ClosureAssignment& assignment) {
                          sent.emplace_back(task, assignment);
                        });
  const TaskId w0{"worker", 0};
  const TaskId w1{"worker", 1};
  dispatcher.AddWorker(w0);
  dispatcher.AddWorker(w1);
  for (std::uint64_t id = 11; id <= 15; ++id) {
    (void)dispatcher.queue().Put({v1::CLOSURE_KIND_TRAIN, id});
  }
  dispatcher.Pump();
  REQUIRE(sent.size() == 2);
  CHECK(dispatcher.OnResult(w0, Dispatching::ResultOf(sent[0].second)) ==
        Dispatcher::Outcome::kDone);
  dispatcher.Pump();
  CHECK(sent.size() == 2);
  // What comes back goes before what has to wait for it.
  CHECK(dispatcher.OnResult(w1, Dispatching::ResultOf(sent[1].second, StatusCode::kUnavailable)) ==
        Dispatcher::Outcome::kAgain);
  dispatcher.Pump();
  REQUIRE(sent.size() == 3);
  CHECK(sent[2].second.closure().id() == 12);
  CHECK(dispatcher.OnResult(sent[2].first, Dispatching::ResultOf(sent[2].second)) ==
        Dispatcher::Outcome::kDone);
  dispatcher.Pump();
  REQUIRE(sent.size() == 5);
  CHECK(sent[4].second.closure().id() == 14);
}

TEST_CASE("A result counts once, and only for the attempt that runs", "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.Put(1, 1);
  const auto first = f.sent[0].second;
  CHECK(f.dispatcher.RemoveWorker(f.w0).size() == 1);
  f.dispatcher.AddWorker(f.w0);
  f.dispatcher.Pump();
  REQUIRE(f.sent.size() == 2);
  const auto second = f.sent[1].second;
  CHECK(second.attempt() > first.attempt());

  CHECK(f.dispatcher.OnResult(f.w0, Dispatching::ResultOf(first)) == Dispatcher::Outcome::kStale);
  CHECK(f.dispatcher.OnResult(f.w0, Dispatching::ResultOf(second)) == Dispatcher::Outcome::kDone);
  CHECK(f.dispatcher.OnResult(f.w0, Dispatching::ResultOf(second)) == Dispatcher::Outcome::kStale);
  CHECK(f.dispatcher.train_done() == 1);
}

TEST_CASE("A lost peer sends the closure round again, a held worker waits", "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.Put(1, 1);

  const auto result = Dispatching::ResultOf(f.sent[0].second, StatusCode::kUnavailable);
  CHECK(f.dispatcher.OnResult(f.w0, result) == Dispatcher::Outcome::kAgain);
  f.dispatcher.HoldWorker(f.w0, f.clock.Now() + Millis(200));
  f.dispatcher.Pump();
  CHECK(f.sent.size() == 1);
  f.clock.Advance(Millis(200));
  f.dispatcher.Pump();
  CHECK(f.sent.size() == 2);
}

TEST_CASE("While paused nothing is given out", "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.dispatcher.set_paused(true);
  f.Put(1, 5);
  CHECK(f.sent.empty());
  f.dispatcher.set_paused(false);
  f.dispatcher.Pump();
  CHECK(f.sent.size() == 2);
}

using Cause = Dispatcher::Cause;

TEST_CASE("Three crashes on the only worker are enough to call a closure poison",
          "[coordinator][unit]") {
  Dispatching f;
  for (int crash = 1; crash <= 3; ++crash) {
    f.dispatcher.AddWorker(f.w0);
    if (crash == 1) f.Put(1, 1);
    f.dispatcher.Pump();
    const auto outcome = f.dispatcher.CrashWorker(f.w0, "signal SIGSEGV", Cause::kItself);
    CHECK(outcome.poison.has_value() == (crash == 3));
  }
}

TEST_CASE("Three crashes on one of two workers are not: it may be the worker's fault",
          "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w1);
  f.dispatcher.HoldWorker(f.w1, TimePoint::max());
  for (int crash = 1; crash <= 3; ++crash) {
    f.dispatcher.AddWorker(f.w0);
    if (crash == 1) f.Put(1, 1);
    f.dispatcher.Pump();
    CHECK_FALSE(f.dispatcher.CrashWorker(f.w0, "signal SIGSEGV", Cause::kItself).poison);
  }
  f.dispatcher.HoldWorker(f.w1, TimePoint::min());
  f.dispatcher.Pump();
  CHECK(f.dispatcher.CrashWorker(f.w1, "signal SIGSEGV", Cause::kItself).poison);
}

TEST_CASE("What was in flight at a crash runs again first, alone, and elsewhere",
          "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.dispatcher.AddWorker(f.w1);
  f.Put(1, 20);
  REQUIRE(f.sent.size() == 4);  // 1 and 3 on w0, 2 and 4 on w1

  const auto crash = f.dispatcher.CrashWorker(f.w0, "signal SIGSEGV", Cause::kItself);
  REQUIRE(crash.requeued.size() == 2);
  CHECK_FALSE(crash.poison);
  f.dispatcher.Pump();
  CHECK(f.sent.size() == 4);  // w1 has other work: a suspect would not be alone
  f.dispatcher.AddWorker(f.w0);
  f.dispatcher.Pump();
  CHECK(f.sent.size() == 4);  // w0 ended with them, and nothing else is begun
  REQUIRE(f.dispatcher.OnResult(f.w1, Dispatching::ResultOf(f.sent[1].second)) ==
          Dispatcher::Outcome::kDone);
  REQUIRE(f.dispatcher.OnResult(f.w1, Dispatching::ResultOf(f.sent[3].second)) ==
          Dispatcher::Outcome::kDone);
  f.dispatcher.Pump();
  REQUIRE(f.sent.size() == 5);
  CHECK(f.sent[4].first == f.w1);
  CHECK(f.sent[4].second.closure().id() == 1);
  // Cleared by its success; the other one is next.
  REQUIRE(f.dispatcher.OnResult(f.w1, Dispatching::ResultOf(f.sent[4].second)) ==
          Dispatcher::Outcome::kDone);
  f.dispatcher.Pump();
  REQUIRE(f.sent.size() == 6);
  CHECK(f.sent[5].second.closure().id() == 3);
  const auto second = f.dispatcher.CrashWorker(f.w1, "signal SIGSEGV", Cause::kItself);
  CHECK(second.requeued == std::vector<ClosureKey>{{v1::CLOSURE_KIND_TRAIN, 3}});
  CHECK_FALSE(second.poison);
}

TEST_CASE("One poisonous closure among good ones is found by its third crash",
          "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.dispatcher.AddWorker(f.w1);
  f.Put(1, 1'000);
  int crashes = 0;
  std::optional<Dispatcher::Verdict> verdict;
  for (std::size_t at = 0; at < f.sent.size() && !verdict; ++at) {
    const auto [task, assignment] = f.sent[at];
    if (assignment.closure().id() == 7) {
      verdict = f.dispatcher.CrashWorker(task, "signal SIGSEGV", Cause::kItself).poison;
      ++crashes;
      f.dispatcher.AddWorker(task);
    } else {
      (void)f.dispatcher.OnResult(task, Dispatching::ResultOf(assignment));
    }
    f.dispatcher.Pump();
  }
  REQUIRE(verdict);
  CHECK(verdict->closure.id == 7);
  CHECK(crashes == 3);
  CHECK(
      verdict->why.starts_with("closure 7 has ended its executor 3 times, 2 of them with nothing"
                               " else in flight (worker:0, worker:1; the last time by signal"));
}

TEST_CASE("A program that always crashes ends within five crashes, whatever the workers",
          "[coordinator][unit]") {
  Dispatching f;
  std::vector<TaskId> workers;
  const int count = GENERATE(1, 2, 3, 4);
  for (int i = 0; i < count; ++i) workers.push_back({"worker", i});
  for (const TaskId& task : workers) f.dispatcher.AddWorker(task);
  f.Put(1, 100);
  int crashes = 0;
  bool found = false;
  for (; !found && crashes < 20; ++crashes) {
    const TaskId& task = workers[static_cast<std::size_t>(crashes) % workers.size()];
    f.dispatcher.Pump();
    found = f.dispatcher.CrashWorker(task, "signal SIGSEGV", Cause::kItself).poison.has_value();
    f.dispatcher.AddWorker(task);
  }
  CHECK(found);
  CHECK(crashes <= 5);
}

TEST_CASE("Three steps without an end are enough when nothing succeeds between them",
          "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.dispatcher.AddWorker(f.w1);
  f.Put(1, 100);
  CHECK_FALSE(f.dispatcher.CrashWorker(f.w0, "watchdog", Cause::kEndless).poison);
  CHECK_FALSE(f.dispatcher.CrashWorker(f.w1, "watchdog", Cause::kEndless).poison);
  f.dispatcher.AddWorker(f.w0);
  f.dispatcher.Pump();
  CHECK(f.dispatcher.CrashWorker(f.w0, "watchdog", Cause::kEndless).poison);
}

TEST_CASE("An executor that is killed from outside holds nobody else up", "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.dispatcher.AddWorker(f.w1);
  f.Put(1, 20);
  (void)f.dispatcher.CrashWorker(f.w0, "signal SIGKILL", Cause::kOutside);
  f.dispatcher.AddWorker(f.w0);
  f.dispatcher.Pump();
  // w1 makes itself free for a suspect; w0 goes on with what comes next.
  REQUIRE(f.sent.size() == 6);
  CHECK(f.sent[4].first == f.w0);
  CHECK(f.sent[4].second.closure().id() == 5);
}

TEST_CASE("A worker that runs a suspect is given nothing beside it", "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.Put(1, 1);
  (void)f.dispatcher.CrashWorker(f.w0, "signal SIGKILL", Cause::kOutside);
  f.dispatcher.AddWorker(f.w0);
  f.Put(2, 9);

  REQUIRE(f.sent.size() == 2);
  CHECK(f.sent[1].second.closure().id() == 1);
  CHECK(f.dispatcher.OnResult(f.w0, Dispatching::ResultOf(f.sent[1].second)) ==
        Dispatcher::Outcome::kDone);
  f.dispatcher.Pump();
  CHECK(f.sent.size() == 4);
}

TEST_CASE("A suspect waits until a worker has nothing else in flight", "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.dispatcher.AddWorker(f.w1);
  f.Put(1, 9);  // 1 and 3, 2 and 4
  (void)f.dispatcher.CrashWorker(f.w0, "signal SIGKILL", Cause::kOutside);
  CHECK(f.dispatcher.OnResult(f.w1, Dispatching::ResultOf(f.sent[1].second)) ==
        Dispatcher::Outcome::kDone);
  f.dispatcher.Pump();
  CHECK(f.sent.size() == 4);  // 4 is still there

  CHECK(f.dispatcher.OnResult(f.w1, Dispatching::ResultOf(f.sent[3].second)) ==
        Dispatcher::Outcome::kDone);
  f.dispatcher.Pump();
  REQUIRE(f.sent.size() == 5);
  CHECK(f.sent[4].second.closure().id() == 1);
}

TEST_CASE("Executors that are killed from outside make no closure poison", "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.dispatcher.AddWorker(f.w1);
  f.Put(1, 1'000);
  // Every kill hits closures in flight; now and then one succeeds in between.
  for (int kill = 0; kill < 200; ++kill) {
    const auto [task, assignment] = f.sent.back();
    if (kill % 4 == 3) (void)f.dispatcher.OnResult(task, Dispatching::ResultOf(assignment));
    const TaskId victim = kill % 2 == 0 ? f.w0 : f.w1;
    REQUIRE_FALSE(
        f.dispatcher.CrashWorker(victim, "signal SIGKILL", Cause::kOutside).poison.has_value());
    f.dispatcher.AddWorker(victim);
    f.dispatcher.Pump();
  }
}

TEST_CASE("A closure that is killed every time it is alone is given up in the end",
          "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.Put(1, 9);
  std::optional<Dispatcher::Verdict> verdict;
  int kills = 0;
  for (; !verdict && kills < 20; ++kills) {
    verdict = f.dispatcher.CrashWorker(f.w0, "signal SIGKILL", Cause::kOutside).poison;
    f.dispatcher.AddWorker(f.w0);
    f.dispatcher.Pump();
  }
  REQUIRE(verdict);
  CHECK(verdict->closure.id == 1);
  CHECK(kills == 7);  // once in company, six times alone
  CHECK(verdict->why.find("needs more memory") != std::string::npos);
}

TEST_CASE("Results are fetched once, in order, a message at a time", "[coordinator][unit]") {
  Dispatching f;
  f.dispatcher.AddWorker(f.w0);
  f.Put(1, 3);
  for (std::size_t i = 0; i < 3; ++i) {
    v1::ClosureResult result = Dispatching::ResultOf(f.sent[i].second);
    for (int bucket = 0; bucket < 200'000; ++bucket) {
      result.mutable_metrics()->add_auc_positive(1'000'000);
    }
    REQUIRE(f.dispatcher.OnResult(f.w0, result) == Dispatcher::Outcome::kDone);
    f.dispatcher.Pump();
  }

  std::vector<std::uint64_t> ids;
  bool more = true;
  for (int calls = 0; more && calls < 10; ++calls) {
    v1::FetchReply reply;
    f.dispatcher.TakeResults(v1::CLOSURE_KIND_TRAIN, reply);
    CHECK(reply.ByteSizeLong() < 4 << 20);
    for (const auto& result : reply.results()) ids.push_back(result.closure().id());
    more = reply.more();
  }
  CHECK(ids == std::vector<std::uint64_t>{1, 2, 3});
}

}  // namespace
}  // namespace muster::coordinator
