// What collectives cost on a host, told to its daemons: jobs' processes go by it, and what is wrong
// with it is a job's error in words.
#include <regex>
#include <string>
#include <vector>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

const std::string kVariable = "MUSTER_COLLECTIVE_COSTS";

// Such a file as `muster bench allreduce --tune` writes.
std::string Costs() {
  std::string text = "muster-collective-costs 1\n";
  for (const std::string link : {"tcp", "unix"}) {
    for (const std::string algorithm : {"direct", "ring", "halving_doubling", "doubling", "tree"}) {
      text += link + " " + algorithm + " 10 2 0.5 0.1\n";
    }
  }
  return text;
}

std::string SubmitInStep(const Cluster& cluster, const std::vector<std::string>& command) {
  std::vector<std::string> line{"submit", "--strategy", "multi_worker_mirrored", "--workers",
                                "2",      "--env",      "OMP_NUM_THREADS=1",     "--"};
  line.insert(line.end(), command.begin(), command.end());
  return IdIn(cluster.Muster(line));
}

std::string SubmitModelJob(const Cluster& cluster, const TempFolder& folder) {
  return cluster.Submit(folder.Write(
      "job.yaml", FashionJobUnder("kind: multi_worker_mirrored\n  workers: 2", 300, "")));
}

// Whichever fails first has said it; the other may have been ended before.
bool SomebodySaid(const Cluster& cluster, const std::string& job, const std::string& text) {
  return Eventually(seconds(60), [&] {
    return (cluster.Output(job, "worker:0") + cluster.Output(job, "worker:1")).find(text) !=
           std::string::npos;
  });
}

TEST_CASE("jobs' processes find the costs that were measured and their daemon was told",
          "[cluster][launch]") {
  const TempFolder folder;
  const std::string path = folder / "costs.txt";
  const RunResult tuned = RunProgram(
      "muster", {"bench", "allreduce", "--ranks", "2", "--tune", path}, {}, seconds(300));
  CAPTURE(tuned.err);
  REQUIRE(tuned.code == 0);
  const std::string written = ReadAll(path);
  REQUIRE(written.starts_with(Costs().substr(0, Costs().find('\n'))));
  const std::regex dated(
      "# by muster bench allreduce --tune on [^\n]*, 20\\d\\d-\\d\\d-\\d\\dT"
      "\\d\\d:\\d\\d:\\d\\dZ\n");
  CHECK(std::regex_search(written, dated));
  const Cluster cluster({.ps = 0, .workers = 2, .environment = {{kVariable, path}}});

  const std::string told = SubmitInStep(cluster, {"sh", "-c", "echo told $" + kVariable});
  CHECK(cluster.HasPrinted(told, "told " + path, "worker:1"));
  const std::string program =
      SubmitInStep(cluster, {MUSTER_TEST_PROGRAMS "/multi_worker", "20", "started"});
  CHECK(cluster.Wait(program, seconds(100)) == 0);
  CHECK(cluster.HasPrinted(program, "mean ", "worker:1"));
  CHECK(cluster.Wait(SubmitModelJob(cluster, folder), seconds(100)) == 0);
}

TEST_CASE("a line of the costs that is none is the error of launched and of model jobs",
          "[cluster][launch]") {
  const TempFolder folder;
  std::string text = Costs();
  text.replace(text.find("tcp ring 10"), 11, "tcp ring ten");
  const std::string path = folder.Write("costs.txt", text);
  const std::string error =
      kVariable + ": " + path + ":3: round_us is \"ten\": a number from 0 to 6e+07 is needed";
  const Cluster cluster({.ps = 0, .workers = 2, .environment = {{kVariable, path}}});

  const std::string program = SubmitInStep(cluster, {MUSTER_TEST_PROGRAMS "/multi_worker", "20"});
  CHECK(cluster.Wait(program, seconds(100)) != 0);
  CHECK(SomebodySaid(cluster, program, error));

  const std::string job = SubmitModelJob(cluster, folder);
  CHECK(cluster.Wait(job, seconds(100)) != 0);
  const std::string described = cluster.Muster({"describe", job}).out;
  CAPTURE(described);
  CHECK(described.find(path + ":3: round_us is") != std::string::npos);
}

TEST_CASE("a file of costs that is not there is the error of launched and of model jobs",
          "[cluster][launch]") {
  const TempFolder folder;
  const std::string path = folder / "nothing.txt";
  const Cluster cluster({.ps = 0, .workers = 2, .environment = {{kVariable, path}}});

  const std::string error = kVariable + " names " + path + ", which cannot be read";
  const std::string program = SubmitInStep(cluster, {MUSTER_TEST_PROGRAMS "/multi_worker", "20"});
  CHECK(cluster.Wait(program, seconds(100)) != 0);
  CHECK(SomebodySaid(cluster, program, error));
  const std::string job = SubmitModelJob(cluster, folder);
  CHECK(cluster.Wait(job, seconds(100)) != 0);
  CHECK(cluster.Muster({"describe", job}).out.find(path) != std::string::npos);
}

}  // namespace
}  // namespace muster::testing
