// A cluster whose workers have a network of their own each, which a test can cut.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/cluster/daemon.h"
#include "tests/cluster/harness.h"
#include "tests/cluster/networks.h"

namespace muster::testing {

// A coordinator and parameter servers in the test's network, workers on a host each: worker:0 on
// host 0. They speak TCP.
// Threading: as Networks, for its thread is in a network of its own from then on.
class CutCluster {
 public:
  // All are registered when it is made; fails the test when they do not come.
  CutCluster(int ps, int workers);
  // What runs is killed: it may be cut off, and have nobody to take leave of.
  ~CutCluster();
  CutCluster(const CutCluster&) = delete;
  CutCluster& operator=(const CutCluster&) = delete;

  const Networks& networks() const { return *networks_; }
  RunResult Muster(const std::vector<std::string>& arguments) const;
  v1::Job Describe(const std::string& id) const;
  std::string Output(const std::string& id) const;
  bool HasPrinted(const std::string& id, const std::string& line) const;
  // Ends with the job; the code of `muster wait`.
  int Wait(const std::string& id) const;
  // Cuts workers off, and waits until the job says so; how many milliseconds that took, less what
  // this machine was late.
  std::int64_t CutAndNotice(const std::string& id, const std::vector<int>& hosts) const;
  // All that were lost have come back.
  bool AreBack(const std::string& id) const;

 private:
  TempFolder folder_;
  std::optional<Networks> networks_;
  std::string address_;
  std::vector<std::unique_ptr<Daemon>> daemons_;
};

}  // namespace muster::testing
