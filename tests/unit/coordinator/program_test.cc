// A user's program as a job: which workers it gets, its executors, what is refused.
#include "tests/unit/coordinator/programs.h"

namespace muster::coordinator::testing {
namespace {

TEST_CASE("A program's main begins when its executors are there, and the job ends with it",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(1, 2);
  REQUIRE(cluster.Submit(ProgramSpec()).ok());

  REQUIRE(cluster.drivers.launched.size() == 1);
  const ProgramLaunch& launch = cluster.drivers.launched.front();
  CHECK(launch.program.arguments(1) == "3");
  CHECK(launch.start.role() == v1::PROGRAM_ROLE_DRIVER);
  CHECK(Incarnation(launch.start.incarnation()) == cluster.words().driver());
  CHECK(launch.start.key().empty());
  CHECK(launch.cluster.at("ps").size() == 1);
  CHECK(cluster.MemberIndices() == Indices{0, 1});
  CHECK(cluster.Members().servers_size() == 1);
  CHECK(cluster.at({"worker", 0}).start.spec().program().sha256() == std::string(64, 'a'));
  CHECK(cluster.State() == v1::JOB_STATE_STARTING);

  cluster.MainIsReady();
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(Has(cluster.EventOf("JOB_RUNNING", "words")->message(), "worker:0, worker:1"));

  cluster.Report(12);
  cluster.MainEnds("exit code 0");
  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
  CHECK(cluster.Said() == "done: main() ended with exit code 0, 12 closures");
  CHECK(cluster.Stops({"worker", 0}) == 1);
  CHECK(cluster.Stops({"worker", 1}) == 1);
  CHECK(cluster.Commands({"ps", 0}, v1::Command::kDropJob) == 1);
}

TEST_CASE("Main does not begin before an executor is ready", "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.at({"worker", 0}).slow_executors = true;
  REQUIRE(cluster.Submit(ProgramSpec()).ok());
  CHECK(cluster.drivers.launched.empty());

  cluster.at({"worker", 0}).Executor(v1::ExecutorEvent::KIND_READY);
  cluster.Settle();
  CHECK(cluster.drivers.launched.size() == 1);
}

TEST_CASE("A program is given as many workers as it asks for, the least busy first",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(WithWorkers(2));
  CHECK(cluster.MemberIndices() == Indices{0, 1});

  REQUIRE(cluster.Submit(WithWorkers(2, 0, "other")).ok());
  CHECK(cluster.MemberIndices() == Indices{0, 2});
}

TEST_CASE("A program waits for the workers that it asks for, and says for how many",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 2);
  REQUIRE(cluster.Submit(WithWorkers(3)).ok());
  CHECK(cluster.State() == v1::JOB_STATE_PENDING);
  CHECK(cluster.Said() == "waiting for 1 more worker (2 of 3 are there)");

  (void)cluster.Join({"worker", 2});
  CHECK(cluster.MemberIndices() == Indices{0, 1, 2});
}

TEST_CASE("A program has as many parameter servers as it asks for, the same while main runs",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(1, 1);
  v1::JobSpec spec = ProgramSpec();
  spec.mutable_program()->set_parameter_servers(2);
  REQUIRE(cluster.Submit(spec).ok());
  CHECK(cluster.State() == v1::JOB_STATE_PENDING);
  CHECK(Has(cluster.Said(), "1 more parameter server (1 of 2 is there)"));
  (void)cluster.Join({"ps", 2});
  cluster.MainIsReady();
  REQUIRE(cluster.State() == v1::JOB_STATE_RUNNING);
  const auto servers = [&] {
    std::vector<std::uint32_t> indices;
    const v1::ProgramMembers members = cluster.Members();
    for (const v1::PsAddress& one : members.servers()) indices.push_back(one.index());
    return indices;
  };
  CHECK(servers() == std::vector<std::uint32_t>{0, 2});
  (void)cluster.Join({"ps", 1});
  CHECK(servers() == std::vector<std::uint32_t>{0, 2});
}

TEST_CASE("An evaluator runs beside main, and the job ends when it has evaluated what is left",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  v1::JobSpec spec = ProgramSpec();
  spec.mutable_program()->set_evaluator(true);
  cluster.Run(spec);
  REQUIRE(cluster.drivers.launched.size() == 2);
  const v1::ProgramStart first = cluster.drivers.launched[1].start;
  CHECK(first.role() == v1::PROGRAM_ROLE_EVALUATOR);
  CHECK(first.task().type() == "evaluator");
  const std::string process = EvaluatorOf(cluster.words().id());
  v1::FromProgram message;
  message.mutable_evaluation()->set_checkpoint("step-7");
  (*message.mutable_evaluation()->mutable_values())["loss"] = 0.5;
  cluster.core->OnDriverMessage(process, Incarnation(first.incarnation()), message);
  CHECK(cluster.EventOf("EVALUATED", "words")->message() == "step-7: loss 0.5");
  CHECK(cluster.EventOf("EVALUATED", "words")->fields().at("loss") == "0.5");

  // One that fails is started again, and the job goes on.
  cluster.core->OnDriverExit(process, Incarnation(first.incarnation()), false, "signal SIGSEGV");
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  cluster.Pass(Millis(1'500));
  REQUIRE(cluster.drivers.launched.size() == 3);
  const Incarnation second(cluster.drivers.launched[2].start.incarnation());
  CHECK(second != Incarnation(first.incarnation()));

  cluster.MainEnds("exit code 0");
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(Has(cluster.Said(), "evaluator:0 evaluates what is left"));
  SECTION("it ends") { cluster.core->OnDriverExit(process, second, true, "exit code 0"); }
  SECTION("it does not end in its grace") {
    cluster.Pass(Millis(61'000));
    CHECK(cluster.drivers.stopped.size() == 1);
  }
  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
  CHECK(Has(cluster.Said(), "done: main() ended with exit code 0"));
}

TEST_CASE(
    "An evaluator that fails when main has ended is started again, and evaluates what is left",
    "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  v1::JobSpec spec = ProgramSpec();
  spec.mutable_program()->set_evaluator(true);
  cluster.Run(spec);
  const std::string process = EvaluatorOf(cluster.words().id());
  const auto fails = [&] {
    const Incarnation newest(cluster.drivers.launched.back().start.incarnation());
    cluster.core->OnDriverExit(process, newest, false, "signal SIGKILL");
  };
  SECTION("before main ends") { fails(); }
  cluster.MainEnds("exit code 0");
  if (cluster.drivers.launched.size() == 2 && !cluster.EventOf("EVALUATOR_ENDED", "words")) fails();
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(Has(cluster.Said(), "evaluator:0 evaluates what is left"));
  cluster.drivers.sent.clear();
  cluster.Pass(Millis(1'500));
  REQUIRE(cluster.drivers.launched.size() == 3);
  CHECK(cluster.AskedToStop());
  const v1::ProgramStart second = cluster.drivers.launched[2].start;
  CHECK(second.role() == v1::PROGRAM_ROLE_EVALUATOR);

  cluster.core->OnDriverExit(process, Incarnation(second.incarnation()), true, "exit code 0");
  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
}

TEST_CASE("An evaluator is started again as long as it evaluates something between its failures",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  v1::JobSpec spec = ProgramSpec();
  spec.mutable_program()->set_evaluator(true);
  cluster.Run(spec);
  const std::string process = EvaluatorOf(cluster.words().id());
  const auto fails = [&](int times, bool evaluates) {
    for (int i = 0; i < times; ++i) {
      const Incarnation newest(cluster.drivers.launched.back().start.incarnation());
      v1::FromProgram message;
      message.mutable_evaluation()->set_checkpoint("step-7");
      if (evaluates) cluster.core->OnDriverMessage(process, newest, message);
      cluster.core->OnDriverExit(process, newest, false, "signal SIGSEGV");
      cluster.Pass(Millis(1'500));
    }
    return cluster.drivers.launched.size();
  };

  CHECK(fails(8, true) == 10);
  CHECK(fails(8, false) == 13);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("A coordinator that is started again when main has ended evaluates what is left",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  v1::JobSpec spec = ProgramSpec();
  spec.mutable_program()->set_evaluator(true);
  cluster.Run(spec);
  cluster.MainEnds("exit code 0");
  REQUIRE(cluster.State() == v1::JOB_STATE_RUNNING);

  cluster.RestartCoordinator();
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(Has(cluster.Said(), "evaluator:0 evaluates what is left"));
  cluster.drivers.launched.clear();
  cluster.JoinAll(0, 1);
  cluster.Pass(Millis(1'500));
  REQUIRE(cluster.drivers.launched.size() == 1);
  const v1::ProgramStart start = cluster.drivers.launched[0].start;
  CHECK(start.role() == v1::PROGRAM_ROLE_EVALUATOR);
  CHECK(start.epoch() == 2);
  CHECK(cluster.AskedToStop());

  cluster.core->OnDriverExit(EvaluatorOf(cluster.words().id()), Incarnation(start.incarnation()),
                             true, "exit code 0");
  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
  CHECK(Has(cluster.Said(), "done: main() ended with exit code 0"));
}

TEST_CASE("A lost worker's place is taken by a free one, and the driver hears the verdict first",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 3);
  cluster.Run(WithWorkers(2));
  const std::uint64_t lost = cluster.Members().workers(1).incarnation();
  cluster.drivers.sent.clear();

  cluster.Kill({"worker", 1});
  cluster.Pass(Millis(1'000));

  REQUIRE(cluster.drivers.sent.size() >= 3);
  REQUIRE(cluster.drivers.sent[0].has_verdict());
  const v1::ExecutorVerdict& verdict = cluster.drivers.sent[0].verdict();
  CHECK(verdict.incarnation() == lost);
  CHECK(verdict.cause() == v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE);
  CHECK(Has(verdict.how(), "worker:1 is lost"));
  REQUIRE(cluster.drivers.sent[1].has_members());
  CHECK(cluster.drivers.sent[1].members().workers_size() == 1);
  CHECK(cluster.MemberIndices() == Indices{0, 2});
  CHECK(cluster.drivers.launched.size() == 1);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("Workers that come join a program up to its most", "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.Run(WithWorkers(1, 2));
  CHECK(cluster.MemberIndices() == Indices{0});

  (void)cluster.Join({"worker", 1});
  CHECK(cluster.MemberIndices() == Indices{0, 1});
  (void)cluster.Join({"worker", 2});
  CHECK(cluster.MemberIndices() == Indices{0, 1});
  CHECK(cluster.Starts({"worker", 2}) == 0);
}

TEST_CASE("A program without workers waits for one and goes on with it", "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.Run();
  const Incarnation driver = cluster.words().driver();
  cluster.Kill({"worker", 0});
  cluster.Pass(Millis(1'000));
  CHECK(cluster.Members().workers().empty());
  CHECK(Has(cluster.Said(), "worker:0 (lost)"));

  (void)cluster.Join({"worker", 0}, "boot-2");
  CHECK(cluster.MemberIndices() == Indices{0});
  CHECK(cluster.words().driver() == driver);
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
}

TEST_CASE("An executor that ends is judged and started again under a number of its own",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 2);
  cluster.Run();
  FakeDaemon& worker = cluster.at({"worker", 1});
  const std::uint64_t before = worker.start.program().incarnation();

  worker.Executor(v1::ExecutorEvent::KIND_EXITED, "signal SIGSEGV");
  REQUIRE(cluster.Verdicts().size() == 1);
  CHECK(cluster.Verdicts()[0].cause() == v1::ExecutorVerdict::CAUSE_CRASHED);
  CHECK(cluster.Verdicts()[0].how() == "signal SIGSEGV");
  CHECK(cluster.Verdicts()[0].last_lines(0) == "Segmentation fault");
  CHECK(cluster.MemberIndices() == Indices{0});
  // The same news again, from the process that is gone.
  worker.Executor(v1::ExecutorEvent::KIND_EXITED, "signal SIGSEGV");
  CHECK(cluster.Starts({"worker", 1}) == 1);

  cluster.Pass(Millis(1'000));
  CHECK(worker.start.program().incarnation() > before);
  CHECK(cluster.MemberIndices() == Indices{0, 1});
  CHECK(cluster.Members().workers(1).incarnation() == worker.start.program().incarnation());
  CHECK(cluster.EventOf("EXECUTOR_LOST", "words")->log_lines(0) == "Segmentation fault");
}

// As of a model's: docs/events.md says how many ends of each sort it takes to give a closure up.
TEST_CASE("The driver of an executor that stood still hears that others may have stopped it",
          "[coordinator][program]") {
  const auto [from_outside, cause] =
      GENERATE(std::pair(true, v1::ExecutorVerdict::CAUSE_FROM_OUTSIDE),
               std::pair(false, v1::ExecutorVerdict::CAUSE_STUCK));
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.Run();
  FakeDaemon& worker = cluster.at({"worker", 0});
  v1::DaemonMessage message = worker.ExecutorMessage(
      v1::ExecutorEvent::KIND_EXITED, "its worker's watchdog: closure 1 got nowhere");
  message.mutable_executor()->set_stuck(true);
  message.mutable_executor()->set_from_outside(from_outside);

  worker.Say(message);

  REQUIRE(cluster.Verdicts().size() == 1);
  CHECK(cluster.Verdicts()[0].cause() == cause);
  CHECK(cluster.EventOf("EXECUTOR_STUCK", "words"));
}

TEST_CASE("A worker that was asked to end may leave, and another takes its place",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(WithWorkers(1));
  v1::DaemonMessage message;
  message.mutable_draining()->set_reason("SIGTERM");
  cluster.at({"worker", 0}).Say(message);
  cluster.Settle();
  CHECK(cluster.at({"worker", 0}).released);
  CHECK(cluster.MemberIndices() == Indices{0, 1});
}

TEST_CASE("The last worker, and a server with variables, stay while main runs",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(2, 1);
  cluster.Run();
  cluster.ServerHolds(0);
  v1::DaemonMessage leaving;
  leaving.mutable_draining()->set_reason("SIGTERM");
  for (auto& [task, daemon] : cluster.daemons) daemon->Say(leaving);
  cluster.Settle();
  CHECK_FALSE(cluster.at({"ps", 0}).released);
  CHECK(cluster.at({"ps", 1}).released);
  CHECK_FALSE(cluster.at({"worker", 0}).released);

  (void)cluster.Join({"worker", 1});
  CHECK(cluster.at({"worker", 0}).released);
  cluster.MainEnds("exit code 0");
  CHECK(cluster.at({"ps", 0}).released);
}

TEST_CASE("A server that was asked to end and holds variables is there for main until it goes",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(2, 1);
  cluster.Run();
  cluster.ServerHolds(0);
  v1::DaemonMessage leaving;
  leaving.mutable_draining()->set_reason("SIGTERM");
  cluster.at({"ps", 0}).Say(leaving);
  REQUIRE_FALSE(cluster.at({"ps", 0}).released);

  (void)cluster.Join({"worker", 1});
  CHECK(cluster.MemberIndices() == Indices{0, 1});
  REQUIRE(cluster.Members().servers_size() == 2);
  CHECK(cluster.Members().servers(0).index() == 0);
  cluster.Kill({"ps", 0});
  cluster.Settle();
  REQUIRE(cluster.Members().servers_size() == 1);
  CHECK(cluster.Members().servers(0).index() == 1);
}

TEST_CASE("One worker of each host looks at a program, and a difference is refused with both",
          "[coordinator][program]") {
  Programs cluster;
  v1::CheckReport report;
  report.set_functions(7);
  report.set_function_count(2);
  report.set_abi("muster 0.5 x86_64");
  cluster.Join({"worker", 0}, "boot-1", "a").check = report;
  cluster.Join({"worker", 1}, "boot-1", "a").check = report;
  FakeDaemon& other = cluster.Join({"worker", 2}, "boot-1", "b");
  other.check = report;

  SECTION("they agree") {
    const auto dry = cluster.Submit(ProgramSpec(), /*dry_run=*/true);
    REQUIRE(dry.ok());
    CHECK(dry->problems().empty());
    CHECK(dry->probe().function_count() == 2);
    CHECK(cluster.Commands({"worker", 0}, v1::Command::kCheckJob) == 1);
    CHECK(cluster.Commands({"worker", 1}, v1::Command::kCheckJob) == 0);
    CHECK(cluster.Commands({"worker", 2}, v1::Command::kCheckJob) == 1);
    CHECK(cluster.Commands({"worker", 0}, v1::Command::kProbeData) == 0);
  }
  SECTION("another library") {
    other.check.set_abi("muster 0.4 x86_64");
    CHECK(Message(cluster.Submit(ProgramSpec()).status()) ==
          "the program differs between hosts: worker:0 on a has muster 0.5 x86_64, worker:2 on b "
          "has muster 0.4 x86_64");
  }
  SECTION("other functions") {
    other.check.set_functions(8);
    other.check.set_function_count(1);
    CHECK(Has(Message(cluster.Submit(ProgramSpec()).status()),
              "worker:2 on b has 1 registered function"));
  }
  SECTION("a library that is missing on one host") {
    other.check.add_problems("libgomp.so.1: cannot open shared object file");
    const Status status = cluster.Submit(ProgramSpec()).status();
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(Message(status) == "worker:2 on b: libgomp.so.1: cannot open shared object file");
  }
  SECTION("a host that may not run it") {
    other.refuse[v1::Command::kCheckJob] =
        FailedPrecondition("/var/cache is mounted noexec: give --cache-dir another place");
    CHECK(Has(Message(cluster.Submit(ProgramSpec()).status()),
              "worker:2 on b: /var/cache is mounted noexec"));
  }
}

TEST_CASE("A worker that cannot start an executor is left out, and another takes its place",
          "[coordinator][program]") {
  Programs cluster;
  const std::map<v1::Command::BodyCase, Status> full{
      {v1::Command::kStartExecutor, ResourceExhausted("/var/cache: no space left")}};
  (void)cluster.Join({"worker", 0}, "boot-1", "a", {}, full);
  (void)cluster.Join({"worker", 1}, "boot-1", "b");
  cluster.Run(WithWorkers(1));
  CHECK(cluster.MemberIndices() == Indices{1});
  CHECK(Has(cluster.EventOf("WORKER_UNFIT", "words")->message(),
            "worker:0 cannot start an executor"));
}

TEST_CASE("When every worker says the user's error the program fails with it",
          "[coordinator][program]") {
  Programs cluster;
  const std::map<v1::Command::BodyCase, Status> wrong{
      {v1::Command::kStartExecutor, InvalidArgument("variable w has another shape here")}};
  (void)cluster.Join({"worker", 0}, "boot-1", "a", {}, wrong);
  (void)cluster.Join({"worker", 1}, "boot-1", "b", {}, wrong);
  REQUIRE(cluster.Submit(ProgramSpec()).ok());
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(Has(cluster.Said(), "variable w has another shape here"));
  CHECK(cluster.drivers.launched.empty());
}

TEST_CASE("A full disk of the last worker, which is on its way out, is not the program's failure",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  FakeDaemon& worker = cluster.at({"worker", 0});
  worker.slow_executors = true;
  REQUIRE(cluster.Submit(ProgramSpec()).ok());
  v1::DaemonMessage message;
  message.mutable_draining()->set_reason("SIGTERM");
  worker.Say(message);
  v1::CommandResult& result = *message.mutable_result();
  result.set_command_id(worker.commands.back().id());
  result.mutable_status()->set_code(static_cast<int>(StatusCode::kResourceExhausted));
  result.mutable_status()->set_message("/var/cache: no space left");
  worker.Say(message);
  cluster.Settle();

  CHECK(cluster.EventOf("WORKER_UNFIT", "words"));
  CHECK(cluster.State() == v1::JOB_STATE_STARTING);
  (void)cluster.Join({"worker", 1});
  CHECK(cluster.drivers.launched.size() == 1);
}

TEST_CASE("A reason is told of as many workers as people read", "[coordinator][program]") {
  Programs cluster;
  const std::map<v1::Command::BodyCase, Status> full{
      {v1::Command::kStartExecutor, ResourceExhausted("/var/cache: no space left")}};
  for (int i = 0; i < 25; ++i) (void)cluster.Join({"worker", i}, "boot-1", "a", {}, full);
  REQUIRE(cluster.Submit(ProgramSpec()).ok());

  CHECK(cluster.words().record().job().reason() == "NO_FIT_WORKER");
  CHECK(Has(cluster.Said(), "worker:19: /var/cache: no space left; and 5 more"));
  CHECK_FALSE(Has(cluster.Said(), "worker:20"));
}

TEST_CASE("Executors that end before they are ready fail the program in the end",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  FakeDaemon& worker = cluster.at({"worker", 0});
  worker.slow_executors = true;
  REQUIRE(cluster.Submit(ProgramSpec()).ok());
  for (int i = 0; i < 3 && cluster.State() != v1::JOB_STATE_FAILED; ++i) {
    worker.Executor(v1::ExecutorEvent::KIND_EXITED, "exit code 127");
    cluster.Pass(Millis(2'000));
  }
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(Has(cluster.Said(), "end before they are ready, 3 times"));
  CHECK(cluster.Verdicts().empty());
}

TEST_CASE("The same program submitted again answers the same job, and begins anew if it has failed",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.Run();
  CHECK(cluster.Submit(ProgramSpec())->existing());
  v1::JobSpec changed = ProgramSpec();
  changed.mutable_program()->set_sha256(std::string(64, 'b'));
  CHECK(cluster.Submit(changed).status().code() == StatusCode::kAlreadyExists);

  cluster.MainEnds("exit code 3");
  REQUIRE(cluster.State() == v1::JOB_STATE_FAILED);
  REQUIRE(cluster.Submit(ProgramSpec()).ok());
  CHECK(cluster.drivers.launched.size() == 2);
  CHECK(cluster.drivers.launched[1].start.restarts() == 0);
  cluster.MainIsReady();
  cluster.MainEnds("exit code 0");
  CHECK(cluster.State() == v1::JOB_STATE_SUCCEEDED);
}

TEST_CASE("A job shows what its own variables take, and its own processes wait for, on each task",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(1, 1);
  cluster.Run();
  v1::DaemonMessage message;
  v1::Heartbeat& beat = *message.mutable_heartbeat();
  beat.set_sequence(1'000);
  for (const std::string& id : {std::string("other-9"), cluster.words().id()}) {
    v1::JobBytes& bytes = *beat.add_job_bytes();
    bytes.set_job_id(id);
    bytes.set_bytes(id.size());
    beat.add_waits()->set_job_id(id);
  }
  cluster.at({"ps", 0}).Say(message);
  const v1::ClusterStatus status = cluster.core->Status();
  CHECK(status.tasks(0).job_bytes_size() == 2);
  const v1::Job job = cluster.Described("words");
  REQUIRE(job.tasks(0).job_bytes_size() == 1);
  CHECK(job.tasks(0).job_bytes(0).bytes() == cluster.words().id().size());
  REQUIRE(job.tasks(0).waits_size() == 1);
  CHECK(job.tasks(0).waits(0).job_id() == cluster.words().id());
}

TEST_CASE("A server with variables of a program that is lost is named until it is back",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(2, 1);
  cluster.Run();
  cluster.ServerHolds(0);
  const auto reason = [&] { return cluster.Described("words").reason(); };

  // Both stand still. Nobody needs the other one.
  for (const int index : {0, 1}) cluster.at({"ps", index}).silent = true;
  cluster.Pass(Millis(4'000));

  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(reason() == "PS_LOST");
  CHECK(
      Has(cluster.Said(), "waits for it, and fails if it stays away: ps:0 (nothing was heard of"));
  CHECK_FALSE(Has(cluster.Said(), "ps:1"));
  CHECK(cluster.EventOf("PS_LOST", "words")->task().index() == 0);
  (void)cluster.Join({"ps", 0});
  CHECK(reason().empty());
  CHECK(cluster.Said().empty());
}

TEST_CASE("Muster-trainer cannot drive a program", "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.Run();
  const Result<ModelJob*> model = cluster.core->FindModel(cluster.words().id());
  CHECK(model.status().code() == StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace muster::coordinator::testing
