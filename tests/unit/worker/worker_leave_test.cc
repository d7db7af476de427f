// A worker whose coordinator comes back, one that is asked to end, and what it keeps of jobs that
// have.
#include "tests/unit/worker/fixture.h"

namespace muster::worker {
namespace {

struct LeaveFixture : WorkerFixture {
  static constexpr Millis kSecond{1'000};

  std::uint64_t Ask(v1::Command command) {
    command.set_id(next_command++);
    core.OnCommand(StreamId(7), command);
    return command.id();
  }
  // That is of another job than the fixture's.
  std::uint64_t StartOther(const std::string& sha = "") {
    v1::Command command;
    v1::StartExecutor& start = *command.mutable_start_executor();
    start.mutable_plan()->set_job_id("other");
    start.mutable_plan()->set_view(1);
    start.mutable_plan()->set_epoch(1);
    start.mutable_program()->set_incarnation(1);
    start.mutable_spec()->mutable_model()->set_archive_sha256(sha);
    return Ask(std::move(command));
  }
  std::uint64_t Evaluate(const std::string& sha = "") {
    v1::Command command;
    v1::EvaluateCheckpoint& evaluate = *command.mutable_evaluate_checkpoint();
    evaluate.set_directory("/step-7");
    evaluate.mutable_spec()->mutable_model()->set_archive_sha256(sha);
    return Ask(std::move(command));
  }
};

TEST_CASE_METHOD(LeaveFixture, "after a reconnect an executor that nobody asks for is ended",
                 "[worker][unit]") {
  StartReady(1);
  const ProcessId process = io.launched[0];

  SECTION("nobody") {
    core.OnAttached();
    Live(process, 59 * kSecond, 0, 0);
    CHECK_FALSE(io.killed.contains(process));
    Live(process, kSecond, 0, 0);
    CHECK(io.killed.contains(process));
  }
  SECTION("the coordinator asks again") {
    core.OnAttached();
    Start(1);
    Live(process, 60 * kSecond, 0, 0);
    CHECK_FALSE(io.killed.contains(process));
  }
  SECTION("a second coordinator has its whole time to ask") {
    core.OnAttached();
    Live(process, 50 * kSecond, 0, 0);
    core.OnAttached();
    Live(process, 59 * kSecond, 0, 0);
    CHECK_FALSE(io.killed.contains(process));
    Live(process, kSecond, 0, 0);
    CHECK(io.killed.contains(process));
  }
}

TEST_CASE_METHOD(LeaveFixture,
                 "after a reconnect an executor that nobody asks for does not begin with its file",
                 "[worker][unit]") {
  const std::uint64_t command = Start(1, 1, "abc");
  core.OnAttached();
  const bool asked = GENERATE(false, true);
  if (asked) Start(1, 1, "abc");

  scheduler.Advance(60 * kSecond);
  core.OnFetched("abc", std::string("/cache/abc.pt"));

  CHECK(io.launched.size() == (asked ? 1U : 0U));
  CHECK(Code(command) == (asked ? StatusCode::kUnknown : StatusCode::kAborted));
}

TEST_CASE_METHOD(LeaveFixture, "an evaluation ends with the stream that has asked for it",
                 "[worker][unit]") {
  SECTION("that runs") {
    Evaluate();
    REQUIRE(io.launched.size() == 1);

    core.OnAttached();

    CHECK(io.killed.contains(io.launched[0]));
    Evaluate();
    CHECK(io.launched.size() == 2);
  }
  SECTION("that waits for its file") {
    Evaluate("abc");
    core.OnAttached();
    const std::uint64_t again = Evaluate("abc");
    CHECK(io.fetches.size() == 1);

    core.OnFetched("abc", std::string("/cache/abc.pt"));

    REQUIRE(io.launched.size() == 1);
    v1::FromExecutor answer;
    answer.mutable_evaluated()->mutable_result()->set_examples(12);
    core.OnMessage(io.launched[0], answer);
    CHECK(Code(again) == StatusCode::kOk);
  }
}

TEST_CASE_METHOD(LeaveFixture, "draining waits for what runs, and its executor takes no more",
                 "[worker][unit]") {
  StartReady(1);
  Pulse(io.launched[0], 0, 1);
  bool drained = false;
  core.Drain(30 * kSecond, [&drained] { drained = true; });
  CHECK_FALSE(drained);
  CHECK(io.sent.back().message.has_stop());
  CHECK(Code(Start(2)) == StatusCode::kUnavailable);

  Pulse(io.launched[0], 1);

  CHECK(drained);
  CHECK(io.killed.contains(io.launched[0]));
}

TEST_CASE_METHOD(LeaveFixture, "a closure that outlasts the drain does not hold it",
                 "[worker][unit]") {
  StartReady(1);
  Pulse(io.launched[0], 0, 1);
  bool drained = false;
  core.Drain(30 * kSecond, [&drained] { drained = true; });

  scheduler.Advance(30 * kSecond);

  CHECK(drained);
}

TEST_CASE_METHOD(LeaveFixture, "what is starting when a worker drains does not begin any more",
                 "[worker][unit]") {
  StartReady(1);
  Pulse(io.launched[0], 0, 1);
  const bool waits_for_file = GENERATE(false, true);
  const std::uint64_t command = StartOther(waits_for_file ? "abc" : "");
  bool drained = false;

  core.Drain(30 * kSecond, [&drained] { drained = true; });

  CHECK(Code(command) == StatusCode::kUnavailable);
  if (waits_for_file) {
    core.OnFetched("abc", std::string("/cache/abc.pt"));
    CHECK(io.launched.size() == 1);
  } else {
    REQUIRE(io.launched.size() == 2);
    CHECK(io.killed.contains(io.launched[1]));
  }
  CHECK_FALSE(drained);
  Pulse(io.launched[0], 1);
  CHECK(drained);
}

TEST_CASE_METHOD(WorkerFixture, "jobs that are long over take no memory and running ones stay",
                 "[worker][unit]") {
  constexpr int kMostJobs = 4'096;
  const auto start = [&](const std::string& job) {
    v1::Command command;
    command.set_id(next_command++);
    v1::StartExecutor& body = *command.mutable_start_executor();
    body.mutable_plan()->set_job_id(job);
    body.mutable_plan()->set_view(1);
    body.mutable_plan()->set_epoch(2);
    body.mutable_program()->set_incarnation(1);
    core.OnCommand(StreamId(7), command);
  };
  const auto stop = [&](const std::string& job, std::uint64_t epoch) {
    v1::Command command;
    command.set_id(next_command++);
    command.mutable_stop_executor()->set_job_id(job);
    command.mutable_stop_executor()->set_epoch(epoch);
    core.OnCommand(StreamId(7), command);
    return Code(command.id());
  };
  start("running");
  for (int i = 0; i < kMostJobs; ++i) {
    start(fmt::format("job-{}", i));
    io.replies.clear();
    REQUIRE(stop(fmt::format("job-{}", i), 2) == StatusCode::kOk);
    core.OnExited(io.launched.back(), "signal SIGKILL");
  }

  // Nothing is known of the first one, so nothing is of the past.
  CHECK(stop("job-0", 1) == StatusCode::kOk);
  CHECK(stop("job-1", 1) == StatusCode::kAborted);
  CHECK(stop("running", 1) == StatusCode::kAborted);
}

}  // namespace
}  // namespace muster::worker
