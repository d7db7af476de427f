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

TEST_CASE("A lost peer sends the closure round again; a held worker waits", "[coordinator][unit]") {
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

TEST_CASE("Three crashes on the only worker are enough to call a closure poison",
          "[coordinator][unit]") {
  Dispatching f;
  for (int crash = 1; crash <= 3; ++crash) {
    f.dispatcher.AddWorker(f.w0);
    if (crash == 1) f.Put(1, 1);
    f.dispatcher.Pump();
    const auto outcome = f.dispatcher.CrashWorker(f.w0, "signal SIGSEGV");
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
    CHECK_FALSE(f.dispatcher.CrashWorker(f.w0, "signal SIGSEGV").poison);
  }
  f.dispatcher.HoldWorker(f.w1, TimePoint::min());
  f.dispatcher.Pump();
  CHECK(f.dispatcher.CrashWorker(f.w1, "signal SIGSEGV").poison);
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
