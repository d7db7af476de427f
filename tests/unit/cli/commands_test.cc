#include "cli/commands.h"

#include <google/protobuf/util/json_util.h>

#include "cli/format.h"
#include "tests/support/catch.h"
#include "tests/unit/cli/fake_job_api.h"

namespace muster::cli {
namespace {

using testing::Fixture;
using testing::MakeJob;

TEST_CASE("every status has its exit code", "[cli][unit]") {
  CHECK(CodeOf(InvalidArgument("x")) == ExitCode::kUsage);
  CHECK(CodeOf(NotFound("x")) == ExitCode::kNotFound);
  CHECK(CodeOf(AlreadyExists("x")) == ExitCode::kRefused);
  CHECK(CodeOf(FailedPrecondition("x")) == ExitCode::kRefused);
  CHECK(CodeOf(ResourceExhausted("x")) == ExitCode::kRefused);
  CHECK(CodeOf(Unauthenticated("x")) == ExitCode::kForbidden);
  CHECK(CodeOf(PermissionDenied("x")) == ExitCode::kForbidden);
  CHECK(CodeOf(Unavailable("x")) == ExitCode::kUnreachable);
  CHECK(CodeOf(DeadlineExceeded("x")) == ExitCode::kUnreachable);
  CHECK(CodeOf(Internal("x")) == ExitCode::kBug);
  CHECK(static_cast<int>(ExitCode::kBug) == 70);
}

TEST_CASE_METHOD(Fixture, "jobs is one line a job", "[cli][unit]") {
  v1::Job* job = api.list->add_jobs();
  *job = MakeJob("j-2", v1::JOB_STATE_RUNNING);
  job->mutable_progress()->set_step(50);
  job->mutable_progress()->set_total_steps(200);
  job->mutable_progress()->set_eta_seconds(30);
  job->set_submitted_ms(
      std::chrono::duration_cast<std::chrono::milliseconds>(api.clock.WallNow().time_since_epoch())
          .count() -
      5000);
  v1::Job* waiting = api.list->add_jobs();
  *waiting = *job;
  waiting->set_id("j-1");
  waiting->set_state(v1::JOB_STATE_PENDING);
  waiting->set_reason("WAITING_FOR_TASKS");
  waiting->clear_progress();

  CHECK(Run({"jobs"}) == ExitCode::kDone);

  CHECK(out.str() ==
        "JOB  NAME    STATE    REASON             STEP  PROGRESS  ETA   AGE\n"
        "j-2  digits  RUNNING  -                  50    25%       30 s  5 s\n"
        "j-1  digits  PENDING  WAITING_FOR_TASKS  0     -         -     5 s\n");
}

TEST_CASE_METHOD(Fixture, "JSON is protobuf's mapping", "[cli][unit]") {
  *api.list->add_jobs() = MakeJob("j-2", v1::JOB_STATE_RUNNING, 9);

  CHECK(Run({"jobs", "-o", "json"}) == ExitCode::kDone);

  v1::ListJobsReply read;
  REQUIRE(google::protobuf::util::JsonStringToMessage(out.str(), &read).ok());
  CHECK(read.jobs(0).version() == 9);
  CHECK(out.str().starts_with("{\n \"jobs\": [\n  {\n   \"id\": \"j-2\",\n"));
}

TEST_CASE_METHOD(Fixture, "JSON holds what is zero or empty", "[cli][unit]") {
  CHECK(Run({"jobs", "-o", "json"}) == ExitCode::kDone);
  CHECK(out.str() == "{\n \"jobs\": []\n}\n");

  out.str("");
  v1::TaskState& task = *api.status->add_tasks();
  task.mutable_task()->set_type("worker");
  CHECK(Run({"status", "-o", "json"}) == ExitCode::kDone);
  CHECK(out.str().find("\"index\": 0") != std::string::npos);
  CHECK(out.str().find("\"jobsRunning\": 0") != std::string::npos);
}

TEST_CASE("Colours are as the flag says, else as terminal and NO_COLOR do", "[cli][unit]") {
  const Environment plain = FixedEnvironment({{"TERM", "xterm"}});
  const Environment without = FixedEnvironment({{"TERM", "xterm"}, {"NO_COLOR", "1"}});
  CHECK(WantsColour(Colours::kAuto, plain, true));
  CHECK_FALSE(WantsColour(Colours::kAuto, plain, false));
  CHECK_FALSE(WantsColour(Colours::kAuto, without, true));
  CHECK(WantsColour(Colours::kAlways, without, false));
  CHECK_FALSE(WantsColour(Colours::kNever, plain, true));
}

TEST_CASE_METHOD(Fixture, "describe tells tasks, variables, checkpoints and events",
                 "[cli][unit]") {
  api.job = MakeJob("j-1", v1::JOB_STATE_RUNNING);
  v1::Event* event = api.job.add_events();
  event->set_reason("TASK_LOST");
  event->set_message("pid 7 was lost: signal SIGKILL");
  event->mutable_task()->set_type("worker");
  event->mutable_task()->set_index(1);
  event->add_log_lines("last words");
  v1::VariableLayout* variable = api.job.add_variables();
  variable->set_name("w1");
  variable->add_shape(784);
  variable->add_shape(256);
  v1::ShardPlacement* shard = variable->add_shards();
  shard->set_ps_index(1);
  shard->set_row_offset(392);
  shard->set_rows(392);

  CHECK(Run({"describe", "j-1"}) == ExitCode::kDone);

  const std::string text = out.str();
  CAPTURE(text);
  CHECK(text.starts_with("Job          j-1\nName         digits\nState        RUNNING\n"));
  CHECK(text.find("w1        [784, 256]  ps:1 rows 392-784\n") != std::string::npos);
  CHECK(text.find(
            "TASK_LOST            worker:1: pid 7 was lost: signal SIGKILL\n    | last words\n") !=
        std::string::npos);
  CHECK(text.find('\033') == std::string::npos);
}

TEST_CASE_METHOD(Fixture, "an unknown job is 3, an unknown cluster 6", "[cli][unit]") {
  CHECK(Run({"describe", "nothing"}) == ExitCode::kNotFound);
  connect = Unavailable("no cluster");
  CHECK(Run({"describe", "nothing"}) == ExitCode::kUnreachable);
  CHECK(Run({"jobs"}) == ExitCode::kUnreachable);
  connect = Unauthenticated("no token");
  CHECK(Run({"status"}) == ExitCode::kForbidden);
}

TEST_CASE_METHOD(Fixture, "stop passes its grace on", "[cli][unit]") {
  api.job = MakeJob("j-1", v1::JOB_STATE_STOPPING);
  CHECK(Run({"stop", "j-1", "--grace", "5s"}) == ExitCode::kDone);
  REQUIRE(api.stops.size() == 1);
  CHECK(api.stops[0].grace_ms() == 5000);
  CHECK(Said("job j-1 saves a checkpoint and ends"));
}

TEST_CASE_METHOD(Fixture, "status warns of an open network", "[cli][unit]") {
  v1::TaskState* task = api.status->add_tasks();
  task->mutable_task()->set_type("ps");
  task->set_state("up");
  task->set_insecure_network(true);
  CHECK(Run({"status"}) == ExitCode::kDone);
  CHECK(out.str().find("ps:0  up") != std::string::npos);
  CHECK(Said("without encryption"));
}

TEST_CASE_METHOD(Fixture, "logs -f goes on after the last line when the coordinator was gone",
                 "[cli][unit]") {
  v1::LogRecord first, second;
  first.set_cursor(7);
  first.set_task("worker:0");
  first.mutable_line()->set_text("one");
  second = first;
  second.set_cursor(8);
  second.mutable_line()->set_text("two");
  api.logs = {{{first}, Unavailable("gone")}, {{}, Unavailable("gone")}, {{second}, Ok()}};

  CHECK(Run({"logs", "j-1", "-f", "--tail", "3"}) == ExitCode::kDone);

  REQUIRE(api.log_requests.size() == 3);
  CHECK(api.log_requests[0].tail() == 3);
  CHECK(api.log_requests[1].cursor() == 7);
  CHECK(api.log_requests[1].tail() == 0);
  CHECK(out.str().find("worker:0  one\n") != std::string::npos);
  CHECK(out.str().find("worker:0  two\n") != std::string::npos);
}

TEST_CASE_METHOD(Fixture, "a checkpoint is verified without a cluster by its folder",
                 "[cli][unit]") {
  connect = Unavailable("no cluster");
  CHECK(Run({"checkpoints", "verify", "/no/such/folder"}) == ExitCode::kNotFound);
  CHECK(Run({"checkpoints", "verify", "j-1"}) == ExitCode::kUnreachable);
  connect = Ok();
  CHECK(Run({"checkpoints", "verify", "j-1"}) == ExitCode::kNotFound);
  CHECK(Said("job j-1 has no checkpoint"));
}

TEST_CASE_METHOD(Fixture, "version tells both and what differs", "[cli][unit]") {
  api.status->set_version("9.9.9");
  CHECK(Run({"version"}) == ExitCode::kDone);
  CHECK(out.str().find("cluster 9.9.9\n") != std::string::npos);
  CHECK(Said("use the same version for both"));
}

TEST_CASE_METHOD(Fixture, "bench ends with the code of the program", "[cli][unit]") {
  program_code = 5;
  CHECK(static_cast<int>(Run({"bench", "ps", "--json"})) == 5);
  CHECK(programs == std::vector<std::vector<std::string>>{{"muster-bench", "ps", "--json"}});
}

}  // namespace
}  // namespace muster::cli
