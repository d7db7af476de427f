// Commands that know nothing of Muster as jobs: shell scripts on the workers of a real cluster,
// failed, killed and stopped for good measure.
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <set>

#include <sys/stat.h>

#include "common/process/child.h"
#include "tests/cluster/harness.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

struct LaunchFixture {
  Cluster cluster{{.ps = 0, .workers = 3}};
  TempFolder folder;

  // `sh SCRIPT` on so many workers; the script is sent.
  RunResult Launch(const std::string& script, std::vector<std::string> flags = {},
                   const std::string& workers = "2") {
    std::vector<std::string> line{"submit", "--workers", workers, "--send",
                                  folder.Write("train.sh", script)};
    line.insert(line.end(), flags.begin(), flags.end());
    // Everything that it starts names the folder, and is found by it.
    line.insert(line.end(), {"--", "sh", "train.sh", folder.path()});
    return cluster.Muster(line);
  }
  int Pid(const std::string& id, int rank) {
    int pid = 0;
    (void)Eventually(seconds(60), [&] {
      const v1::Job job = cluster.Describe(id);
      if (job.launch().tasks_size() <= rank) return false;
      pid = static_cast<int>(job.launch().tasks(rank).pid());
      return pid != 0;
    });
    return pid;
  }
  bool NothingIsLeft() {
    return Eventually(seconds(30), [&] { return ProcessesOf(folder.path()).empty(); });
  }
};

std::string Word(const std::string& text, const std::string& before) {
  const std::size_t at = text.find(before);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + before.size();
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

TEST_CASE_METHOD(LaunchFixture, "launched processes know each other by their environment",
                 "[cluster][launch]") {
  const std::string data = folder.Write("data.txt", "what was sent");
  const RunResult run = Launch(
      "echo rank $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE\n"
      "echo meets at=$MASTER_ADDR:$MASTER_PORT\n"
      "echo $TF_CONFIG\n"
      "cat data.txt; echo\n"
      "env | grep -i token\n"
      "echo restarts $MUSTER_RESTARTS, threads $OMP_NUM_THREADS\n",
      {"--follow", "--name", "env", "--processes-per-worker", "2", "--send", data});
  CAPTURE(run.err, cluster.up_log());
  REQUIRE(run.code == 0);
  const std::string id = IdIn(run);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));

  REQUIRE(job.launch().tasks_size() == 4);
  std::set<std::string> addresses, meetings;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string output = cluster.Output(id, "worker:" + std::to_string(rank));
    CAPTURE(output);
    const std::string number = std::to_string(rank);
    // All workers of this cluster are on one host.
    CHECK(output.find("rank " + number + " of 4, local " + number + " of 4") != std::string::npos);
    CHECK(output.find("what was sent") != std::string::npos);
    CHECK(output.find("restarts 0, threads ") != std::string::npos);
    CHECK(output.find("TOKEN") == std::string::npos);
    CHECK(output.find("\"index\": " + number) != std::string::npos);
    const v1::LaunchedTask& task = job.launch().tasks(rank);
    for (const v1::LaunchedTask& other : job.launch().tasks()) {
      CHECK(output.find("\"" + other.address() + "\"") != std::string::npos);
    }
    CHECK(task.worker().index() == static_cast<unsigned>(rank / 2));
    CHECK(task.how() == "exit code 0");
    addresses.insert(task.address());
    meetings.insert(Word(output, "at="));
  }
  CHECK(addresses.size() == 4);
  REQUIRE(meetings.size() == 1);
  CHECK_FALSE(addresses.contains(*meetings.begin()));
  CHECK(run.err.find("done: 4 processes ended with exit code 0") != std::string::npos);
  CHECK(cluster.Muster({"describe", id}).out.find("Command      sh train.sh ") !=
        std::string::npos);
}

TEST_CASE_METHOD(LaunchFixture,
                 "the first failure is the job's cause, and whatever the others have started ends",
                 "[cluster][launch]") {
  const std::string id =
      IdIn(Launch("if [ $RANK = 1 ]; then echo last on stdout; echo it broke >&2; exit 3; fi\n"
                  "export WHERE=$1\n"
                  "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &\n"
                  "echo waits; sleep 1000\n"));
  CHECK(cluster.Wait(id, seconds(120)) == 1);

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log());
  CHECK(job.error().message().find("worker:1 (rank 1 of 2, on worker:1 of ") == 0);
  CHECK(job.error().message().find("ended with exit code 3: it broke") != std::string::npos);
  const v1::Event* ended = FindEvent(job, "PROCESS_ENDED");
  REQUIRE(ended != nullptr);
  CHECK(ended->fields().at("how") == "exit code 3");
  CHECK(ended->task().index() == 1);
  CHECK(CountEvents(job, "PROCESS_ENDED") == 1);
  CHECK(job.launch().tasks(0).how() == "signal SIGTERM");
  CHECK(job.restarts() == 0);
  CHECK(NothingIsLeft());
}

TEST_CASE_METHOD(LaunchFixture, "a killed process lets all begin anew, at other addresses",
                 "[cluster][launch]") {
  const std::string id = IdIn(Launch(
      "echo at=$MASTER_PORT; if [ $MUSTER_RESTARTS = 0 ]; then echo waits; exec sleep 1000; fi\n",
      {"--restart-policy", "on-failure"}));
  REQUIRE(cluster.HasPrinted(id, "waits", "worker:0"));
  REQUIRE(cluster.HasPrinted(id, "waits", "worker:1"));
  REQUIRE(::kill(Pid(id, 1), SIGKILL) == 0);
  CHECK(cluster.Wait(id, seconds(120)) == 0);

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log());
  CHECK(job.restarts() == 1);
  CHECK(CountEvents(job, "JOB_RUNNING") == 2);
  const v1::Event* ended = FindEvent(job, "PROGRAM_ENDED");
  REQUIRE(ended != nullptr);
  CHECK(ended->fields().at("how") == "signal SIGKILL");
  CHECK(ended->message().find("all 2 processes begin anew") != std::string::npos);
  const std::string output = cluster.Output(id, "worker:0");
  const std::string first = Word(output, "at=");
  CHECK_FALSE(first.empty());
  CHECK(Word(output.substr(output.rfind("at=")), "at=") != first);
  CHECK(NothingIsLeft());
}

TEST_CASE_METHOD(LaunchFixture, "the policy of exit codes begins anew after signals alone",
                 "[cluster][launch]") {
  const std::string signal = IdIn(Launch("[ $MUSTER_RESTARTS = 0 ] && kill -SEGV $$; exit 0\n",
                                         {"--restart-policy", "exit-code", "--name", "signal"}));
  CHECK(cluster.Wait(signal, seconds(120)) == 0);
  CHECK(cluster.Describe(signal).restarts() == 1);

  const std::string code =
      IdIn(Launch("exit 9\n", {"--restart-policy", "exit-code", "--name", "code"}));
  CHECK(cluster.Wait(code, seconds(120)) == 1);
  CHECK(cluster.Describe(code).restarts() == 0);

  // Not more often than allowed.
  const std::string often = IdIn(Launch(
      "exit 9\n", {"--restart-policy", "on-failure", "--max-restarts", "2", "--name", "often"}));
  CHECK(cluster.Wait(often, seconds(120)) == 1);
  CHECK(cluster.Describe(often).restarts() == 2);
}

TEST_CASE_METHOD(LaunchFixture,
                 "a lost worker takes its processes along, and the policy says what follows",
                 "[cluster][launch]") {
  const std::string script =
      "export WHERE=$1; echo waits; setsid sleep 1000 & [ $MUSTER_RESTARTS = 0 ] && sleep 1000\n"
      "exit 0\n";
  const std::string never = IdIn(Launch(script, {"--name", "never"}));
  REQUIRE(cluster.HasPrinted(never, "waits", "worker:1"));
  REQUIRE(cluster.Kill("worker:1", SIGKILL));
  CHECK(cluster.Wait(never, seconds(120)) == 1);
  v1::Job job = cluster.Describe(never);
  CAPTURE(Story(job), cluster.up_log());
  CHECK(job.error().message().find("worker:1 (rank 1 of 2, on worker:1 of ") == 0);
  CHECK(job.error().message().find("is lost with worker:1: ") != std::string::npos);
  CHECK(NothingIsLeft());

  const std::string again =
      IdIn(Launch(script, {"--name", "again", "--restart-policy", "exit-code"}));
  REQUIRE(cluster.HasPrinted(again, "waits", "worker:0"));
  const v1::Task first = cluster.Describe(again).launch().tasks(0).worker();
  REQUIRE(cluster.Kill("worker:" + std::to_string(first.index()), SIGKILL));
  CHECK(cluster.Wait(again, seconds(120)) == 0);
  CHECK(cluster.Describe(again).restarts() == 1);
  CHECK(NothingIsLeft());
}

TEST_CASE_METHOD(LaunchFixture, "a stop asks every process, and kills those that stay",
                 "[cluster][launch]") {
  const std::string id =
      IdIn(Launch("export WHERE=$1\n"
                  "if [ $RANK = 0 ]; then trap 'echo asked; exit 0' TERM; else trap '' TERM; fi\n"
                  "echo ready; while :; do sleep 0.05; done\n"));
  REQUIRE(cluster.HasPrinted(id, "ready", "worker:0"));
  REQUIRE(cluster.HasPrinted(id, "ready", "worker:1"));
  CHECK(cluster.Muster({"stop", id, "--grace", "1s"}).code == 0);
  CHECK(cluster.Wait(id, seconds(120)) == 8);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log());
  CHECK(cluster.Output(id, "worker:0").find("asked") != std::string::npos);
  CHECK(job.launch().tasks(0).how() == "exit code 0");
  CHECK(job.launch().tasks(1).how() == "signal SIGKILL");
  CHECK(NothingIsLeft());
}

TEST_CASE_METHOD(LaunchFixture, "a killed coordinator costs a launched job nothing",
                 "[cluster][launch]") {
  const std::string id = IdIn(Launch(
      "echo waits; while [ ! -e $1/enough ]; do sleep 0.05; done; echo rank $RANK has enough\n"));
  REQUIRE(cluster.HasPrinted(id, "waits", "worker:0"));
  const int pid = Pid(id, 1);
  REQUIRE(Eventually(seconds(60),
                     [&] { return cluster.Describe(id).state() == v1::JOB_STATE_RUNNING; }));
  REQUIRE(cluster.Kill("coordinator", SIGKILL));
  // The new one may be asked when it is there.
  CHECK(Eventually(seconds(60), [&] {
    const RunResult described = cluster.Muster({"describe", id, "-o", "json"});
    return described.code == 0 && CountEvents(DescribeFrom(described), "JOB_RUNNING") == 2;
  }));
  CHECK(Pid(id, 1) == pid);
  folder.Write("enough", "");
  CHECK(cluster.Wait(id, seconds(120)) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log());
  CHECK(job.restarts() == 0);
  CHECK(cluster.Output(id, "worker:1").find("rank 1 has enough") != std::string::npos);
}

TEST_CASE_METHOD(LaunchFixture,
                 "a worker that is asked to end hands that on, and all begin anew without it",
                 "[cluster][launch]") {
  const std::string id =
      IdIn(Launch("[ $MUSTER_RESTARTS = 1 ] && exit 1\n"
                  "[ -e $1/second ] && exit 0\n"
                  "trap 'touch $1/second; echo preempted; exit 42' TERM\n"
                  "echo ready; while :; do sleep 0.05; done\n",
                  {"--restart-policy", "on-failure"}));
  REQUIRE(cluster.HasPrinted(id, "ready", "worker:0"));
  REQUIRE(cluster.HasPrinted(id, "ready", "worker:1"));
  REQUIRE(cluster.Kill("worker:1", SIGTERM));
  CHECK(cluster.Wait(id, seconds(120)) == 0);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log());
  CHECK(cluster.Output(id, "worker:1").find("preempted") != std::string::npos);
  // It counts as nobody's failure.
  CHECK(job.restarts() == 0);
  CHECK(CountEvents(job, "JOB_RUNNING") == 2);
}

TEST_CASE_METHOD(LaunchFixture, "what cannot be launched is refused, and says why",
                 "[cluster][launch]") {
  const RunResult absent =
      cluster.Muster({"submit", "--workers", "1", "--", "no-such-command", "-x"});
  CAPTURE(absent.err);
  CHECK(absent.code == 2);
  CHECK(absent.err.find("has no command \"no-such-command\" in its PATH") != std::string::npos);
  CHECK(cluster.Muster({"submit", "--workers", "1", "--dry-run", "--", "sh", "-c", "true"}).code ==
        0);
  const RunResult dry =
      cluster.Muster({"submit", "--workers", "9", "--dry-run", "--", "sh", "-c", "true"});
  CHECK(dry.code == 0);
  CHECK(dry.err.find("it would wait for 6 more workers (3 of 9 are there)") != std::string::npos);
  CHECK(cluster.Muster({"jobs"}).err.find("no jobs") != std::string::npos);

  const std::string waits = IdIn(Launch("exit 0\n", {}, "9"));
  CHECK(Eventually(seconds(30), [&] {
    return cluster.Describe(waits).message() == "waiting for 6 more workers (3 of 9 are there)";
  }));
  CHECK(cluster.Muster({"stop", waits}).code == 0);
  CHECK(cluster.Wait(waits, seconds(60)) == 8);
}

// The first loss that was printed after the nth "joined": the same text is the same number.
std::string FirstLoss(const std::string& output, int n) {
  std::size_t at = 0;
  for (int i = 0; i < n; ++i) {
    at = output.find("joined ", at == 0 ? 0 : at + 1);
    if (at == std::string::npos) return "";
  }
  at = output.find("loss ", at);
  const std::size_t end = output.find('\n', at);
  return at == std::string::npos || end == std::string::npos ? "" : output.substr(at, end - at);
}

TEST_CASE_METHOD(LaunchFixture,
                 "a program of MultiWorkerMirroredStrategy finds its peers, and one that is killed "
                 "lets all begin anew",
                 "[cluster][launch][MWM-16]") {
  // More steps than it will make.
  const std::string id = IdIn(cluster.Muster(
      {"submit", "--strategy", "multi_worker_mirrored", "--workers", "2", "--restart-policy",
       "on-failure", "--", MUSTER_TEST_PROGRAMS "/multi_worker", "100000000"}));
  const auto loss = [&](int rank, int n) {
    std::string found;
    (void)Eventually(seconds(120), [&] {
      found = FirstLoss(cluster.Output(id, "worker:" + std::to_string(rank)), n);
      return !found.empty();
    });
    return found;
  };
  const std::string first = loss(0, 1);
  CAPTURE(cluster.up_log());
  REQUIRE_FALSE(first.empty());
  CHECK(loss(1, 1) == first);
  REQUIRE(::kill(Pid(id, 1), SIGKILL) == 0);
  CHECK(loss(0, 2) == first);
  CHECK(loss(1, 2) == first);
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  CHECK(job.restarts() == 1);
  CHECK(cluster.Muster({"stop", id, "--grace", "1s"}).code == 0);
  CHECK(cluster.Wait(id, seconds(60)) == 8);
}

// What worker:1 does wrong, what all others are told, and how it ends itself.
struct Wrong {
  std::string what;
  std::vector<std::string> program;
  std::string error;
  std::string end;
};

TEST_CASE_METHOD(LaunchFixture,
                 "a process that does wrong in step is named to all, its job fails, and nothing is "
                 "left running",
                 "[cluster][launch]") {
  const std::string steps = MUSTER_TEST_PROGRAMS "/multi_worker";
  const auto phase = [&](const std::string& within, const std::string& other) {
    return std::vector<std::string>{steps + "_phases", folder.path(), within,
                                    "reduce",          other,         "worker:1"};
  };
  const auto step = [&](const std::string& how) {
    return std::vector<std::string>{steps, "1000000", how, "worker:1", "7"};
  };
  const std::vector<Wrong> wrongs{
      {"never comes", phase("10000", "absent"), "error DEADLINE_EXCEEDED", "signal SIGKILL"},
      {"ends well", phase("60000", "leave"), "error UNAVAILABLE", "exit code 0"},
      {"other calls", phase("60000", "metric"), "error INVALID_ARGUMENT", "exit code 3"},
      {"another shape", step("shape"), "error INVALID_ARGUMENT", "exit code 3"},
      {"one call more", step("extra"), "error INVALID_ARGUMENT", "exit code 3"}};
  for (const Wrong& wrong : wrongs) {
    // Who is asked to end because another one has failed first says what it was told all the same.
    std::vector<std::string> line{"submit",
                                  "--strategy",
                                  "multi_worker_mirrored",
                                  "--workers",
                                  "3",
                                  "--env",
                                  "OMP_NUM_THREADS=1",
                                  "--env",
                                  "WHERE=" + folder.path(),
                                  "--",
                                  "sh",
                                  "-c",
                                  R"(trap "" TERM; exec "$@")",
                                  "sh"};
    line.insert(line.end(), wrong.program.begin(), wrong.program.end());
    const std::string id = IdIn(cluster.Muster(line));
    CHECK(cluster.Wait(id, seconds(120)) == 1);
    const v1::Job job = cluster.Describe(id);
    CAPTURE(wrong.what, Story(job), cluster.up_log(), job.error().message());
    REQUIRE(job.launch().tasks_size() == 3);
    CHECK(job.launch().tasks(1).how() == wrong.end);
    for (const int other : {0, 2}) {
      const std::string output = cluster.Output(id, "worker:" + std::to_string(other));
      CAPTURE(output);
      CHECK(job.launch().tasks(other).how() == "exit code 3");
      const std::size_t error = output.find(wrong.error);
      REQUIRE(error != std::string::npos);
      CHECK(output.find("worker:1", error) != std::string::npos);
    }
    CHECK(job.error().message().find("ended with exit code 3") != std::string::npos);
    // What they wrote on stderr before it went wrong is not why.
    CHECK(job.error().message().find("waits for the others") == std::string::npos);
    CHECK(NothingIsLeft());
  }
}

// --- What docs/launch.md and examples/launch say.

// Runs a line of a shell in `folder`, where `muster` is this cluster's.
RunResult RunIn(const Cluster& cluster, const std::string& folder, const std::string& line) {
  RunResult result;
  std::mutex mutex;
  process::Child::Options child;
  child.argv = {"sh", "-c", "cd " + folder + " && PATH=" MUSTER_BIN ":$PATH && " + line};
  child.environment = cluster.environment();
  child.on_line = [&](auto, const std::string& text) {
    const std::scoped_lock lock(mutex);
    result.out += text + "\n";
  };
  const auto started = process::Child::Start(std::move(child));
  if (!started.ok()) throw std::runtime_error(ToString(started.status()));
  const auto ended = (*started)->Wait(std::chrono::minutes(4));
  result.code = ended.ok() && ended->signal == 0 ? ended->code : -1;
  const std::scoped_lock lock(mutex);
  return result;
}

TEST_CASE_METHOD(LaunchFixture, "the commands of docs/launch.md do what it says",
                 "[cluster][launch][docs]") {
  const std::string page = ReadAll(MUSTER_SOURCE "/docs/launch.md");
  const std::size_t begin = page.find("```sh\n") + 6;
  const std::size_t end = page.find("```", begin);
  REQUIRE(end != std::string::npos);
  folder.Write("train.sh", page.substr(begin, end - begin));
  std::vector<std::string> lines;
  for (std::size_t at = page.find("    muster ", end); at != std::string::npos && lines.size() < 3;
       at = page.find("    muster ", at + 1)) {
    lines.push_back(page.substr(at + 4, page.find('\n', at) - at - 4));
  }
  REQUIRE(lines.size() == 3);
  const RunResult submitted = RunIn(cluster, folder.path(), lines[0]);
  CAPTURE(submitted.out, cluster.up_log());
  REQUIRE(submitted.code == 0);
  const RunResult logs = RunIn(cluster, folder.path(), lines[1]);
  CAPTURE(logs.out);
  CHECK(logs.out.find("rank 1 of 2, all meet at 127.0.0.1:") != std::string::npos);
  CHECK(logs.out.find("\"type\": \"worker\", \"index\": 1") != std::string::npos);
  const RunResult described = RunIn(cluster, folder.path(), lines[2]);
  CHECK(described.out.find("PROCESS") != std::string::npos);
}

TEST_CASE_METHOD(LaunchFixture,
                 "PyTorch's DistributedDataParallel trains, is killed, begins anew and ends well",
                 "[cluster][launch][torch]") {
  // A Python with PyTorch: Debian's python3-torch, or what MUSTER_TEST_PYTHON names.
  const char* given = std::getenv("MUSTER_TEST_PYTHON");
  const std::string python = given == nullptr ? "/usr/bin/python3" : given;
  if (RunIn(cluster, folder.path(), python + " -c 'import torch.distributed' 2>/dev/null").code !=
      0) {
    WARN("skipped: " << python << " has no torch (Debian: python3-torch)");
    return;
  }
  // The workers find it under a name.
  const std::string launcher =
      folder.Write("launcher.sh", "#!/bin/sh\nexec " + python + " \"$@\"\n");
  REQUIRE(::chmod(launcher.c_str(), 0700) == 0);
  const RunResult submitted =
      RunIn(cluster, folder.path(),
            "muster submit --workers 2 --restart-policy on-failure --name ddp --send " MUSTER_SOURCE
            "/examples/launch/ddp.py -- ./launcher.sh ddp.py --state " +
                folder.path() + "/ddp.pt --epochs 30 --examples 6000");
  CAPTURE(submitted.out, cluster.up_log());
  REQUIRE(submitted.code == 0);
  REQUIRE(Eventually(seconds(180), [&] {
    return cluster.Output("ddp", "worker:1").find("rank 1 epoch 1 loss") != std::string::npos;
  }));
  (void)::kill(Pid("ddp", 1), SIGKILL);
  CHECK(cluster.Wait("ddp", seconds(240)) == 0);
  const v1::Job job = cluster.Describe("ddp");
  const std::string output = cluster.Output("ddp", "worker:0");
  CAPTURE(Story(job), output);
  CHECK(job.restarts() == 1);
  CHECK(output.find("rank 0 goes on after epoch ") != std::string::npos);
  const std::size_t accuracy = output.find("accuracy ");
  REQUIRE(accuracy != std::string::npos);
  CHECK(std::stod(output.substr(accuracy + 9)) > 0.75);
}

}  // namespace
}  // namespace muster::testing
