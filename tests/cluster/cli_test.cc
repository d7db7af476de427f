// What a person meets who makes mistakes: every one has its exit code and its sentence.
#include <csignal>
#include <mutex>

#include <nlohmann/json.hpp>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

TEST_CASE("without a cluster the exit code is 6, a bad job file is 2 all the same", "[cluster]") {
  const TempFolder folder;
  const std::map<std::string, std::string> nowhere{
      {"XDG_RUNTIME_DIR", folder.path()}, {"MUSTER_COORDINATOR", ""}, {"MUSTER_TOKEN_FILE", ""}};
  const RunResult jobs = RunProgram("muster", {"jobs"}, nowhere);
  CHECK(jobs.code == 6);
  CHECK(jobs.err.find("muster up") != std::string::npos);
  const std::string bad = folder.Write("bad.yaml", FashionJob(300, "colour: red\n"));
  const RunResult submit = RunProgram("muster", {"submit", "-f", bad}, nowhere);
  CHECK(submit.code == 2);
  CHECK(submit.err.find("colour: unknown key") != std::string::npos);
  const std::string token = folder.Write("token", "0123456789abcdef0123456789abcdef\n");
  CHECK(
      RunProgram("muster", {"jobs", "--coordinator", "127.0.0.1:1", "--token-file", token}, nowhere)
          .code == 6);
  CHECK(RunProgram("muster", {"jobs", "--coordinator", "127.0.0.1:1"}, nowhere).code == 5);
}

TEST_CASE("a dry run without a cluster finds what is wrong with the model", "[cluster]") {
  const TempFolder folder;
  const std::map<std::string, std::string> nowhere{{"XDG_RUNTIME_DIR", folder.path()},
                                                   {"MUSTER_COORDINATOR", ""}};
  const std::string good = folder.Write("good.yaml", FashionJob(300));
  const RunResult fine = RunProgram("muster", {"submit", "-f", good, "--dry-run"}, nowhere);
  CAPTURE(fine.err);
  CHECK(fine.code == 0);
  std::string text = FashionJob(300);
  text.replace(text.find("torch.relu("), 11, "torch.reluu(");
  const std::string bad = folder.Write("bad.yaml", text);
  const RunResult wrong = RunProgram("muster", {"submit", "-f", bad, "--dry-run"}, nowhere);
  CHECK(wrong.code == 2);
  CHECK(wrong.err.find("reluu") != std::string::npos);
}

TEST_CASE("a file that may grow no further is an error and kills no command", "[cluster]") {
  // Its output is a file of half a KiB at most.
  const RunResult page = RunCommand({"/bin/sh", "-c", "ulimit -f 1; exec \"$0\" manual submit",
                                     std::string(MUSTER_BIN) + "/muster"});
  CAPTURE(page.err);
  CHECK(page.code == 1);
  CHECK(page.err.find("standard output took no more") != std::string::npos);
}

TEST_CASE("a cluster refuses strangers, unknown jobs and bad files by their codes", "[cluster]") {
  Cluster cluster({.ps = 1, .workers = 1});
  const TempFolder folder;

  const std::string wrong = folder.Write("token", "0123456789abcdef0123456789abcdef\n");
  CHECK(cluster.Muster({"jobs", "--token-file", wrong}).code == 5);
  CHECK(cluster.Muster({"describe", "nothing"}).code == 3);
  CHECK(cluster.Muster({"wait", "nothing"}).code == 3);
  CHECK(cluster.Muster({"stop", "nothing"}).code == 3);
  CHECK(cluster.Muster({"logs", "nothing"}).code == 3);
  CHECK(cluster.Muster({"checkpoints", "list", "nothing"}).code == 3);
  CHECK(cluster.Muster({"fly"}).code == 2);

  // `muster status` shows these addresses beside the coordinator's.
  const v1::ClusterStatus status = cluster.Status();
  for (const v1::TaskState& task : status.tasks()) {
    const RunResult other = cluster.Muster(
        {"--coordinator", task.grpc_address(), "--token-file", cluster.state() + "/token", "jobs"});
    CAPTURE(other.err);
    CHECK(other.code == 4);
    CHECK(other.err.find("it is another daemon than the coordinator") != std::string::npos);
  }

  std::string text = FashionJob(300);
  text.replace(text.find("learning_rate: "), 15, "learning_rate: -");
  const RunResult rate = cluster.Muster({"submit", "-f", folder.Write("rate.yaml", text)});
  CHECK(rate.code == 2);
  CHECK(rate.err.find("optimizer.learning_rate: required, above 0") != std::string::npos);

  text = FashionJob(300);
  text.replace(text.find("train-images"), 12, "train-imagos");
  const RunResult data =
      cluster.Muster({"submit", "-f", folder.Write("data.yaml", text), "--wait"});
  CAPTURE(data.err);
  CHECK(data.code != 0);
  CHECK(data.err.find("train-imagos") != std::string::npos);
  CHECK(cluster.Drain() == 0);
  CHECK(ProcessesOf(cluster.state()).empty());
}

TEST_CASE("with -o json stdout is one document, also for ends and errors", "[cluster]") {
  Cluster cluster({.ps = 1, .workers = 1});
  const TempFolder folder;
  const SumJob sums(folder, 100, 10, 2, 0);
  const auto read = [](const RunResult& result) {
    CAPTURE(result.out, result.err);
    REQUIRE(nlohmann::json::accept(result.out));
    return nlohmann::json::parse(result.out);
  };

  const auto ended = read(cluster.Muster({"submit", "-f", sums.file, "--wait", "-o", "json"}));
  CHECK(ended.at("state") == "JOB_STATE_SUCCEEDED");
  CHECK(ended.at("progress").at("step") == "20");
  CHECK(read(cluster.Muster({"wait", "sums", "-o", "json"})).at("id") == "sums-1");
  CHECK(read(cluster.Muster({"describe", "none", "-o", "json"})).at("error").at("code") == 5);
  CHECK(read(cluster.Muster({"checkpoints", "verify", "sums", "-o", "json"})).at("step") == "20");
  const RunResult exported = cluster.Muster({"checkpoints", "export", "sums", "-o", "-"});
  CHECK(exported.code == 0);
  CHECK(exported.out.find("\"dtype\":\"F32\"") != std::string::npos);

  // What was edited after its end is a new job.
  ReplaceInFile(sums.file, "epochs: 2", "epochs: 3");
  const auto again = read(cluster.Muster({"submit", "-f", sums.file, "--wait", "-o", "json"}));
  CHECK(again.at("id") == "sums-2");
  CHECK(again.at("progress").at("step") == "30");
  const RunResult story = cluster.Muster({"describe", "sums-1"});
  CHECK(story.out.find("State        SUCCEEDED\n") != std::string::npos);
  CHECK(story.out.find("on 1 parameter server (view 1)") != std::string::npos);
}

TEST_CASE("Ctrl-C leaves a job that is followed alone, and drains a cluster", "[cluster]") {
  Cluster cluster({.ps = 1, .workers = 1});
  const TempFolder folder;
  const SumJob sums(folder, 1000, 10, 1000, 40);
  std::mutex mutex;
  std::string said;
  const auto text = [&] {
    const std::scoped_lock lock(mutex);
    return said;
  };
  process::Child::Options options;
  options.argv = {std::string(MUSTER_BIN) + "/muster", "submit", "-f", sums.file, "--follow"};
  options.environment = cluster.environment();
  options.on_line = [&](std::chrono::system_clock::time_point, const std::string& line) {
    const std::scoped_lock lock(mutex);
    said += line + "\n";
  };
  const auto follow = process::Child::Start(std::move(options));
  REQUIRE(follow.ok());
  REQUIRE(Eventually(std::chrono::seconds(60),
                     [&] { return text().find("/100000 ") != std::string::npos; }));

  REQUIRE((*follow)->Signal(SIGINT).ok());
  const auto exit = (*follow)->Wait(std::chrono::seconds(10));

  CAPTURE(text());
  REQUIRE(exit.ok());
  CHECK(exit->code == 130);
  CHECK(text().find("the job goes on") != std::string::npos);
  CHECK(text().find("`muster wait sums-1` waits for it") != std::string::npos);
  CHECK(text().find("`muster stop sums-1` ends it") != std::string::npos);
  const std::uint64_t step = cluster.Describe("sums").progress().step();
  CHECK(cluster.WaitForStep("sums", step + 100, std::chrono::seconds(60)));
  CHECK(cluster.Describe("sums").ended_ms() == 0);
  CHECK(cluster.Drain(SIGINT) == 0);
  CHECK(cluster.up_log().find("draining") != std::string::npos);
  CHECK(ProcessesOf(cluster.state()).empty());
}

}  // namespace
}  // namespace muster::testing
