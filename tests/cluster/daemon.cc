#include "tests/cluster/daemon.h"

#include <csignal>
#include <fstream>
#include <stdexcept>

#include <fmt/core.h>

namespace muster::testing {

using std::chrono::seconds;

Daemon::Daemon(const TempFolder& folder, const std::string& role, const std::string& name,
               const std::vector<std::string>& flags, const Place& place)
    : port_file_(folder / (name + ".port")) {
  process::Child::Options options;
  if (place.network_of != 0) {
    options.argv = {"nsenter", "-t", std::to_string(place.network_of), "-n"};
  }
  options.argv.insert(options.argv.end(), place.within.begin(), place.within.end());
  options.argv.push_back(fmt::format("{}/muster-{}", MUSTER_BIN, role));
  if (!place.host.empty()) options.argv.insert(options.argv.end(), {"--listen", place.host + ":0"});
  for (const std::string& one :
       {std::string("--token-file"), folder / "token", std::string("--state-dir"), folder / name,
        std::string("--port-file"), port_file_}) {
    options.argv.push_back(one);
  }
  options.argv.insert(options.argv.end(), flags.begin(), flags.end());
  options.environment = place.environment;
  options.environment["TF_CONFIG"] = place.tf_config;
  options.environment["MUSTER_COORDINATOR"] = "";
  options.on_line = [this](auto, const std::string& line) {
    const MutexLock lock(mutex_);
    log_ += line + "\n";
  };
  auto child = process::Child::Start(std::move(options));
  if (!child.ok()) throw std::runtime_error(ToString(child.status()));
  child_ = *std::move(child);
}

Daemon::~Daemon() { (void)child_->End(seconds(30)); }

std::string Daemon::Address() const {
  std::string line;
  const bool there = Eventually(seconds(30), [&] {
    std::ifstream stream(port_file_);
    return std::getline(stream, line) && !line.empty();
  });
  if (!there) throw std::runtime_error(port_file_ + " has not come");
  return line;
}

int Daemon::Drain() {
  const process::Exit exit = child_->End(seconds(30));
  return exit.signal != 0 ? 128 + exit.signal : exit.code;
}

std::string Daemon::Log() const {
  const MutexLock lock(mutex_);
  return log_;
}

void Daemon::Kill() { (void)child_->Signal(SIGKILL); }

}  // namespace muster::testing
