// Programs whose workers stand still, one and all: while closures run, while workers build what is
// their own, and while they share a pass over data (tests/programs/servers.cc is what they do).
// What was counted is exact, whatever those do that wake up. And programs whose workers are killed,
// one and all, in the midst of that building, or of closures at a moment that is known.
#include <algorithm>
#include <csignal>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/cluster/harness.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

// The lease, and what goes before and after it.
constexpr std::int64_t kNoticedMs = 4'000;
// A killed one's connection is reset.
constexpr std::int64_t kKilledNoticedMs = 1'000;

// Processes that stand still until they go on.
class StandStill {
 public:
  explicit StandStill(std::vector<int> pids) : pids_(std::move(pids)) {
    for (const int pid : pids_) {
      REQUIRE(pid > 0);
      REQUIRE(::kill(pid, SIGSTOP) == 0);
    }
  }
  ~StandStill() { GoOn(); }
  StandStill(const StandStill&) = delete;
  StandStill& operator=(const StandStill&) = delete;
  // In their order.
  void GoOn() {
    for (const int pid : std::exchange(pids_, {})) (void)::kill(pid, SIGCONT);
  }

 private:
  std::vector<int> pids_;
};

struct Stopped {
  Cluster cluster{{.ps = 2, .workers = 2}};
  const TempFolder folder = {};
  std::string id = {};

  void Submit(const std::vector<std::string>& arguments) {
    std::vector<std::string> line{"submit", "--strategy", "parameter_server", "--",
                                  MUSTER_TEST_PROGRAMS "/servers"};
    line.insert(line.end(), arguments.begin(), arguments.end());
    id = IdIn(cluster.Muster(line));
  }
  v1::Job Now() const { return cluster.Describe(id); }
  int Executor(std::uint32_t worker) const {
    int pid = 0;
    REQUIRE(Eventually(seconds(60), [&] { return (pid = ExecutorPid(Now(), worker)) > 0; }));
    return pid;
  }
  // A worker's daemon and its executor; whoever is first also goes on first.
  std::vector<int> Worker(std::uint32_t worker) const {
    return {Executor(worker), cluster.PidOf("worker:" + std::to_string(worker))};
  }
  std::vector<int> Executors() const { return {Executor(0), Executor(1)}; }
  std::vector<int> All() const {
    std::vector<int> pids = Executors();
    for (const int daemon : Daemons()) pids.push_back(daemon);
    return pids;
  }

  std::vector<int> Daemons() const {
    return {cluster.PidOf("worker:0"), cluster.PidOf("worker:1")};
  }

  // So many more workers than `before` are lost, each in good time.
  void CheckLost(int before, int workers, std::int64_t stopped_ms, const Lateness& lateness,
                 std::int64_t limit_ms = kNoticedMs) const {
    CHECK(Eventually(seconds(30),
                     [&] { return CountEvents(Now(), "WORKER_LOST") == before + workers; }));
    const v1::Job job = Now();
    CAPTURE(Story(job), stopped_ms, lateness.worst_ms());
    CHECK(job.ended_ms() == 0);
    for (const v1::Event& event : job.events()) {
      if (event.reason() != "WORKER_LOST" || event.time_ms() < stopped_ms) continue;
      CHECK(event.time_ms() - stopped_ms <= limit_ms + 4 * lateness.worst_ms());
    }
  }
  void CheckBack() const {
    CHECK(Eventually(seconds(30), [&] {
      const v1::Job job = Now();
      return CountEvents(job, "WORKER_BACK") == CountEvents(job, "WORKER_LOST");
    }));
  }
  // The workers, with their daemons, stand still until that is noticed, and `meanwhile` is over.
  void Stop(
      const std::vector<int>& pids, int workers,
      const std::function<void()>& meanwhile = [] {}) const {
    const int before = CountEvents(Now(), "WORKER_LOST");
    const Lateness lateness;
    const std::int64_t stopped = NowMs();
    StandStill still(pids);
    CheckLost(before, workers, stopped, lateness);
    meanwhile();
    still.GoOn();
  }
  void StopAndGoOn(const std::vector<int>& pids, int workers) const {
    Stop(pids, workers);
    CheckBack();
  }
  // kill -9 to these daemons of workers; each loss is told of, and they come back.
  void Kill(const std::vector<int>& pids) const {
    const int before = CountEvents(Now(), "WORKER_LOST");
    const Lateness lateness;
    const std::int64_t killed = NowMs();
    for (const int pid : pids) {
      REQUIRE(pid > 1);
      REQUIRE(::kill(pid, SIGKILL) == 0);
    }
    CheckLost(before, static_cast<int>(pids.size()), killed, lateness, kKilledNoticedMs);
    CheckBack();
  }
  void KillOne() const { Kill({cluster.PidOf("worker:1")}); }
  void KillAll() const { Kill(Daemons()); }
  // The executors of all workers stand still until the driver has taken back what they had.
  void StopExecutorsAndGoOn() const {
    StandStill still(Executors());
    CHECK(Eventually(seconds(20), [&] {
      const v1::Job job = Now();
      return job.program().in_flight() == 0 && job.program().queued() > 0;
    }));
    const std::uint64_t done = Now().program().done();
    still.GoOn();
    CHECK(Eventually(seconds(30), [&] { return Now().program().done() > done; }));
  }
  void CheckEnd(const std::string& result) const {
    const int code = cluster.Wait(id, seconds(120));
    CAPTURE(Story(Now()), cluster.Output(id), cluster.up_log());
    CHECK(code == 0);
    CHECK(cluster.Output(id).find(result) != std::string::npos);
  }
};

TEST_CASE_METHOD(Stopped, "closures count once though all workers stand still at once",
                 "[cluster][program][CCF-02][CCF-03]") {
  Submit({"rounds", folder / "enough"});
  REQUIRE(cluster.HasPrinted(id, "rounds begin"));
  StopAndGoOn(All(), 2);
  // Again, and now the daemons wake up first, and end those whom nobody wants any more.
  std::vector<int> daemons_first = All();
  std::ranges::reverse(daemons_first);
  StopAndGoOn(daemons_first, 2);
  folder.Write("enough", "");
  CheckEnd("rounds exact");
}

TEST_CASE_METHOD(Stopped,
                 "a worker that stands still for 20 s holds no program up and changes nothing when "
                 "it goes on",
                 "[cluster][program][CCF-02]") {
  constexpr std::int64_t kStoppedMs = 20'000;
  Submit({"rounds", folder / "enough"});
  REQUIRE(cluster.HasPrinted(id, "rounds begin"));
  const std::vector<int> worker = Worker(1);
  const std::int64_t stopped = NowMs();
  Stop(worker, 1, [&] {
    // To its end, and not only at first.
    const std::uint64_t noticed = Now().program().done();
    CHECK(Eventually(seconds(60), [&] { return NowMs() - stopped >= kStoppedMs; }));
    const std::uint64_t done = Now().program().done();
    CHECK(done > noticed + 100);
    CHECK(Eventually(seconds(30), [&] { return Now().program().done() > done; }));
  });
  CheckBack();
  folder.Write("enough", "");
  CheckEnd("rounds exact");
}

TEST_CASE_METHOD(Stopped, "closures count once though all executors stand still at once",
                 "[cluster][program][CCF-02][CCF-03]") {
  Submit({"rounds", folder / "enough"});
  REQUIRE(cluster.HasPrinted(id, "rounds begin"));
  StopExecutorsAndGoOn();
  folder.Write("enough", "");
  CheckEnd("rounds exact");
  CHECK(FindEvent(Now(), "WORKER_LOST") == nullptr);
}

// In the midst of the function that makes it.
struct StoppedInBuild : Stopped {
  void Build(const std::string& what) {
    Submit({what, folder.path(), "200"});
    REQUIRE(HaveBegun(2));
  }
  bool HaveBegun(std::size_t builds) const {
    return Eventually(seconds(60), [&] { return ReadAll(folder / "builds").size() == builds; });
  }
  void Open() const { folder.Write("gate", ""); }
};

TEST_CASE_METHOD(StoppedInBuild,
                 "a worker that stands still while it builds what is its own holds no program up",
                 "[cluster][program][CCF-06]") {
  Build(GENERATE(as<std::string>(), "built", "valued"));
  const Lateness lateness;
  const std::int64_t stopped = NowMs();
  const StandStill still(Worker(1));
  CheckLost(0, 1, stopped, lateness);
  Open();
  // It stands still to the end.
  CheckEnd("built exact");
}

TEST_CASE_METHOD(StoppedInBuild,
                 "all workers that stand still while they build what is their own build it again",
                 "[cluster][program][CCF-06]") {
  Build(GENERATE(as<std::string>(), "built", "valued"));
  StopAndGoOn(All(), 2);
  CHECK(HaveBegun(4));
  Open();
  CheckEnd("built exact");
}

TEST_CASE_METHOD(StoppedInBuild,
                 "all workers that are killed while they build what is their own build it again",
                 "[cluster][program][CCF-06]") {
  Build(GENERATE(as<std::string>(), "built", "valued"));
  KillAll();
  CHECK(HaveBegun(4));
  // And those who build it again.
  KillAll();
  CHECK(HaveBegun(6));
  Open();
  CheckEnd("built exact");
}

TEST_CASE_METHOD(StoppedInBuild,
                 "a worker that is killed while it builds what is its own builds it again",
                 "[cluster][program][CCF-06]") {
  Build(GENERATE(as<std::string>(), "built", "valued"));
  KillOne();
  // The other one builds on.
  CHECK(HaveBegun(3));
  Open();
  CheckEnd("built exact");
}

TEST_CASE("all executors that stand still while they build what is their own are replaced",
          "[cluster][program][CCF-06]") {
  StoppedInBuild f{{.cluster = Cluster(
                        {.ps = 2, .workers = 2, .environment = {{"MUSTER_STUCK_TIMEOUT", "3s"}}})}};
  f.Build("built");
  const StandStill still(f.Executors());
  CHECK(Eventually(seconds(60), [&] { return CountEvents(f.Now(), "EXECUTOR_STUCK") == 2; }));
  CHECK(f.HaveBegun(4));
  f.Open();
  f.CheckEnd("built exact");
}

// Closures that stand behind gates, one on each of two workers (servers.cc, "gated").
struct StoppedAtGates : Stopped {
  void Begin() {
    Submit({"gated", folder.path(), "20"});
    REQUIRE(Have("begun", 2));
  }
  // So many have, at least; those that run again anew.
  bool Have(const std::string& what, std::size_t closures) const {
    return Eventually(seconds(60), [&] { return ReadAll(folder / what).size() >= closures; });
  }
  void Open(const std::string& gate) const { folder.Write(gate, ""); }
};

TEST_CASE_METHOD(StoppedAtGates,
                 "closures whose workers are killed and stopped before they write count once",
                 "[cluster][program][CCF-02][CCF-03]") {
  Begin();
  KillOne();
  REQUIRE(Have("begun", 3));
  KillAll();
  REQUIRE(Have("begun", 5));
  // Those that stood still write when they wake up, too, beside those that have their closures now.
  Stop(All(), 2, [this] { Open("write"); });
  CheckBack();
  REQUIRE(Have("written", 2));
  Open("end");
  CheckEnd("built exact");
}

TEST_CASE_METHOD(StoppedAtGates,
                 "closures whose workers are killed and stopped when they have written count once",
                 "[cluster][program][CCF-02][CCF-03]") {
  Begin();
  Open("write");
  REQUIRE(Have("written", 2));
  KillOne();
  REQUIRE(Have("written", 3));
  KillAll();
  REQUIRE(Have("written", 5));
  // Those that stood still end when they wake up, and say so to nobody.
  Stop(All(), 2, [this] { Open("end"); });
  CheckEnd("built exact");
}

TEST_CASE_METHOD(Stopped,
                 "under exactly_once each sample is used once though workers stand still, one and "
                 "all",
                 "[cluster][program][CCF-02][CCF-03]") {
  Submit({"samples", folder / "enough"});
  REQUIRE(cluster.HasPrinted(id, "samples begin"));
  StopAndGoOn(Worker(1), 1);
  StopExecutorsAndGoOn();
  StopAndGoOn(All(), 2);
  folder.Write("enough", "");
  CheckEnd("samples exact");
}

}  // namespace
}  // namespace muster::testing
