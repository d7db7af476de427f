#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/unit/cli/fake_job_api.h"

namespace muster::cli {
namespace {

using testing::Fixture;

v1::TaskState State(const std::string& state, std::uint32_t index = 1, std::uint32_t pid = 77) {
  v1::TaskState task;
  task.mutable_task()->set_type("worker");
  task.mutable_task()->set_index(index);
  task.set_state(state);
  task.set_pid(pid);
  return task;
}

v1::ClusterStatus With(v1::TaskState taken, const std::vector<std::string>& held_by = {}) {
  v1::ClusterStatus status;
  *status.add_tasks() = State("up", 0);
  taken.set_drained_ms(1'700'000'000'000);
  taken.set_drained_by("submitter ana");
  for (const std::string& job : held_by) taken.add_held_by(job);
  *status.add_tasks() = taken;
  return status;
}

TEST_CASE_METHOD(Fixture, "drain waits until the process has ended, and says for whom",
                 "[cli][unit]") {
  api.statuses = {With(State("up")), With(State("draining"), {"words", "clicks"}),
                  Unavailable("on its way back"), With(State("draining"))};
  api.status = With(State("drained", 1, 0));

  CHECK(Run({"drain", "worker:1"}) == ExitCode::kDone);
  CHECK(api.drained == std::vector<std::string>{"worker:1"});
  CHECK(err.str() ==
        "worker:1 drains: waits for its daemon\n"
        "worker:1 drains: waits for jobs words, clicks\n"
        "worker:1 drains: waits for on its way back\n"
        "worker:1 drains: waits for what runs there\n"
        "worker:1 is drained; it gets no work until `muster undrain worker:1`\n");
}

TEST_CASE_METHOD(Fixture, "drain gives up with 7 and names the job that it has waited for",
                 "[cli][unit]") {
  api.status = With(State("draining"), {"words"});
  CHECK(Run({"drain", "worker:1", "--timeout", "5s"}) == ExitCode::kTimedOut);
  CHECK(Said("error: worker:1 has not drained after 5 s, waiting for job words; it goes on"));
  CHECK(out.str().empty());

  CHECK(Run({"drain", "worker:1", "--timeout", "5s", "-o", "json"}) == ExitCode::kTimedOut);
  CHECK(nlohmann::json::parse(out.str()).at("error").at("name") == "DEADLINE_EXCEEDED");
}

TEST_CASE_METHOD(Fixture, "Ctrl-C leaves a drain to itself and says so", "[cli][unit]") {
  api.status = With(State("draining"), {"words"});
  interrupted = true;
  CHECK(Run({"drain", "worker:1", "-o", "json"}) == ExitCode::kInterrupted);
  CHECK(Said("error: interrupted while worker:1 drains, which goes on"));
  CHECK(nlohmann::json::parse(out.str()).at("error").at("name") == "CANCELLED");
}

TEST_CASE_METHOD(Fixture, "drain says when no other task has the work", "[cli][unit]") {
  v1::ClusterStatus alone = With(State("drained"));
  alone.mutable_tasks(0)->set_state("lost");
  api.status = alone;
  CHECK(Run({"drain", "worker:1"}) == ExitCode::kDone);
  CHECK(Said("(process 77 of it is there and idle)"));
  CHECK(Said("no worker is up now: jobs that need one wait for it"));
}

TEST_CASE_METHOD(Fixture, "drain says who has taken the task out before", "[cli][unit]") {
  api.status = With(State("drained", 1, 0));
  api.drain->set_existing(true);
  *api.drain->mutable_task() = api.status->tasks(1);
  CHECK(Run({"drain", "worker:1", "-o", "json"}) == ExitCode::kDone);
  CHECK(Said("worker:1 was taken out before (submitter ana, 2023-11-14"));
  CHECK(out.str().find("\"drainedBy\": \"submitter ana\"") != std::string::npos);
}

TEST_CASE_METHOD(Fixture, "drain ends when somebody lets the task in again", "[cli][unit]") {
  api.status = v1::ClusterStatus();
  *api.status->add_tasks() = State("up");
  CHECK(Run({"drain", "worker:1"}) == ExitCode::kRefused);
  CHECK(Said("worker:1 was let in again meanwhile"));
}

TEST_CASE_METHOD(Fixture, "what is no task is a mistake on the command line", "[cli][unit]") {
  for (const char* task :
       {"worker", "worker:", ":1", "worker:x", "worker:1x", "worker:-1", "worker:4294967296"}) {
    CAPTURE(task);
    CHECK(Run({"drain", task}) == ExitCode::kUsage);
    CHECK(Said("is no task: give one of `muster status`, as worker:1 or ps:0"));
  }
  CHECK(api.drained.empty());
  api.drain = NotFound("there is no task worker:9 in this cluster");
  CHECK(Run({"drain", "worker:9"}) == ExitCode::kNotFound);
}

TEST_CASE_METHOD(Fixture, "drain finds worker:1 when it is asked for worker:01", "[cli][unit]") {
  api.status = With(State("drained", 1, 0));
  CHECK(Run({"drain", "worker:01", "--timeout", "5s"}) == ExitCode::kDone);
  CHECK(err.str() == "worker:1 is drained; it gets no work until `muster undrain worker:1`\n");
  CHECK(Run({"undrain", "worker:01"}) == ExitCode::kDone);
  CHECK(Said("worker:1 is let in again"));
}

TEST_CASE_METHOD(Fixture, "undrain says what becomes of the task", "[cli][unit]") {
  *api.undrain->mutable_task() = State("up");
  CHECK(Run({"undrain", "worker:1"}) == ExitCode::kDone);
  CHECK(Said("worker:1 is let in again, and gets work\n"));
  *api.undrain->mutable_task() = State("lost");
  CHECK(Run({"undrain", "worker:1"}) == ExitCode::kDone);
  CHECK(Said("worker:1 is let in again; start its daemon\n"));
  api.undrain->set_existing(true);
  CHECK(Run({"undrain", "worker:1"}) == ExitCode::kDone);
  CHECK(Said("worker:1 was not taken out; it is lost\n"));
}

TEST_CASE_METHOD(Fixture, "status names the page, and who was taken out", "[cli][unit]") {
  api.status = With(State("drained"));
  api.status->set_page_address("127.0.0.1:9400");
  CHECK(Run({"status"}) == ExitCode::kDone);
  CHECK(out.str().find("page        http://127.0.0.1:9400/\n") != std::string::npos);
  CHECK(out.str().find("worker:1 was taken out by submitter ana, 2023-11-14") != std::string::npos);

  out.str("");
  api.status->set_page_address("https://node-1:9400");
  CHECK(Run({"status"}) == ExitCode::kDone);
  CHECK(out.str().find("page        https://node-1:9400/\n") != std::string::npos);

  out.str("");
  api.status = With(State("draining"), {"words"});
  api.status->clear_page_address();
  CHECK(Run({"status"}) == ExitCode::kDone);
  CHECK(out.str().find("page") == std::string::npos);
  CHECK(out.str().find("worker:1 drains: waits for job words\n") != std::string::npos);
}

}  // namespace
}  // namespace muster::cli
