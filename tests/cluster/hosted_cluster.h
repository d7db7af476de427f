// A cluster on hosts of its own: the coordinator on "chief", ps:N and worker:N on "node-N", and
// people at "desk". Wired by a TF_CONFIG of host names, behind TLS.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/cluster/authority.h"
#include "tests/cluster/daemon.h"
#include "tests/cluster/harness.h"
#include "tests/cluster/hosts.h"

namespace muster::testing {

class HostedCluster {
 public:
  static constexpr int kNodes = 2;

  struct Options {
    Hosts::Family family = Hosts::Family::kV4;
    // Settings of all daemons of a host, by its name.
    std::map<std::string, std::map<std::string, std::string>> environment = {};
  };

  // All daemons are registered when it is made; fails the test (by an exception) when they do not
  // come.
  explicit HostedCluster(const Options& options);
  HostedCluster() : HostedCluster(Options()) {}
  // What runs is killed: it may be cut off, and have nobody to take leave of.
  ~HostedCluster();
  HostedCluster(const HostedCluster&) = delete;
  HostedCluster& operator=(const HostedCluster&) = delete;

  // "chief:0", "ps:0", "worker:0", ...: the order in which they are upgraded.
  static std::vector<std::string> Tasks();
  static std::string HostOf(const std::string& task);

  void Start(const std::string& task);
  void Kill(const std::string& task);
  // SIGTERM, and its exit code.
  int Drain(const std::string& task);
  // Waits until the coordinator has this task in a session that it did not have in `before`.
  bool IsUp(const std::string& task, std::uint64_t before = 0) const;
  // 0: it is not there.
  std::uint64_t SessionOf(const std::string& task) const;
  // Settings of what is started on that host from now on.
  void Set(const std::string& host, const std::string& name, const std::string& value);

  RunResult Muster(const std::vector<std::string>& arguments) const;
  std::string Submit(const std::string& file) const;
  v1::Job Describe(const std::string& id) const;
  bool WaitForStep(const std::string& id, std::uint64_t step) const;
  bool WaitForEvent(const std::string& id, const std::string& reason, int count = 1) const;
  // Ends with the job; the code of `muster wait`.
  int Wait(const std::string& id) const;
  // What the daemons have said, for a message.
  std::string Logs() const;

  Hosts hosts;

 private:
  const TempFolder folder_;
  const Authority authority_;
  std::map<std::string, std::map<std::string, std::string>> environment_;
  std::map<std::string, std::unique_ptr<Daemon>> daemons_;
  std::string ended_logs_;
};

}  // namespace muster::testing
