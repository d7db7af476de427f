// A cluster, or a task, that is asked to end: what was done is saved first.
#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

using testing::Cluster;

// The oldest closure that the worker has; it gets another.
void FinishOne(Cluster& cluster, int index) {
  testing::FakeDaemon& worker = cluster.at({"worker", index});
  const testing::Given closure = worker.given.at(0);
  worker.given.pop_front();
  worker.Finish(closure);
}

struct Draining : Cluster {
  Draining() {
    JoinAll(2, 2);
    REQUIRE(Submit(Spec()).ok());
    REQUIRE(Open().ok());
    REQUIRE(Schedule(1, 60).ok());
    FinishOne(*this, 0);
    FinishOne(*this, 1);
    REQUIRE(StepsDone() == 2);
  }
  std::uint64_t StepsDone() { return JoinNow()->steps_done(); }
  void AskToEnd(const TaskId& task) {
    v1::DaemonMessage message;
    message.mutable_draining()->set_reason("SIGTERM");
    at(task).Say(message);
    Settle();
  }
  void DrainAll(Millis limit = Millis(30'000)) {
    core->Drain(limit, [this] { drained = true; });
    Settle();
  }
  Result<v1::DrainTaskReply> TakeOut(const TaskId& task, const std::string& by = "") {
    Result<v1::DrainTaskReply> answer = Unknown("no answer");
    core->TakeOut(task, by, [&](Result<v1::DrainTaskReply> reply) { answer = std::move(reply); });
    Settle();
    return answer;
  }
  Result<v1::UndrainTaskReply> LetIn(const TaskId& task) {
    Result<v1::UndrainTaskReply> answer = Unknown("no answer");
    core->LetIn(task, [&](Result<v1::UndrainTaskReply> reply) { answer = std::move(reply); });
    Settle();
    return answer;
  }
  v1::TaskState StateOf(const TaskId& task) const {
    const v1::ClusterStatus status = core->Status();
    for (const v1::TaskState& state : status.tasks()) {
      if (FromProto(state.task()) == task) return state;
    }
    return {};
  }
  bool drained = false;
};

TEST_CASE_METHOD(Draining, "a coordinator that is asked to end saves what is done, in flight too",
                 "[coordinator][unit]") {
  const std::size_t in_flight = at({"worker", 0}).given.size() + at({"worker", 1}).given.size();
  REQUIRE(in_flight == 4);
  DrainAll();
  CHECK_FALSE(drained);
  CHECK(job().record().job().reason() == "DRAINING");

  WorkAll();

  CHECK(drained);
  const std::uint64_t done = StepsDone();
  REQUIRE(checkpoints.steps == std::set<std::uint64_t>{done});
  CHECK(done < 60);
  // Nothing new was given out, and nothing is.
  CHECK(at({"worker", 0}).given.empty());
  Pass(Millis(1'000));
  CHECK(at({"worker", 0}).given.empty());
  CHECK(EventOf("CLUSTER_DRAINING"));
  CHECK_FALSE(EventOf("DRAIN_UNSAVED"));

  RestartCoordinator();
  JoinAll(2, 2, "boot-2");
  CHECK(State() == v1::JOB_STATE_RUNNING);
  CHECK(Open()->plan().start_step() == done);
  CHECK(EventOf("JOB_RESTORED")->fields().at("steps_lost") == "0");
}

TEST_CASE_METHOD(Draining, "steps that came back are done before the checkpoint of a drain",
                 "[coordinator][unit]") {
  DrainAll();
  // The highest step in flight is done, lower ones come back.
  Kill({"worker", 0});
  Pass(Millis(1'000));
  CHECK(drained == false);
  WorkAll();

  CHECK(drained);
  const std::uint64_t done = StepsDone();
  CHECK(checkpoints.steps == std::set<std::uint64_t>{done});
}

TEST_CASE_METHOD(Draining, "a job that is saved already is not saved again by a drain",
                 "[coordinator][unit]") {
  WorkAll();
  REQUIRE(Save(60).ok());
  DrainAll();
  CHECK(drained);
  CHECK(checkpoints.manifests.size() == 1);
}

TEST_CASE_METHOD(Draining, "a drain waits for the checkpoint that the driver has asked for",
                 "[coordinator][unit]") {
  WorkAll();
  at({"ps", 0}).refuse[v1::Command::kSaveVariables] = Unavailable("busy");
  const auto saved = BeginSave(60);
  DrainAll();
  CHECK_FALSE(drained);
  at({"ps", 0}).refuse.clear();
  Pass(Millis(1'000));
  CHECK(saved->ok());
  CHECK(drained);
  CHECK(checkpoints.manifests.size() == 1);
}

TEST_CASE_METHOD(Draining, "a checkpoint that fails does not hold a drain, and is told",
                 "[coordinator][unit]") {
  at({"ps", 0}).refuse[v1::Command::kSaveVariables] = ResourceExhausted("no space left");
  DrainAll();
  WorkAll();
  CHECK(drained);
  REQUIRE(EventOf("DRAIN_UNSAVED"));
  CHECK(EventOf("DRAIN_UNSAVED")->fields().at("why").find("no space left") != std::string::npos);
  CHECK(EventOf("DRAIN_UNSAVED")->fields().at("saved") == "0");
}

TEST_CASE_METHOD(Draining, "a job that cannot be saved in time does not hold a drain",
                 "[coordinator][unit]") {
  DrainAll(Millis(5'000));
  Pass(Millis(4'900));
  CHECK_FALSE(drained);
  Pass(Millis(200));
  CHECK(drained);
  REQUIRE(EventOf("DRAIN_UNSAVED"));
  CHECK(EventOf("DRAIN_UNSAVED")->fields().at("why") == "not within 5.0 s");
}

TEST_CASE_METHOD(Draining, "a ps that is asked to end is released when its job is saved",
                 "[coordinator][unit]") {
  AskToEnd({"ps", 1});
  CHECK_FALSE(at({"ps", 1}).released);
  WorkAll();
  CHECK(at({"ps", 1}).released);
  const std::uint64_t done = StepsDone();
  CHECK(checkpoints.steps == std::set<std::uint64_t>{done});
  CHECK(at({"worker", 0}).given.empty());

  Kill({"ps", 1});
  (void)Join({"ps", 1}, "boot-2");
  CHECK(State() == v1::JOB_STATE_RUNNING);
  CHECK(Open()->plan().start_step() == done);
  CHECK(EventOf("JOB_RESTORED")->fields().at("steps_lost") == "0");
}

TEST_CASE_METHOD(Draining, "a worker among others is released at once, and the job goes on",
                 "[coordinator][unit]") {
  AskToEnd({"worker", 0});
  CHECK(at({"worker", 0}).released);
  WorkAll();
  CHECK(StepsDone() == 60);
  CHECK(checkpoints.steps.empty());
}

TEST_CASE_METHOD(Draining, "the last worker stays until the job is saved, the next one goes on",
                 "[coordinator][unit]") {
  AskToEnd({"worker", 0});
  AskToEnd({"worker", 1});
  CHECK_FALSE(at({"worker", 1}).released);
  WorkAll();
  CHECK(at({"worker", 1}).released);
  const std::uint64_t done = StepsDone();
  CHECK(checkpoints.steps == std::set<std::uint64_t>{done});

  Kill({"worker", 0});
  Kill({"worker", 1});
  Pass(Millis(1'000));
  (void)Join({"worker", 0}, "boot-2");
  WorkAll();
  CHECK(View() == 1);
  CHECK(StepsDone() == 60);
}

TEST_CASE_METHOD(Draining, "tasks that are asked to end together are all released",
                 "[coordinator][unit]") {
  for (const TaskId& task : {TaskId{"worker", 0}, TaskId{"ps", 0}, TaskId{"worker", 1}}) {
    AskToEnd(task);
  }
  DrainAll();
  AskToEnd({"ps", 1});
  WorkAll();
  CHECK(drained);
  for (const auto& [task, daemon] : daemons) CHECK(daemon->released);
  CHECK(checkpoints.steps == std::set<std::uint64_t>{StepsDone()});
}

TEST_CASE_METHOD(Draining, "a job that was asked to stop is stopped by a drain",
                 "[coordinator][unit]") {
  job().Stop(Millis(0));
  DrainAll();
  WorkAll();
  CHECK(drained);
  CHECK(State() == v1::JOB_STATE_CANCELLED);
  CHECK(checkpoints.steps.size() == 1);
}

TEST_CASE_METHOD(Draining, "a job that waits for a drain is stopped at once",
                 "[coordinator][unit]") {
  DrainAll();
  WorkAll();
  job().Stop(Millis(0));
  CHECK(State() == v1::JOB_STATE_CANCELLED);
}

TEST_CASE_METHOD(Draining, "nothing begins on a coordinator that is asked to end",
                 "[coordinator][unit]") {
  DrainAll();
  CHECK(Submit(Spec("late")).status().code() == StatusCode::kUnavailable);
}

TEST_CASE("the home of a mirrored job stays until the job is saved", "[coordinator][unit]") {
  Cluster cluster;
  cluster.JoinAll(0, 2);
  v1::JobSpec spec = Cluster::Spec();
  spec.mutable_strategy()->set_kind(v1::STRATEGY_KIND_MIRRORED);
  REQUIRE(cluster.Submit(spec).ok());
  REQUIRE(cluster.Schedule(1, 20).ok());
  FinishOne(cluster, 0);
  v1::DaemonMessage message;
  message.mutable_draining()->set_reason("SIGTERM");
  cluster.at({"worker", 0}).Say(message);
  cluster.Settle();
  CHECK_FALSE(cluster.at({"worker", 0}).released);

  cluster.WorkAll();
  REQUIRE(cluster.at({"worker", 0}).released);
  const std::uint64_t done = cluster.JoinNow()->steps_done();
  CHECK(done == 3);
  CHECK(cluster.checkpoints.steps == std::set<std::uint64_t>{done});
  cluster.Kill({"worker", 0});
  cluster.Pass(Millis(1'000));
  CHECK(cluster.Open()->plan().start_step() == done);
}

TEST_CASE_METHOD(Draining, "a worker that an operator takes out is told so, and gets nothing more",
                 "[coordinator][unit]") {
  const TaskId task{"worker", 0};
  REQUIRE(TakeOut(task, "submitter ana").ok());
  CHECK(at(task).drain_reason == "taken out of work by submitter ana");
  AskToEnd(task);
  CHECK(at(task).released);
  CHECK(EventOf("TASK_DRAINING")->message().find("taken out of work by submitter ana") !=
        std::string::npos);
  Kill(task);
  CHECK(StateOf(task).state() == "drained");
  CHECK(StateOf(task).drained_by() == "submitter ana");
  (void)Join(task, "boot-2");
  WorkAll();
  CHECK(StepsDone() == 60);
  CHECK(at(task).given.empty());
  CHECK(at(task).commands.empty());
  CHECK(TakeOut(task)->existing());

  CHECK_FALSE(LetIn(task)->existing());
  CHECK(StateOf(task).state() == "up");
  REQUIRE(Schedule(61, 80).ok());
  CHECK_FALSE(at(task).given.empty());
  CHECK(LetIn(task)->existing());
}

TEST_CASE_METHOD(Draining, "a ps that an operator takes out is saved, and the job goes on without",
                 "[coordinator][unit]") {
  const TaskId task{"ps", 1};
  REQUIRE(TakeOut(task).ok());
  AskToEnd(task);
  CHECK(StateOf(task).held_by(0) == "job");
  WorkAll();
  REQUIRE(at(task).released);
  CHECK(StateOf(task).held_by_size() == 0);
  const std::uint64_t done = StepsDone();
  CHECK(checkpoints.steps == std::set<std::uint64_t>{done});

  Kill(task);
  Settle();
  Pass(Millis(1'000));
  const auto open = Open();
  REQUIRE(open.ok());
  CHECK(open->plan().start_step() == done);
  REQUIRE(open->plan().ps_size() == 1);
  CHECK(open->plan().ps(0).index() == 0);
  CHECK(EventOf("JOB_RESTORED")->fields().at("steps_lost") == "0");
  REQUIRE(Schedule(done + 1, 60).ok());
  WorkAll();
  CHECK(StepsDone() == 60);
}

TEST_CASE_METHOD(Draining, "a lost ps that an operator takes out is not waited for any longer",
                 "[coordinator][unit]") {
  WorkAll();
  REQUIRE(Save(60).ok());
  Kill({"ps", 1});
  Pass(Millis(1'000));
  REQUIRE(job().record().job().reason() == "WAITING_FOR_TASKS");
  REQUIRE(TakeOut({"ps", 1}).ok());
  Pass(Millis(1'000));
  const auto open = Open();
  REQUIRE(open.ok());
  CHECK(open->plan().ps_size() == 1);
}

TEST_CASE_METHOD(Draining, "the last worker that is taken out leaves a job that waits for another",
                 "[coordinator][unit]") {
  for (const TaskId& task : {TaskId{"worker", 0}, TaskId{"worker", 1}}) {
    REQUIRE(TakeOut(task).ok());
    AskToEnd(task);
  }
  CHECK(StateOf({"worker", 1}).held_by(0) == "job");
  WorkAll();
  REQUIRE(at({"worker", 1}).released);
  for (const TaskId& task : {TaskId{"worker", 0}, TaskId{"worker", 1}}) {
    Kill(task);
    (void)Join(task, "boot-2");
  }
  Pass(Millis(1'000));
  CHECK(job().record().job().reason() == "WAITING_FOR_TASKS");
  CHECK(job().record().job().message().find("worker:0 (drained)") != std::string::npos);

  REQUIRE(LetIn({"worker", 0}).ok());
  WorkAll();
  CHECK(StepsDone() == 60);
}

TEST_CASE_METHOD(Draining, "what an operator has taken out stays out when the coordinator is back",
                 "[coordinator][unit]") {
  REQUIRE(TakeOut({"ps", 1}).ok());
  AskToEnd({"ps", 1});
  WorkAll();
  Kill({"ps", 1});
  Pass(Millis(1'000));
  REQUIRE(Open()->plan().ps_size() == 1);

  RestartCoordinator();
  CHECK(StateOf({"ps", 1}).state() == "drained");
  (void)Join({"ps", 0});
  (void)Join({"worker", 0});
  Pass(Millis(1'000));
  // Nobody waits for it.
  CHECK(Open()->plan().ps_size() == 1);
  (void)Join({"ps", 1}, "boot-2");
  CHECK(StateOf({"ps", 1}).state() == "drained");
  CHECK(at({"ps", 1}).commands.empty());
}

TEST_CASE_METHOD(Draining, "a task that is let in as its process ends is not out after a restart",
                 "[coordinator][unit]") {
  const TaskId task{"worker", 0};
  REQUIRE(TakeOut(task).ok());
  AskToEnd(task);
  journal_disk.hangs = true;
  core->LetIn(task, [](const auto&) {});
  Kill(task);
  Settle();
  journal_disk.Go();
  Settle();
  CHECK(StateOf(task).state() != "drained");

  RestartCoordinator();
  (void)Join(task, "boot-2");
  CHECK(StateOf(task).state() == "up");
}

TEST_CASE_METHOD(Draining, "tasks that cannot be taken out are named, with what there is",
                 "[coordinator][unit]") {
  const auto unknown = TakeOut({"worker", 7});
  CHECK(unknown.status().code() == StatusCode::kNotFound);
  CHECK(Message(unknown.status()) ==
        "there is no task worker:7 in this cluster; it has ps:0, ps:1, worker:0, worker:1");
  const auto chief = TakeOut({"chief", 0});
  CHECK(chief.status().code() == StatusCode::kInvalidArgument);
  CHECK(Message(chief.status()).find("it is asked to end by SIGTERM") != std::string::npos);

  journal_full = true;
  CHECK(TakeOut({"worker", 0}).status().code() == StatusCode::kResourceExhausted);
  CHECK(StateOf({"worker", 0}).state() == "up");
  CHECK(at({"worker", 0}).drain_reason.empty());
}

}  // namespace
}  // namespace muster::coordinator
