#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/unit/cli/fake_job_api.h"

namespace muster::cli {
namespace {

using testing::Fixture;
using testing::MakeJob;

v1::ClusterStatus StatusWith(const std::string& worker_state) {
  v1::ClusterStatus status;
  v1::TaskState& task = *status.add_tasks();
  task.mutable_task()->set_type("worker");
  task.set_state(worker_state);
  return status;
}

TEST_CASE_METHOD(Fixture, "top --once prints jobs and tasks, of the ended jobs the newest",
                 "[cli][unit]") {
  api.status = StatusWith("up");
  *api.list->add_jobs() = MakeJob("runs-1", v1::JOB_STATE_RUNNING);
  v1::JobProgress& progress = *api.list->mutable_jobs(0)->mutable_progress();
  progress.set_step(50);
  progress.set_total_steps(200);
  progress.set_loss(0.25);
  for (int i = 0; i < 20; ++i) {
    *api.list->add_jobs() = MakeJob("old-" + std::to_string(i), v1::JOB_STATE_SUCCEEDED);
  }

  CHECK(Run({"top", "--once"}) == ExitCode::kDone);
  CAPTURE(out.str());
  CHECK(out.str().find("runs-1  RUNNING") != std::string::npos);
  CHECK(out.str().find("50/200") != std::string::npos);
  CHECK(out.str().find("25%") != std::string::npos);
  CHECK(out.str().find("0.2500") != std::string::npos);
  CHECK(out.str().find("worker:0  up") != std::string::npos);
  CHECK(out.str().find("old-4") != std::string::npos);
  CHECK(out.str().find("old-5") == std::string::npos);
  CHECK(out.str().find('\033') == std::string::npos);
}

TEST_CASE_METHOD(Fixture, "top into a file is printed once, whoever watches the errors",
                 "[cli][unit]") {
  api.status = StatusWith("up");
  live = true;
  interrupted = true;  // by which a screen would end

  CHECK(Run({"top"}) == ExitCode::kDone);

  CHECK(out.str().find("worker:0  up") != std::string::npos);
  CHECK(out.str().find('\033') == std::string::npos);
}

// What stands on the screen, line by line.
std::vector<std::string> Drawn(const std::string& out) {
  constexpr std::string_view kClear = "\033[H\033[J";
  const std::size_t begin = out.rfind(kClear) + kClear.size();
  std::istringstream text(out.substr(begin, out.find('\033', begin) - begin));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

TEST_CASE_METHOD(Fixture, "top keeps its head on a screen that is too small and counts the rest",
                 "[cli][unit]") {
  api.status = v1::ClusterStatus();
  for (std::uint32_t i = 0; i < 30; ++i) {
    v1::TaskState& task = *api.status->add_tasks();
    task.mutable_task()->set_type("worker");
    task.mutable_task()->set_index(i);
    task.set_state("up");
  }
  *api.list->add_jobs() = MakeJob("runs-1", v1::JOB_STATE_RUNNING);
  screen = ScreenSize{.rows = 10, .columns = 50};
  interrupted = true;  // one screen

  CHECK(Run({"top"}) == ExitCode::kDone);

  const std::vector<std::string> lines = Drawn(out.str());
  CAPTURE(out.str());
  REQUIRE(lines.size() == 10);
  for (const std::string& line : lines) CHECK(line.size() <= 50);
  CHECK(lines[0].starts_with("muster "));
  CHECK(lines[3].starts_with("runs-1  RUNNING"));
  CHECK(lines[6].starts_with("worker:0"));
  // Three of 30 tasks are there.
  CHECK(lines[9] == "Ctrl-C ends; 27 lines more: muster top --once");

  screen = ScreenSize{.rows = 50, .columns = 120};
  CHECK(Run({"top"}) == ExitCode::kDone);
  CHECK(Drawn(out.str()).size() == 38);
  CHECK(Drawn(out.str()).back() == "Ctrl-C ends");
}

TEST_CASE_METHOD(Fixture, "top without a cluster says so", "[cli][unit]") {
  connect = Unavailable("no cluster runs");
  CHECK(Run({"top", "--once"}) == ExitCode::kUnreachable);
  CHECK(Said("no cluster runs"));
}

TEST_CASE_METHOD(Fixture, "status --wait ready waits until all tasks are up", "[cli][unit]") {
  api.status = StatusWith("up");
  api.statuses = {Unavailable("nothing listens there"), v1::ClusterStatus(),
                  StatusWith("never seen"), StatusWith("lost")};

  CHECK(Run({"status", "--wait", "ready"}) == ExitCode::kDone);
  CHECK(api.statuses.empty());
  CHECK(out.str().find("worker:0  up") != std::string::npos);
}

TEST_CASE_METHOD(Fixture, "status --wait ready names whom it has waited for in vain",
                 "[cli][unit]") {
  api.status = StatusWith("never seen");
  CHECK(Run({"status", "--wait", "ready", "--timeout", "3s"}) == ExitCode::kTimedOut);
  CHECK(Said("not ready after 3 s, waiting for: worker:0 (never seen)"));
  // It may well have been there before.
  api.status->set_epoch(2);
  CHECK(Run({"status", "--wait", "ready", "--timeout", "3s"}) == ExitCode::kTimedOut);
  CHECK(Said("waiting for: worker:0 (not seen since the coordinator's restart)"));

  connect = Unauthenticated("no token");
  CHECK(Run({"status", "--wait", "ready"}) == ExitCode::kForbidden);
  connect = Unavailable("no cluster runs");
  CHECK(Run({"status", "--wait", "ready", "--timeout", "1s"}) == ExitCode::kTimedOut);
  CHECK(Said("no cluster runs"));
  CHECK(Run({"status", "--wait", "forever"}) == ExitCode::kUsage);
}

TEST_CASE_METHOD(Fixture, "with -o json a wait for the cluster that ran out is an error object",
                 "[cli][unit]") {
  api.status = StatusWith("never seen");
  CHECK(Run({"status", "--wait", "ready", "--timeout", "3s", "-o", "json"}) == ExitCode::kTimedOut);
  const auto error = nlohmann::json::parse(out.str()).at("error");
  CHECK(error.at("name") == "DEADLINE_EXCEEDED");
  CHECK(error.at("message") == "not ready after 3 s, waiting for: worker:0 (never seen)");
}

TEST_CASE_METHOD(Fixture, "Ctrl-C while the cluster is awaited is an error object with -o json",
                 "[cli][unit]") {
  api.status = StatusWith("never seen");
  interrupted = true;
  CHECK(Run({"status", "--wait", "ready", "-o", "json"}) == ExitCode::kInterrupted);
  CHECK(nlohmann::json::parse(out.str()).at("error").at("name") == "CANCELLED");
  CHECK(Said("error: interrupted, not ready yet, waiting for: worker:0 (never seen)"));
}

}  // namespace
}  // namespace muster::cli
