// Synchronous training on the cores of a TPU: a replica on each core, or on several.
//
//   initialize_tpu_system({.topology = "2x2x1x2"});
//   TPUStrategy strategy;  // 8 replicas
//
// A replica of several cores, as a DeviceAssignment has it, is one thread. It computes on its
// logical device 0 unless it says otherwise: an open logical device is where variables and tensors
// are made, a tensor is assigned to one, or split over all of them (SplitTensor). All-reduces go
// along the torus on which the replicas lie, where they fill one (docs/strategies/tpu.md).
//
// Several strategies may use cores of one system. A replica reads variables of another TPUStrategy:
// the component that lies on its core, else the first; without a gradient. ON_READ variables are
// refused.
//
// Threading: as Strategy.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strategy/core/strategy.h"
#include "strategy/tpu/device_assignment.h"
#include "strategy/tpu/split_tensor.h"

namespace muster {

struct TPUStrategyOptions {
  // Absent: a replica on each core, in the order of their numbers.
  std::optional<DeviceAssignment> experimental_device_assignment = std::nullopt;
  // true: one program for all cores of a replica. A variable has an equal copy on each of them, and
  // tensors are split or replicated, but not assigned to single cores. (A module's parameters have
  // a copy for each replica.)
  bool experimental_spmd_xla_partitioning = false;
};

// While it is open, new variables of its strategy lie on this logical device of each replica and,
// in a replica, tensors that libtorch makes do, too. They nest: the innermost counts. Those of a
// distributed module lie on the first one all the same.
// Threading: ends on the thread that opened it.
class [[nodiscard]] LogicalDeviceScope {
 public:
  LogicalDeviceScope(const LogicalDeviceScope&) = delete;
  LogicalDeviceScope& operator=(const LogicalDeviceScope&) = delete;
  ~LogicalDeviceScope();

 private:
  friend class TPUStrategy;
  struct Impl;
  explicit LogicalDeviceScope(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

class TPUStrategy final : public Strategy {
 public:
  //   FAILED_PRECONDITION: no TPU cores are up (initialize_tpu_system()).
  //   INVALID_ARGUMENT: an assignment for another topology than theirs.
  explicit TPUStrategy(const TPUStrategyOptions& options = {});
  // `resolver`: what cluster_resolver() returns; may be null.
  explicit TPUStrategy(std::shared_ptr<ClusterResolver> resolver,
                       const TPUStrategyOptions& options = {});
  ~TPUStrategy() override;

  std::string_view name() const override { return "TPUStrategy"; }
  std::shared_ptr<ClusterResolver> cluster_resolver() const override { return resolver_; }
  bool require_static_shapes() const override { return true; }
  // UNIMPLEMENTED: neither SUM nor MEAN.
  ReduceOp op_named(std::string_view name) const override;

  const DeviceAssignment& device_assignment() const { return assignment_; }
  int num_cores_per_replica() const { return assignment_.num_cores_per_replica(); }
  int num_hosts() const { return assignment_.num_hosts(); }
  // At most so many replicas are on one host.
  int num_replicas_per_host() const;

  // INVALID_ARGUMENT: "not in range" of the cores of a replica; or with SPMD partitioning.
  LogicalDeviceScope experimental_logical_device(int logical_device_id);

  // These three are for replica functions of this strategy (FAILED_PRECONDITION elsewhere), and are
  // differentiable.
  //
  // `tensor` on that core of the replica, as it is.
  //   INVALID_ARGUMENT: no core of a replica; an undefined tensor; or with SPMD partitioning.
  torch::Tensor experimental_assign_to_logical_device(const torch::Tensor& tensor,
                                                      int logical_device_id);
  // Part i, with the last dimension fastest, on logical device i.
  //   INVALID_ARGUMENT, in this order: an undefined tensor, another number of dimensions than
  //   `tensor` has, a size that does not divide, other than one part for each core.
  SplitTensor experimental_split_to_logical_devices(const torch::Tensor& tensor,
                                                    const std::vector<int>& partition_dimensions);
  // The whole tensor on each core. INVALID_ARGUMENT: an undefined one.
  SplitTensor experimental_replicate_to_logical_devices(const torch::Tensor& tensor);

  // The copies of a variable on the cores of a replica, by logical device; one, without SPMD
  // partitioning. INVALID_ARGUMENT: a variable of another strategy. OUT_OF_RANGE: no replica.
  std::vector<torch::Tensor> copies_on_cores(const Variable& variable, int replica) const;

  // For the code of strategy/.
  internal::ComponentMaker* component_maker() const override;
  bool shares_devices_with(const Strategy& other) const override;
  const collectives::Torus* torus() const override;

 private:
  class Maker;
  using Cores = std::vector<std::vector<device::Place>>;  // by replica and logical device

  TPUStrategy(std::shared_ptr<ClusterResolver> resolver, DeviceAssignment assignment, bool spmd);
  void check_logical_device(int id, std::string_view what) const;
  // Those of the replica whose function this is. FAILED_PRECONDITION: none of this strategy.
  const std::vector<device::Place>& own_cores(std::string_view call) const;

  const std::shared_ptr<ClusterResolver> resolver_;
  const DeviceAssignment assignment_;
  const Cores cores_;
  const bool spmd_;
  std::unique_ptr<const collectives::Torus> torus_;  // null: the replicas fill none
  std::unique_ptr<Maker> maker_;                     // null: without SPMD partitioning
};

}  // namespace muster
