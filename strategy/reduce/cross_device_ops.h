// How values of several devices become one value on some devices: the part of a strategy that moves
// data. Give MirroredStrategy one of these, or one of your own.
//
//   auto strategy = MirroredStrategy({"CPU:0", "CPU:1"}, std::make_shared<ReductionToOneDevice>());
//
// Results are copies that share no storage with the values or with each other.
// Threading: any thread, several calls at once.
// Errors, for all calls: INVALID_ARGUMENT for an op that is neither SUM nor MEAN, for values of
// different shapes ("Shape mismatch") or types, and for components that are partly sparse.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/place.h"
#include "strategy/base/communication_options.h"
#include "strategy/base/options.h"
#include "strategy/base/torch.h"
#include "strategy/core/started.h"
#include "strategy/values/destinations.h"
#include "strategy/values/distributed_values.h"
#include "strategy/values/indexed_slices.h"

namespace muster {

class ReplicaContext;
class Strategy;

// What may be reduced: a distributed value, a variable, or one tensor.
class ReduceInput {
 public:
  // NOLINTBEGIN(google-explicit-constructor): reduce(op, value, to) for each of them.
  ReduceInput(const PerReplica<torch::Tensor>& value) : components_(value.values()) {}
  ReduceInput(const Mirrored<torch::Tensor>& value) : components_(value.values()) {}
  ReduceInput(torch::Tensor value) : components_{std::move(value)} {}
  template <class T>
    requires requires(const T& variable) { variable.components()[0].value(); }
  ReduceInput(const T& variable) {
    for (const auto& component : variable.components()) components_.push_back(component.value());
  }
  // NOLINTEND(google-explicit-constructor)
  const std::vector<torch::Tensor>& components() const { return components_; }

 private:
  std::vector<torch::Tensor> components_;
};

class CrossDeviceOps {
 public:
  virtual ~CrossDeviceOps() = default;
  // "ReductionToOneDevice", for messages.
  virtual std::string_view name() const = 0;

  // The sum or mean of the components, on every destination. Sparse values (see sparse.h) are
  // joined in order, duplicates kept.
  Mirrored<torch::Tensor> reduce(ReduceOp op, const ReduceInput& value, const Destinations& to,
                                 const CommunicationOptions& options = {});
  Mirrored<IndexedSlices> reduce(ReduceOp op, const PerReplica<IndexedSlices>& value,
                                 const Destinations& to, const CommunicationOptions& options = {});
  // Several at once; results in the same order.
  std::vector<Mirrored<torch::Tensor>> batch_reduce(
      ReduceOp op, const std::vector<std::pair<ReduceInput, Destinations>>& values,
      const CommunicationOptions& options = {});
  Mirrored<torch::Tensor> broadcast(const torch::Tensor& value, const Destinations& to);
  // Components joined along `axis`, on every destination. INVALID_ARGUMENT: sizes differ off the
  // axis, scalars, an axis out of [0, rank). UNIMPLEMENTED: sparse values.
  Mirrored<torch::Tensor> gather(const ReduceInput& value, const Destinations& to, int axis,
                                 const CommunicationOptions& options = {});

  // Called by every replica of `context`'s strategy, on its thread: each gets the reductions of all
  // replicas' values, on its own device. Dense tensors; `values` are equally many on all.
  virtual std::vector<torch::Tensor> all_reduce(ReplicaContext& context, ReduceOp op,
                                                const std::vector<torch::Tensor>& values,
                                                const CommunicationOptions& options);
  // all_reduce() that may go on when this returns (ReplicaContext::start_all_reduce()). Default: it
  // has ended then.
  virtual internal::StartedTensors start_all_reduce(ReplicaContext& context, ReduceOp op,
                                                    const std::vector<torch::Tensor>& values,
                                                    const CommunicationOptions& options);
  virtual std::vector<torch::Tensor> all_gather(ReplicaContext& context,
                                                const std::vector<torch::Tensor>& values, int axis,
                                                const CommunicationOptions& options);

  // Says in the log, once, that sparse values are joined on one device, where that is the slow way.
  void note_sparse();

 protected:
  // For one's own cross-device ops. Dense components of equal shape and type; one result for each
  // destination, on it. Not called for one component that only has to be copied.
  virtual std::vector<torch::Tensor> reduce_implementation(ReduceOp op,
                                                           const std::vector<torch::Tensor>& values,
                                                           const Destinations& to,
                                                           const CommunicationOptions& options) = 0;
  // values[i]: the components of the i-th value. Default: one after another.
  virtual std::vector<std::vector<torch::Tensor>> batch_reduce_implementation(
      ReduceOp op, const std::vector<std::vector<torch::Tensor>>& values, const Destinations& to,
      const CommunicationOptions& options);
  // Default: joined on the first destination, then copied.
  virtual std::vector<torch::Tensor> gather_implementation(const std::vector<torch::Tensor>& values,
                                                           const Destinations& to, int axis,
                                                           const CommunicationOptions& options);
  // Sums and means on one device, copied to all destinations.
  static std::vector<torch::Tensor> reduce_to_one(ReduceOp op,
                                                  const std::vector<torch::Tensor>& values,
                                                  device::Place device, const Destinations& to);
  // Writes `message` to the log at its first call.
  void note_once(std::string_view message);
  virtual bool is_all_reduce() const { return false; }

 private:
  std::vector<torch::Tensor> reduce_any(ReduceOp op, const std::vector<torch::Tensor>& values,
                                        const Destinations& to,
                                        const CommunicationOptions& options);

  // values[i]: the i-th value's components of this process's replicas; results over all processes'.
  std::vector<std::vector<torch::Tensor>> reduce_in_step(
      const Strategy& strategy, ReduceOp op, const std::vector<std::vector<torch::Tensor>>& values,
      const Destinations& devices, const CommunicationOptions& options);

  std::atomic<bool> noted_{false}, noted_sparse_{false};
};

// Reduces on one device, then copies to all destinations.
class ReductionToOneDevice : public CrossDeviceOps {
 public:
  // The sum of several tensors.
  using Accumulate = std::function<torch::Tensor(const std::vector<torch::Tensor>&)>;

  // Default: on the first destination, by addition in replica order.
  //   INVALID_ARGUMENT: no device's name.
  explicit ReductionToOneDevice(const std::optional<std::string>& device = std::nullopt,
                                Accumulate accumulate = nullptr);
  std::string_view name() const override { return "ReductionToOneDevice"; }

 protected:
  std::vector<torch::Tensor> reduce_implementation(ReduceOp op,
                                                   const std::vector<torch::Tensor>& values,
                                                   const Destinations& to,
                                                   const CommunicationOptions& options) override;

 private:
  std::optional<device::Place> device_;
  Accumulate accumulate_;
};

// The ways of all-reduce: for values whose destinations are the devices that they lie on. Others go
// by reduction to one device, which is said in the log once.
class AllReduceOps : public CrossDeviceOps {
 protected:
  // Whether these devices can work together.
  virtual bool serves(const std::vector<device::Place>& devices) const = 0;
  virtual std::vector<std::vector<torch::Tensor>> all_reduce_batch(
      ReduceOp op, const std::vector<std::vector<torch::Tensor>>& values, const Destinations& to,
      const CommunicationOptions& options) = 0;

  std::vector<torch::Tensor> reduce_implementation(ReduceOp op,
                                                   const std::vector<torch::Tensor>& values,
                                                   const Destinations& to,
                                                   const CommunicationOptions& options) final;
  std::vector<std::vector<torch::Tensor>> batch_reduce_implementation(
      ReduceOp op, const std::vector<std::vector<torch::Tensor>>& values, const Destinations& to,
      const CommunicationOptions& options) final;
  bool is_all_reduce() const override { return true; }
};

// Two halves of the devices, each summed at one of them, then added. Which ones differs from tensor
// to tensor, or from pack to pack: the tensors laid end to end, cut into `num_packs` equal packs
// (the last takes the rest). Of logical CPUs; GPUs are reduced on one of them.
class HierarchicalCopyAllReduce final : public AllReduceOps {
 public:
  // 0: no packing. INVALID_ARGUMENT: negative.
  explicit HierarchicalCopyAllReduce(int num_packs = 1);
  std::string_view name() const override { return "HierarchicalCopyAllReduce"; }

 protected:
  bool serves(const std::vector<device::Place>& devices) const override;
  std::vector<std::vector<torch::Tensor>> all_reduce_batch(
      ReduceOp op, const std::vector<std::vector<torch::Tensor>>& values, const Destinations& to,
      const CommunicationOptions& options) override;

 private:
  const std::size_t num_packs_;
};

// By NCCL, in a build that has it, on GPUs of cards of their own. Other devices go by reduction to
// one of them.
class NcclAllReduce final : public AllReduceOps {
 public:
  // As above; NCCL packs by itself.
  explicit NcclAllReduce(int num_packs = 1);
  std::string_view name() const override { return "NcclAllReduce"; }

 protected:
  bool serves(const std::vector<device::Place>& devices) const override;
  std::vector<std::vector<torch::Tensor>> all_reduce_batch(
      ReduceOp op, const std::vector<std::vector<torch::Tensor>>& values, const Destinations& to,
      const CommunicationOptions& options) override;
};

// Each replica's thread reduces its 1/N of all tensors and gives it to the others: what
// MirroredStrategy uses on CPU devices. On GPUs kNccl goes by NCCL where NcclAllReduce does; what
// is left is reduced on one device.
class CollectiveAllReduce final : public AllReduceOps {
 public:
  explicit CollectiveAllReduce(
      CommunicationImplementation implementation = CommunicationImplementation::kRing)
      : implementation_(implementation) {}
  std::string_view name() const override { return "CollectiveAllReduce"; }
  CommunicationImplementation implementation() const { return implementation_; }

  std::vector<torch::Tensor> all_reduce(ReplicaContext& context, ReduceOp op,
                                        const std::vector<torch::Tensor>& values,
                                        const CommunicationOptions& options) override;
  internal::StartedTensors start_all_reduce(ReplicaContext& context, ReduceOp op,
                                            const std::vector<torch::Tensor>& values,
                                            const CommunicationOptions& options) override;
  std::vector<torch::Tensor> all_gather(ReplicaContext& context,
                                        const std::vector<torch::Tensor>& values, int axis,
                                        const CommunicationOptions& options) override;

 protected:
  bool serves(const std::vector<device::Place>& devices) const override;
  std::vector<std::vector<torch::Tensor>> all_reduce_batch(
      ReduceOp op, const std::vector<std::vector<torch::Tensor>>& values, const Destinations& to,
      const CommunicationOptions& options) override;

 private:
  const CommunicationImplementation implementation_;
};

// What the choices below depend on, besides the names of the devices.
struct MachineFacts {
  // NCCL is part of this build.
  bool nccl = false;
  // The card that logical GPU i is on; several may share one. Those beyond it have their own.
  std::vector<int> gpu_cards = {};
};
// The facts of this machine and this build. From here on the logical GPUs are in use
// (logical_devices.h).
MachineFacts machine_facts();

// NcclAllReduce when all devices are GPUs of cards of their own and there is NCCL, else
// ReductionToOneDevice. Without facts: those of this machine.
std::shared_ptr<CrossDeviceOps> select_cross_device_ops(const std::vector<std::string>& devices,
                                                        const MachineFacts& facts);
std::shared_ptr<CrossDeviceOps> select_cross_device_ops(const std::vector<std::string>& devices);
// What MirroredStrategy takes: CollectiveAllReduce when all devices are of one type (NCCL on cards
// of their own when there is NCCL, else RING), ReductionToOneDevice when types are mixed.
std::shared_ptr<CrossDeviceOps> mirrored_cross_device_ops(const std::vector<std::string>& devices,
                                                          const MachineFacts& facts);
std::shared_ptr<CrossDeviceOps> mirrored_cross_device_ops(const std::vector<std::string>& devices);
// What a value of type `type` goes by when the strategy has `ops`: int32 on GPUs is reduced on one
// device.
std::shared_ptr<CrossDeviceOps> cross_device_ops_for(const std::shared_ptr<CrossDeviceOps>& ops,
                                                     torch::ScalarType type,
                                                     const std::vector<std::string>& devices);

// The packs of a batch, as indices of `tensors`: see CommunicationOptions::bytes_per_pack.
std::vector<std::vector<std::size_t>> group_by_size(const std::vector<torch::Tensor>& tensors,
                                                    const BytesPerPack& bytes_per_pack);

}  // namespace muster
