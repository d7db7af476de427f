// Programs whose workers come and go as jobs of a real cluster: what they have learned, whatever is
// killed, stopped or added, is compared bit for bit with a run to which nothing happens.
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "tests/cluster/harness.h"
#include "tests/support/catch.h"
#include "tests/support/lateness.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;
using Lines = std::vector<std::string>;

const std::string kProgram = MUSTER_TEST_PROGRAMS "/elastic";

// Lines of `muster logs` without their time and task.
std::string Bare(const std::string& logged) {
  std::string bare;
  std::istringstream lines(logged);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find("  ");
    if (begin != std::string::npos) bare += line.substr(begin + 2) + "\n";
  }
  return bare;
}

// "step 7" -> its loss, and "parameter ..." -> itself; throws where one step has two losses.
std::map<std::string, std::string> Learned(const std::string& output) {
  std::map<std::string, std::string> learned;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string kind, name, value;
    words >> kind >> name >> value;
    if (kind == "parameter") value = line;
    if (kind != "parameter" && kind != "step") continue;
    const auto [known, first] = learned.try_emplace(kind + " " + name, value);
    if (known->second != value) throw std::runtime_error(line + ", but was " + known->second);
  }
  return learned;
}

struct ElasticFixture {
  explicit ElasticFixture(int workers = 3) : cluster({.ps = 0, .workers = workers}) {}

  std::string Submit(const std::string& workers, const Lines& arguments, const Lines& flags = {}) {
    Lines line{"submit",         "--strategy", "multi_worker_mirrored", "--workers", workers,
               "--max-restarts", "50"};
    line.insert(line.end(), flags.begin(), flags.end());
    line.insert(line.end(), {"--env", "OMP_NUM_THREADS=1", "--", kProgram});
    line.insert(line.end(), arguments.begin(), arguments.end());
    const RunResult run = cluster.Muster(line);
    INFO(run.err);
    return IdIn(run);
  }
  v1::LaunchedTask Process(const std::string& id, std::uint32_t place) {
    const v1::Job job = cluster.Describe(id);
    for (const v1::LaunchedTask& task : job.launch().tasks()) {
      if (task.task().index() == place) return task;
    }
    return {};
  }
  // The pid of the process in that place, another one than `not_this`.
  int Pid(const std::string& id, std::uint32_t place, int not_this = 0) {
    int pid = 0;
    (void)Eventually(seconds(90), [&] {
      const v1::LaunchedTask task = Process(id, place);
      pid = task.state() == "running" ? static_cast<int>(task.pid()) : 0;
      return pid != 0 && pid != not_this;
    });
    return pid;
  }
  std::string Output(const std::string& id, int place) {
    return cluster.Output(id, "worker:" + std::to_string(place));
  }
  // Steps that process has done since it had `before` bytes of output.
  bool Steps(const std::string& id, int place, std::size_t before, const std::string& how_many) {
    return Eventually(seconds(120), [&] {
      const std::string output = Output(id, place);
      return output.size() > before && output.find(how_many + "\n", before) != std::string::npos;
    });
  }
  // After `loss` that process makes steps of so many, soon: who is killed is noticed at once.
  void CheckGoesOn(const std::string& id, int place, const std::string& how_many,
                   const std::function<void()>& loss) {
    constexpr std::chrono::milliseconds kGoesOn{5'000};
    const std::size_t before = Output(id, place).size();
    const Lateness lateness;
    const auto began = std::chrono::steady_clock::now();
    loss();
    CHECK(Steps(id, place, before, how_many));
    const auto took =
        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began);
    CAPTURE(took.count(), lateness.worst_ms());
    CHECK(took.count() - 4 * lateness.worst_ms() <= kGoesOn.count());
  }
  // All that its processes have printed is what one alone prints, but for `most_lost` lines.
  void CheckLearned(const std::string& id, const Lines& arguments, int places,
                    std::size_t most_lost = 0) {
    Lines alone = arguments;
    std::erase_if(
        alone, [](const std::string& one) { return one == "slow" || one.starts_with("marks="); });
    const RunResult reference = RunProgram(kProgram, alone, {{"OMP_NUM_THREADS", "1"}});
    REQUIRE(reference.code == 0);
    std::string all;
    for (int place = 0; place < places; ++place) all += Bare(Output(id, place));
    auto expected = Learned(reference.out);
    const auto learned = Learned(all);
    const std::size_t wanted = expected.size();
    std::erase_if(expected, [&](const auto& line) { return !learned.contains(line.first); });
    CHECK(wanted - expected.size() <= most_lost);
    CHECK(learned == expected);
  }

  Cluster cluster;
};

TEST_CASE_METHOD(ElasticFixture,
                 "a launched elastic job outlives killed processes, stopped ones and lost workers, "
                 "and learns the same bits",
                 "[cluster][launch][elastic]") {
  const Lines arguments{"1500", "slow", "adam"};
  const std::string id = Submit("1:3", arguments);
  REQUIRE(Steps(id, 0, 0, "of 3"));

  // A process of it: the others go on, and another one takes its place.
  const int killed = Pid(id, 1);
  CheckGoesOn(id, 0, "of 2", [&] { REQUIRE(::kill(killed, SIGKILL) == 0); });
  CHECK(Pid(id, 1, killed) != killed);
  std::size_t before = Output(id, 0).size();
  CHECK(Steps(id, 0, before, "of 3"));

  // One that stands still comes back by itself.
  const int stopped = Pid(id, 2);
  before = Output(id, 0).size();
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  CHECK(Steps(id, 0, before, "of 2"));
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  before = Output(id, 0).size();
  CHECK(Steps(id, 0, before, "of 3"));

  // A worker's daemon takes its process along; `up` starts another daemon, which gets one.
  const v1::Task worker = Process(id, 0).worker();
  CheckGoesOn(id, 1, "of 2",
              [&] { REQUIRE(cluster.Kill("worker:" + std::to_string(worker.index()), SIGKILL)); });
  before = Output(id, 1).size();
  CHECK(Steps(id, 1, before, "of 3"));
  CHECK(cluster.Muster({"describe", id}).out.find("3 processes of 1 to 3") != std::string::npos);

  CHECK(cluster.Wait(id, seconds(200)) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log());
  CHECK(CountEvents(job, "JOB_RUNNING") == 1);
  CHECK(CountEvents(job, "PROCESS_ENDED") == 1);
  CHECK(job.restarts() == 1);
  CheckLearned(id, arguments, 4);
}

TEST_CASE_METHOD(ElasticFixture,
                 "a process that is killed, stopped or loses its worker in the midst of joining a "
                 "launched elastic job costs the others no bit",
                 "[cluster][launch][elastic]") {
  const TempFolder marks;
  const Lines arguments{"1000", "slow", "adam", "marks=" + marks.path()};
  const std::string id = Submit("1:3", arguments);
  REQUIRE(Steps(id, 0, 0, "of 3"));
  int replaced = 0;
  for (const std::string loss : {"killed", "stopped", "worker"}) {
    CAPTURE(loss);
    const int before = Pid(id, 1);
    // Sends itself the signal when a part of the state has come, and then no more.
    const int signal = loss == "killed" ? SIGKILL : SIGSTOP;
    marks.Write("worker:1.given", std::to_string(signal));
    const std::size_t said = Output(id, 1).size();
    REQUIRE(::kill(before, SIGKILL) == 0);
    REQUIRE(Eventually(seconds(60), [&] {
      return Output(id, 1).find(fmt::format("signal {}", signal), said) != std::string::npos;
    }));
    std::size_t steps = Output(id, 0).size();

    CHECK(Steps(id, 0, steps, "of 2"));

    replaced += loss == "killed" ? 2 : 1;
    if (loss == "stopped") REQUIRE(::kill(Pid(id, 1, before), SIGCONT) == 0);
    if (loss == "worker") {
      const v1::Task worker = Process(id, 1).worker();
      REQUIRE(cluster.Kill("worker:" + std::to_string(worker.index()), SIGKILL));
    }
    steps = Output(id, 0).size();
    CHECK(Steps(id, 0, steps, "of 3"));
  }

  CHECK(cluster.Wait(id, seconds(200)) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log());
  CHECK(CountEvents(job, "JOB_RUNNING") == 1);
  CHECK(CountEvents(job, "PROCESS_ENDED") == replaced);
  CheckLearned(id, arguments, 4);
}

TEST_CASE("an elastic job below its least waits, and goes on when a worker is back",
          "[cluster][launch][elastic]") {
  ElasticFixture with(2);
  const Lines arguments{"600", "slow"};
  const std::string id = with.Submit("2:2", arguments);
  REQUIRE(with.Steps(id, 0, 0, "of 2"));

  // The daemon is lost, and takes its process along, which another one may not replace yet.
  const int daemon = with.cluster.PidOf("worker:1");
  REQUIRE(::kill(daemon, SIGSTOP) == 0);
  REQUIRE(::kill(with.Pid(id, 1), SIGKILL) == 0);
  CHECK(Eventually(seconds(60),
                   [&] { return with.cluster.Describe(id).reason() == "WAITING_FOR_WORKERS"; }));
  const std::string said = with.cluster.Muster({"describe", id}).out;
  CHECK(said.find("1 process of at least 2 is there: they wait for 1 more worker") !=
        std::string::npos);
  CHECK(with.Output(id, 0).find("step 600 ") == std::string::npos);
  REQUIRE(::kill(daemon, SIGCONT) == 0);

  CHECK(with.cluster.Wait(id, seconds(200)) == 0);
  CAPTURE(Story(with.cluster.Describe(id)), with.cluster.up_log());
  with.CheckLearned(id, arguments, 3);
}

TEST_CASE("a worker that comes when the others have done all steps is no failure of the job",
          "[cluster][launch][elastic]") {
  ElasticFixture with(2);
  const TempFolder folder;
  const std::string go = folder.path() + "/go";
  const int daemon = with.cluster.PidOf("worker:1");
  REQUIRE(::kill(daemon, SIGSTOP) == 0);
  REQUIRE(Eventually(seconds(60), [&] { return with.cluster.PidOf("worker:1") == 0; }));
  const std::string id = with.Submit("1:2", {"5", "stay=" + go});
  REQUIRE(Eventually(seconds(60),
                     [&] { return with.Output(id, 0).find("step 5 ") != std::string::npos; }));

  REQUIRE(::kill(daemon, SIGCONT) == 0);
  CHECK(Eventually(seconds(60),
                   [&] { return CountEvents(with.cluster.Describe(id), "PROCESS_LEFT") == 1; }));
  std::ofstream(go).flush();

  CHECK(with.cluster.Wait(id, seconds(100)) == 0);
  const v1::Job job = with.cluster.Describe(id);
  CAPTURE(Story(job), with.cluster.up_log(), with.Output(id, 1));
  CHECK(CountEvents(job, "PROCESS_ENDED") == 0);
  CHECK(job.restarts() == 0);
  CHECK(with.Output(id, 1).find("nothing is left to do") != std::string::npos);
}

TEST_CASE_METHOD(ElasticFixture,
                 "a lost worker whose process lives is replaced, and too many are one too many",
                 "[cluster][launch][elastic]") {
  const Lines arguments{"1500", "slow"};
  const std::string id = Submit("1:2", arguments);
  REQUIRE(Steps(id, 0, 0, "of 2"));
  const std::string second = "worker:" + std::to_string(Process(id, 1).worker().index());
  const int daemon = cluster.PidOf(second);

  // Nothing is heard of the daemon, but its process trains on with the others.
  REQUIRE(::kill(daemon, SIGSTOP) == 0);
  CHECK(Steps(id, 0, 0, "of 3"));
  CHECK(Process(id, 1).state() == "lost");
  REQUIRE(::kill(daemon, SIGCONT) == 0);
  const std::size_t before = Output(id, 0).size();
  CHECK(Steps(id, 0, before, "of 2"));

  // A worker that is asked to end takes its process along; nothing of that is a failure.
  REQUIRE(cluster.Kill(second, SIGTERM));
  CHECK(cluster.Wait(id, seconds(200)) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log());
  CHECK(job.restarts() == 0);
  CHECK(CountEvents(job, "PROCESS_ENDED") == 0);
  CHECK(CountEvents(job, "PROCESS_LEFT") >= 1);
  CheckLearned(id, arguments, 4);
}

TEST_CASE_METHOD(ElasticFixture,
                 "a killed coordinator costs an elastic job nothing, and a program that needs all "
                 "its workers is refused",
                 "[cluster][launch][elastic]") {
  const Lines arguments{"900", "slow"};
  const std::string id = Submit("1:3", arguments);
  REQUIRE(Steps(id, 0, 0, "of 3"));
  std::set<int> pids;
  for (std::uint32_t place = 0; place < 3; ++place) pids.insert(Pid(id, place));
  REQUIRE(cluster.Kill("coordinator", SIGKILL));
  const std::size_t before = Output(id, 0).size();
  CHECK(Steps(id, 0, before, "of 3"));
  CHECK(cluster.Wait(id, seconds(200)) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log());
  std::set<int> after;
  for (const v1::LaunchedTask& task : job.launch().tasks())
    after.insert(static_cast<int>(task.pid()));
  CHECK(after == pids);
  CHECK(job.restarts() == 0);
  // Lines that it had not written yet went with the coordinator.
  CheckLearned(id, arguments, 3, 50);

  // So is a MirroredStrategy that would have all of them.
  for (const Lines& how : {Lines{"100000000"}, Lines{"100000000", "mirrored"}}) {
    Lines line{"submit",
               "--strategy",
               "multi_worker_mirrored",
               "--workers",
               "1:2",
               "--",
               MUSTER_TEST_PROGRAMS "/multi_worker"};
    line.insert(line.end(), how.begin(), how.end());
    const std::string refused = IdIn(cluster.Muster(line));
    CHECK(cluster.Wait(refused, seconds(120)) == 1);
    const v1::Job ended = cluster.Describe(refused);
    CHECK(ended.error().message().find("ended with exit code 3") != std::string::npos);
    CHECK(ended.error().message().find("as any other in its place would") != std::string::npos);
    // Once, whatever the restart policy.
    CHECK(ended.restarts() == 0);
    CHECK((Output(refused, 0) + Output(refused, 1))
              .find("submitted with --workers 1:2, so its processes come and go") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace muster::testing
