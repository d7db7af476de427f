#include "cli/follow.h"

#include <google/protobuf/util/json_util.h>
#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/fixed_environment.h"
#include "tests/unit/cli/fake_job_api.h"

namespace muster::cli {
namespace {

using testing::Fixture;
using testing::MakeJob;

TEST_CASE_METHOD(Fixture, "wait ends with the code of the job's end", "[cli][unit]") {
  api.watches = {MakeJob("j-1", v1::JOB_STATE_RUNNING, 1),
                 MakeJob("j-1", v1::JOB_STATE_SUCCEEDED, 2)};
  CHECK(Run({"wait", "j-1"}) == ExitCode::kDone);
  CHECK(api.versions == std::vector<std::uint64_t>{0, 1});

  v1::Job failed = MakeJob("j-1", v1::JOB_STATE_FAILED, 3);
  failed.mutable_error()->set_message("w1 became NaN at step 7");
  api.watches = {failed};
  CHECK(Run({"wait", "j-1"}) == ExitCode::kJobFailed);
  CHECK(Said("job j-1 FAILED: w1 became NaN at step 7"));
  CHECK(Said("`muster describe j-1` tells the story"));

  failed.set_reason("REFUSED");
  api.watches = {failed};
  CHECK(Run({"wait", "j-1"}) == ExitCode::kUsage);

  api.watches = {MakeJob("j-1", v1::JOB_STATE_CANCELLED, 4)};
  CHECK(Run({"wait", "j-1"}) == ExitCode::kCancelled);
}

TEST_CASE_METHOD(Fixture, "with -o json a wait prints the job's end once, as it last was",
                 "[cli][unit]") {
  const auto read = [this] {
    v1::Job job;
    CAPTURE(out.str());
    REQUIRE(google::protobuf::util::JsonStringToMessage(out.str(), &job).ok());
    out.str("");
    return job;
  };
  v1::Job failed = MakeJob("j-1", v1::JOB_STATE_FAILED, 3);
  failed.mutable_error()->set_message("w1 became NaN at step 7");
  api.watches = {MakeJob("j-1", v1::JOB_STATE_RUNNING, 1), failed};
  CHECK(Run({"wait", "j-1", "-o", "json"}) == ExitCode::kJobFailed);
  CHECK(read().error().message() == "w1 became NaN at step 7");

  api.job = MakeJob("j-1", v1::JOB_STATE_RUNNING);
  CHECK(Run({"wait", "j-1", "--timeout", "1s", "-o", "json"}) == ExitCode::kTimedOut);
  CHECK(read().state() == v1::JOB_STATE_RUNNING);
}

TEST_CASE_METHOD(Fixture, "with -o json a wait that has seen no job is an error object",
                 "[cli][unit]") {
  api.watches.assign(100, Unavailable("no coordinator answers at h:1"));
  CHECK(Run({"wait", "j-1", "--timeout", "1s", "-o", "json"}) == ExitCode::kTimedOut);
  CHECK(nlohmann::json::parse(out.str()).at("error").at("name") == "DEADLINE_EXCEEDED");

  out.str("");
  interrupted = true;
  CHECK(Run({"wait", "j-1", "-o", "json"}) == ExitCode::kInterrupted);
  CHECK(nlohmann::json::parse(out.str()).at("error").at("name") == "CANCELLED");
}

TEST_CASE_METHOD(Fixture, "who follows a launched command is shown what it prints, each line once",
                 "[cli][unit]") {
  const auto record = [](std::uint64_t cursor, const char* task, const char* text) {
    v1::LogRecord one;
    one.set_cursor(cursor);
    one.set_task(task);
    one.mutable_line()->set_text(text);
    return one;
  };
  api.submit->mutable_job()->set_id("train-1");
  api.watches = {MakeJob("train-1", v1::JOB_STATE_RUNNING, 1), Unavailable("it restarts"),
                 MakeJob("train-1", v1::JOB_STATE_SUCCEEDED, 2)};
  api.logs = {{{record(4, "worker:0", "step 1"), record(7, "worker:1", "step 1 too")}, Ok()},
              {{record(9, "worker:0", "step 2")}, Ok()}};
  CHECK(Run({"submit", "--workers", "2", "--follow", "--", "sh", "-c", "true"}) == ExitCode::kDone);
  const std::string shown = out.str();
  CAPTURE(shown, err.str());
  CHECK(shown.find("worker:0  step 1\n") != std::string::npos);
  CHECK(shown.find("worker:1  step 1 too\n") != std::string::npos);
  CHECK(shown.find("worker:0  step 2\n") != std::string::npos);
  REQUIRE(api.log_requests.size() == 2);
  CHECK(api.log_requests[0].job() == "train-1");
  CHECK(api.log_requests[0].cursor() == 0);
  CHECK(api.log_requests[1].cursor() == 7);
  CHECK_FALSE(api.log_requests[1].follow());

  out.str("");
  api.watches = {MakeJob("train-1", v1::JOB_STATE_SUCCEEDED, 3)};
  CHECK(Run({"submit", "--workers", "2", "--wait", "--", "sh", "-c", "true"}) == ExitCode::kDone);
  CHECK(out.str() == "train-1\n");
  CHECK(api.log_requests.size() == 2);
}

TEST_CASE_METHOD(Fixture, "an error is told once, at the end", "[cli][unit]") {
  v1::Job job = MakeJob("j-1", v1::JOB_STATE_RUNNING, 1);
  job.mutable_progress()->set_step(20);
  job.mutable_progress()->set_total_steps(30);
  const auto add = [&job](const char* reason, const char* message) {
    v1::Event& event = *job.add_events();
    event.set_sequence(static_cast<std::uint64_t>(job.events_size()));
    event.set_reason(reason);
    event.set_message(message);
  };
  add("JOB_RUNNING", "running from step 0");
  add("CLOSURE_FAILED", "closure 21 failed on worker:0: the loss is nan");
  api.watches = {job};
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_version(2);
  job.set_message("closure 21 on worker:0: the loss is nan");
  job.mutable_error()->set_message("closure 21 on worker:0: the loss is nan");
  add("JOB_FAILED", "closure 21 on worker:0: the loss is nan");
  api.watches.push_back(job);
  std::ostringstream ignored;
  const Options options;
  const Terminal terminal{.out = ignored, .err = err};
  const Environment environment = FixedEnvironment({});
  const Context context{.options = options,
                        .terminal = terminal,
                        .environment = environment,
                        .clock = api.clock,
                        .connect = [this]() -> Result<JobApi*> { return &api; },
                        .interrupted = [] { return false; },
                        .sleep = [](std::chrono::milliseconds) { return true; },
                        .run = {}};

  CHECK(Follow(context, {.job = "j-1", .show = true}) == ExitCode::kJobFailed);

  const std::string text = err.str();
  CAPTURE(text);
  CHECK(text.find("the loss is nan") == text.rfind("the loss is nan"));
  CHECK(text.find("job j-1 FAILED: closure 21 on worker:0: the loss is nan\n") !=
        std::string::npos);
  CHECK(text.find("running from step 0") != std::string::npos);
}

TEST_CASE_METHOD(Fixture, "a wait that takes too long is 7 and leaves the job alone",
                 "[cli][unit]") {
  api.job = MakeJob("j-1", v1::JOB_STATE_RUNNING);

  CHECK(Run({"wait", "j-1", "--timeout", "1s"}) == ExitCode::kTimedOut);

  CHECK(Said("job j-1 has not ended after 1 s; it goes on"));
  CHECK(api.stops.empty());
}

TEST_CASE_METHOD(Fixture, "a wait for ever is no question again and again", "[cli][unit]") {
  api.clock.Advance(std::chrono::hours(24));
  api.watch_takes = std::chrono::seconds(10);
  api.watches = {MakeJob("j-1", v1::JOB_STATE_RUNNING), MakeJob("j-1", v1::JOB_STATE_SUCCEEDED, 2)};
  const TimePoint begin = api.clock.Now();

  CHECK(Run({"wait", "j-1", "--timeout", "9223372036s"}) == ExitCode::kDone);

  CHECK(api.clock.Now() - begin == 2 * api.watch_takes);
}

TEST_CASE_METHOD(Fixture, "an unknown job is 3", "[cli][unit]") {
  api.watches = {NotFound("no job nothing")};
  CHECK(Run({"wait", "nothing"}) == ExitCode::kNotFound);
  CHECK(err.str() == "error: no job nothing\n");
}

TEST_CASE_METHOD(Fixture, "a coordinator that was never there is 6 after some seconds",
                 "[cli][unit]") {
  for (int i = 0; i < 10'000; ++i) {
    api.watches.push_back(Unavailable("no coordinator answers at h:1"));
  }
  const TimePoint begin = api.clock.Now();
  CHECK(Run({"wait", "j-1"}) == ExitCode::kUnreachable);
  CHECK(api.clock.Now() - begin >= kFirstPatience);
  CHECK(api.clock.Now() - begin < kFirstPatience * 2);
}

TEST_CASE_METHOD(Fixture, "a wait that begins while the coordinator is restarted outlives that",
                 "[cli][unit]") {
  api.watches = {Unavailable("gone"), Unavailable("gone"),
                 MakeJob("j-1", v1::JOB_STATE_SUCCEEDED, 7)};
  CHECK(Run({"wait", "j-1"}) == ExitCode::kDone);
}

TEST_CASE_METHOD(Fixture, "a coordinator that comes back is waited for", "[cli][unit]") {
  api.watches = {MakeJob("j-1", v1::JOB_STATE_RUNNING, 5), Unavailable("gone"), Unavailable("gone"),
                 MakeJob("j-1", v1::JOB_STATE_RUNNING, 6),
                 MakeJob("j-1", v1::JOB_STATE_SUCCEEDED, 7)};

  CHECK(Run({"wait", "j-1"}) == ExitCode::kDone);

  CHECK(Said("the coordinator does not answer; trying again\nthe coordinator is back\n"));
  CHECK(api.versions == std::vector<std::uint64_t>{0, 5, 5, 5, 6});
}

TEST_CASE_METHOD(Fixture, "a coordinator that stays away is 6 in the end", "[cli][unit]") {
  api.watches = {MakeJob("j-1", v1::JOB_STATE_RUNNING, 5)};
  for (int i = 0; i < 10'000; ++i) api.watches.push_back(Unavailable("gone"));

  CHECK(Run({"wait", "j-1"}) == ExitCode::kUnreachable);

  CHECK(Said("error: gone"));
}

TEST_CASE_METHOD(Fixture, "Ctrl-C detaches with 130 and says how to come back", "[cli][unit]") {
  interrupted = true;
  api.watches = {Cancelled("cancelled")};

  CHECK(Run({"wait", "j-1"}) == ExitCode::kInterrupted);

  CHECK(Said("detached; the job goes on. `muster wait j-1` waits for it"));
  CHECK(Said("`muster stop j-1` ends it"));
  CHECK(api.stops.empty());
}

}  // namespace
}  // namespace muster::cli
