// Programs with variables on parameter servers, on real daemons: trained, counted exactly while
// workers are killed, and told when a server is (tests/programs/servers.cc is what they do).
#include <csignal>
#include <thread>

#include "tests/cluster/harness.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

const std::string kProgram = MUSTER_TEST_PROGRAMS "/servers";

struct ServersFixture {
  Cluster cluster{{.ps = 2, .workers = 2}};

  // The id of one that was taken.
  std::string Submit(const std::vector<std::string>& arguments) {
    std::vector<std::string> flags{"submit", "--strategy", "parameter_server", "--", kProgram};
    flags.insert(flags.end(), arguments.begin(), arguments.end());
    return IdIn(cluster.Muster(flags));
  }
};

// How often a text holds a piece.
std::size_t CountOf(const std::string& text, const std::string& piece) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(piece, at)) != std::string::npos; at += piece.size()) {
    ++count;
  }
  return count;
}

TEST_CASE_METHOD(ServersFixture, "a program trains variables that live on parameter servers",
                 "[cluster][program][CCO-07]") {
  const std::string id = Submit({"train", "300"});
  const int code = cluster.Wait(id, seconds(120));
  CAPTURE(cluster.Output(id), cluster.up_log());
  CHECK(code == 0);
  CHECK(cluster.Output(id).find("error small") != std::string::npos);
}

TEST_CASE_METHOD(ServersFixture,
                 "a counter on a server counts each closure once, though workers are killed",
                 "[cluster][program][CCF-02][CCF-04]") {
  const TempFolder folder;
  const std::string id = Submit({"rounds", folder / "enough"});
  REQUIRE(cluster.HasPrinted(id, "rounds begin"));
  for (int n = 1; n <= 2; ++n) {
    REQUIRE(cluster.Kill("worker:1", SIGKILL));
    CHECK(Eventually(seconds(30), [&] {
      const v1::Job job = cluster.Describe(id);
      return CountEvents(job, "WORKER_LOST") == n && CountEvents(job, "WORKER_BACK") == n;
    }));
  }
  folder.Write("enough", "");
  const int code = cluster.Wait(id, seconds(120));
  CAPTURE(Story(cluster.Describe(id)), cluster.up_log(), cluster.Output(id));
  CHECK(code == 0);
  CHECK(cluster.Output(id).find("rounds exact") != std::string::npos);
}

// The line that begins so.
std::string LineOf(const std::string& text, const std::string& begin) {
  const std::size_t at = text.find(begin);
  return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
}

TEST_CASE_METHOD(ServersFixture,
                 "synchronous steps of a program have the same bits, though executors are killed",
                 "[cluster][program]") {
  const std::string alone = Submit({"steps", "400"});
  REQUIRE(cluster.Wait(alone, seconds(120)) == 0);
  const std::string id = Submit({"steps", "400", "again"});
  REQUIRE(cluster.HasPrinted(id, "scheduled 400"));
  int killed = 0;
  for (std::uint32_t index = 0; index < 2; ++index) {
    REQUIRE(Eventually(seconds(60),
                       [&] { return cluster.Describe(id).program().done() >= 60 * (index + 1); }));
    const v1::Job job = cluster.Describe(id);
    for (const v1::TaskState& task : job.tasks()) {
      if (task.task().type() != "worker" || task.task().index() != index) continue;
      if (task.executor_pid() > 0 && ::kill(task.executor_pid(), SIGKILL) == 0) ++killed;
    }
  }
  const int code = cluster.Wait(id, seconds(120));
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.Output(id), killed);
  REQUIRE(code == 0);
  CHECK(CountEvents(job, "EXECUTOR_LOST") >= 1);
  const std::string bits = LineOf(cluster.Output(alone), "bits ");
  CHECK(bits.size() > 20);
  CHECK(LineOf(cluster.Output(id), "bits ") == bits);
}

TEST_CASE_METHOD(ServersFixture,
                 "closures wait for a server that stands still, and each counts once",
                 "[cluster][program][CCF-14]") {
  const TempFolder folder;
  const std::string id = Submit({"rounds", folder / "enough"});
  REQUIRE(cluster.HasPrinted(id, "rounds begin"));
  const int server = cluster.PidOf("ps:0");
  REQUIRE(server > 0);
  REQUIRE(::kill(server, SIGSTOP) == 0);
  const auto stopped = std::chrono::steady_clock::now();
  RunResult described;
  const bool named = Eventually(seconds(20), [&] {
    described = cluster.Muster({"describe", id});
    return described.out.find("PS_LOST") != std::string::npos;
  });
  // Longer than its lease, and than a client waits for a sign of life.
  std::this_thread::sleep_until(stopped + seconds(6));
  REQUIRE(::kill(server, SIGCONT) == 0);
  CAPTURE(described.out);
  CHECK(named);
  CHECK(described.out.find("ps:0 (nothing was heard of it for") != std::string::npos);
  folder.Write("enough", "");
  const int code = cluster.Wait(id, seconds(120));
  CAPTURE(Story(cluster.Describe(id)), cluster.up_log(), cluster.Output(id));
  CHECK(code == 0);
  CHECK(cluster.Output(id).find("rounds exact") != std::string::npos);
}

TEST_CASE_METHOD(ServersFixture, "a program is told by PsUnavailable that a server stands still",
                 "[cluster][program][CCF-10]") {
  const TempFolder folder;
  const std::string id = Submit({"lost", folder / "begun"});
  REQUIRE(cluster.HasPrinted(id, "begun"));
  const int server = cluster.PidOf("ps:0");
  REQUIRE(server > 0);
  REQUIRE(::kill(server, SIGSTOP) == 0);
  const int code = cluster.Wait(id, seconds(120));
  (void)::kill(server, SIGCONT);
  CAPTURE(cluster.Output(id), cluster.up_log());
  CHECK(code == 0);
  CHECK(cluster.Output(id).find("lost ps:0") != std::string::npos);
}

TEST_CASE_METHOD(ServersFixture, "a program is told by PsUnavailable that a server was killed",
                 "[cluster][program][CCF-10]") {
  const TempFolder folder;
  const std::string id = Submit({"lost", folder / "begun"});
  REQUIRE(cluster.HasPrinted(id, "begun"));
  REQUIRE(cluster.Kill("ps:0", SIGKILL));
  const int code = cluster.Wait(id, seconds(120));
  CAPTURE(cluster.Output(id), cluster.up_log());
  CHECK(code == 0);
  CHECK(cluster.Output(id).find("lost ps:0") != std::string::npos);
}

TEST_CASE_METHOD(ServersFixture,
                 "a server and a worker that are killed together are PsUnavailable, and no wait",
                 "[cluster][program][CCF-11]") {
  const TempFolder folder;
  const std::string id = Submit({"lost", folder / "begun"});
  REQUIRE(cluster.HasPrinted(id, "begun"));
  REQUIRE(cluster.Kill("ps:0", SIGKILL));
  REQUIRE(cluster.Kill("worker:1", SIGKILL));
  const int code = cluster.Wait(id, seconds(120));
  CAPTURE(cluster.Output(id), cluster.up_log());
  CHECK(code == 0);
  CHECK(cluster.Output(id).find("lost ps:0") != std::string::npos);
}

TEST_CASE_METHOD(ServersFixture,
                 "a program sees who is away, and reads its variables while a worker is",
                 "[cluster][program][CCF-14][CCF-15]") {
  const TempFolder folder;
  const std::string id = Submit({"watch", folder / "enough"});
  const auto printed = [&](const std::string& text) { return cluster.HasPrinted(id, text); };
  REQUIRE(printed("all there"));
  // What its variables take is the job's while it runs.
  const auto holds_memory = [&] {
    const v1::ClusterStatus status = cluster.Status();
    for (const v1::TaskState& task : status.tasks()) {
      for (const v1::JobBytes& held : task.job_bytes()) {
        if (held.job_id() == id && held.bytes() > 0) return true;
      }
    }
    return false;
  };
  CHECK(Eventually(seconds(10), holds_memory));
  REQUIRE(cluster.Kill("worker:1", SIGKILL));
  CHECK(printed("away worker:1"));
  CHECK(Eventually(seconds(60), [&] { return CountOf(cluster.Output(id), "all there") >= 2; }));
  CHECK(cluster.Output(id).find("unread") == std::string::npos);
  REQUIRE(cluster.Kill("ps:1", SIGKILL));
  CHECK(printed("away ps:1"));
  CHECK(Eventually(seconds(60), [&] { return CountOf(cluster.Output(id), "all there") >= 3; }));
  folder.Write("enough", "");
  CHECK(cluster.Wait(id, seconds(60)) == 0);
  CHECK(cluster.Output(id).find("of worker:0 worker:1 ps:0 ps:1\n") != std::string::npos);
  CHECK(Eventually(seconds(5), [&] { return !holds_memory(); }));
}

TEST_CASE_METHOD(ServersFixture, "a program may have fewer servers than there are",
                 "[cluster][program]") {
  const RunResult run =
      cluster.Muster({"submit", "--wait", "--ps", "1", "--", kProgram, "count", "20"});
  CAPTURE(run.err);
  CHECK(run.code == 0);
  const std::string id = IdIn(run);
  CHECK(cluster.Output(id).find("counted 20") != std::string::npos);
  const RunResult many = cluster.Muster({"submit", "--ps", "3", "--", kProgram, "count", "20"});
  const std::string waits = IdIn(many);
  CHECK(Eventually(seconds(30), [&] {
    return cluster.Describe(waits).message().find("1 more parameter server (2 of 3 are there)") !=
           std::string::npos;
  }));
  CHECK(cluster.Muster({"stop", waits}).code == 0);
}

TEST_CASE_METHOD(ServersFixture, "an evaluator beside main evaluates each checkpoint once",
                 "[cluster][program]") {
  const TempFolder folder;
  const RunResult run = cluster.Muster(
      {"submit", "--wait", "--evaluator", "--", kProgram, "evaluated", folder.path(), "6"});
  const std::string id = IdIn(run);
  const v1::Job job = cluster.Describe(id);
  const std::string log = cluster.Output(id, "evaluator:0");
  CAPTURE(run.err, Story(job), log, cluster.up_log());
  REQUIRE(run.code == 0);
  std::vector<std::string> squares;
  for (const v1::Event& event : job.events()) {
    if (event.reason() != "EVALUATED") continue;
    CHECK(event.task().type() == "evaluator");
    squares.push_back(event.fields().at("square"));
  }
  CHECK(squares == std::vector<std::string>{"1", "4", "9", "16", "25", "36"});
  CHECK(log.find("evaluated all") != std::string::npos);
  CHECK(FindEvent(job, "EVALUATOR_ENDED") == nullptr);
}

}  // namespace
}  // namespace muster::testing
