// A cluster made of the pods that label selectors pick.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/environment.h"
#include "common/cluster/resolver.h"

namespace muster::cluster {

// Where this process runs, hence how the API server is found.
enum class ExecutableLocation { kWithinCluster, kOffCluster };

// Every call of Cluster() asks the API server again; the token is read anew each time, because
// Kubernetes replaces it in the file.
class KubernetesResolver : public ClusterResolver {
 public:
  struct Options {
    // Job -> label selectors. Of one job, the pods of the first selector come first, those of one
    // selector by name.
    std::map<std::string, std::vector<std::string>> selectors = {
        {"worker", {"job-name=tensorflow"}}};
    int port = 8470;
    std::string rpc_layer = "grpc";
    ExecutableLocation location = ExecutableLocation::kWithinCluster;
    // https://host:port. Within a cluster the default is what the kubelet says in the environment,
    // and CA and token are those of the pod's service account.
    std::string endpoint = {};
    std::string ca_file = {};
    std::string token_file = {};     // off cluster: empty is no token ("kubectl proxy")
    std::string pod_namespace = {};  // empty: all of them
    // Pods with host networking have the same address either way.
    bool use_host_ip = false;
    std::chrono::milliseconds timeout{10'000};  // for all that one call of Cluster() asks
    DeviceLister* devices = nullptr;
  };

  //   kInvalidArgument: no location of ours, off cluster without an endpoint, or no such port.
  //   kFailedPrecondition: within a cluster, and the environment does not say where the API is.
  static Result<std::unique_ptr<KubernetesResolver>> Create(const Environment& environment,
                                                            Options options);

  //   kFailedPrecondition: a selected pod is not Running, is being deleted, has no address, or is
  //   picked twice; or two have one address, which use_host_ip may make of them.
  //   kUnavailable: an answer that is not a list of pods. And what FetchJson and ReadTokenFile
  //   return.
  Result<ClusterSpec> Cluster() override;

 private:
  explicit KubernetesResolver(Options options);
  Result<std::vector<nlohmann::json>> ListPods(
      const std::string& selector, std::chrono::steady_clock::time_point deadline) const;
  Result<std::vector<nlohmann::json>> ListPages(
      const std::string& selector, int pods_per_page,
      std::chrono::steady_clock::time_point deadline) const;
  Result<std::string> AddressOf(const nlohmann::json& pod) const;

  Options options_;
};

}  // namespace muster::cluster
