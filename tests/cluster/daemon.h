// One daemon that a test starts by itself, without `muster up`.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/process/child.h"
#include "tests/cluster/harness.h"

namespace muster::testing {

// Drained at its end. Lifetime: the folder outlives it; it holds the cluster's "token".
class Daemon {
 public:
  struct Place {
    std::string tf_config = {};
    // Empty: TF_CONFIG says where it listens.
    std::string host = "127.0.0.1";
    // Runs in the network of this process; 0: in the test's.
    int network_of = 0;
    // Goes before its command: Hosts::On().
    std::vector<std::string> within = {};
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
  // What it has said so far.
  std::string Log() const;

 private:
  std::string port_file_;
  mutable Mutex mutex_;
  std::string log_ MUSTER_GUARDED_BY(mutex_);
  std::unique_ptr<process::Child> child_;
};

}  // namespace muster::testing
