#include "bench/cluster.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include <stdlib.h>

#include "bench/execute.h"

namespace muster::bench {

using namespace std::chrono_literals;

Result<std::unique_ptr<Cluster>> Cluster::Start(int ps, int workers) {
  auto cluster = std::make_unique<Cluster>();
  // The paths of sockets are short there.
  MUSTER_TRY_ASSIGN(cluster->scratch_, Scratch::Make("/tmp"));
  MUSTER_TRY_ASSIGN(
      cluster->up_,
      process::Child::Start(
          {.argv = {process::SiblingProgram("muster"), "up", "--ps", std::to_string(ps),
                    "--workers", std::to_string(workers), "--state-dir", cluster->folder()},
           .on_line = [one = cluster.get()](auto, const std::string& line) { one->Say(line); }}));
  return cluster;
}

Cluster::~Cluster() {
  if (up_ != nullptr) (void)up_->End(30s);
}

Result<std::string> Cluster::Muster(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), process::SiblingProgram("muster"));
  const auto deadline = std::chrono::steady_clock::now() + 90s;
  while (!std::filesystem::exists(folder() + "/address")) {
    if (const auto ended = up_->Wait(0ms); ended.ok()) {
      const MutexLock lock(mutex_);
      return Unavailable("the cluster has ended with {} before it had an address: {}",
                         ended->ToString(), said_);
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return DeadlineExceeded("the cluster in {} has no address after 90 s", folder());
    }
    std::this_thread::sleep_for(50ms);
  }
  std::string address;
  std::ifstream(folder() + "/address") >> address;
  setenv("MUSTER_COORDINATOR", address.c_str(), 1);
  setenv("MUSTER_TOKEN_FILE", (folder() + "/token").c_str(), 1);
  return Execute(arguments, 600s);
}

void Cluster::Say(const std::string& line) {
  constexpr std::size_t kMostSaid = 8'192;
  const MutexLock lock(mutex_);
  said_ += line + "\n";
  if (said_.size() > 2 * kMostSaid) said_.erase(0, said_.size() - kMostSaid);
}

}  // namespace muster::bench
