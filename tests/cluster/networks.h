// Networks that a test can cut: one for each of some hosts, joined by a bridge that is the test's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/process/child.h"

namespace muster::testing {

// Runs a command to its end; what it says where it fails, else nothing.
std::string FailureOf(const std::vector<std::string>& argv);
// The same, and a failure is the test's (an exception).
void MustRun(const std::vector<std::string>& argv);

// From its making on the calling thread, and what it starts, is in a network of its own, for good.
// Threading: that thread alone.
class Networks {
 public:
  // Why this machine cannot have them; empty: it can.
  static std::string WhyNot();

  explicit Networks(int hosts);
  ~Networks();
  Networks(const Networks&) = delete;
  Networks& operator=(const Networks&) = delete;

  // The address of the test's own network, and of a host's.
  static std::string Own() { return "10.77.0.1"; }
  static std::string Of(int host) { return "10.77.0." + std::to_string(10 + host); }
  // The bridge's end of a host's cable, in the test's own network.
  static std::string Port(int host) { return "host" + std::to_string(host); }
  // TF_CONFIG of a worker on each of the first `workers` hosts, for the one on `host`. Nobody else
  // is in these networks: a port is free.
  static std::string TfConfig(int host, int workers);
  // For Daemon::Place::network_of.
  int pid(int host) const { return holders_[static_cast<std::size_t>(host)]->pid(); }

  // Nothing comes through any more, in silence; and again.
  void Cut(int host) const;
  void Mend(int host) const;
  // What comes to a host comes no faster; what keeps this machine from that, else nothing.
  std::string Limit(int host, int megabits) const;
  // They reach each other and nobody else, until each is mended.
  void SetApart(const std::vector<int>& hosts) const;
  // None of them reaches another one of them, but all others, until each is mended.
  void KeepApart(const std::vector<int>& hosts) const;

 private:
  std::vector<std::unique_ptr<process::Child>> holders_;
};

}  // namespace muster::testing
