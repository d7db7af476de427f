#include "cli/commands.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include <google/protobuf/util/json_util.h>
#include <nlohmann/json.hpp>

#include "cli/follow.h"
#include "cli/format.h"
#include "common/base/wall_time.h"
#include "tests/support/catch.h"
#include "tests/support/fixed_environment.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/cli/fake_job_api.h"
#include "tests/unit/common/storage/support.h"

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
  CHECK(CodeOf(FromErrno(EIO, "x")) == ExitCode::kRefused);
  CHECK(CodeOf(Unauthenticated("x")) == ExitCode::kForbidden);
  CHECK(CodeOf(PermissionDenied("x")) == ExitCode::kForbidden);
  CHECK(CodeOf(Unavailable("x")) == ExitCode::kUnreachable);
  CHECK(CodeOf(DeadlineExceeded("x")) == ExitCode::kUnreachable);
  CHECK(CodeOf(Internal("x")) == ExitCode::kBug);
  CHECK(static_cast<int>(ExitCode::kBug) == 70);
}

TEST_CASE("an exception that nobody expected ends with 70 and its words", "[cli][unit]") {
  std::ostringstream err;
  CHECK(Guarded([]() -> ExitCode { throw std::runtime_error("odd"); }, err) == ExitCode::kBug);
  CHECK(err.str() == "error: a bug of Muster: odd\n");
  CHECK(Guarded([] { return ExitCode::kNotFound; }, err) == ExitCode::kNotFound);
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

TEST_CASE_METHOD(Fixture,
                 "the messages of events begin below each other, however long their names are",
                 "[cli][unit]") {
  api.job = MakeJob("j-1", v1::JOB_STATE_RUNNING);
  for (const char* reason : {"TASK_LOST", "CHECKPOINTS_TAKEN_OVER"}) {
    v1::Event& event = *api.job.add_events();
    event.set_reason(reason);
    event.set_message("what it says");
  }

  CHECK(Run({"describe", "j-1"}) == ExitCode::kDone);

  CAPTURE(out.str());
  CHECK(out.str().find("  TASK_LOST              what it says\n") != std::string::npos);
  CHECK(out.str().find("  CHECKPOINTS_TAKEN_OVER what it says\n") != std::string::npos);
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

  // 0 alone would be the default.
  CHECK(Run({"stop", "j-1", "--grace", "0"}) == ExitCode::kDone);
  REQUIRE(api.stops.size() == 2);
  CHECK(api.stops[1].grace_ms() == 1);
  CHECK(Said("job j-1 is cut off; `muster wait j-1` waits for it"));
  // 50 days would be 7 hours in 32 bits of milliseconds.
  CHECK(Run({"stop", "j-1", "--grace", "50d"}) == ExitCode::kUsage);
  CHECK(Said("--grace: at most 30d; given 50d"));
  CHECK(Run({"stop", "j-1", "--grace", "30d"}) == ExitCode::kDone);
  CHECK(api.stops.back().grace_ms() == 2'592'000'000);
}

TEST_CASE_METHOD(Fixture, "describe tells who stands in a collective call, and for whom",
                 "[cli][unit]") {
  api.job = MakeJob("j-1", v1::JOB_STATE_RUNNING);
  v1::CollectiveWait& wait = *api.job.add_tasks()->add_waits();
  wait.mutable_task()->set_type("worker");
  wait.set_generation(2);
  wait.set_operation(412);
  wait.set_call("all_reduce SUM of float32[3]");
  wait.set_awaited("worker:1 (which has not begun it)");
  wait.set_lasts_ms(7'100);
  wait.set_limit_ms(60'000);
  CHECK(Run({"describe", "j-1"}) == ExitCode::kDone);
  CHECK(
      out.str().find("WAITS     FOR                                SINCE        OPERATION\n"
                     "worker:0  worker:1 (which has not begun it)  7 s of 60 s  412 of generation "
                     "2: all_reduce SUM of float32[3]\n") != std::string::npos);

  // Its group forms.
  wait.set_operation(0);
  wait.set_call("forming of the group");
  wait.set_awaited("worker:1 (10.0.0.7:21017)");
  CHECK(Run({"describe", "j-1"}) == ExitCode::kDone);
  CHECK(out.str().find("worker:0  worker:1 (10.0.0.7:21017)  7 s of 60 s  generation 2: forming of "
                       "the group\n") != std::string::npos);
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

TEST_CASE_METHOD(Fixture, "status names daemons of another version than their coordinator",
                 "[cli][unit]") {
  api.status->set_version("0.4.0");
  for (const char* const version : {"0.4.7", "0.3.0", ""}) {
    v1::TaskState* const task = api.status->add_tasks();
    task->mutable_task()->set_type("worker");
    task->mutable_task()->set_index(static_cast<std::uint32_t>(api.status->tasks_size() - 1));
    task->set_state("up");
    task->set_pid(7);
    task->set_version(version);
  }
  const std::string named =
      "worker:1 is version 0.3.0, the coordinator 0.4.0: that works, what is new in either is "
      "missing; upgrade the older one\n";
  CHECK(Run({"status"}) == ExitCode::kDone);
  CHECK(out.str().find('\n' + named) != std::string::npos);
  CHECK(out.str().find("worker:0 is version") == std::string::npos);
  CHECK(out.str().find("worker:2 is version") == std::string::npos);

  api.status->mutable_tasks(1)->set_state("lost");
  out.str("");
  CHECK(Run({"status"}) == ExitCode::kDone);
  CHECK(out.str().find("is version") == std::string::npos);
}

TEST_CASE_METHOD(Fixture, "status tells what each job holds on which task", "[cli][unit]") {
  v1::TaskState* task = api.status->add_tasks();
  task->mutable_task()->set_type("ps");
  task->set_state("up");
  CHECK(Run({"status"}) == ExitCode::kDone);
  CHECK(out.str().find("HELD") == std::string::npos);
  v1::JobBytes& held = *task->add_job_bytes();
  held.set_job_id("words-1");
  held.set_bytes(2'048);
  CHECK(Run({"status"}) == ExitCode::kDone);
  task = api.status->add_tasks();
  task->mutable_task()->set_type("worker");
  *task->add_job_bytes() = held;
  CHECK(Run({"status"}) == ExitCode::kDone);
  CHECK(out.str().find("JOB      TASK      HELD\nwords-1  ps:0      2.0 KiB\n"
                       "words-1  worker:0  2.0 KiB\n") != std::string::npos);
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

TEST_CASE_METHOD(Fixture, "logs -f outlives a coordinator's restart after any time without a line",
                 "[cli][unit]") {
  v1::LogRecord line;
  line.set_task("worker:0");
  line.mutable_line()->set_text("one");
  api.logs_take = kPatience * 2;

  SECTION("since the last line") { api.logs = {{{line}, Unavailable("gone")}, {{line}, Ok()}}; }
  SECTION("before the first line") { api.logs = {{{}, Unavailable("gone")}, {{line}, Ok()}}; }
  SECTION("again and again") {
    api.logs = {{{}, Unavailable("gone")}, {{}, Unavailable("gone")}, {{line}, Ok()}};
  }
  SECTION("that takes a while") {
    api.statuses = {v1::ClusterStatus(), Unavailable("gone"), Unavailable("gone")};
    api.logs = {{{}, Unavailable("gone")}, {{line}, Ok()}};
  }

  CHECK(Run({"logs", "j-1", "-f"}) == ExitCode::kDone);
  CHECK(out.str().find("worker:0  one\n") != std::string::npos);
}

TEST_CASE_METHOD(Fixture, "logs -f gives up on a coordinator that stays away, or never was there",
                 "[cli][unit]") {
  api.logs = {{{}, Unavailable("gone")}};
  api.statuses.assign(10'000, Unavailable("gone"));
  CHECK(Run({"logs", "j-1", "-f"}) == ExitCode::kUnreachable);
  CHECK(api.log_requests.empty());

  const TimePoint begin = api.clock.Now();
  SECTION("it is away") {
    api.statuses.assign(10'000, Unavailable("gone"));
    api.statuses.push_front(v1::ClusterStatus());
  }
  SECTION("it is there, and has no stream for us") {
    api.statuses.clear();
    api.logs.assign(10'000, {{}, Unavailable("no stream")});
  }
  CHECK(Run({"logs", "j-1", "-f"}) == ExitCode::kUnreachable);
  CHECK(api.clock.Now() - begin >= kPatience);
  CHECK(api.clock.Now() - begin < kPatience * 2);
}

TEST_CASE_METHOD(Fixture, "a checkpoint is verified without a cluster by its folder",
                 "[cli][unit]") {
  connect = Unavailable("no cluster");
  CHECK(Run({"checkpoints", "verify", "/no/such/folder"}) == ExitCode::kNotFound);
  CHECK(Run({"checkpoints", "verify", "../.."}) == ExitCode::kUsage);
  CHECK(Said("../.. is no checkpoint: it has no MANIFEST.json"));
  CHECK(Run({"checkpoints", "export", "/proc", "-o", "/no/such/file"}) == ExitCode::kUsage);
  CHECK(Run({"checkpoints", "verify", "j-1"}) == ExitCode::kUnreachable);
  connect = Ok();
  CHECK(Run({"checkpoints", "verify", "j-1"}) == ExitCode::kNotFound);
  CHECK(Said("job j-1 has no checkpoint"));
}

struct SampleFixture : Fixture {
  SampleFixture() {
    REQUIRE(storage::WriteSample(root.path(), 20, storage::RealFileSystem()).ok());
    folder = storage::CheckpointDirectory(root.path(), 20);
  }
  const muster::testing::TempFolder root;
  std::string folder;
};

TEST_CASE_METHOD(SampleFixture, "a checkpoint's folder is found by its name alone", "[cli][unit]") {
  connect = Unavailable("no cluster");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(root.path());
  const ExitCode code = Run({"checkpoints", "verify", "step-000000000020"});
  std::filesystem::current_path(before);

  CAPTURE(err.str());
  CHECK(code == ExitCode::kDone);
  CHECK(out.str().starts_with("step-000000000020: step 20, "));
}

TEST_CASE_METHOD(SampleFixture, "a folder of another step than --step is refused", "[cli][unit]") {
  CHECK(Run({"checkpoints", "verify", folder, "--step", "20"}) == ExitCode::kDone);
  out.str("");
  CHECK(Run({"checkpoints", "verify", folder, "--step", "500"}) == ExitCode::kUsage);
  CHECK(Said(folder + " is the checkpoint of step 20, and --step says 500"));
  CHECK(Run({"checkpoints", "export", folder, "-o", "-", "--step", "500"}) == ExitCode::kUsage);
  CHECK(out.str().empty());
}

TEST_CASE_METHOD(SampleFixture, "verify -o json tells step, folder and size, or the error",
                 "[cli][unit]") {
  CHECK(Run({"checkpoints", "verify", folder, "-o", "json"}) == ExitCode::kDone);
  v1::CheckpointInfo info;
  REQUIRE(google::protobuf::util::JsonStringToMessage(out.str(), &info).ok());
  CHECK(info.step() == 20);
  CHECK(info.directory() == folder);
  CHECK(info.bytes() > 0);
  CHECK(info.refused().empty());

  out.str("");
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() == ".safetensors") std::filesystem::resize_file(file.path(), 9);
  }
  CHECK(Run({"checkpoints", "verify", folder, "-o", "json"}) == ExitCode::kJobFailed);
  CHECK(nlohmann::json::parse(out.str()).at("error").at("name") == "DATA_LOSS");
}

TEST_CASE_METHOD(SampleFixture,
                 "a folder that takes no file is a refusal and no question of tokens",
                 "[cli][unit]") {
  // Nobody makes files there, root included.
  CHECK(Run({"checkpoints", "export", folder, "-o", "/sys/muster-export"}) == ExitCode::kRefused);
  CHECK(err.str().find("/sys/muster-export") != std::string::npos);
}

TEST_CASE_METHOD(SampleFixture, "export -o - writes the same bytes to standard output",
                 "[cli][unit]") {
  const std::string file = root / "all.safetensors";
  REQUIRE(Run({"checkpoints", "export", folder, "-o", file}) == ExitCode::kDone);
  REQUIRE(out.str().empty());
  CHECK(Run({"checkpoints", "export", folder, "-o", "-"}) == ExitCode::kDone);

  std::ifstream stream(file, std::ios::binary);
  const std::string written{std::istreambuf_iterator<char>(stream), {}};
  CHECK(written.size() > 8);
  CHECK(out.str() == written);
  CHECK(Said("wrote to standard output from " + folder));
}

TEST_CASE_METHOD(Fixture, "damaged checkpoints are not \"no checkpoint\"", "[cli][unit]") {
  for (const std::uint64_t step : {20, 40}) {
    v1::CheckpointInfo& info = *api.checkpoints->add_checkpoints();
    info.set_step(step);
    info.set_directory("/c/step-" + std::to_string(step));
    info.set_refused("chunk 3 differs");
  }
  CHECK(Run({"checkpoints", "verify", "j-1"}) == ExitCode::kJobFailed);
  CHECK(Said("all 2 checkpoints of job j-1 are damaged"));

  CHECK(Run({"checkpoints", "verify", "j-1", "--step", "30"}) == ExitCode::kNotFound);
  CHECK(Said("job j-1 has no checkpoint of step 30; it has steps 20, 40"));
}

TEST_CASE_METHOD(Fixture, "with -o json errors are data, and words all the same", "[cli][unit]") {
  CHECK(Run({"describe", "nothing", "-o", "json"}) == ExitCode::kNotFound);
  const auto error = nlohmann::json::parse(out.str()).at("error");
  CHECK(error.at("code") == 5);
  CHECK(error.at("name") == "NOT_FOUND");
  CHECK(error.at("message") == "no job nothing");
  CHECK(err.str() == "error: no job nothing\n");

  const auto parsed = ParseCommandLine({"jobs", "-o", "json", "--colour"});
  const auto& early = std::get<EarlyExit>(parsed);
  CHECK(nlohmann::json::parse(early.json).at("error").at("code") == 3);
  CHECK(std::get<EarlyExit>(ParseCommandLine({"jobs", "--colour"})).json.empty());
}

TEST_CASE_METHOD(Fixture, "with -o json an error of logs is a line as its records are",
                 "[cli][unit]") {
  v1::LogRecord record;
  record.mutable_line()->set_text("one");
  api.logs = {{{record}, DataLoss("the file of its lines is damaged")}};
  CHECK(Run({"logs", "j-1", "-o", "json"}) == ExitCode::kJobFailed);

  std::istringstream lines(out.str());
  std::string line;
  REQUIRE(std::getline(lines, line));
  CHECK(nlohmann::json::parse(line).at("line").at("text") == "one");
  REQUIRE(std::getline(lines, line));
  CHECK(nlohmann::json::parse(line).at("error").at("name") == "DATA_LOSS");
  CHECK_FALSE(std::getline(lines, line));
}

TEST_CASE_METHOD(Fixture, "an event names its task once", "[cli][unit]") {
  api.job = MakeJob("j-1", v1::JOB_STATE_RUNNING);
  v1::Event* event = api.job.add_events();
  event->set_reason("CLOSURE_FAILED");
  event->set_message("closure 1 failed on worker:1: odd");
  event->mutable_task()->set_type("worker");
  event->mutable_task()->set_index(1);
  CHECK(Run({"describe", "j-1"}) == ExitCode::kDone);
  CHECK(out.str().find("CLOSURE_FAILED       closure 1 failed on worker:1: odd\n") !=
        std::string::npos);
}

TEST_CASE_METHOD(Fixture, "a state is not given as its own reason", "[cli][unit]") {
  api.job = MakeJob("j-1", v1::JOB_STATE_SUCCEEDED);
  api.job.set_reason("SUCCEEDED");
  CHECK(Run({"describe", "j-1"}) == ExitCode::kDone);
  CHECK(out.str().find("SUCCEEDED\n") != std::string::npos);
  CHECK(out.str().find("(SUCCEEDED)") == std::string::npos);
}

TEST_CASE_METHOD(Fixture, "a step time that holds a pause says so", "[cli][unit]") {
  api.job = MakeJob("j-1", v1::JOB_STATE_RUNNING);
  api.job.mutable_progress()->set_pull_us(100'000);
  api.job.mutable_progress()->set_pause_us(8'200'000);
  CHECK(Run({"describe", "j-1"}) == ExitCode::kDone);
  CHECK(out.str().find("push 0 us; these means hold a pause: one step took 8.2 s\n") !=
        std::string::npos);
}

TEST_CASE_METHOD(Fixture, "version tells both and what differs", "[cli][unit]") {
  api.status->set_version("9.9.9");
  CHECK(Run({"version"}) == ExitCode::kDone);
  CHECK(out.str().find("cluster 9.9.9\n") != std::string::npos);
  CHECK(Said("use the same version for both"));

  err.str("");
  out.str("");
  api.status = FailedPrecondition("this program is version 0.1.0, the coordinator 9.0.0: ...");
  CHECK(Run({"version", "-o", "json"}) == ExitCode::kDone);
  CHECK(nlohmann::json::parse(out.str()).at("cluster").is_null());
  CHECK(err.str() == "warning: this program is version 0.1.0, the coordinator 9.0.0: ...\n");
  connect = Unauthenticated("no token");
  CHECK(Run({"version"}) == ExitCode::kDone);
  CHECK(Said("warning: no token\n"));
  err.str("");
  connect = Unavailable("no cluster");
  CHECK(Run({"version"}) == ExitCode::kDone);
  CHECK(err.str().empty());
}

TEST_CASE_METHOD(Fixture, "bench ends with the code of the program", "[cli][unit]") {
  program_code = 5;
  CHECK(static_cast<int>(Run({"bench", "ps", "--json"})) == 5);
  CHECK(programs == std::vector<std::vector<std::string>>{{"muster-bench", "ps", "--json"}});
}

TEST_CASE_METHOD(Fixture, "checkpoints gc says what has gone, what would, and what stays",
                 "[cli][unit]") {
  auto& folder = *api.collect->add_folders();
  folder.set_directory("/c/job-1/step-000000000010");
  folder.set_bytes(2048);
  folder.set_why("its job has ended");
  api.collect->set_bytes(2048);
  CHECK(Run({"checkpoints", "gc", "--dry-run"}) == ExitCode::kDone);
  CHECK(api.collects.back().dry_run());
  CHECK(out.str().find("/c/job-1/step-000000000010  2.0 KiB  its job has ended") !=
        std::string::npos);
  CHECK(Said("would free 2.0 KiB in 1 folder\n"));

  auto& stays = *api.collect->add_folders();
  stays.set_directory("/c/job-2");
  stays.set_failure("it is busy");
  CHECK(Run({"checkpoints", "gc", "job-1", "--finished"}) == ExitCode::kRefused);
  CHECK(api.collects.back().job() == "job-1");
  CHECK(api.collects.back().finished());
  CHECK_FALSE(api.collects.back().dry_run());
  CHECK(Said("error: /c/job-2 stays: it is busy\n"));
  CHECK(Said("freed 2.0 KiB in 1 folder\n"));
}

TEST_CASE_METHOD(Fixture, "status says what does not get onto the coordinator's disk",
                 "[cli][unit]") {
  v1::DiskTrouble& disk = *api.status->mutable_disk();
  disk.set_directory("/var/lib/muster");
  disk.set_error("database or disk is full");
  disk.set_rows(2);
  disk.add_jobs("job-1");
  disk.add_jobs("job-2");
  disk.set_since_ms(UnixMillis(api.clock.WallNow()) - 12'000);
  CHECK(Run({"status"}) == ExitCode::kDone);
  CHECK(
      out.str().find("disk        /var/lib/muster cannot be written (database or disk is full) for "
                     "12 s: 2 rows wait (of jobs job-1, job-2); jobs go on") != std::string::npos);

  out.str("");
  disk.clear_error();
  CHECK(Run({"status"}) == ExitCode::kDone);
  CHECK(out.str().find("/var/lib/muster does not answer for 12 s: ") != std::string::npos);

  out.str("");
  api.status->clear_disk();
  CHECK(Run({"status"}) == ExitCode::kDone);
  CHECK(out.str().find("disk") == std::string::npos);
}

}  // namespace
}  // namespace muster::cli
