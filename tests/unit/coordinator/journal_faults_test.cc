// The disk of the coordinator's database hangs, or the coordinator is killed while it writes.
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;
using testing::FakeDaemon;

std::size_t CountOf(const FakeDaemon& daemon, v1::Command::BodyCase kind) {
  return static_cast<std::size_t>(
      std::count_if(daemon.commands.begin(), daemon.commands.end(),
                    [kind](const v1::Command& command) { return command.body_case() == kind; }));
}

struct RunningJob : Cluster {
  explicit RunningJob(int workers = 1) {
    JoinAll(1, workers);
    REQUIRE(Submit(Spec()).ok());
    REQUIRE(State() == v1::JOB_STATE_RUNNING);
  }
  void Report(std::uint64_t step) {
    auto request = As<v1::ReportProgressRequest>();
    request.mutable_progress()->set_step(step);
    CHECK(job().ReportProgress(request).ok());
  }
};

TEST_CASE("While a row waits for the disk for a minute, leases, heartbeats and closures go on",
          "[coordinator][unit]") {
  RunningJob cluster(2);
  cluster.journal_disk.hangs = true;
  std::uint64_t done = 0;
  for (int second = 0; second < 60; ++second) {
    REQUIRE(cluster.Schedule(done + 1, done + 10).ok());
    cluster.WorkAll();
    done += 10;
    cluster.Report(done);
    cluster.Pass(Millis(1'000));
  }

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.JoinNow()->steps_done() == 600);
  CHECK_FALSE(cluster.EventOf("WORKER_LOST"));
  CHECK_FALSE(cluster.EventOf("PS_LOST"));
  CHECK_FALSE(cluster.EventOf("DRIVER_STUCK"));
  const auto slow = cluster.EventOf("JOURNAL_SLOW");
  REQUIRE(slow);
  CHECK(slow->fields().at("waited_ms") == "5000");
  const std::vector<std::string> reasons = cluster.Reasons();
  CHECK(std::count(reasons.begin(), reasons.end(), "JOURNAL_SLOW") == 1);
  CHECK(cluster.journal->LoadJobs()->at(0).record.steps_done() == 0);

  cluster.journal_disk.Go();
  cluster.Settle();
  CHECK(cluster.journal->LoadJobs()->at(0).record.steps_done() == 600);
  CHECK_FALSE(cluster.EventOf("JOURNAL_FAILED"));
}

TEST_CASE("Nobody is told to obey a view before its number is on disk", "[coordinator][unit]") {
  Cluster cluster;
  (void)cluster.Join({"ps", 0});
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());  // waits for a worker
  cluster.journal_disk.hangs = true;
  (void)cluster.Join({"worker", 0});
  cluster.Pass(Millis(2'000));

  CHECK(CountOf(cluster.at({"ps", 0}), v1::Command::kCreateVariables) == 0);
  CHECK(CountOf(cluster.at({"worker", 0}), v1::Command::kStartExecutor) == 0);
  CHECK(cluster.job().record().job().message().find("to its database") != std::string::npos);

  SECTION("it is, then they are") {
    cluster.journal_disk.Go();
    cluster.Settle();
    CHECK(CountOf(cluster.at({"ps", 0}), v1::Command::kCreateVariables) == 1);
    CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  }
  SECTION("a server that was lost meanwhile is waited for") {
    cluster.Kill({"ps", 0});
    cluster.Pass(Millis(1'000));
    cluster.journal_disk.Go();
    cluster.Pass(Millis(2'000));
    CHECK(cluster.job().record().job().reason() == "WAITING_FOR_TASKS");
    (void)cluster.Join({"ps", 0}, "boot-2");
    cluster.Pass(Millis(2'000));
    CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  }
  SECTION("the coordinator is killed between the write and its answer") {
    // The state that it is being made, then the row with the number.
    cluster.journal_disk.mute_after = 1;
    cluster.journal_disk.Go();
    cluster.Settle();
    REQUIRE(cluster.journal->LoadJobs()->at(0).record.plan().view() == 1);
    CHECK(CountOf(cluster.at({"ps", 0}), v1::Command::kCreateVariables) == 0);
    cluster.RestartCoordinator();
    cluster.JoinAll(1, 1);
    cluster.Settle();
    CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
    CHECK(cluster.View() == 2);  // never the same number twice
  }
}

TEST_CASE("A job's end is answered, shown and obeyed when it is on disk", "[coordinator][unit]") {
  RunningJob cluster;
  cluster.TrainAndSave(1, 10);
  const Incarnation driver = cluster.job().driver();
  cluster.journal_disk.hangs = true;
  const auto finished = cluster.BeginFinish();
  cluster.Pass(Millis(20'000), Millis(200));

  CHECK(finished->code() == StatusCode::kUnknown);
  CHECK(cluster.core->List().jobs(0).state() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.core->List().jobs(0).reason().empty());
  CHECK(CountOf(cluster.at({"ps", 0}), v1::Command::kDropJob) == 0);
  CHECK(CountOf(cluster.at({"worker", 0}), v1::Command::kStopExecutor) == 0);
  CHECK(cluster.checkpoints.released.empty());

  SECTION("it is") {
    cluster.journal_disk.Go();
    cluster.Settle();
    CHECK(finished->ok());
    CHECK(cluster.core->List().jobs(0).state() == v1::JOB_STATE_SUCCEEDED);
    CHECK(CountOf(cluster.at({"ps", 0}), v1::Command::kDropJob) == 1);
    CHECK(CountOf(cluster.at({"worker", 0}), v1::Command::kStopExecutor) == 1);
    CHECK(cluster.checkpoints.released.size() == 1);
  }
  SECTION("the answer does not wait for ever, and the end holds") {
    cluster.Pass(Millis(12'000), Millis(200));
    CHECK(finished->code() == StatusCode::kUnavailable);
    CHECK(Message(*finished).find("waits for its database's disk") != std::string::npos);
    cluster.journal_disk.Go();
    cluster.Settle();
    CHECK(cluster.Finish(cluster.As<v1::FinishJobRequest>(driver)).ok());
  }
  SECTION("a coordinator that is killed before that knows nothing of it") {
    cluster.RestartCoordinator();
    CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  }
}

TEST_CASE("An end that is on disk holds, though its answer was lost with the coordinator",
          "[coordinator][unit]") {
  RunningJob cluster;
  cluster.TrainAndSave(1, 10);
  cluster.journal_disk.hangs = true;
  const auto finished = cluster.BeginFinish();
  // First the event alone, then the row; nobody hears of the row.
  cluster.journal_disk.mute_after = 1;
  cluster.journal_disk.Go();
  cluster.Settle();
  CHECK(finished->code() == StatusCode::kUnknown);
  CHECK(CountOf(cluster.at({"ps", 0}), v1::Command::kDropJob) == 0);

  cluster.RestartCoordinator();

  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
}

TEST_CASE("What happens while the disk is full is known after a restart once there is room",
          "[coordinator][unit]") {
  RunningJob cluster;
  cluster.journal_full = true;
  cluster.TrainAndSave(1, 10);
  cluster.Pass(Millis(10'000));
  REQUIRE(cluster.core->Status().has_disk());
  REQUIRE(cluster.journal->LoadJobs()->at(0).checkpoints.empty());
  const bool ends = GENERATE(false, true);
  if (ends) {
    const auto finished = cluster.BeginFinish();
    cluster.Pass(Millis(2'000));
  }

  cluster.journal_full = false;
  cluster.Pass(Millis(3'000));
  CHECK_FALSE(cluster.core->Status().has_disk());
  const std::vector<std::string> told = cluster.Reasons();
  cluster.RestartCoordinator();
  cluster.Settle();

  const v1::Job described = cluster.Described();
  REQUIRE(described.checkpoints_size() == 1);
  CHECK(described.checkpoints(0).step() == 10);
  std::vector<std::string> known = cluster.Reasons();
  REQUIRE(known.size() >= told.size());
  known.resize(told.size());
  CHECK(known == told);
  CHECK(std::count(known.begin(), known.end(), "CHECKPOINT_SAVED") == 1);
  CHECK(std::count(known.begin(), known.end(), "JOURNAL_FAILED") == (ends ? 1 : 0));
}

TEST_CASE("Lost steps are told though the number of the next view is written late",
          "[coordinator][unit]") {
  RunningJob cluster;
  cluster.TrainAndSave(1, 10);
  REQUIRE(cluster.Schedule(11, 25).ok());
  cluster.WorkAll();
  cluster.journal_full = true;
  (void)cluster.Join({"ps", 0}, "boot-2");
  REQUIRE(cluster.job().record().job().reason() == "JOURNAL_UNAVAILABLE");

  cluster.journal_full = false;
  cluster.Pass(Millis(3'000));

  REQUIRE(cluster.State() == v1::JOB_STATE_RUNNING);
  const auto restored = cluster.EventOf("JOB_RESTORED");
  REQUIRE(restored);
  CHECK(restored->fields().at("step") == "10");
  CHECK(restored->fields().at("steps_lost") == "15");
}

TEST_CASE("A stop is answered when it is on disk", "[coordinator][unit]") {
  RunningJob cluster;
  cluster.journal_disk.hangs = true;
  cluster.job().Stop(Millis(60'000));
  CHECK(cluster.Written().code() == StatusCode::kUnknown);
  CHECK(cluster.JoinNow()->stop_requested());  // it holds at once

  cluster.journal_disk.Go();
  CHECK(cluster.Written().ok());
  CHECK(cluster.journal->LoadJobs()->at(0).record.stop_requested());
}

TEST_CASE("A submission is answered when its row is on disk, and the next one waits for it",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  cluster.journal_disk.hangs = true;
  v1::SubmitJobRequest request;
  *request.mutable_spec() = Cluster::Spec();
  std::vector<Result<v1::SubmitJobReply>> answers;
  const auto submit = [&] {
    cluster.core->Submit(request, [&](auto reply) { answers.push_back(std::move(reply)); });
    cluster.Settle();
  };
  submit();
  submit();
  request.mutable_spec()->set_name("other");
  submit();
  CHECK(answers.empty());
  CHECK(cluster.core->List().jobs().empty());

  SECTION("in order, and one job for one name") {
    cluster.journal_disk.Go();
    cluster.Settle();
    REQUIRE(answers.size() == 3);
    CHECK_FALSE(answers[0]->existing());
    CHECK(answers[1]->existing());
    CHECK(answers[1]->job().id() == answers[0]->job().id());
    CHECK(answers[2]->job().name() == "other");
    CHECK(cluster.core->List().jobs_size() == 2);
  }
  SECTION("not for ever, and what was taken is there") {
    cluster.Pass(Millis(31'000), Millis(200));
    REQUIRE(answers.size() == 3);
    CHECK(answers[0].status().code() == StatusCode::kUnavailable);
    CHECK(Message(answers[0].status()).find("has not answered for 30 s") != std::string::npos);
    cluster.journal_disk.Go();
    cluster.Settle();
    CHECK(cluster.core->List().jobs_size() == 2);
    CHECK(answers.size() == 3);
  }
}

TEST_CASE("A drain ends in time though the database's disk hangs", "[coordinator][unit]") {
  RunningJob cluster;
  cluster.journal_disk.hangs = true;
  const auto finished = cluster.BeginFinish();
  bool drained = false;
  cluster.core->Drain(Millis(5'000), [&] { drained = true; });
  cluster.Pass(Millis(6'000));

  CHECK(drained);
}

TEST_CASE("The events that a job shows are those that its database keeps", "[coordinator][unit]") {
  RunningJob cluster;
  cluster.job().story().Tell("WORKER_LOST", "worker:0 was lost");
  for (int i = 0; i < 1'300; ++i) cluster.job().story().Tell("CHECKPOINT_SAVED", "saved");
  cluster.Settle();
  const v1::Job shown = cluster.Described();
  const auto kept = cluster.journal->LoadEvents(shown.id());

  REQUIRE(kept.ok());
  CHECK(shown.events_size() == static_cast<int>(Journal::kMaxEvents));
  REQUIRE(kept->size() == Journal::kMaxEvents);
  for (int i = 0; i < shown.events_size(); ++i) {
    REQUIRE(shown.events(i).sequence() == (*kept)[static_cast<std::size_t>(i)].sequence());
  }
  CHECK(cluster.EventOf("WORKER_LOST"));
  CHECK(cluster.EventOf("JOB_RUNNING"));
}

TEST_CASE("A job that goes on after its end keeps its events and numbers them on",
          "[coordinator][unit]") {
  RunningJob cluster;
  cluster.TrainAndSave(1, 10);
  cluster.job().Stop(Millis(1));
  cluster.Pass(Millis(1'000));
  REQUIRE(cluster.State() == v1::JOB_STATE_CANCELLED);
  const bool restarted = GENERATE(false, true);
  if (restarted) {
    cluster.RestartCoordinator();
    cluster.JoinAll(1, 1);
  }

  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.Settle();

  const v1::Job described = cluster.Described();
  REQUIRE(described.events_size() > 4);
  CHECK(described.events(0).reason() == "JOB_RUNNING");
  for (int i = 1; i < described.events_size(); ++i) {
    CHECK(described.events(i).sequence() == described.events(i - 1).sequence() + 1);
  }
  CHECK(cluster.EventOf("JOB_RESUMED"));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("A folder that answers after the view has ended counts as there again",
          "[coordinator][unit]") {
  RunningJob cluster;
  cluster.checkpoints.hangs = true;
  (void)cluster.BeginSave(0);
  cluster.Pass(Millis(61'000), Millis(200));
  REQUIRE(cluster.EventOf("CHECKPOINT_FAILED"));
  cluster.checkpoints.hangs = false;
  (void)cluster.Join({"ps", 0}, "boot-2");
  cluster.Pass(Millis(2'000));
  REQUIRE(cluster.State() == v1::JOB_STATE_RUNNING);
  REQUIRE(cluster.View() == 2);
  CHECK(cluster.Save(0).code() == Cluster::kSaveFailed);  // it still owes an answer

  cluster.checkpoints.waiting.at(0)();

  CHECK(cluster.Save(0).ok());
}

TEST_CASE("Whoever waits for a checkpoint whose view ends is told to open the job again",
          "[coordinator][unit]") {
  RunningJob cluster;
  cluster.checkpoints.commits_hang = true;
  const auto saved = cluster.BeginSave(0);
  cluster.Settle();
  REQUIRE(saved->code() == StatusCode::kUnknown);

  (void)cluster.Join({"ps", 0}, "boot-2");
  cluster.Settle();

  CHECK(saved->code() == StatusCode::kAborted);
  cluster.checkpoints.commits_hang = false;
  CHECK(cluster.Save(0).ok());  // nothing is left of the one before
}

}  // namespace
}  // namespace muster::coordinator
