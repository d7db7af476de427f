// The resolvers that ask nobody but the environment, the caller, or each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/environment.h"
#include "common/cluster/resolver.h"
#include "common/cluster/tf_config.h"

namespace muster::cluster {

// Reads TF_CONFIG anew on every call. Not set (or empty): an empty cluster and no task.
// Every call: kInvalidArgument for a TF_CONFIG that ParseTfConfig refuses.
class TfConfigResolver : public ClusterResolver {
 public:
  struct Options {
    ClusterTask task = {};  // wins over TF_CONFIG, and the setters over both
    std::string environment_name = {};
    DeviceLister* devices = nullptr;
  };
  explicit TfConfigResolver(Environment environment);
  TfConfigResolver(Environment environment, Options options);

  Result<ClusterSpec> Cluster() override;
  // TF_CONFIG's session_master where it has one; "" for no cluster or one of a single
  // task, unless that is a known task of a sparse job.
  //   kFailedPrecondition: neither TF_CONFIG nor the caller says which task.
  Result<std::string> Master(const ClusterTask& choice = {}) override;
  Result<std::optional<std::string>> TaskType() override;
  Result<std::optional<int>> TaskId() override;
  Result<std::optional<std::string>> RpcLayer() override;
  std::string EnvironmentName() const override { return environment_name_; }

 private:
  Result<TfConfig> Read() const;

  Environment environment_;
  std::string environment_name_;
};

// Gives back what it is given.
class SimpleResolver : public ClusterResolver {
 public:
  struct Options {
    std::string master = {};
    ClusterTask task = {};
    std::string environment_name = {};
    AcceleratorCounts accelerators = {};
  };
  explicit SimpleResolver(ClusterSpec spec);
  SimpleResolver(ClusterSpec spec, Options options);

  Result<ClusterSpec> Cluster() override { return spec_; }
  // The address of a task that is named in full, else the master given.
  Result<std::string> Master(const ClusterTask& choice = {}) override;
  std::string EnvironmentName() const override { return options_.environment_name; }
  Result<AcceleratorCounts> NumAccelerators(const ClusterTask& = {}) override {
    return options_.accelerators;
  }

 private:
  ClusterSpec spec_;
  Options options_;
};

// Several clusters as one. Of a job that two of them have, dense lists are put one behind the
// other; as soon as one is sparse, tasks keep their indices and must not clash.
class UnionResolver : public ClusterResolver {
 public:
  // `own` wins over the first resolver's.
  //   kInvalidArgument: no resolver, or a null one.
  static Result<std::unique_ptr<UnionResolver>> Create(
      std::vector<std::unique_ptr<ClusterResolver>> resolvers, ClusterTask own = {});

  //   kAlreadyExists: two resolvers have a task of one index in a job that is sparse.
  Result<ClusterSpec> Cluster() override;
  // The address in the union of a task that is named in full, else the first resolver's master.
  Result<std::string> Master(const ClusterTask& choice = {}) override;
  Result<std::optional<std::string>> TaskType() override;
  Result<std::optional<int>> TaskId() override;
  Result<std::optional<std::string>> RpcLayer() override;
  std::string EnvironmentName() const override { return resolvers_[0]->EnvironmentName(); }
  Result<AcceleratorCounts> NumAccelerators(const ClusterTask& choice = {}) override {
    return resolvers_[0]->NumAccelerators(choice);
  }

 private:
  UnionResolver(std::vector<std::unique_ptr<ClusterResolver>> resolvers, ClusterTask own)
      : ClusterResolver(std::move(own)), resolvers_(std::move(resolvers)) {}

  std::vector<std::unique_ptr<ClusterResolver>> resolvers_;
};

// Amazon SageMaker: SM_HOSTS and SM_CURRENT_HOST make a cluster of workers.
// Every call: kFailedPrecondition, these variables are missing or the host is not in the list;
// kInvalidArgument, SM_HOSTS is not a list of names. Of those with an address, too: no such port.
class SageMakerResolver : public ClusterResolver {
 public:
  struct Options {
    int port = 2223;
    ClusterTask task = {};
    DeviceLister* devices = nullptr;
  };
  explicit SageMakerResolver(Environment environment);
  SageMakerResolver(Environment environment, Options options);

  Result<ClusterSpec> Cluster() override;
  // "" for a cluster of at most one host.
  Result<std::string> Master(const ClusterTask& choice = {}) override;
  Result<std::optional<std::string>> TaskType() override;
  Result<std::optional<int>> TaskId() override;

 private:
  struct Hosts {
    std::vector<std::string> names;  // sorted as text, as everybody else does who reads them
    std::optional<int> own;
  };
  Result<Hosts> Read() const;

  Environment environment_;
  int port_;
};

}  // namespace muster::cluster
