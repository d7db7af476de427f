// One daemon that a test starts by itself, without `muster up`.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/process/child.h"
#include "tests/cluster/harness.h"

namespace muster::testing {

// Drained at its end. Lifetime: the folder outlives it; it holds the cluster's "token".
class Daemon {
 public:
  struct Place {
    std::string tf_config = {};
    std::string host = "127.0.0.1";
    // Runs in the network of this process; 0: in the test's.
    int network_of = 0;
    std::map<std::string, std::string> environment = {};
  };

  // `role`: "worker" of muster-worker.
  Daemon(const TempFolder& folder, const std::string& role, const std::string& name,
         const std::vector<std::string>& flags, const Place& place);
  Daemon(const TempFolder& folder, const std::string& role, const std::string& name,
         const std::vector<std::string>& flags)
      : Daemon(folder, role, name, flags, Place()) {}
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Where it serves, when it does.
  std::string Address() const;
  int Drain();
  void Kill();

 private:
  std::string port_file_;
  std::unique_ptr<process::Child> child_;
};

}  // namespace muster::testing
