#include "tests/cluster/cut_cluster.h"

#include <map>
#include <stdexcept>
#include <utility>

namespace muster::testing {

using std::chrono::seconds;

CutCluster::CutCluster(int ps, int workers) {
  networks_.emplace(workers);
  (void)folder_.Write("token", "0123456789abcdef0123456789abcdef\n");
  const std::map<std::string, std::string> tcp{{"MUSTER_LINK", "tcp"}};
  const auto start = [&](const std::string& role, const std::string& name,
                         std::vector<std::string> flags, const std::string& host, int pid) {
    flags.emplace_back("--allow-insecure-network");
    daemons_.push_back(std::make_unique<Daemon>(
        folder_, role, name, flags,
        Daemon::Place{.host = host, .network_of = pid, .environment = tcp}));
  };
  start("coordinator", "coordinator", {}, Networks::Own(), 0);
  address_ = daemons_.front()->Address();
  std::vector<std::string> tasks;
  for (int i = 0; i < ps; ++i) {
    tasks.push_back("ps:" + std::to_string(i));
    start("ps", "ps-" + std::to_string(i), {"--task", tasks.back(), "--coordinator", address_},
          Networks::Own(), 0);
  }
  for (int i = 0; i < workers; ++i) {
    tasks.push_back("worker:" + std::to_string(i));
    start("worker", "worker-" + std::to_string(i),
          {"--task", tasks.back(), "--coordinator", address_}, Networks::Of(i), networks_->pid(i));
  }
  const bool up = Eventually(seconds(60), [&] {
    const std::string status = Muster({"status"}).out;
    for (const std::string& task : tasks) {
      if (status.find(task) == std::string::npos) return false;
    }
    return true;
  });
  if (!up) throw std::runtime_error("not all daemons are up: " + Muster({"status"}).out);
}

CutCluster::~CutCluster() {
  while (!daemons_.empty()) {
    daemons_.back()->Kill();
    daemons_.pop_back();
  }
}

RunResult CutCluster::Muster(const std::vector<std::string>& arguments) const {
  return RunProgram("muster", arguments,
                    {{"XDG_RUNTIME_DIR", folder_.path()},
                     {"MUSTER_COORDINATOR", address_},
                     {"MUSTER_TOKEN_FILE", folder_ / "token"}});
}

v1::Job CutCluster::Describe(const std::string& id) const {
  return DescribeFrom(Muster({"describe", id, "-o", "json"}));
}

std::string CutCluster::Output(const std::string& id) const {
  return Muster({"logs", id, "chief:0"}).out;
}

bool CutCluster::HasPrinted(const std::string& id, const std::string& line) const {
  return Eventually(seconds(60), [&] { return Output(id).find(line) != std::string::npos; });
}

int CutCluster::Wait(const std::string& id) const {
  return Muster({"wait", id, "--timeout", "120s"}).code;
}

std::int64_t CutCluster::CutAndNotice(const std::string& id, const std::vector<int>& hosts) const {
  const int before = CountEvents(Describe(id), "WORKER_LOST");
  const Lateness lateness;
  const std::int64_t cut = NowMs();
  for (const int host : hosts) networks_->Cut(host);
  std::int64_t noticed = 0;
  const bool lost = Eventually(seconds(30), [&] {
    const v1::Job job = Describe(id);
    if (CountEvents(job, "WORKER_LOST") < before + static_cast<int>(hosts.size())) return false;
    for (const v1::Event& event : job.events()) {
      if (event.reason() == "WORKER_LOST") noticed = event.time_ms();
    }
    return true;
  });
  if (!lost) throw std::runtime_error("nobody has noticed the cut: " + Story(Describe(id)));
  // The lease ends after seven looks one after another, any of which may come late.
  return noticed - cut - 4 * lateness.worst_ms();
}

bool CutCluster::AreBack(const std::string& id) const {
  return Eventually(seconds(60), [&] {
    const v1::Job job = Describe(id);
    return CountEvents(job, "WORKER_BACK") == CountEvents(job, "WORKER_LOST");
  });
}

}  // namespace muster::testing
