// How a program ends: by its main, with the coordinator, when it is stopped, with the cluster.
#include "tests/unit/coordinator/programs.h"

namespace muster::coordinator::testing {
namespace {

TEST_CASE("Main that fails ends the job with its exit code and its last lines",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.Run();
  cluster.core->OnDriverLine(cluster.words().id(), 1, "no such file: corpus.txt");

  SECTION("without a word") {
    cluster.MainEnds("exit code 3");
    CHECK(Has(cluster.Said(), "main() ended with exit code 3"));
    CHECK(cluster.words().record().job().error().code() == static_cast<int>(StatusCode::kInternal));
  }
  SECTION("by a signal") {
    cluster.MainEnds("signal SIGSEGV");
    CHECK(Has(cluster.Said(), "main() ended by signal SIGSEGV"));
  }
  SECTION("with an error") {
    v1::FromProgram message;
    message.mutable_end()->mutable_status()->set_code(static_cast<int>(StatusCode::kDataLoss));
    message.mutable_end()->mutable_status()->set_message("corpus.txt: line 3 is cut off");
    cluster.core->OnDriverMessage(cluster.words().id(), cluster.words().driver(), message);
    cluster.MainEnds("exit code 1");
    CHECK(cluster.Said() == "main() ended with exit code 1: corpus.txt: line 3 is cut off");
    CHECK(cluster.words().record().job().error().code() == static_cast<int>(StatusCode::kDataLoss));
  }
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.EventOf("PROGRAM_ENDED", "words")->log_lines(0) == "no such file: corpus.txt");
  CHECK(cluster.Stops({"worker", 0}) == 1);
}

TEST_CASE("Main that cannot be started fails the job at once, whatever its policy",
          "[coordinator][program]") {
  const bool restarts = GENERATE(false, true);
  Programs cluster;
  cluster.JoinAll(0, 1);
  REQUIRE(cluster.Submit(restarts ? Restarting() : ProgramSpec()).ok());
  cluster.MainEnds("no start: PERMISSION_DENIED: /var is mounted noexec");
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.words().record().job().restarts() == 0);
  CHECK(Has(cluster.Said(),
            "could not be started on the coordinator's host: "
            "PERMISSION_DENIED: /var is mounted noexec"));
}

TEST_CASE("Under on_failure main that its host could not start at the moment is tried again",
          "[coordinator][program]") {
  const std::string how = GENERATE("no start: RESOURCE_EXHAUSTED: no further process",
                                   "no start: UNAVAILABLE: no boot id",
                                   "no start: UNKNOWN: execute words: Text file busy");
  CAPTURE(how);
  Programs cluster;
  cluster.JoinAll(0, 1);
  REQUIRE(cluster.Submit(Restarting(1)).ok());
  cluster.MainEnds(how);
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  cluster.Pass(Millis(5'000));
  CHECK(cluster.drivers.launched.size() == 2);
  cluster.MainEnds(how);
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
}

TEST_CASE("Under on_failure main begins anew with the executors that are there, so many times",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 2);
  cluster.Run(Restarting(2));
  const Incarnation first = cluster.words().driver();

  cluster.MainEnds("signal SIGKILL");
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  cluster.Pass(Millis(5'000));
  REQUIRE(cluster.drivers.launched.size() == 2);
  CHECK(cluster.words().driver() > first);
  CHECK(cluster.drivers.launched[1].start.restarts() == 1);
  CHECK(cluster.MemberIndices() == Indices{0, 1});
  CHECK(cluster.Starts({"worker", 0}) == 1);
  cluster.MainIsReady();
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  // What the first one still says is old news.
  cluster.Report(99, first);
  cluster.core->OnDriverExit(cluster.words().id(), first, true, "exit code 0");
  CHECK(cluster.State() == v1::JOB_STATE_RUNNING);
  CHECK(cluster.Described("words").program().done() == 0);

  cluster.MainEnds("exit code 1");
  cluster.Pass(Millis(5'000));
  cluster.MainEnds("exit code 1");
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(cluster.drivers.launched.size() == 3);
  CHECK(Has(cluster.EventOf("PROGRAM_ENDED", "words")->message(), "it is not started again"));
}

TEST_CASE("Main begins anew when as many parameter servers are there as it asks for, or had",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(2, 1);
  v1::JobSpec spec = Restarting(2);
  SECTION("by number") { spec.mutable_program()->set_parameter_servers(2); }
  SECTION("all that are there") {}
  cluster.Run(spec);

  cluster.Kill({"ps", 1});
  cluster.MainEnds("exit code 1");
  cluster.Pass(Millis(5'000));
  CHECK(cluster.drivers.launched.size() == 1);
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  CHECK(cluster.Said() == "main() waits to begin for 1 more parameter server (1 of 2 is there)");
  CHECK(cluster.words().record().job().reason() == "WAITING_FOR_TASKS");

  (void)cluster.Join({"ps", 1}, "boot-2");
  REQUIRE(cluster.drivers.launched.size() == 2);
  CHECK(cluster.drivers.launched[1].cluster.at("ps").size() == 2);
  CHECK(cluster.drivers.launched[1].start.restarts() == 1);
  CHECK_FALSE(cluster.EventOf("TASKS_MISSING", "words"));
}

TEST_CASE("Main that waits for parameter servers for long makes do without those it did not name",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(2, 1);
  v1::JobSpec spec = Restarting(2);
  const bool named = GENERATE(false, true);
  if (named) spec.mutable_program()->set_parameter_servers(2);
  cluster.Run(spec);
  cluster.Kill({"ps", 0});
  cluster.Kill({"ps", 1});
  cluster.MainEnds("exit code 1");

  cluster.Pass(Millis(62'000));
  CHECK(Has(cluster.EventOf("TASKS_MISSING", "words")->message(),
            "after 60 s main() still waits for 2 more parameter servers (0 of 2 are there)"));
  CHECK(cluster.drivers.launched.size() == 1);
  (void)cluster.Join({"ps", 1}, "boot-2");
  CHECK(cluster.drivers.launched.size() == (named ? 1 : 2));
  (void)cluster.Join({"ps", 0}, "boot-2");
  REQUIRE(cluster.drivers.launched.size() == 2);
  CHECK(cluster.drivers.launched[1].start.restarts() == 1);
}

TEST_CASE("A restarted coordinator fails a program that may not begin anew, and says what to do",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.Run();
  cluster.RestartCoordinator();
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(Has(cluster.Said(),
            "main() ended with it. Submit it again; with "
            "--restart-policy on-failure"));
}

TEST_CASE("A restarted coordinator begins main anew under on_failure, with other numbers",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.Run(Restarting(1));
  const Incarnation driver = cluster.words().driver();
  const std::uint64_t executor = cluster.Members().workers(0).incarnation();
  const std::uint64_t view = cluster.words().record().plan().view();
  v1::FromProgram message;
  v1::ProgramReport& report = *message.mutable_report();
  report.set_done(7);
  report.set_queued(2);
  report.set_in_flight(3);
  report.set_phase("epoch 2");
  cluster.core->OnDriverMessage(cluster.words().id(), driver, message);
  cluster.words().story().Persist();
  cluster.Settle();

  cluster.RestartCoordinator();
  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  const v1::ProgramReport now = cluster.Described("words").program();
  CHECK(now.done() == 7);
  CHECK(now.queued() + now.in_flight() == 0);
  CHECK(now.phase().empty());
  (void)cluster.Join({"worker", 0}, "boot-1");
  REQUIRE(cluster.drivers.launched.size() == 2);
  CHECK(cluster.words().driver() > driver);
  CHECK(cluster.Members().workers(0).incarnation() > executor);
  CHECK(cluster.words().record().plan().view() > view);
  CHECK(cluster.drivers.launched[1].start.restarts() == 1);

  cluster.RestartCoordinator();
  CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  CHECK(Has(cluster.Said(), "It has begun anew 1 time already; --max-restarts 1 allows no more"));
}

TEST_CASE("A program that has not begun outlives a restart of the coordinator",
          "[coordinator][program]") {
  Programs cluster;
  REQUIRE(cluster.Submit(ProgramSpec()).ok());
  cluster.RestartCoordinator();
  CHECK(cluster.State() == v1::JOB_STATE_PENDING);
  cluster.JoinAll(0, 1);
  CHECK(cluster.drivers.launched.size() == 1);
}

TEST_CASE("A restart of the coordinator before main runs is no failure, whatever the policy",
          "[coordinator][program]") {
  const bool never = GENERATE(true, false);
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.at({"worker", 0}).slow_executors = true;
  REQUIRE(cluster.Submit(never ? ProgramSpec() : Restarting(1)).ok());
  REQUIRE(cluster.State() == v1::JOB_STATE_STARTING);

  cluster.RestartCoordinator();

  CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  (void)cluster.Join({"worker", 0}, "boot-2");
  REQUIRE(cluster.drivers.launched.size() == 1);
  CHECK(cluster.drivers.launched[0].start.restarts() == 0);
}

TEST_CASE("A restart of the coordinator while main waits to begin anew counts no second time",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.Run(Restarting(1));
  cluster.MainEnds("exit code 1");
  REQUIRE(cluster.drivers.launched.size() == 1);

  cluster.RestartCoordinator();

  (void)cluster.Join({"worker", 0}, "boot-2");
  REQUIRE(cluster.drivers.launched.size() == 2);
  CHECK(cluster.drivers.launched[1].start.restarts() == 1);
}

TEST_CASE("Main does not begin before it is on disk that it does", "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.at({"worker", 0}).slow_executors = true;
  REQUIRE(cluster.Submit(ProgramSpec()).ok());
  cluster.journal_disk.hangs = true;
  cluster.at({"worker", 0}).Executor(v1::ExecutorEvent::KIND_READY);
  cluster.Pass(Millis(2'000));
  CHECK(cluster.drivers.launched.empty());

  SECTION("it is") {
    cluster.journal_disk.Go();
    cluster.Settle();
    CHECK(cluster.drivers.launched.size() == 1);
  }
  SECTION("its executor is lost meanwhile") {
    cluster.Kill({"worker", 0});
    cluster.Pass(Millis(1'000));
    cluster.journal_disk.Go();
    cluster.Settle();
    CHECK(cluster.drivers.launched.empty());
    (void)cluster.Join({"worker", 0}, "boot-2");
    CHECK(cluster.drivers.launched.size() == 1);
  }
  SECTION("the coordinator is killed between the write and its answer") {
    cluster.journal_disk.mute_after = 0;
    cluster.journal_disk.Go();
    cluster.Settle();
    CHECK(cluster.drivers.launched.empty());
    // It cannot know that main() has not begun.
    cluster.RestartCoordinator();
    CHECK(cluster.State() == v1::JOB_STATE_FAILED);
  }
}

TEST_CASE("Main that was about to begin when the cluster was asked to end has not run",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.at({"worker", 0}).slow_executors = true;
  REQUIRE(cluster.Submit(ProgramSpec()).ok());
  cluster.journal_disk.hangs = true;
  cluster.at({"worker", 0}).Executor(v1::ExecutorEvent::KIND_READY);
  cluster.Settle();
  bool drained = false;
  cluster.core->Drain(Millis(20'000), [&] { drained = true; });
  cluster.Settle();
  CHECK_FALSE(drained);

  SECTION("the row that says so is taken back before the coordinator ends") {
    cluster.journal_disk.Go();
    cluster.Settle();
    CHECK(drained);
    CHECK(cluster.drivers.launched.empty());
    cluster.RestartCoordinator();
    CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
    (void)cluster.Join({"worker", 0}, "boot-2");
    CHECK(cluster.drivers.launched.size() == 1);
  }
  SECTION("a disk that does not answer holds it up no longer than the limit") {
    cluster.Pass(Millis(20'500));
    CHECK(drained);
    CHECK_FALSE(cluster.EventOf("DRAIN_UNSAVED", "words"));
    // What the disk was given is written all the same.
    cluster.journal_disk.Go();
    cluster.Settle();
    cluster.RestartCoordinator();
    CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
  }
}

TEST_CASE("A program that has ended is not forgotten before its processes are let go",
          "[coordinator][program]") {
  Programs cluster;
  cluster.options.keep_jobs = 1;
  cluster.RestartCoordinator();
  cluster.JoinAll(0, 1);
  for (const char* name : {"first", "second"}) {
    REQUIRE(cluster.Submit(ProgramSpec(name)).ok());
  }
  REQUIRE(cluster.drivers.launched.size() == 2);
  cluster.journal_disk.hangs = true;
  for (const char* name : {"first", "second"}) {
    const ProgramJob& job = cluster.words(name);
    cluster.core->OnDriverExit(job.id(), job.driver(), true, "exit code 0");
    cluster.Pass(Millis(200));
  }
  (void)cluster.Join({"worker", 1});
  CHECK(cluster.Stops({"worker", 0}) == 0);

  cluster.journal_disk.Go();
  cluster.Settle();
  CHECK(cluster.Stops({"worker", 0}) == 2);
  CHECK_FALSE(cluster.core->Find("first").ok());
  CHECK(cluster.core->Find("second").ok());
}

TEST_CASE("A program is asked to stop, and made to when its grace is over",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.Run(Restarting());
  cluster.words().Stop(Millis(2'000));
  CHECK(cluster.State() == v1::JOB_STATE_STOPPING);
  CHECK(cluster.drivers.sent.back().stop().grace_ms() == 2'000);

  SECTION("it ends by itself") {
    cluster.MainEnds("exit code 1");
    CHECK(cluster.Said() == "stopped as asked; main() ended with exit code 1");
    CHECK(cluster.drivers.stopped.empty());
  }
  SECTION("it does not") {
    cluster.Pass(Millis(1'900));
    CHECK(cluster.State() == v1::JOB_STATE_STOPPING);
    cluster.Pass(Millis(300));
    CHECK(cluster.drivers.stopped.size() == 1);
  }
  CHECK(cluster.State() == v1::JOB_STATE_CANCELLED);
  CHECK(cluster.Stops({"worker", 0}) == 1);
}

TEST_CASE("Servers are told of a program's end again when main that is made to end has ended",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(1, 1);
  cluster.Run();
  const Incarnation driver = cluster.words().driver();
  const auto drops = [&] { return cluster.Commands({"ps", 0}, v1::Command::kDropJob); };
  cluster.words().Stop(Millis(2'000));
  cluster.Pass(Millis(2'200));
  REQUIRE(cluster.State() == v1::JOB_STATE_CANCELLED);
  CHECK(drops() == 1);

  SECTION("it may have made variables meanwhile") {
    cluster.core->OnDriverExit(cluster.words().id(), driver, false, "signal SIGKILL");
    cluster.Settle();
    CHECK(drops() == 2);
  }
  SECTION("unless the program is submitted again by then") {
    REQUIRE(cluster.Submit(ProgramSpec()).ok());
    cluster.core->OnDriverExit(cluster.words().id(), driver, false, "signal SIGKILL");
    cluster.Settle();
    CHECK(drops() == 1);
  }
}

TEST_CASE("A cluster that drains asks programs to stop and waits for them",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  bool drained = false;

  SECTION("one that may begin anew does so under the next coordinator, and that is no restart") {
    cluster.Run(Restarting());
    cluster.core->Drain(Millis(20'000), [&] { drained = true; });
    cluster.Settle();
    CHECK(cluster.AskedToStop());
    CHECK_FALSE(drained);
    v1::DaemonMessage leaving;
    leaving.mutable_draining()->set_reason("SIGTERM");
    cluster.at({"worker", 0}).Say(leaving);
    cluster.Settle();
    CHECK_FALSE(cluster.at({"worker", 0}).released);
    cluster.MainEnds("exit code 0");
    CHECK(drained);
    CHECK(cluster.at({"worker", 0}).released);
    CHECK(cluster.drivers.launched.size() == 1);

    cluster.RestartCoordinator();
    (void)cluster.Join({"worker", 0}, "boot-1");
    REQUIRE(cluster.drivers.launched.size() == 2);
    CHECK(cluster.drivers.launched[1].start.restarts() == 0);
  }
  SECTION("nor is that of one that has just begun anew") {
    cluster.Run(Restarting(1));
    cluster.MainEnds("exit code 1");
    cluster.Pass(Millis(5'000));
    REQUIRE(cluster.drivers.launched.size() == 2);
    cluster.core->Drain(Millis(20'000), [&] { drained = true; });
    cluster.MainEnds("exit code 0");
    CHECK(drained);

    cluster.RestartCoordinator();
    CHECK(cluster.State() == v1::JOB_STATE_RESTORING);
    (void)cluster.Join({"worker", 0}, "boot-1");
    REQUIRE(cluster.drivers.launched.size() == 3);
    CHECK(cluster.drivers.launched[2].start.restarts() == 1);
  }
  SECTION("another ends with it") {
    cluster.Run();
    cluster.core->Drain(Millis(20'000), [&] { drained = true; });
    cluster.MainEnds("exit code 0");
    CHECK(drained);
    CHECK(cluster.State() == v1::JOB_STATE_CANCELLED);
  }
  SECTION("one that does not end is given up") {
    cluster.Run();
    cluster.core->Drain(Millis(2'000), [&] { drained = true; });
    cluster.Pass(Millis(2'500));
    CHECK(drained);
    CHECK(Has(cluster.EventOf("DRAIN_UNSAVED", "words")->message(), "main() did not end"));
  }
}

TEST_CASE("An executor that has printed nothing did not end by what the one before it printed",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 1);
  cluster.Run();
  FakeDaemon& worker = cluster.at({"worker", 0});
  worker.Print(cluster.words().id(), "about to exit 7");
  v1::DaemonMessage message =
      worker.ExecutorMessage(v1::ExecutorEvent::KIND_EXITED, "signal SIGSEGV");
  message.mutable_executor()->clear_last_lines();

  worker.Say(message);

  REQUIRE(cluster.Verdicts().size() == 1);
  CHECK(cluster.Verdicts()[0].last_lines().empty());
  CHECK(cluster.EventOf("EXECUTOR_LOST", "words")->log_lines().empty());
}

TEST_CASE("What is told of a lost worker are the lines of its last executor and of none before",
          "[coordinator][program]") {
  Programs cluster;
  cluster.JoinAll(0, 2);
  cluster.Run();
  FakeDaemon& worker = cluster.at({"worker", 0});
  worker.Print(cluster.words().id(), "of the first");
  worker.Executor(v1::ExecutorEvent::KIND_EXITED, "signal SIGSEGV");
  cluster.Pass(Millis(1'000));
  REQUIRE(cluster.Starts({"worker", 0}) == 2);
  const bool says = GENERATE(false, true);
  if (says) worker.Print(cluster.words().id(), "of the second");

  cluster.Kill({"worker", 0});
  cluster.Pass(Millis(5'000));
  const auto lost = cluster.EventOf("WORKER_LOST", "words");
  REQUIRE(lost.has_value());
  REQUIRE(lost->log_lines_size() == (says ? 1 : 0));
  if (says) CHECK(lost->log_lines(0) == "of the second");
}

}  // namespace
}  // namespace muster::coordinator::testing
