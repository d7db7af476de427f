// Losses: of workers, executors, parameter servers, the coordinator; and what is told of them.
#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;
using testing::FakeDaemon;

bool Contains(const std::vector<std::string>& reasons, const std::string& reason) {
  return std::find(reasons.begin(), reasons.end(), reason) != reasons.end();
}

TEST_CASE("A killed worker is noticed within a second, its closures run on another",
          "[coordinator][unit][spec][CCF-02]") {
  Cluster cluster;
  cluster.JoinAll(1, 2);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 4).ok());
  const auto lost = cluster.at({"worker", 0}).given;
  REQUIRE(lost.size() == 2);

  cluster.Kill({"worker", 0});
  cluster.Pass(Millis(1'000));
  const auto event = cluster.EventOf("WORKER_LOST");
  REQUIRE(event);
  CHECK(event->task().index() == 0);
  CHECK(event->fields().at("how") == "its connection was reset");
  CHECK(event->fields().at("pid") == "1002");
  CHECK_FALSE(event->fields().at("session").empty());

  cluster.WorkAll();
  CHECK(cluster.JoinNow()->done());
  CHECK(cluster.JoinNow()->steps_done() == 4);
  const auto rerun = cluster.EventOf("CLOSURES_RERUN");
  REQUIRE(rerun);
  CHECK(rerun->fields().at("placed").find("on worker:1") != std::string::npos);
  CHECK(cluster.job().record().job().closures_rerun() == 2);

  // A result that the lost worker still sends is nobody's.
  cluster.at({"worker", 0}).Finish(lost[0]);
  CHECK(cluster.JoinNow()->steps_done() == 4);
}

TEST_CASE("How a daemon ended is told in whole characters however long it is",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 2);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());

  cluster.core->OnDaemonExit({"worker", 0}, 1'002, std::string(199, 'x') + "\xC3\xA9");

  cluster.Settle();
  const auto event = cluster.EventOf("WORKER_LOST");
  REQUIRE(event);
  CHECK(event->fields().at("how") == std::string(199, 'x'));
}

TEST_CASE("A stopped worker is noticed within four seconds", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 2);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());

  cluster.at({"worker", 0}).silent = true;
  cluster.Pass(Millis(2'900));
  CHECK_FALSE(cluster.EventOf("WORKER_LOST"));
  cluster.Pass(Millis(1'000));
  REQUIRE(cluster.EventOf("WORKER_LOST"));
  CHECK(cluster.EventOf("WORKER_LOST")->fields().at("how").starts_with("nothing was heard"));
}

TEST_CASE("A worker that comes back is used again, and the gap is told",
          "[coordinator][unit][spec][CCF-01]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 4).ok());

  cluster.Kill({"worker", 0});
  cluster.Pass(Millis(2'000));
  CHECK(cluster.job().record().job().reason() == "WAITING_FOR_TASKS");
  CHECK(cluster.job().record().job().message() == "waiting for worker:0 (lost)");
  (void)cluster.Join({"worker", 0}, "boot-2");

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job().record().job().reason().empty());
  REQUIRE(cluster.EventOf("WORKER_BACK"));
  CHECK(std::stoi(cluster.EventOf("WORKER_BACK")->fields().at("gap_ms")) >= 2'000);
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 4);
}

TEST_CASE("A worker that connects again within the grace is not lost, nor what it has",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 2).ok());
  const std::uint64_t before = cluster.at({"worker", 0}).given[0].attempt();

  cluster.Kill({"worker", 0});
  cluster.Pass(Millis(200));
  FakeDaemon& worker = cluster.Join({"worker", 0});
  CHECK_FALSE(cluster.EventOf("WORKER_LOST"));
  REQUIRE(worker.given.size() == 2);
  CHECK(worker.given[0].attempt() == before);
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->done());
}

TEST_CASE("An executor that crashes costs an attempt and is started again", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 4).ok());

  cluster.at({"worker", 0}).ExecutorExits("signal SIGSEGV");
  const auto event = cluster.EventOf("EXECUTOR_LOST");
  REQUIRE(event);
  CHECK(event->fields().at("how") == "signal SIGSEGV");
  CHECK(event->fields().at("closures") == "1,2");
  REQUIRE(event->log_lines_size() == 1);
  CHECK(event->log_lines(0) == "terminate called");

  cluster.Pass(Millis(1'000));
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 4);
}

TEST_CASE("A closure that ends every executor fails the job after three times",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 2);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(7, 7).ok());

  for (int crash = 0; crash < 6 && cluster.State() == v1::JOB_STATE_RUNNING; ++crash) {
    for (const TaskId& task : {TaskId{"worker", 0}, TaskId{"worker", 1}}) {
      FakeDaemon& worker = cluster.at(task);
      if (!worker.given.empty()) worker.ExecutorExits("signal SIGABRT");
    }
    cluster.Pass(Millis(5'000));
  }
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.EventOf("POISON_CLOSURE"));
  CHECK(cluster.job().record().job().error().message().find("closure 7") != std::string::npos);
}

TEST_CASE("A ps that only paused costs nothing: its process has its memory",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(2, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 10).ok());
  cluster.at({"worker", 0}).Work();
  const std::uint64_t view = cluster.View();

  cluster.at({"ps", 1}).silent = true;
  cluster.Pass(Millis(4'000));
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  CHECK(cluster.job().record().job().message().starts_with("waiting for ps:1 (lost: nothing"));
  (void)cluster.Join({"ps", 1}, "boot-1");

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.View() == view);
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 10);
}

TEST_CASE("After a restart of the coordinator nobody is said to have never registered",
          "[coordinator][unit]") {
  Coordinator::Options options;
  options.expected = {{"ps", 0}, {"ps", 1}, {"worker", 0}};
  Cluster cluster(options);
  cluster.JoinAll(2, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.State() == v1::JOB_STATE_RUNNING);

  cluster.RestartCoordinator();

  (void)cluster.Join({"ps", 0});
  CHECK(cluster.job().record().job().message() ==
        "waiting for ps:1 (has not come back since the coordinator's restart), worker:0 (has not "
        "registered since the coordinator's restart)");
}

TEST_CASE("A ps that lost its memory sends the job back to its last checkpoint",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(2, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.TrainAndSave(1, 20);
  REQUIRE(cluster.Schedule(21, 50).ok());
  for (int i = 0; i < 5; ++i) cluster.at({"worker", 0}).Work();
  const std::uint64_t done = cluster.JoinNow()->steps_done();
  REQUIRE(done > 20);
  const std::uint64_t view = cluster.View();

  cluster.Kill({"ps", 1});
  cluster.Pass(Millis(1'000));
  FakeDaemon& ps = cluster.Join({"ps", 1}, "boot-2");
  CHECK(cluster.JoinNow(view).status().code() == StatusCode::kAborted);
  cluster.Settle();

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.View() == view + 1);
  const auto opened = cluster.Open();
  REQUIRE(opened.ok());
  CHECK(opened->plan().start_step() == 20);
  CHECK(opened->plan().ps(1).boot_id() == "boot-2");
  REQUIRE(ps.commands.size() == 1);
  CHECK(ps.commands[0].create_variables().restore_from() == "step-20");
  CHECK(cluster.at({"worker", 0}).plan.view() == view + 1);
  const auto event = cluster.EventOf("JOB_RESTORED");
  REQUIRE(event);
  CHECK(event->fields().at("steps_lost") == std::to_string(done - 20));
  CHECK(event->fields().at("step") == "20");
  CHECK(cluster.drivers.started.size() == 2);  // each view has a driver of its own

  REQUIRE(cluster.Schedule(21, 100).ok());
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 100);
}

TEST_CASE("A ps that dies when it has its variables, while others read theirs, is not built on",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(2, 1);
  FakeDaemon& slow = cluster.at({"ps", 1});
  slow.needs_files = {v1::Command::kCreateVariables};
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.Kill({"ps", 0});
  (void)cluster.Join({"ps", 0}, "boot-2");
  slow.needs_files.clear();
  slow.FilesCome();
  cluster.Pass(Millis(10'000));

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.job().record().plan().ps(0).boot_id() == "boot-2");
  CHECK(cluster.View() > 1);
}

TEST_CASE("A damaged checkpoint is refused, said so, and the one before it is used",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.TrainAndSave(1, 10);
  cluster.TrainAndSave(11, 20);
  cluster.checkpoints.damaged.insert(20);

  cluster.Kill({"ps", 0});
  cluster.Pass(Millis(1'000));
  (void)cluster.Join({"ps", 0}, "boot-2");
  CHECK(cluster.Open()->plan().start_step() == 10);
  const auto event = cluster.EventOf("CHECKPOINT_REFUSED");
  REQUIRE(event);
  CHECK(event->fields().at("step") == "20");
  const v1::Job described = cluster.Described();
  CHECK_FALSE(described.checkpoints(1).refused().empty());

  cluster.TrainAndSave(11, 15);
  CHECK(cluster.checkpoints.uncounted == std::set<std::string>{"step-20"});
}

TEST_CASE("A job whose checkpoints are all damaged says so when it begins anew",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.TrainAndSave(1, 10);
  cluster.checkpoints.damaged.insert(10);

  cluster.Kill({"ps", 0});
  cluster.Pass(Millis(1'000));
  (void)cluster.Join({"ps", 0}, "boot-2");

  const auto event = cluster.EventOf("JOB_RESTORED");
  REQUIRE(event);
  CHECK(event->message() ==
        "goes back to its initial values (1 checkpoint is damaged, there is no other): 10 steps "
        "done since are lost and done again");
  CHECK(event->fields().at("steps_lost") == "10");
}

TEST_CASE("A restarted coordinator takes its jobs up again by itself", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(2, 2);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.TrainAndSave(1, 30);
  const auto epoch = cluster.core->epoch();
  const auto newest = [&cluster] {
    std::uint64_t attempt = 0;
    for (const int worker : {0, 1}) {
      for (const auto& closure : cluster.at({"worker", worker}).given) {
        attempt = std::max(attempt, closure.attempt());
      }
    }
    return attempt;
  };
  REQUIRE(cluster.Schedule(31, 31).ok());
  const std::uint64_t attempt = newest();
  REQUIRE(attempt > 0);

  cluster.options.before = {
      .alive = cluster.time.WallNow() - Millis(2'500), .pid = 77, .how = "signal SIGKILL"};
  cluster.RestartCoordinator();
  CHECK(cluster.core->epoch() == Epoch(epoch.value() + 1));
  const auto restarted = cluster.EventOf("COORDINATOR_RESTARTED");
  REQUIRE(restarted);
  CHECK(restarted->fields().at("gap_ms") == "2500");
  CHECK(restarted->message().find("away for 2.5 s") != std::string::npos);
  CHECK(
      restarted->message().starts_with("the coordinator (process 77) ended by signal SIGKILL and "
                                       "was started again as process "));
  CHECK(restarted->fields().at("lost_pid") == "77");
  CHECK(restarted->fields().at("how") == "signal SIGKILL");
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  cluster.Settle();
  CHECK(cluster.job().record().job().reason() == "WAITING_FOR_TASKS");
  cluster.JoinAll(2, 2, "boot-2");  // with their memory everybody has lost the variables

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.drivers.started.size() == 2);
  CHECK(cluster.Open()->plan().start_step() == 30);
  CHECK(cluster.View() == 2);
  const auto reasons = cluster.Reasons();
  CHECK(Contains(reasons, "COORDINATOR_RESTARTED"));
  CHECK(Contains(reasons, "CHECKPOINT_SAVED"));  // told before the restart
  REQUIRE(cluster.Schedule(31, 100).ok());
  CHECK(newest() > attempt);
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 100);
}

TEST_CASE("A checkpoint whose coordinator ended before it wrote it down is the job's all the same",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.TrainAndSave(1, 30);
  cluster.checkpoints.steps.insert(100);  // its manifest is there, the journal's line is not
  cluster.checkpoints.saved_by = cluster.job().id();
  cluster.RestartCoordinator();
  cluster.JoinAll(1, 1, "boot-2");

  CHECK(cluster.Open()->plan().start_step() == 100);
  const auto steps = [&] {
    std::vector<std::uint64_t> all;
    for (const auto& info : cluster.job().checkpoints()) all.push_back(info.step());
    return all;
  };
  CHECK(steps() == std::vector<std::uint64_t>{30, 100});
  CHECK(cluster.job().checkpoints().back().bytes() == 8);
  // And stays it.
  cluster.RestartCoordinator();
  CHECK(steps() == std::vector<std::uint64_t>{30, 100});
  // Another job's is gone on from, and not listed here.
  cluster.checkpoints.steps.insert(101);
  cluster.checkpoints.saved_by = "another-2";
  cluster.JoinAll(1, 1, "boot-3");
  CHECK(cluster.Open()->plan().start_step() == 101);
  CHECK(steps() == std::vector<std::uint64_t>{30, 100});
}

TEST_CASE("After kill -9 of the coordinator the lost steps are counted to the last one",
          "[coordinator][unit]") {
  const muster::testing::TempFolder state;
  Coordinator::Options options;
  options.state_directory = state.path();
  Cluster cluster(options);
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.TrainAndSave(1, 30);
  REQUIRE(cluster.Schedule(31, 57).ok());
  cluster.WorkAll();  // and nobody reports progress: the journal knows nothing of these 27

  cluster.RestartCoordinator();
  cluster.JoinAll(1, 1, "boot-2");

  const auto restored = cluster.EventOf("JOB_RESTORED");
  REQUIRE(restored);
  CHECK(restored->fields().at("steps_lost") == "27");
  CHECK(restored->message() ==
        "goes back to the checkpoint of step 30: 27 steps done since are lost and done again");
}

TEST_CASE("Marks of steps belong to a job and a view", "[coordinator][unit]") {
  const muster::testing::TempFolder directory;
  {
    StepMarks marks(directory.path());
    marks.Set(JobNumber(7), ViewId(1), 100);
    marks.Set(JobNumber(7), ViewId(2), 40);
    marks.Set(JobNumber(8), ViewId(1), 5);
  }
  StepMarks marks(directory.path());
  CHECK(marks.Get(JobNumber(7), ViewId(2)) == 40u);
  CHECK_FALSE(marks.Get(JobNumber(7), ViewId(1)).has_value());
  CHECK(marks.Get(JobNumber(8), ViewId(1)) == 5u);
  CHECK_FALSE(marks.Get(JobNumber(9), ViewId(1)).has_value());
  StepMarks none("");
  none.Set(JobNumber(7), ViewId(1), 1);
  CHECK_FALSE(none.Get(JobNumber(7), ViewId(1)).has_value());
  CHECK_FALSE(StepMarks(directory / "absent").Get(JobNumber(7), ViewId(2)).has_value());
}

TEST_CASE("A watcher who saw any number of changes is answered at once by the next coordinator",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  // As many as a day of reports, none of which is written.
  for (int i = 0; i < 200'000; ++i) cluster.job().story().Touch();
  const std::uint64_t seen = cluster.job().record().job().version();
  cluster.RestartCoordinator();

  int answers = 0;
  cluster.job().Watch(seen, Millis(60'000), [&](const auto&) { ++answers; });
  cluster.Settle();
  CHECK(answers == 1);
}

TEST_CASE("An ended job stays ended over a restart", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.FinishJob().ok());

  cluster.RestartCoordinator();
  cluster.JoinAll(1, 1);
  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
  CHECK(cluster.drivers.started.size() == 1);
}

TEST_CASE("After the wait a job makes do with the parameter servers that are there",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(3, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  cluster.TrainAndSave(1, 10);

  cluster.Kill({"ps", 2});
  cluster.Pass(Millis(30'000));
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  cluster.Pass(Millis(35'000));
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Open()->plan().ps_size() == 2);
  CHECK(cluster.Open()->plan().start_step() == 10);
}

TEST_CASE("A driver that crashes is started again and goes on in the same view",
          "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 10).ok());
  cluster.WorkAll();

  cluster.core->OnDriverLine("job-1", 1, "terminate called");
  cluster.DriverExits("signal SIGKILL");
  cluster.Pass(Millis(1'000));
  CHECK(cluster.drivers.started.size() == 2);
  REQUIRE(cluster.EventOf("DRIVER_LOST"));
  CHECK(cluster.EventOf("DRIVER_LOST")->log_lines(0) == "terminate called");
  REQUIRE(cluster.Schedule(1, 20).ok());  // 1..10 are done and stay so
  cluster.WorkAll();
  CHECK(cluster.JoinNow()->steps_done() == 20);
}

TEST_CASE("A driver that always crashes fails the job", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 1);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());

  for (int i = 0; i < 10 && cluster.State() == v1::JOB_STATE_RUNNING; ++i) {
    cluster.DriverExits("exit code 70");
    cluster.Pass(Millis(20'000));
  }
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.drivers.started.size() == 5);
}

TEST_CASE("A newer process takes a task over, the older one cannot take it back",
          "[coordinator][unit]") {
  Cluster cluster;
  (void)cluster.Join({"worker", 0}, "boot-1");
  const auto old = cluster.daemons.at({"worker", 0});

  (void)cluster.Join({"worker", 0}, "boot-2");
  REQUIRE(cluster.joined.ok());
  REQUIRE(old->ended);
  CHECK(old->ended->code() == StatusCode::kAborted);
  (void)cluster.Join({"worker", 0}, "boot-1");
  CHECK(cluster.joined.code() == StatusCode::kAborted);
}

TEST_CASE("An executor that its worker's watchdog killed is called stuck", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(1, 2);
  REQUIRE(cluster.Submit(Cluster::Spec()).ok());
  REQUIRE(cluster.Schedule(1, 4).ok());
  FakeDaemon& worker = cluster.at({"worker", 0});
  const std::size_t had = worker.given.size();
  REQUIRE(had == 2);
  worker.given.clear();
  v1::DaemonMessage message;
  v1::ExecutorEvent& event = *message.mutable_executor();
  event.set_job_id(worker.plan.job_id());
  event.set_view(worker.plan.view());
  event.set_incarnation(worker.start.program().incarnation());
  event.set_kind(v1::ExecutorEvent::KIND_EXITED);
  event.set_how("its worker's watchdog: closure 1 got nowhere for 30 s and used no processor time");
  event.set_stuck(true);
  worker.Say(message);
  cluster.WorkAll();
  cluster.Pass(Millis(1'000));
  cluster.WorkAll();

  const auto told = cluster.EventOf("EXECUTOR_STUCK");
  REQUIRE(told);
  CHECK(told->message().find("was killed by its worker's watchdog: closure 1") !=
        std::string::npos);
  CHECK(told->fields().at("closures") == "1,3");
  CHECK_FALSE(cluster.EventOf("EXECUTOR_LOST"));
  CHECK(cluster.JoinNow()->done());
}

TEST_CASE("Of a task that comes, goes, or loses its place to another process people are told",
          "[coordinator][unit]") {
  Cluster cluster;
  const TaskId task{"worker", 0};
  const auto heard = [&](const std::string& words) {
    CAPTURE(cluster.task_news);
    return std::ranges::any_of(cluster.task_news, [&](const std::string& line) {
      return line.find(words) != std::string::npos;
    });
  };

  (void)cluster.Join(task, "boot-1", "node-1");
  CHECK(heard("worker:0 has registered: process 1001 on node-1"));
  (void)cluster.Join(task, "boot-2", "node-2");
  CHECK(heard("worker:0 is lost: process 1002 has taken its place"));
  CHECK(heard("worker:0 has registered: process 1002 on node-2"));
  cluster.Kill(task);
  cluster.Pass(Millis(2'000));
  CHECK(heard("worker:0 is lost: its connection was reset"));
  (void)cluster.Join(task, "boot-2", "node-2");
  CHECK(heard("worker:0 has connected again: process 1003 on node-2, 2."));
}

}  // namespace
}  // namespace muster::coordinator
