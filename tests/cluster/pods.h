// The pods of deploy/kubernetes, without a Kubernetes: each container's command runs as its
// manifest says, on a host of its own (hosts.h), as a user without rights, with a read-only root,
// its volumes and nothing else to write to. Its root is this machine's, with our programs, or what
// MUSTER_TEST_IMAGE names: an unpacked image of deploy/container. Probes come from the node, as a
// kubelet's do.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "common/base/mutex.h"
#include "common/process/child.h"
#include "tests/cluster/harness.h"
#include "tests/cluster/hosts.h"

namespace muster::testing {

class Pods {
 public:
  // Why this machine cannot have them; empty: it can.
  static std::string WhyNot();

  // `secrets`, and mounted ConfigMaps: by name, each with its files and what is in them.
  Pods(const std::vector<YAML::Node>& objects,
       const std::map<std::string, std::map<std::string, std::string>>& secrets);
  // What runs is killed.
  ~Pods();
  Pods(const Pods&) = delete;
  Pods& operator=(const Pods&) = delete;

  // "muster-ps-0", ...: of all StatefulSets, in the order of the manifests.
  const std::vector<std::string>& names() const { return names_; }
  // Starts it and waits for its startup probe; false: that failed more often than it may.
  bool Start(const std::string& pod);
  // As `kubectl delete pod`: SIGTERM, and SIGKILL after the grace period. Its exit code; 128 + n:
  // signal n. Its address is nobody's any more.
  int Delete(const std::string& pod);
  // Whether a probe of the container succeeds now: "livenessProbe", "readinessProbe".
  bool Probe(const std::string& pod, const std::string& probe) const;
  // The status code that a pod's admin port answers who has no certificate; 0: none.
  int AnswerTo(const std::string& pod, const std::string& path, bool tls) const;
  bool IsReady(const std::string& pod, std::chrono::seconds limit) const;
  std::string AddressOf(const std::string& pod) const { return hosts_.V4(pod); }
  int pid(const std::string& pod) const;
  // `muster` at a pod of people, who are told `environment` alone.
  RunResult Muster(const std::vector<std::string>& arguments,
                   std::map<std::string, std::string> environment) const;
  // What it has said, its predecessors too.
  std::string Log(const std::string& pod) const;

 private:
  struct Pod {
    YAML::Node spec;
    std::string name;
    int index = 0;
    bool deleted = false;
    std::unique_ptr<process::Child> child = {};
  };
  struct Volume {
    std::string path;
    bool memory = false;
    bool read_only = false;
  };

  std::string EnvironmentValue(const Pod& pod, const YAML::Node& entry) const;
  std::map<std::string, std::string> EnvironmentOf(const Pod& pod) const;
  Volume MakeVolume(const Pod& pod, const YAML::Node& volume);
  std::string MakeScript(const Pod& pod);
  int PortOf(const Pod& pod, const YAML::Node& port) const;

  const TempFolder folder_;
  std::map<std::string, YAML::Node> config_maps_;
  std::map<std::string, std::map<std::string, std::string>> secrets_;
  std::vector<std::string> names_;
  std::map<std::string, Pod> pods_;
  Hosts hosts_;
  int folders_ = 0;
  mutable Mutex mutex_;
  std::map<std::string, std::string> logs_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::testing
