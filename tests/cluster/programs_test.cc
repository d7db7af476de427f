// Programs of users as jobs: submitted, run on the workers, failed, killed and stopped for good
// measure (tests/programs/closures.cc is what they do).
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "tests/cluster/harness.h"
#include "tests/support/catch.h"
#include "tests/support/lateness.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

const std::string kProgram = MUSTER_TEST_PROGRAMS "/closures";
// What docs/events.md promises of a daemon that was killed.
constexpr std::int64_t kKilledLimitMs = 1'000;

struct ProgramFixture {
  Cluster cluster{{.ps = 0, .workers = 2}};

  RunResult Submit(std::vector<std::string> flags, const std::vector<std::string>& arguments) {
    flags.insert(flags.begin(), "submit");
    flags.insert(flags.end(), {"--strategy", "parameter_server", "--", kProgram});
    flags.insert(flags.end(), arguments.begin(), arguments.end());
    return cluster.Muster(flags);
  }
  // main() has begun so many times.
  bool HasBegun(const std::string& id, int times) {
    return Eventually(seconds(60),
                      [&] { return CountEvents(cluster.Describe(id), "JOB_RUNNING") >= times; });
  }
  int PidOfMain(const std::string& id) {
    const v1::Job job = cluster.Describe(id);
    int pid = 0;
    for (const v1::Event& event : job.events()) {
      if (event.reason() == "JOB_RUNNING") pid = static_cast<int>(Field(event, "pid"));
    }
    return pid;
  }
  bool ExecutorsAreGone(const std::string& id) {
    return Eventually(seconds(20), [&] {
      const v1::Job job = cluster.Describe(id);
      for (const v1::TaskState& task : job.tasks()) {
        if (task.executor_pid() != 0) return false;
      }
      return ProcessesOf(kProgram).empty();
    });
  }
  // Whatever a program has done: the next one has its sum.
  bool IsUsable() {
    const RunResult run = Submit({"--wait", "--name", "afterwards"}, {"sum", "100", "2"});
    return run.code == 0 && cluster.Output(IdIn(run)).find("sum 5050") != std::string::npos;
  }
  // kill -9 to the daemons of these workers; each loss is told of in good time, by the events' own
  // clock. Several threads of several processes stand between the two: each may be woken late.
  void KillAndCheckNoticed(const std::string& id, const std::vector<std::string>& tasks) {
    std::vector<int> pids;
    for (const std::string& task : tasks) {
      pids.push_back(cluster.PidOf(task));
      REQUIRE(pids.back() > 1);
    }
    const int before = CountEvents(cluster.Describe(id), "WORKER_LOST");
    const Lateness lateness;
    const std::int64_t killed = NowMs();
    for (const int pid : pids) REQUIRE(::kill(pid, SIGKILL) == 0);
    v1::Job job;
    CHECK(Eventually(seconds(30), [&] {
      job = cluster.Describe(id);
      return CountEvents(job, "WORKER_LOST") == before + static_cast<int>(tasks.size());
    }));
    CAPTURE(Story(job), killed, lateness.worst_ms());
    int skip = before;
    for (const v1::Event& event : job.events()) {
      if (event.reason() != "WORKER_LOST" || skip-- > 0) continue;
      CHECK(std::ranges::find(pids, Field(event, "pid")) != pids.end());
      CHECK(event.time_ms() - killed <= kKilledLimitMs + 4 * lateness.worst_ms());
    }
  }
  // What `rounds` says of itself, in ms.
  std::int64_t LongestRound(const std::string& id) {
    constexpr std::string_view kBefore = "the longest ";
    const std::string out = cluster.Output(id);
    const std::size_t at = out.find(kBefore);
    REQUIRE(at != std::string::npos);
    return std::atoll(out.c_str() + at + kBefore.size());
  }
};

TEST_CASE_METHOD(ProgramFixture,
                 "a program's closures run on the workers, and its main ends the job",
                 "[cluster][program]") {
  const RunResult run = Submit({"--follow", "--name", "sums"}, {"sum", "1000", "2"});
  CAPTURE(run.err, cluster.up_log());
  REQUIRE(run.code == 0);
  const std::string id = IdIn(run);
  CHECK(cluster.Output(id).find("sum 500500") != std::string::npos);
  CHECK(run.err.find("SUCCEEDED: done: main() ended with exit code 0") != std::string::npos);

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  CHECK(job.name() == "sums");
  CHECK(FindEvent(job, "JOB_RUNNING") != nullptr);
  CHECK(ExecutorsAreGone(id));
  CHECK(cluster.Muster({"jobs"}).out.find("sums") != std::string::npos);
}

TEST_CASE_METHOD(
    ProgramFixture,
    "a program on the C++ API trains, loses a worker, and its uncaught error is the job's",
    "[cluster][program][CCF-01]") {
  const TempFolder folder;
  const auto submit = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> line{"submit", "--strategy", "parameter_server", "--",
                                  MUSTER_TEST_PROGRAMS "/coordinator"};
    line.insert(line.end(), arguments.begin(), arguments.end());
    return IdIn(cluster.Muster(line));
  };
  const std::string trains = submit({"train", "100"});
  CHECK(cluster.Wait(trains, seconds(120)) == 0);
  CAPTURE(Story(cluster.Describe(trains)), cluster.up_log());
  CHECK(cluster.Output(trains).find("mean 17.5") != std::string::npos);

  const std::string counts = submit({"count", "400", folder / "executions"});
  REQUIRE(cluster.HasPrinted(counts, "scheduled 400"));
  REQUIRE(cluster.Kill("worker:1", SIGKILL));
  CHECK(cluster.Wait(counts, seconds(120)) == 0);
  CHECK(cluster.Output(counts).find("sum 80200") != std::string::npos);

  const std::string fails = submit({"fail"});
  CHECK(cluster.Wait(fails, seconds(120)) == 1);
  CHECK(cluster.Output(fails).find("caught OUT_OF_RANGE of worker:") != std::string::npos);
  CHECK(cluster.Output(fails).find("again 7") != std::string::npos);
  CHECK(cluster.Describe(fails).error().message().find("the closure's own trouble") !=
        std::string::npos);
  CHECK(IsUsable());
}

TEST_CASE_METHOD(ProgramFixture, "a dry run tells a program's functions and runs nothing",
                 "[cluster][program]") {
  const RunResult run = Submit({"--dry-run"}, {"sum", "10"});
  CAPTURE(run.err);
  CHECK(run.code == 0);
  CHECK(run.err.find("registered functions, muster ") != std::string::npos);
  CHECK(cluster.Muster({"jobs"}).err.find("no jobs") != std::string::npos);
}

TEST_CASE_METHOD(ProgramFixture,
                 "a program that fails says how, with the exit code of a failed job",
                 "[cluster][program]") {
  const RunResult failed = Submit({"--wait"}, {"fail", "3"});
  CHECK(failed.code == 1);
  CHECK(failed.err.find("FAILED: main() ended with exit code 3") != std::string::npos);

  const RunResult thrown = Submit({"--wait"}, {"throw"});
  CAPTURE(thrown.err);
  CHECK(thrown.code == 1);
  CHECK(thrown.err.find("thrown by main") != std::string::npos);

  const RunResult closure = Submit({"--wait"}, {"throw-closure"});
  CHECK(closure.code == 1);
  CHECK(
      cluster.Output(IdIn(closure)).find("UNKNOWN: closure 1: Throw threw: thrown by a closure") !=
      std::string::npos);
  CHECK(IsUsable());
}

TEST_CASE_METHOD(ProgramFixture, "a killed main begins anew under on-failure and can be stopped",
                 "[cluster][program]") {
  const std::string id = IdIn(Submit({"--restart-policy", "on-failure"}, {"stop"}));
  REQUIRE(cluster.HasPrinted(id, "runs until it is to stop"));
  REQUIRE(::kill(PidOfMain(id), SIGKILL) == 0);
  REQUIRE(HasBegun(id, 2));

  v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log());
  CHECK(job.restarts() == 1);
  const v1::Event* ended = FindEvent(job, "PROGRAM_ENDED");
  REQUIRE(ended != nullptr);
  CHECK(ended->fields().at("how") == "signal SIGKILL");

  CHECK(cluster.Muster({"stop", id}).code == 0);
  CHECK(cluster.Wait(id, seconds(60)) == 8);
  CHECK(cluster.Output(id).find("stops as asked") != std::string::npos);
  CHECK(ExecutorsAreGone(id));
}

TEST_CASE_METHOD(ProgramFixture, "a killed main fails the job without a policy",
                 "[cluster][program]") {
  const std::string id = IdIn(Submit({}, {"stop"}));
  REQUIRE(cluster.HasPrinted(id, "runs until it is to stop"));
  REQUIRE(::kill(PidOfMain(id), SIGKILL) == 0);
  CHECK(cluster.Wait(id, seconds(60)) == 1);
  CHECK(cluster.Describe(id).error().message().find("by signal SIGKILL") != std::string::npos);
}

TEST_CASE_METHOD(ProgramFixture, "a program goes on by itself when workers are killed and stopped",
                 "[cluster][program][CCF-02][CCF-04]") {
  const TempFolder folder;
  const std::string id = IdIn(Submit({}, {"rounds", folder / "enough"}));
  REQUIRE(cluster.HasPrinted(id, "rounds begin"));
  const auto losses = [&](int n) {
    return Eventually(seconds(30), [&] {
      const v1::Job job = cluster.Describe(id);
      return CountEvents(job, "WORKER_LOST") == n && CountEvents(job, "WORKER_BACK") == n;
    });
  };
  KillAndCheckNoticed(id, {"worker:1"});
  CHECK(losses(1));
  KillAndCheckNoticed(id, {"worker:1"});
  CHECK(losses(2));
  // A stopped one is a zombie when it goes on: its executor is replaced, its closures were.
  const int stopped = cluster.PidOf("worker:0");
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  CHECK(Eventually(seconds(30),
                   [&] { return CountEvents(cluster.Describe(id), "WORKER_LOST") == 3; }));
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  CHECK(losses(3));
  folder.Write("enough", "");

  const int code = cluster.Wait(id, seconds(120));
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log(), cluster.Output(id));
  REQUIRE(code == 0);
  CHECK(cluster.Output(id).find("rounds exact") != std::string::npos);
  CHECK(job.program().done() >= 1'000);
}

TEST_CASE_METHOD(ProgramFixture, "a program waits while its only workers are gone, then goes on",
                 "[cluster][program][CCF-03]") {
  const TempFolder folder;
  const std::string id = IdIn(Submit({}, {"rounds", folder / "enough"}));
  REQUIRE(cluster.HasPrinted(id, "rounds begin"));
  KillAndCheckNoticed(id, {"worker:0", "worker:1"});
  CHECK(Eventually(seconds(30),
                   [&] { return CountEvents(cluster.Describe(id), "WORKER_BACK") == 2; }));
  folder.Write("enough", "");
  CHECK(cluster.Wait(id, seconds(120)) == 0);
  CHECK(cluster.Output(id).find("rounds exact") != std::string::npos);
}

TEST_CASE_METHOD(ProgramFixture, "a killed executor is replaced, and its closures run again",
                 "[cluster][program]") {
  const TempFolder folder;
  const std::string id = IdIn(Submit({}, {"rounds", folder / "enough"}));
  REQUIRE(cluster.HasPrinted(id, "rounds begin"));
  const auto executor = [&] { return ExecutorPid(cluster.Describe(id), 1); };
  const int killed = executor();
  REQUIRE(killed > 0);
  const Lateness lateness;
  REQUIRE(::kill(killed, SIGKILL) == 0);
  CHECK(Eventually(seconds(30), [&] { return executor() != 0 && executor() != killed; }));
  folder.Write("enough", "");
  CHECK(cluster.Wait(id, seconds(120)) == 0);
  const v1::Job job = cluster.Describe(id);
  const v1::Event* lost = FindEvent(job, "EXECUTOR_LOST");
  CAPTURE(Story(job));
  REQUIRE(lost != nullptr);
  CHECK(lost->fields().at("how") == "signal SIGKILL");
  CHECK(cluster.Output(id).find("rounds exact") != std::string::npos);
  CHECK(LongestRound(id) <= 1'000 + 4 * lateness.worst_ms());
}

TEST_CASE_METHOD(ProgramFixture,
                 "an executor that stands still for 20 s holds a program up for 4 s, and changes "
                 "nothing when it goes on",
                 "[cluster][program][CCF-02]") {
  const TempFolder folder;
  const std::string id = IdIn(Submit({}, {"rounds", folder / "enough"}));
  REQUIRE(cluster.HasPrinted(id, "rounds begin"));
  const int stopped = ExecutorPid(cluster.Describe(id), 1);
  REQUIRE(stopped > 0);
  const Lateness lateness;
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  std::this_thread::sleep_for(seconds(20));
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  // Its links are over; the driver takes it in anew, and it works again.
  const auto says = [&] { return cluster.Describe(id).program().phase(); };
  const std::string then = says();
  CHECK(Eventually(seconds(30), [&] { return says() != then; }));
  folder.Write("enough", "");
  CHECK(cluster.Wait(id, seconds(120)) == 0);
  CAPTURE(Story(cluster.Describe(id)), lateness.worst_ms());
  CHECK(cluster.Output(id).find("rounds exact") != std::string::npos);
  CHECK(LongestRound(id) <= 4'000 + 4 * lateness.worst_ms());
}

TEST_CASE_METHOD(ProgramFixture, "a program that runs keeps its name from another one",
                 "[cluster][program]") {
  const std::string id = IdIn(Submit({"--name", "one"}, {"stop"}));
  CHECK(IdIn(Submit({"--name", "one"}, {"stop"})) == id);
  const RunResult other = Submit({"--name", "one"}, {"sum", "10"});
  CHECK(other.code == 4);
  CHECK(other.err.find("has the name \"one\" and another spec") != std::string::npos);
  // The one that runs does so still.
  CHECK(cluster.Describe(id).ended_ms() == 0);

  // Side by side, both on both workers.
  CHECK(IsUsable());
  CHECK(cluster.Muster({"stop", id}).code == 0);
  CHECK(cluster.Wait(id, seconds(60)) == 8);
}

TEST_CASE_METHOD(ProgramFixture, "a killed coordinator ends a program, or main begins anew",
                 "[cluster][program]") {
  const std::string never = IdIn(Submit({"--name", "never"}, {"stop"}));
  const std::string again =
      IdIn(Submit({"--name", "again", "--restart-policy", "on-failure"}, {"stop"}));
  REQUIRE(cluster.HasPrinted(never, "runs until it is to stop"));
  REQUIRE(cluster.HasPrinted(again, "runs until it is to stop"));
  REQUIRE(cluster.Kill("coordinator", SIGKILL));

  REQUIRE(Eventually(seconds(20), [&] { return cluster.Muster({"status"}).code == 0; }));

  CHECK(cluster.Wait(never, seconds(60)) == 1);
  CHECK(cluster.Describe(never).error().message().find("main() ended with it. Submit it again") !=
        std::string::npos);
  REQUIRE(HasBegun(again, 2));
  CHECK(cluster.Describe(again).restarts() == 1);
  CHECK(cluster.Muster({"stop", again}).code == 0);
  CHECK(cluster.Wait(again, seconds(60)) == 8);
  CHECK(ExecutorsAreGone(again));
}

TEST_CASE("a cluster that drains asks a program to stop, and its main begins anew with the next",
          "[cluster][program]") {
  const TempFolder state;
  std::string id;
  {
    ProgramFixture first{.cluster = Cluster({.ps = 0, .workers = 1, .state = state.path()})};
    id = IdIn(first.Submit({"--restart-policy", "on-failure"}, {"stop"}));
    REQUIRE(first.cluster.HasPrinted(id, "runs until it is to stop"));
    CHECK(first.cluster.Drain() == 0);
  }
  ProgramFixture second{.cluster = Cluster({.ps = 0, .workers = 1, .state = state.path()})};
  REQUIRE(second.HasBegun(id, 2));
  CHECK(second.cluster.Output(id).find("stops as asked") != std::string::npos);
  CHECK(second.cluster.Describe(id).restarts() == 0);
  CHECK(second.cluster.Muster({"stop", id}).code == 0);
  CHECK(second.cluster.Wait(id, seconds(60)) == 8);
}

TEST_CASE_METHOD(ProgramFixture, "a program that prints a flood ends well, and the rest is counted",
                 "[cluster][program]") {
  const std::string id = IdIn(Submit({}, {"print", "300000"}));
  CHECK(cluster.Wait(id, seconds(120)) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  CHECK(FindEvent(job, "WORKER_LOST") == nullptr);
  const std::string output = cluster.Output(id);
  CHECK(output.find("lines dropped") != std::string::npos);
  CHECK(output.find("driver line 299999") != std::string::npos);
}

TEST_CASE_METHOD(ProgramFixture, "a closure that prints a gigabyte costs neither leases nor disk",
                 "[cluster][program]") {
  const std::string id = IdIn(Submit({}, {"flood", "1000"}));
  CHECK(cluster.Wait(id, seconds(120)) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  CHECK(FindEvent(job, "WORKER_LOST") == nullptr);
  CHECK(FindEvent(job, "EXECUTOR_LOST") == nullptr);
  std::string output;
  for (const char* const task : {"worker:0", "worker:1"}) output += cluster.Output(id, task);
  CHECK(output.find("lines dropped") != std::string::npos);
  CHECK(output.find("flood ends") != std::string::npos);
  CHECK(output.size() < 100U << 20);
  CHECK(IsUsable());
}

TEST_CASE_METHOD(ProgramFixture, "a closure that ends its executor every time fails the program",
                 "[cluster][program]") {
  const std::string id = IdIn(Submit({}, {"segfault"}));
  CHECK(cluster.Wait(id, seconds(120)) == 1);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.Output(id));
  const v1::Event* lost = FindEvent(job, "EXECUTOR_LOST");
  REQUIRE(lost != nullptr);
  CHECK(lost->fields().at("how") == "signal SIGSEGV");
  CHECK(cluster.Output(id).find("SIGSEGV") != std::string::npos);
  CHECK(IsUsable());
}

TEST_CASE_METHOD(ProgramFixture,
                 "a closure that takes all memory fails at its limit, and its executor goes on",
                 "[cluster][program]") {
  const RunResult run = cluster.Muster(
      {"submit", "--wait", "--memory", "1GiB", "--", MUSTER_TEST_PROGRAMS "/coordinator", "fill"});
  const std::string output = cluster.Output(IdIn(run));
  CAPTURE(run.err, output);
  CHECK(run.code == 0);
  CHECK(output.find("caught RESOURCE_EXHAUSTED") != output.rfind("caught RESOURCE_EXHAUSTED"));
  CHECK(output.find("executors stay") != std::string::npos);
  CHECK(IsUsable());
}

// They stand still, and somebody may have stopped them.
TEST_CASE("a closure that waits without an end is given up after six executors",
          "[cluster][program]") {
  ProgramFixture fixture{
      .cluster = Cluster({.ps = 0, .workers = 2, .environment = {{"MUSTER_STUCK_TIMEOUT", "1s"}}})};
  const std::string id = IdIn(fixture.Submit({}, {"hang"}));
  CHECK(fixture.cluster.Wait(id, seconds(120)) == 1);
  const v1::Job job = fixture.cluster.Describe(id);
  CAPTURE(Story(job), fixture.cluster.Output(id));
  CHECK(CountEvents(job, "EXECUTOR_STUCK") >= 6);
  CHECK(fixture.cluster.Output(id).find("or it waits for something") != std::string::npos);
  CHECK(fixture.IsUsable());
}

TEST_CASE_METHOD(ProgramFixture, "what never ends is ended by stop: a closure, and a stopped main",
                 "[cluster][program]") {
  const std::string hangs = IdIn(Submit({"--name", "hangs"}, {"hang"}));
  const std::string still = IdIn(Submit({"--name", "still"}, {"stop"}));
  REQUIRE(HasBegun(hangs, 1));
  REQUIRE(cluster.HasPrinted(still, "runs until it is to stop"));
  REQUIRE(::kill(PidOfMain(still), SIGSTOP) == 0);
  CHECK(cluster.Muster({"stop", hangs, "--grace", "1s"}).code == 0);
  CHECK(cluster.Muster({"stop", still, "--grace", "1s"}).code == 0);
  CHECK(cluster.Wait(hangs, seconds(60)) == 8);
  CHECK(cluster.Wait(still, seconds(60)) == 8);
  CHECK(ExecutorsAreGone(still));
}

TEST_CASE_METHOD(ProgramFixture, "a program that never calls muster's init is refused",
                 "[cluster][program]") {
  const RunResult run = Submit({}, {"no-init"});
  CAPTURE(run.err);
  CHECK(run.code == 2);
  CHECK(cluster.Muster({"jobs"}).err.find("no jobs") != std::string::npos);
  CHECK(IsUsable());
}

TEST_CASE_METHOD(ProgramFixture, "a program whose library a host lacks is refused with its name",
                 "[cluster][program]") {
  const RunResult run = cluster.Muster({"submit", "--", MUSTER_TEST_PROGRAMS "/needs_library"});
  CAPTURE(run.err);
  CHECK(run.code == 2);
  CHECK(run.err.find("worker:0") != std::string::npos);
  CHECK(run.err.find("needs the shared library libabsent.so") != std::string::npos);
  CHECK(cluster.Muster({"jobs"}).err.find("no jobs") != std::string::npos);
  CHECK(IsUsable());
}

TEST_CASE("an executor that stands still is killed by its worker, and replaced",
          "[cluster][program]") {
  ProgramFixture fixture{
      .cluster =
          Cluster({.ps = 0, .workers = 2, .environment = {{"MUSTER_STUCK_TIMEOUT", "1500ms"}}})};
  Cluster& cluster = fixture.cluster;
  const TempFolder folder;
  const std::string id = IdIn(fixture.Submit({}, {"rounds", folder / "enough"}));
  REQUIRE(fixture.cluster.HasPrinted(id, "rounds begin"));
  int stopped = 0;
  REQUIRE(Eventually(seconds(30), [&] {
    const v1::Job job = cluster.Describe(id);
    for (const v1::TaskState& task : job.tasks()) {
      if (task.executor_pid() != 0) stopped = static_cast<int>(task.executor_pid());
    }
    return stopped != 0;
  }));

  REQUIRE(::kill(stopped, SIGSTOP) == 0);

  CHECK(Eventually(seconds(60),
                   [&] { return FindEvent(cluster.Describe(id), "EXECUTOR_STUCK") != nullptr; }));
  folder.Write("enough", "");
  CHECK(cluster.Wait(id, seconds(120)) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  const v1::Event* stuck = FindEvent(job, "EXECUTOR_STUCK");
  REQUIRE(stuck != nullptr);
  CHECK(stuck->fields().at("pid") == std::to_string(stopped));
  CHECK(fixture.cluster.Output(id).find("rounds exact") != std::string::npos);
}

}  // namespace
}  // namespace muster::testing
