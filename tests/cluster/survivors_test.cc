// Each process of a program's job killed and stopped, at its beginning, while it trains, while it
// evaluates in closures and beside main(), and while the cluster drains: the program ends by
// itself, with what it should have counted (tests/programs/survivor.cc is what it does).
#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include "tests/cluster/harness.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

constexpr int kClosures = 200;
const std::string kExact = "counted 200, evaluated 20100";

struct Survivors {
  explicit Survivors(const std::string& checkpoints = "", const std::string& state = "")
      : folder(checkpoints.empty() ? own_folder.path() : checkpoints),
        cluster({.ps = 2,
                 .workers = 2,
                 .state = state,
                 .environment = {{"MUSTER_STUCK_TIMEOUT", "3s"}}}) {}

  // `held`: "closures" or "evaluator", which cannot end before LetGo(). However slowly a test finds
  // the process that it is to kill, it is there.
  void Begin(const std::string& held, int closures_per_worker = 1) {
    id = IdIn(cluster.Muster({"submit", "--evaluator", "--closures-per-worker",
                              std::to_string(closures_per_worker), "--restart-policy", "on-failure",
                              "--max-restarts", "20", "--", MUSTER_TEST_PROGRAMS "/survivor",
                              folder, std::to_string(kClosures), held}));
  }
  void LetGo() const { std::ofstream(folder + "/go"); }
  // The newest process that such an event names; 0: none.
  int PidIn(const std::string& reason) const {
    const v1::Job job = cluster.Describe(id);
    int pid = 0;
    for (const v1::Event& event : job.events()) {
      if (event.reason() == reason) pid = static_cast<int>(Field(event, "pid"));
    }
    return pid;
  }
  int PidOf(const std::string& process) const {
    if (process == "main()") return PidIn("JOB_RUNNING");
    if (process == "the evaluator") return PidIn("EVALUATOR_RUNNING");
    if (process == "an executor") return ExecutorPid(cluster.Describe(id), 1);
    return cluster.PidOf(process);
  }
  // The process that runs now; it is there.
  int Await(const std::string& process) const {
    int pid = 0;
    CHECK(Eventually(seconds(60), [&] { return (pid = PidOf(process)) > 0; }));
    return pid;
  }
  // The one that is named may end meanwhile, as executors do without their main().
  void Kill(const std::string& process) const {
    INFO(process);
    CHECK(Eventually(seconds(60), [&] {
      const int pid = PidOf(process);
      return pid > 0 && ::kill(pid, SIGKILL) == 0;
    }));
  }
  bool Ends() const {
    const int code = cluster.Wait(id, seconds(180));
    const v1::Job job = cluster.Describe(id);
    UNSCOPED_INFO(Story(job) << "\n" << cluster.Output(id) << "\n" << cluster.up_log());
    return code == 0 && cluster.Output(id).find(kExact) != std::string::npos;
  }
  // Which checkpoints have been evaluated, by what was found.
  std::set<std::string> Evaluated() const {
    std::set<std::string> values;
    const v1::Job job = cluster.Describe(id);
    for (const v1::Event& event : job.events()) {
      if (event.reason() == "EVALUATED") values.insert(event.fields().at("counter"));
    }
    return values;
  }
  bool AllAreEvaluated() const {
    const std::set<std::string> values = Evaluated();
    for (int step = 20; step <= kClosures; step += 20) {
      if (!values.contains(std::to_string(step))) return false;
    }
    return true;
  }

  const TempFolder own_folder;
  const std::string folder;
  Cluster cluster;
  std::string id;
};

const std::vector<std::string> kProcesses{"main()", "an executor", "worker:0", "ps:1",
                                          "coordinator"};

TEST_CASE("a program whose processes are killed as it begins ends as it should",
          "[cluster][program][CCF-08]") {
  for (const std::string& process : kProcesses) {
    Survivors job;
    INFO(process);
    job.Begin("closures");
    job.Kill(process);
    job.LetGo();
    CHECK(job.Ends());
  }
}

TEST_CASE("a program whose processes are killed while it trains ends as it should",
          "[cluster][program][CCF-02]") {
  Survivors job;
  job.Begin("closures");
  REQUIRE(job.cluster.HasPrinted(job.id, "trains"));
  for (const std::string& process : kProcesses) job.Kill(process);
  job.LetGo();
  CHECK(job.Ends());
  CHECK(job.AllAreEvaluated());
}

TEST_CASE("a program whose processes are killed while closures evaluate counts each example once",
          "[cluster][program][CCF-04]") {
  for (const std::string& process : kProcesses) {
    Survivors job;
    INFO(process);
    job.Begin("closures");
    REQUIRE(job.cluster.HasPrinted(job.id, "evaluates"));
    job.Kill(process);
    job.LetGo();
    CHECK(job.Ends());
  }
}

TEST_CASE("a program whose executors run several closures at a time survives the same",
          "[cluster][program][CCF-02]") {
  Survivors job;
  job.Begin("closures", 4);
  REQUIRE(job.cluster.HasPrinted(job.id, "trains"));
  for (const std::string& process : kProcesses) job.Kill(process);
  REQUIRE(job.cluster.HasPrinted(job.id, "evaluates"));
  for (const std::string process : {"an executor", "worker:1"}) job.Kill(process);
  job.LetGo();
  CHECK(job.Ends());
  CHECK(job.AllAreEvaluated());
}

TEST_CASE("a program whose processes stand still for longer than any lease ends as it should",
          "[cluster][program][CCF-02]") {
  const std::string process = GENERATE(as<std::string>(), "main()", "an executor", "worker:0",
                                       "ps:1", "coordinator", "the evaluator");
  Survivors job;
  INFO(process);
  job.Begin("closures");
  REQUIRE(job.cluster.HasPrinted(job.id, "trains"));
  const int pid = job.Await(process);
  REQUIRE(::kill(pid, SIGSTOP) == 0);
  std::this_thread::sleep_for(seconds(6));  // leases are 3 s, links wait 4 s for a ping's answer
  // Some were killed for it.
  (void)::kill(pid, SIGCONT);
  job.LetGo();
  CHECK(job.Ends());
}

TEST_CASE("an evaluator that is killed when main has ended evaluates what is left",
          "[cluster][program]") {
  Survivors job;
  job.Begin("evaluator");
  REQUIRE(job.cluster.HasPrinted(job.id, kExact));
  REQUIRE(Eventually(seconds(60),
                     [&] { return job.cluster.Describe(job.id).reason() == "EVALUATING"; }));
  job.Kill("the evaluator");
  job.LetGo();
  CHECK(job.Ends());
  CHECK(job.AllAreEvaluated());
  CHECK(CountEvents(job.cluster.Describe(job.id), "EVALUATOR_RUNNING") >= 2);
}

TEST_CASE("a coordinator that is killed when main has ended leaves the job a success",
          "[cluster][program]") {
  Survivors job;
  job.Begin("evaluator");
  REQUIRE(Eventually(seconds(60),
                     [&] { return job.cluster.Describe(job.id).reason() == "EVALUATING"; }));
  job.Kill("coordinator");
  job.LetGo();
  REQUIRE(Eventually(seconds(30), [&] { return job.cluster.Muster({"status"}).code == 0; }));
  CHECK(job.Ends());
  CHECK(job.AllAreEvaluated());
}

TEST_CASE("a program whose processes are killed while the cluster drains goes on with the next",
          "[cluster][program]") {
  const std::string process =
      GENERATE(as<std::string>(), "main()", "an executor", "worker:0", "ps:1");
  INFO(process);
  const TempFolder state;
  const TempFolder checkpoints;
  std::string id;
  {
    Survivors first(checkpoints.path(), state.path());
    first.Begin("closures");
    id = first.id;
    const int main = first.Await("main()");
    REQUIRE(first.cluster.HasPrinted(id, "trains"));
    // It cannot end before the other one does.
    REQUIRE(::kill(main, SIGSTOP) == 0);
    const int killed = first.Await(process);
    REQUIRE(::kill(first.cluster.up_pid(), SIGTERM) == 0);
    CHECK(Eventually(seconds(30), [&] {
      return FindEvent(first.cluster.Describe(id), "CLUSTER_DRAINING") != nullptr;
    }));
    // A worker that drains ends its executors, which may have come first.
    CHECK((::kill(killed, SIGKILL) == 0 || process == "an executor"));
    (void)::kill(main, SIGCONT);
    // `up` tells of a daemon that did not end as asked.
    const bool daemon = process == "worker:0" || process == "ps:1";
    CHECK(first.cluster.Drain(0) == (daemon ? 1 : 0));
  }
  Survivors second(checkpoints.path(), state.path());
  second.LetGo();
  second.id = id;
  CHECK(second.Ends());
}

}  // namespace
}  // namespace muster::testing
