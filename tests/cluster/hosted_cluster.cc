#include "tests/cluster/hosted_cluster.h"

#include <stdexcept>

#include <fmt/core.h>

namespace muster::testing {
namespace {

using std::chrono::seconds;

constexpr seconds kPatience{60};

// Nobody else is in these networks: every port is free.
constexpr const char* kTfConfig = R"({"cluster": {
    "chief": ["chief:5000"],
    "ps": ["node-0:5001", "node-1:5001"],
    "worker": ["node-0:5002", "node-1:5002"]}})";

std::string TypeOf(const std::string& task) { return task.substr(0, task.find(':')); }
std::string IndexOf(const std::string& task) { return task.substr(task.find(':') + 1); }

}  // namespace

std::vector<std::string> HostedCluster::Tasks() {
  std::vector<std::string> tasks{"chief:0"};
  for (const char* type : {"ps", "worker"}) {
    for (int i = 0; i < kNodes; ++i) tasks.push_back(fmt::format("{}:{}", type, i));
  }
  return tasks;
}

std::string HostedCluster::HostOf(const std::string& task) {
  return task == "chief:0" ? "chief" : "node-" + IndexOf(task);
}

HostedCluster::HostedCluster(const Options& options)
    : hosts({"chief", "node-0", "node-1", "desk"}, options.family),
      environment_(options.environment) {
  (void)folder_.Write("token", "0123456789abcdef0123456789abcdef\n");
  authority_.Certs({"issue", "--name", "chief", "--node", "chief:0", "--host", "chief"});
  for (int i = 0; i < kNodes; ++i) {
    authority_.Certs({"issue", "--name", fmt::format("node-{}", i), "--node",
                      fmt::format("ps:{}", i), "--node", fmt::format("worker:{}", i), "--host",
                      fmt::format("node-{}", i)});
  }
  authority_.Certs({"issue", "--submitter", "ana"});
  for (const std::string& task : Tasks()) Start(task);
  for (const std::string& task : Tasks()) {
    if (task != "chief:0" && !IsUp(task)) {
      throw std::runtime_error(task + " has not come:\n" + Logs());
    }
  }
}

HostedCluster::~HostedCluster() {
  for (auto& [task, daemon] : daemons_) daemon->Kill();
}

void HostedCluster::Start(const std::string& task) {
  const std::string host = HostOf(task);
  auto environment = authority_.Environment(host);
  for (const auto& [name, value] : environment_[host]) environment[name] = value;
  const bool chief = task == "chief:0";
  daemons_[task] = std::make_unique<Daemon>(
      folder_, chief ? "coordinator" : TypeOf(task), TypeOf(task) + "-" + IndexOf(task),
      chief ? std::vector<std::string>() : std::vector<std::string>{"--task", task},
      Daemon::Place{.tf_config = kTfConfig,
                    .host = "",
                    .within = hosts.On(host),
                    .environment = environment});
}

void HostedCluster::Kill(const std::string& task) {
  daemons_.at(task)->Kill();
  ended_logs_ += fmt::format("== {} before\n{}", task, daemons_.at(task)->Log());
  daemons_.erase(task);
}

int HostedCluster::Drain(const std::string& task) {
  const int code = daemons_.at(task)->Drain();
  ended_logs_ += fmt::format("== {} before\n{}", task, daemons_.at(task)->Log());
  daemons_.erase(task);
  return code;
}

void HostedCluster::Set(const std::string& host, const std::string& name,
                        const std::string& value) {
  environment_[host][name] = value;
}

std::uint64_t HostedCluster::SessionOf(const std::string& task) const {
  const RunResult result = Muster({"status", "-o", "json"});
  if (result.code != 0) return 0;
  const v1::ClusterStatus status = StatusFrom(result);
  for (const v1::TaskState& one : status.tasks()) {
    const std::string name = fmt::format("{}:{}", one.task().type(), one.task().index());
    if (name == task && one.state() == "up") return one.session();
  }
  return 0;
}

bool HostedCluster::IsUp(const std::string& task, std::uint64_t before) const {
  return Eventually(kPatience, [&] {
    const std::uint64_t now = SessionOf(task);
    return now != 0 && now != before;
  });
}

RunResult HostedCluster::Muster(const std::vector<std::string>& arguments) const {
  std::vector<std::string> argv = hosts.On("desk");
  argv.push_back(fmt::format("{}/muster", MUSTER_BIN));
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  auto environment = authority_.Environment("ana");
  environment["XDG_RUNTIME_DIR"] = folder_.path();
  environment["MUSTER_COORDINATOR"] = "chief:5000";
  environment["MUSTER_TOKEN_FILE"] = "";
  return RunCommand(argv, environment, seconds(300));
}

std::string HostedCluster::Submit(const std::string& file) const {
  return IdIn(Muster({"submit", "-f", file}));
}

// The coordinator may be on its way back.
v1::Job HostedCluster::Describe(const std::string& id) const {
  RunResult described;
  (void)Eventually(kPatience, [&] {
    described = Muster({"describe", id, "-o", "json"});
    return described.code == 0;
  });
  return DescribeFrom(described);
}

bool HostedCluster::WaitForStep(const std::string& id, std::uint64_t step) const {
  return Eventually(kPatience, [&] {
    const v1::Job now = Describe(id);
    return now.progress().step() >= step || now.ended_ms() != 0;
  });
}

bool HostedCluster::WaitForEvent(const std::string& id, const std::string& reason,
                                 int count) const {
  return Eventually(kPatience, [&] { return CountEvents(Describe(id), reason) >= count; });
}

int HostedCluster::Wait(const std::string& id) const {
  return Muster({"wait", id, "--timeout", "150s"}).code;
}

std::string HostedCluster::Logs() const {
  std::string logs = ended_logs_;
  for (const auto& [task, daemon] : daemons_) {
    logs += fmt::format("== {}\n{}", task, daemon->Log());
  }
  return logs;
}

}  // namespace muster::testing
