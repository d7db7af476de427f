// What a function that fails does to its own value, to the queue and to what comes after.
#include <atomic>

#include <fcntl.h>
#include <unistd.h>

#include "strategy/cluster/internal/stderr_line.h"
#include "strategy/muster.h"
#include "tests/unit/strategy/cluster/workers.h"

namespace cluster_errors_test {

std::atomic<int> ran{0};
std::atomic<int> running{0};
std::atomic<bool> gate{false};

void good() { ++ran; }
int one() { return 1; }
int throws_error(int code) {
  ++ran;
  muster::raise(static_cast<muster::ErrorCode>(code), "of the user's own");
}
void throws_runtime_error() { throw std::runtime_error("a standard one"); }
void throws_int() { throw 7; }
void throws_text() { throw "a text of its own"; }
torch::Tensor throws_torch() { return torch::ones({2}) + torch::ones({3}); }
int plus_one(int x) { return x + 1; }
void waits() {
  ++running;
  while (!muster::cancellation().stop_requested()) std::this_thread::yield();
  muster::raise(muster::ErrorCode::kCancelled, "as it was asked to");
}
void behind_gate() {
  ++running;
  while (!gate) std::this_thread::yield();
}
// Whether it is to stop, though nobody has asked for it; two of them are on two workers.
int told_to_stop() {
  ++running;
  while (running < 2 && !muster::cancellation().stop_requested()) std::this_thread::yield();
  return muster::cancellation().stop_requested() ? 1 : 0;
}

}  // namespace cluster_errors_test

MUSTER_FUNCTION(cluster_errors_test::good);
MUSTER_FUNCTION(cluster_errors_test::one);
MUSTER_FUNCTION(cluster_errors_test::throws_error);
MUSTER_FUNCTION(cluster_errors_test::throws_runtime_error);
MUSTER_FUNCTION(cluster_errors_test::throws_int);
MUSTER_FUNCTION(cluster_errors_test::throws_text);
MUSTER_FUNCTION(cluster_errors_test::throws_torch);
MUSTER_FUNCTION(cluster_errors_test::plus_one);
MUSTER_FUNCTION(cluster_errors_test::waits);
MUSTER_FUNCTION(cluster_errors_test::behind_gate);
MUSTER_FUNCTION(cluster_errors_test::told_to_stop);

namespace cluster_errors_test {
namespace {

using namespace muster;
using testing::code_of;
using testing::eventually;
using testing::ThreadWorkers;
using testing::throws;

constexpr int kOutOfRange = static_cast<int>(ErrorCode::kOutOfRange);

// The ClosureError of any class that `body` throws.
template <class E = ClosureError>
std::optional<E> closure_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error;
  }
  return std::nullopt;
}

// One closure of one worker runs until the gate opens, the next one then fails.
void fail_behind_gate(ClusterCoordinator& coordinator) {
  running = 0;
  gate = false;
  coordinator.schedule<behind_gate>();
  eventually("it runs", [] { return running == 1; });
  coordinator.schedule<throws_error>(kOutOfRange);
}

TEST_CASE("an error is raised once by join, then all is new", "[strategy][unit][CCE-01][CCE-11]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) coordinator.schedule<good>();
    const auto failed = coordinator.schedule<throws_error>(kOutOfRange);
    const auto error = closure_error_of([&] { coordinator.join(); });
    REQUIRE(error);
    CHECK(error->code() == ErrorCode::kOutOfRange);
    CHECK(error->text().find("of the user's own") != std::string::npos);
    CHECK(error->details().origin == ErrorOrigin::kUser);
    CHECK(error->details().phase == ClosurePhase::kRun);
    CHECK(error->details().task.starts_with("worker:"));
    CHECK(error->details().retries == 0);
    // Its own value has the error for good.
    CHECK(failed.ready());
    CHECK(code_of([&] { failed.fetch(); }) == ErrorCode::kOutOfRange);
    CHECK(code_of([&] { failed.fetch(); }) == ErrorCode::kOutOfRange);
    coordinator.join();
    CHECK(coordinator.done());
  }
  CHECK(coordinator.schedule<one>().fetch() == 1);
  coordinator.join();
}

TEST_CASE("a loop that schedules gets the error from schedule, and join is clean then",
          "[strategy][unit][CCE-02][CCE-10]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const auto bad = coordinator.schedule<throws_error>(kOutOfRange);
  eventually("the error reaches schedule()", [&] {
    return code_of([&] { coordinator.schedule<good>(); }) == ErrorCode::kOutOfRange;
  });
  coordinator.join();
  CHECK(coordinator.done());
  CHECK(coordinator.schedule<one>().fetch() == 1);
}

TEST_CASE("a loop that fetches, or gives values on, gets an end and then the error",
          "[strategy][unit][CCE-05]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  fail_behind_gate(coordinator);
  std::vector<RemoteValue<int>> queued;
  for (int i = 0; i < 1'000; ++i) queued.push_back(coordinator.schedule<plus_one>(i));
  gate = true;

  CHECK(code_of([&] { queued.back().fetch(); }) == ErrorCode::kCancelled);
  CHECK(code_of([&] { coordinator.schedule<plus_one>(queued.back()); }) == ErrorCode::kOutOfRange);
  coordinator.join();
  CHECK(coordinator.schedule<plus_one>(1).fetch() == 2);
}

TEST_CASE("a loop that asks whether a value is there gets an end, too",
          "[strategy][unit][CCE-05]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  fail_behind_gate(coordinator);
  RemoteValue<int> last;
  // More than the worker is given ahead: this one waits in the queue.
  for (int i = 0; i < 1'000; ++i) last = coordinator.schedule<plus_one>(i);
  CHECK_FALSE(last.ready());
  gate = true;

  eventually("it will not come", [&] { return last.ready(); });

  CHECK(code_of([&] { last.fetch(); }) == ErrorCode::kCancelled);
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kOutOfRange);
  CHECK(coordinator.schedule<plus_one>(1).fetch() == 2);
}

TEST_CASE("of many that fail one error is raised and the others are cleared",
          "[strategy][unit][CCE-03]") {
  running = 0;
  gate = false;
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(4));
  for (int i = 0; i < 4; ++i) coordinator.schedule<behind_gate>();
  eventually("all workers run one", [] { return running == 4; });
  // None fails before all are scheduled.
  std::vector<RemoteValue<int>> bad;
  for (int i = 0; i < 50; ++i) bad.push_back(coordinator.schedule<throws_error>(kOutOfRange));
  gate = true;

  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kOutOfRange);
  coordinator.join();
  CHECK(coordinator.done());

  // Each has ended, by its own error or as one that was cancelled.
  int own = 0;
  for (const RemoteValue<int>& value : bad) {
    REQUIRE(value.ready());
    const ErrorCode code = code_of([&] { value.fetch(); });
    own += code == ErrorCode::kOutOfRange;
    CHECK((code == ErrorCode::kOutOfRange || code == ErrorCode::kCancelled));
  }
  CHECK(own >= 1);
  CHECK(coordinator.schedule<one>().fetch() == 1);
  coordinator.join();
}

TEST_CASE("when one fails, what runs is told and what waits is cancelled before join raises",
          "[strategy][unit][CCE-04][CCE-05][CCE-06]") {
  running = 0;
  gate = false;
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  const auto other = coordinator.schedule<behind_gate>();
  const auto long_one = coordinator.schedule<waits>();
  eventually("both run", [] { return running == 2; });
  // The first of these fails as soon as its worker is free.
  const auto bad = coordinator.schedule<throws_error>(kOutOfRange);
  std::vector<RemoteValue<int>> queued;
  // More than a worker is given ahead: the last ones wait until the error has come.
  for (int i = 0; i < 1'000; ++i) queued.push_back(coordinator.schedule<plus_one>(i));
  gate = true;

  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kOutOfRange);

  CHECK(coordinator.counts().in_flight == 0);
  CHECK(coordinator.counts().queued == 0);
  CHECK(code_of([&] { long_one.fetch(); }) == ErrorCode::kCancelled);
  CHECK(throws(ErrorCode::kCancelled, "Please reschedule", [&] { queued.back().fetch(); }));
  CHECK(code_of([&] { bad.fetch(); }) == ErrorCode::kOutOfRange);
  other.fetch();
  // A new handle: what runs now, on either worker, is not cancelled by the error of before.
  running = 0;
  const auto here = coordinator.schedule<told_to_stop>();
  const auto there = coordinator.schedule<told_to_stop>();
  CHECK(here.fetch(testing::soon()) == 0);
  CHECK(there.fetch(testing::soon()) == 0);
  coordinator.join();
}

TEST_CASE("an error of any code that a function throws is its own and runs once",
          "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  for (int code = 1; code <= 16; ++code) {
    ran = 0;
    const auto bad = coordinator.schedule<throws_error>(code);
    CHECK(static_cast<int>(code_of([&] { bad.fetch(); })) == code);
    CHECK(static_cast<int>(code_of([&] { coordinator.join(); })) == code);
    CHECK(ran == 1);
  }
  const auto error = closure_error_of([&] {
    coordinator.schedule<throws_error>(static_cast<int>(ErrorCode::kUnavailable));
    coordinator.join();
  });
  REQUIRE(error);
  CHECK(error->details().origin == ErrorOrigin::kUser);
  CHECK(dynamic_cast<const PsUnavailable*>(&*error) == nullptr);
}

TEST_CASE("an error that was given the code of success is no success", "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const auto bad = coordinator.schedule<throws_error>(static_cast<int>(ErrorCode::kOk));
  CHECK(throws(ErrorCode::kUnknown, "of the user's own", [&] { bad.fetch(); }));
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kUnknown);
}

TEST_CASE("exceptions that are no muster::Error are UNKNOWN with their text", "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const auto fails_with = [&](const std::string& text, const auto& schedule) {
    const auto value = schedule();
    CHECK(throws(ErrorCode::kUnknown, text, [&] { value.fetch(); }));
    CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kUnknown);
  };
  fails_with("throws_runtime_error threw: a standard one",
             [&] { return coordinator.schedule<throws_runtime_error>(); });
  fails_with("throws_int threw what is no std::exception (int)",
             [&] { return coordinator.schedule<throws_int>(); });
  fails_with("throws_text threw what is no std::exception: a text of its own",
             [&] { return coordinator.schedule<throws_text>(); });
  fails_with("size of tensor a (2)", [&] { return coordinator.schedule<throws_torch>(); });
  CHECK(coordinator.schedule<one>().fetch() == 1);
  coordinator.join();
}

TEST_CASE("a remote value that has failed makes of those it is given to a ClosureInputError",
          "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const auto bad = coordinator.schedule<throws_error>(kOutOfRange);
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kOutOfRange);

  const auto second = coordinator.schedule<plus_one>(bad);
  const auto joined = closure_error_of<ClosureInputError>([&] { coordinator.join(); });
  const auto third = coordinator.schedule<plus_one>(second);
  const auto fetched = closure_error_of<ClosureInputError>([&] { third.fetch(); });

  REQUIRE(joined);
  CHECK(joined->code() == ErrorCode::kOutOfRange);
  CHECK(joined->details().origin == ErrorOrigin::kInput);
  CHECK(joined->details().phase == ClosurePhase::kInputs);
  REQUIRE(fetched);
  // The first error, once.
  const std::string& text = fetched->text();
  CHECK(text.find("of the user's own") != std::string::npos);
  CHECK(text.find("a remote value") == text.rfind("a remote value"));
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kOutOfRange);
}

TEST_CASE("one that was cancelled is an input with an error, too", "[strategy][unit]") {
  running = 0;
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  gate = false;
  coordinator.schedule<behind_gate>();
  eventually("it runs", [] { return running == 1; });
  coordinator.schedule<throws_error>(kOutOfRange);
  // The worker reads ahead: the last of these is in the queue.
  RemoteValue<int> cancelled;
  for (int i = 0; i < 10; ++i) cancelled = coordinator.schedule<one>();
  gate = true;
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kOutOfRange);
  const auto next = coordinator.schedule<plus_one>(cancelled);
  const auto error = closure_error_of<ClosureInputError>([&] { next.fetch(); });
  REQUIRE(error);
  CHECK(error->code() == ErrorCode::kCancelled);
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kCancelled);
}

TEST_CASE("a call of the coordinator that raises is done, too", "[strategy][unit][CCE-06]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  const auto bad = coordinator.schedule<throws_error>(kOutOfRange);
  CHECK(code_of([&] { bad.fetch(); }) == ErrorCode::kOutOfRange);
  CHECK(code_of([&] { (void)coordinator.done(); }) == ErrorCode::kOutOfRange);
  CHECK(coordinator.done());
}

TEST_CASE("whichever call is to raise waits first until nothing runs any more",
          "[strategy][unit][CCE-06]") {
  using Call = void (*)(ClusterCoordinator&);
  constexpr Call kSchedule = [](ClusterCoordinator& coordinator) { coordinator.schedule<good>(); };
  constexpr Call kJoin = [](ClusterCoordinator& coordinator) { coordinator.join(); };
  constexpr Call kDone = [](ClusterCoordinator& coordinator) { (void)coordinator.done(); };
  for (const Call call : {kSchedule, kJoin, kDone}) {
    running = 0;
    gate = false;
    ran = 0;
    ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2),
                                   {.timeout = std::chrono::milliseconds(50)});
    const auto runs_on = coordinator.schedule<behind_gate>();
    eventually("it runs", [] { return running == 1; });
    const auto bad = coordinator.schedule<throws_error>(kOutOfRange);
    CHECK(code_of([&] { bad.fetch(testing::soon()); }) == ErrorCode::kOutOfRange);

    CHECK(throws(ErrorCode::kDeadlineExceeded, "1 in flight", [&] { call(coordinator); }));

    gate = true;
    runs_on.fetch(testing::soon());
    CHECK(code_of([&] { call(coordinator); }) == ErrorCode::kOutOfRange);
    CHECK(coordinator.done());
    CHECK(ran == 1);
  }
}

TEST_CASE("a line that standard error does not take is lost and no error", "[strategy][unit]") {
  const int before = ::dup(2);
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  REQUIRE(before >= 0);
  REQUIRE(full >= 0);
  ::dup2(full, 2);
  bool thrown = false;
  try {
    muster::internal::TellStderr("no closure has ended for 1 s");
  } catch (const std::exception&) {
    thrown = true;
  }
  ::dup2(before, 2);
  ::close(before);
  ::close(full);
  CHECK_FALSE(thrown);
}

}  // namespace
}  // namespace cluster_errors_test
