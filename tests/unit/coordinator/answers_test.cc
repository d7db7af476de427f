// What people are told fits one message, however much there is to tell.
#include <algorithm>

#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator::testing {
namespace {

// What gRPC carries (services/common/grpc_channel.h).
constexpr std::size_t kMessage = 16 << 20;

v1::JobSpec CommandSpec(const std::string& name) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_launch()->set_command("python3");
  return spec;
}

TEST_CASE("Jobs are listed without the processes of those that are launched",
          "[coordinator][launch]") {
  Cluster cluster;
  cluster.JoinAll(0, 2);
  REQUIRE(cluster.Submit(CommandSpec("train")).ok());
  REQUIRE(cluster.any("train").Describe().launch().tasks_size() == 2);

  const v1::ListJobsReply listed = cluster.core->List();

  REQUIRE(listed.jobs_size() == 1);
  CHECK(listed.jobs(0).launch().launch() > 0);
  CHECK(listed.jobs(0).launch().tasks().empty());
}

TEST_CASE("Of more jobs than fit a message the newest are listed", "[coordinator][launch]") {
  Cluster cluster;
  // It is in the job's message, and in its error.
  const Status wrong = InvalidArgument("{}", std::string(kMessage / 4, 'x'));
  (void)cluster.Join({"worker", 0}, "boot-1", "host", {}, {{v1::Command::kPrepareLaunch, wrong}});
  for (const char* name : {"one", "two", "three"}) {
    REQUIRE(cluster.Submit(CommandSpec(name)).ok());
    REQUIRE(cluster.any(name).record().job().state() == v1::JOB_STATE_FAILED);
  }

  const v1::ListJobsReply listed = cluster.core->List();

  REQUIRE(listed.jobs_size() == 1);
  CHECK(listed.jobs(0).name() == "three");
  CHECK(listed.ByteSizeLong() < kMessage);
}

TEST_CASE("Of a story that does not fit a message the newest lines are told",
          "[coordinator][launch]") {
  Cluster cluster;
  cluster.JoinAll(0, 1);
  v1::JobSpec spec = CommandSpec("train");
  spec.mutable_launch()->set_restart(v1::RESTART_POLICY_ON_FAILURE);
  REQUIRE(cluster.Submit(spec).ok());
  FakeDaemon& worker = cluster.at({"worker", 0});
  v1::DaemonMessage message;
  v1::LaunchEvent& event = *message.mutable_launched();
  event.set_job_id(worker.launched.job_id());
  event.set_launch(worker.launched.launch());
  event.mutable_task()->set_type("worker");
  event.set_kind(v1::LaunchEvent::KIND_EXITED);
  event.set_how("exit code 1");
  event.set_exit_code(1);
  event.add_last_lines(std::string(kMessage / 2, 'x'));
  // Its end, and what is done about it, are told with its lines.
  worker.Say(message);
  cluster.Settle();

  Result<v1::Job> told = Unknown("no answer");
  cluster.any("train").Describe([&](Result<v1::Job> job) { told = std::move(job); });
  cluster.Settle();

  REQUIRE(told.ok());
  CHECK(told->ByteSizeLong() < kMessage);
  const auto lines = [&](const std::string& reason) {
    const auto found = std::ranges::find(told->events(), reason, &v1::Event::reason);
    REQUIRE(found != told->events().end());
    REQUIRE(found->log_lines_size() == 1);
    return found->log_lines(0);
  };
  CHECK(lines("PROCESS_ENDED").starts_with("(left out: "));
  CHECK(lines("PROGRAM_ENDED").size() == kMessage / 2);
}

}  // namespace
}  // namespace muster::coordinator::testing
