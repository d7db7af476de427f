// deploy/kubernetes, run: the demo job on pods, one of which is deleted and comes back elsewhere,
// and all of which are rolled. Skipped, with the reason, where this machine has no such hosts.
#include "tests/cluster/pods.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <sys/stat.h>

#include "tests/cluster/authority.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"
#include "tests/support/manifests.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;
using Secrets = std::map<std::string, std::map<std::string, std::string>>;

const std::string kFolder = std::string(MUSTER_SOURCE) + "/deploy/kubernetes";
const std::string kToken = "0123456789abcdef0123456789abcdef";

bool CannotRun() {
  const std::string why = Pods::WhyNot();
  if (!why.empty()) WARN("skipped: " << why);
  return !why.empty();
}

// A cluster of pods, all of them ready, and somebody who has a job for it.
class PodCluster {
 public:
  PodCluster(const std::vector<YAML::Node>& objects, const Secrets& secrets,
             std::map<std::string, std::string> person)
      : pods(objects, secrets), person_(std::move(person)) {
    for (const std::string& pod : pods.names()) {
      INFO(pod);
      const bool started = pods.Start(pod);
      INFO(pods.Log(pod));
      REQUIRE(started);
    }
    for (const std::string& pod : pods.names()) {
      const bool ready = pods.IsReady(pod, seconds(60));
      INFO(pods.Log(pod));
      REQUIRE(ready);
    }
  }

  RunResult Muster(const std::vector<std::string>& arguments) const {
    return pods.Muster(arguments, person_);
  }
  v1::Job Describe(const std::string& id) const {
    RunResult described;
    (void)Eventually(seconds(60), [&] {
      described = Muster({"describe", id, "-o", "json"});
      return described.code == 0;
    });
    return DescribeFrom(described);
  }
  bool WaitForStep(const std::string& id, std::uint64_t step) const {
    return Eventually(seconds(120), [&] {
      const v1::Job job = Describe(id);
      return job.progress().step() >= step || job.ended_ms() != 0;
    });
  }
  // Deletes it, and waits for the one that takes its place.
  void Roll(const std::string& pod) {
    CAPTURE(pod);
    const std::string before = pods.AddressOf(pod);
    const int code = pods.Delete(pod);
    {
      INFO(pods.Log(pod));
      CHECK(code == 0);
    }
    REQUIRE(pods.Start(pod));
    CHECK(pods.AddressOf(pod) != before);
    const bool ready = pods.IsReady(pod, seconds(60));
    INFO(pods.Log(pod));
    REQUIRE(ready);
  }

  Pods pods;

 private:
  const std::map<std::string, std::string> person_;
};

std::int64_t LostSteps(const v1::Job& job) {
  std::int64_t lost = 0;
  for (const v1::Event& event : job.events()) {
    if (event.reason() == "JOB_RESTORED") lost += Field(event, "steps_lost");
  }
  return lost;
}

// The demo's network on the demo's images, but for its length.
std::string DemoIn(const TempFolder& folder, std::uint64_t steps) {
  return folder.Write("fashion.yaml", FashionJob(steps, "checkpoint: {every_steps: 200}\n"));
}

TEST_CASE("pods of the base train the demo job while one is deleted and all are rolled",
          "[cluster][pods]") {
  if (CannotRun()) return;
  const TempFolder folder;
  PodCluster cluster(LoadManifests(kFolder + "/base"), {{"muster-token", {{"token", kToken}}}},
                     {{"MUSTER_COORDINATOR", "muster-coordinator:5000"},
                      {"MUSTER_TOKEN_FILE", folder.Write("token", kToken + "\n")}});
  const std::string id = IdIn(cluster.Muster({"submit", "-f", DemoIn(folder, 6'000)}));
  REQUIRE(cluster.WaitForStep(id, 200));

  cluster.Roll("muster-ps-1");
  {
    const v1::Job job = cluster.Describe(id);
    REQUIRE(cluster.WaitForStep(id, job.progress().step() + 50));
  }
  // As a StatefulSet does: the highest number first, and none before the one before is ready.
  for (auto pod = cluster.pods.names().rbegin(); pod != cluster.pods.names().rend(); ++pod) {
    cluster.Roll(*pod);
    CHECK(cluster.pods.Probe(*pod, "livenessProbe"));
  }

  const int code = cluster.Muster({"wait", id, "--timeout", "240s"}).code;
  const v1::Job job = cluster.Describe(id);
  INFO(Story(job));
  CHECK(code == 0);
  CHECK(job.progress().step() == 6'000);
  CHECK(LostSteps(job) == 0);
  CHECK(FindEvent(job, "COORDINATOR_RESTARTED") != nullptr);  // it ran through all of that
  const v1::Event* const saved = FindEvent(job, "CHECKPOINT_SAVED");
  REQUIRE(saved != nullptr);
  CHECK(saved->fields().at("directory").starts_with("/checkpoints/" + id + "/"));
}

TEST_CASE("a container has no rights, and writes to nothing but its volumes", "[cluster][pods]") {
  if (CannotRun()) return;
  const TempFolder folder;
  PodCluster cluster(LoadManifests(kFolder + "/base"), {{"muster-token", {{"token", kToken}}}}, {});

  for (const std::string& pod : cluster.pods.names()) {
    CAPTURE(pod);
    const std::string proc = fmt::format("/proc/{}/", cluster.pods.pid(pod));
    const std::string status = ReadAll(proc + "status");
    CAPTURE(status);
    CHECK(status.find("Uid:\t10001\t10001\t10001\t10001") != std::string::npos);
    CHECK(status.find("NoNewPrivs:\t1") != std::string::npos);
    for (const char* set : {"CapPrm", "CapEff", "CapBnd"}) {
      CHECK(status.find(fmt::format("{}:\t0000000000000000", set)) != std::string::npos);
    }
    // The root of the command's own file system.
    CHECK(FailureOf({"nsenter", "-t", std::to_string(cluster.pods.pid(pod)), "-m", "-r", "touch",
                     "/usr/there"}) != "");
  }
}

TEST_CASE("who forwards a port to the coordinator's pod reaches it and its page",
          "[cluster][pods]") {
  if (CannotRun()) return;
  const TempFolder folder;
  PodCluster cluster(LoadManifests(kFolder + "/base"), {{"muster-token", {{"token", kToken}}}}, {});
  const std::string token = folder.Write("token", kToken + "\n");
  std::filesystem::permissions(token, std::filesystem::perms::owner_read);
  // Runtimes dial 127.0.0.1 within the pod's network.
  const std::vector<std::string> in_pod = {
      "nsenter", "-t", std::to_string(cluster.pods.pid("muster-coordinator-0")), "-n"};
  const auto fails = [&](std::vector<std::string> command) {
    command.insert(command.begin(), in_pod.begin(), in_pod.end());
    return FailureOf(command);
  };

  CHECK(fails({std::string(MUSTER_BIN) + "/muster", "--coordinator", "127.0.0.1:5000",
               "--token-file", token, "status"}) == "");
  CHECK(fails({"bash", "-c",
               "exec 3<>/dev/tcp/127.0.0.1/9400; printf 'GET / HTTP/1.1\\r\\nHost: "
               "127.0.0.1:9400\\r\\nConnection: close\\r\\n\\r\\n' >&3; head -1 <&3 | grep -q ' "
               "200 '"}) == "");
}

TEST_CASE("while the coordinator's pod is away the others are alive, and not ready",
          "[cluster][pods]") {
  if (CannotRun()) return;
  PodCluster cluster(LoadManifests(kFolder + "/base"), {{"muster-token", {{"token", kToken}}}}, {});
  const std::string coordinator = "muster-coordinator-0";

  REQUIRE(cluster.pods.Delete(coordinator) == 0);

  for (const std::string& pod : cluster.pods.names()) {
    if (pod == coordinator) continue;
    CAPTURE(pod);
    CHECK(Eventually(seconds(30), [&] { return !cluster.pods.Probe(pod, "readinessProbe"); }));
    CHECK(cluster.pods.Probe(pod, "livenessProbe"));
  }
  REQUIRE(cluster.pods.Start(coordinator));
  for (const std::string& pod : cluster.pods.names()) {
    CAPTURE(pod);
    CHECK(cluster.pods.IsReady(pod, seconds(60)));
  }
}

TEST_CASE(
    "pods with the components tls and tls-allowed train behind TLS, and show what they do to who "
    "has a certificate",
    "[cluster][pods]") {
  if (CannotRun()) return;
  const TempFolder folder;
  const std::string rendered = folder / "rendered.yaml";
  // kustomize takes relative paths alone.
  std::filesystem::copy(kFolder, folder / "kubernetes", std::filesystem::copy_options::recursive);
  std::ofstream(folder / "kubernetes/cluster/kustomization.yaml")
      << "resources: [../base]\ncomponents: [../components/tls, ../components/tls-allowed]\n";
  if (const std::string failure =
          FailureOf({"sh", "-c", "PATH=\"$0:$PATH\" kubectl kustomize \"$1\" >\"$2\"",
                     std::string(MUSTER_BIN) + "/../python-tools/bin",
                     folder / "kubernetes/cluster", rendered});
      !failure.empty()) {
    WARN("skipped: no kubectl that renders components: " << failure);
    return;
  }
  const Authority authority;
  Secrets secrets{{"muster-token", {{"token", kToken}}}};
  const auto issue = [&](const std::string& role, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"issue", "--name", role});
    authority.Certs(arguments);
    secrets["muster-" + role + "-tls"] = {
        {"ca.crt", ReadAll(authority.folder() + "/ca.pem")},
        {"tls.crt", ReadAll(authority.folder() + "/" + role + ".pem")},
        {"tls.key", ReadAll(authority.folder() + "/" + role + ".key")}};
  };
  issue("coordinator",
        {"--node", "chief:0", "--host", "muster-coordinator", "--host", "muster-coordinator-0"});
  issue("ps", {"--node", "ps:0", "--node", "ps:1", "--host", "muster-ps"});
  issue("worker", {"--node", "worker:0", "--node", "worker:1", "--node", "worker:2", "--host",
                   "muster-worker"});
  authority.Certs({"issue", "--submitter", "ana"});
  secrets["muster-allowed"] = {{"allowed", ReadAll(authority.folder() + "/allowed")}};
  auto person = authority.Environment("ana");
  person["MUSTER_COORDINATOR"] = "muster-coordinator:5000";
  person["MUSTER_TOKEN_FILE"] = "";
  PodCluster cluster(YAML::LoadAllFromFile(rendered), secrets, person);

  const RunResult submitted = cluster.Muster({"submit", "-f", DemoIn(folder, 300), "--wait"});

  INFO(submitted.err);
  CHECK(submitted.code == 0);
  for (const std::string& pod : cluster.pods.names()) {
    CAPTURE(pod);
    CHECK(cluster.pods.Probe(pod, "livenessProbe"));
    CHECK(cluster.pods.AnswerTo(pod, "/metrics", true) == 403);
    CHECK(cluster.pods.AnswerTo(pod, "/metrics", false) != 200);
  }
}

}  // namespace
}  // namespace muster::testing
