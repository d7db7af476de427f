#include "strategy/reduce/cross_device_ops.h"

#include <algorithm>
#include <set>

#include "collectives/packing.h"
#include "common/base/time_left.h"
#include "common/base/words.h"
#include "common/telemetry/log.h"
#include "device/gpu.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/internal/between.h"
#include "strategy/core/replica_context.h"
#include "strategy/core/strategy.h"
#include "strategy/reduce/internal/nccl.h"
#include "strategy/values/internal/copies.h"
#include "strategy/values/internal/crew.h"
#include "strategy/values/internal/reduction.h"
#include "strategy/values/sparse.h"

namespace muster {
namespace {

std::vector<torch::Tensor> CopyToAll(const torch::Tensor& value, const Destinations& to) {
  std::vector<torch::Tensor> copies;
  for (const device::Place place : to.places()) copies.push_back(internal::copy_to(value, place));
  return copies;
}

// In the types that have room for what is added here, then between processes, before it is rounded
// or divided. Types that differ stay, to be told where they are added.
std::vector<std::vector<torch::Tensor>> WithRoom(ReduceOp op,
                                                 std::vector<std::vector<torch::Tensor>> values) {
  for (std::vector<torch::Tensor>& components : values) {
    const torch::ScalarType type = components[0].scalar_type();
    const bool same =
        std::all_of(components.begin(), components.end(),
                    [type](const torch::Tensor& one) { return one.scalar_type() == type; });
    const torch::ScalarType wide =
        op == ReduceOp::kMean ? internal::mean_sum_type(type) : internal::sum_type(type);
    if (!same || wide == type) continue;
    for (torch::Tensor& one : components) one = one.to(wide);
  }
  return values;
}

// Whether all components are sparse. INVALID_ARGUMENT: only some.
bool AllSparse(const std::vector<torch::Tensor>& values) {
  const bool first = is_slices(values[0]);
  for (std::size_t r = 1; r < values.size(); ++r) {
    if (is_slices(values[r]) != first) {
      raise(InvalidArgument("replica {} holds a {} tensor, replica 0 a {} one", r,
                            first ? "dense" : "sparse", first ? "sparse" : "dense"));
    }
  }
  return first;
}

IndexedSlices ReduceSlices(ReduceOp op, const std::vector<IndexedSlices>& values) {
  const IndexedSlices sum = aggregate(values);
  return op == ReduceOp::kSum ? sum : divide_by(sum, static_cast<int>(values.size()));
}

// What every replica brings to a call that the last to come makes for all.
struct JointCall {
  const std::vector<torch::Tensor>& values;
  std::vector<torch::Tensor> results = {};
};

// values[i][r] of the r-th replica's i-th value. INVALID_ARGUMENT: not equally many.
std::vector<std::vector<torch::Tensor>> Transposed(const Arrivals<JointCall>& calls) {
  std::vector<std::vector<torch::Tensor>> values(calls[0].values.size());
  for (std::size_t r = 0; r < calls.size(); ++r) {
    const std::vector<torch::Tensor>& theirs = calls[r].values;
    if (theirs.size() != values.size()) {
      raise(InvalidArgument("replica {} brings {}, replica 0 {}", r,
                            Counted(theirs.size(), "tensor"), values.size()));
    }
    for (std::size_t i = 0; i < values.size(); ++i) values[i].push_back(theirs[i]);
  }
  return values;
}

void GiveResults(const Arrivals<JointCall>& calls,
                 std::vector<std::vector<torch::Tensor>>& results) {
  for (std::size_t r = 0; r < calls.size(); ++r) {
    for (auto& result : results) calls[r].results.push_back(std::move(result[r]));
  }
}

}  // namespace

std::vector<torch::Tensor> CrossDeviceOps::reduce_any(ReduceOp op,
                                                      const std::vector<torch::Tensor>& values,
                                                      const Destinations& to,
                                                      const CommunicationOptions& options) {
  internal::check_op(op);
  for (std::size_t r = 0; r < values.size(); ++r) {
    if (!values[r].defined()) raise(InvalidArgument("replica {} holds an undefined tensor", r));
  }
  if (AllSparse(values)) {
    note_sparse();
    std::vector<IndexedSlices> slices;
    for (const torch::Tensor& value : values) slices.push_back(to_slices(value));
    const device::PlaceScope scope(to.places()[0]);
    return CopyToAll(to_sparse(ReduceSlices(op, slices)), to);
  }
  // Nothing to add up: a copy, for which no transport is needed. A mean of integers is float64, of
  // one value's as well.
  if (values.size() == 1 && to.places().size() == 1) {
    const bool integers = torch::isIntegralType(values[0].scalar_type(), /*includeBool=*/true);
    return CopyToAll(
        op == ReduceOp::kMean && integers ? internal::mean_of(values[0], 1) : values[0], to);
  }
  return reduce_implementation(op, values, to, options);
}

Mirrored<torch::Tensor> CrossDeviceOps::reduce(ReduceOp op, const ReduceInput& value,
                                               const Destinations& to,
                                               const CommunicationOptions& options) {
  return Mirrored<torch::Tensor>(reduce_any(op, value.components(), to, options));
}

Mirrored<IndexedSlices> CrossDeviceOps::reduce(ReduceOp op, const PerReplica<IndexedSlices>& value,
                                               const Destinations& to,
                                               const CommunicationOptions&) {
  internal::check_op(op);
  note_sparse();
  const device::PlaceScope scope(to.places()[0]);
  const IndexedSlices reduced = ReduceSlices(op, value.values());
  std::vector<IndexedSlices> copies;
  for (const device::Place place : to.places()) copies.push_back(internal::copy_to(reduced, place));
  return Mirrored<IndexedSlices>(std::move(copies));
}

std::vector<Mirrored<torch::Tensor>> CrossDeviceOps::batch_reduce(
    ReduceOp op, const std::vector<std::pair<ReduceInput, Destinations>>& values,
    const CommunicationOptions& options) {
  internal::check_op(op);
  // Together, where all are dense and go to the same devices.
  bool together = !values.empty();
  std::vector<std::vector<torch::Tensor>> components;
  for (const auto& [value, to] : values) {
    together = together && to.places() == values[0].second.places() &&
               value.components().size() > 1 && !AllSparse(value.components());
    components.push_back(value.components());
  }
  std::vector<Mirrored<torch::Tensor>> results;
  if (together) {
    for (auto& result : batch_reduce_implementation(op, components, values[0].second, options)) {
      results.emplace_back(std::move(result));
    }
    return results;
  }
  for (const auto& [value, to] : values) results.push_back(reduce(op, value, to, options));
  return results;
}

Mirrored<torch::Tensor> CrossDeviceOps::broadcast(const torch::Tensor& value,
                                                  const Destinations& to) {
  if (!value.defined()) raise(InvalidArgument("an undefined tensor cannot be broadcast"));
  return Mirrored<torch::Tensor>(CopyToAll(value, to));
}

Mirrored<torch::Tensor> CrossDeviceOps::gather(const ReduceInput& value, const Destinations& to,
                                               int axis, const CommunicationOptions& options) {
  return Mirrored<torch::Tensor>(gather_implementation(value.components(), to, axis, options));
}

std::vector<std::vector<torch::Tensor>> CrossDeviceOps::reduce_in_step(
    const Strategy& strategy, ReduceOp op, const std::vector<std::vector<torch::Tensor>>& values,
    const Destinations& devices, const CommunicationOptions& options) {
  collectives::Group* const between = strategy.collectives();
  if (between == nullptr) return batch_reduce_implementation(op, values, devices, options);
  auto own = internal::brought_by(between, [&] {
    return batch_reduce_implementation(ReduceOp::kSum, WithRoom(op, values), devices, options);
  });
  std::vector<torch::Tensor> sums;
  for (auto& sum : own) sums.push_back(std::move(sum[0]));
  std::vector<torch::Tensor> totals =
      internal::sum_between_cards(*between, devices.places()[0], sums, options.timeout);
  std::vector<std::vector<torch::Tensor>> results;
  for (std::size_t i = 0; i < totals.size(); ++i) {
    const torch::ScalarType type = values[i][0].scalar_type();
    if (op == ReduceOp::kMean) {
      totals[i] = internal::mean_of(totals[i], strategy.num_replicas_in_sync());
    }
    if (torch::isFloatingType(type)) totals[i] = totals[i].to(type);
    results.push_back(CopyToAll(totals[i], devices));
  }
  return results;
}

std::vector<torch::Tensor> CrossDeviceOps::all_reduce(ReplicaContext& context, ReduceOp op,
                                                      const std::vector<torch::Tensor>& values,
                                                      const CommunicationOptions& options) {
  JointCall mine{values};
  const auto joint = [&](const Arrivals<JointCall>& calls) {
    const Destinations devices(context.strategy().worker_devices());
    const auto brought =
        internal::brought_by(context.strategy().collectives(), [&] { return Transposed(calls); });
    auto results = reduce_in_step(context.strategy(), op, brought, devices, options);
    GiveResults(calls, results);
  };
  context.meet(fmt::format("all_reduce {} by {}", name_of(op), name()), mine, joint,
               options.timeout);
  return std::move(mine.results);
}

internal::StartedTensors CrossDeviceOps::start_all_reduce(ReplicaContext& context, ReduceOp op,
                                                          const std::vector<torch::Tensor>& values,
                                                          const CommunicationOptions& options) {
  return internal::StartedTensors::ready(all_reduce(context, op, values, options));
}

std::vector<torch::Tensor> CrossDeviceOps::all_gather(ReplicaContext& context,
                                                      const std::vector<torch::Tensor>& values,
                                                      int axis,
                                                      const CommunicationOptions& options) {
  JointCall mine{values};
  const TimeLeft left(options.timeout);
  const auto joint = [&](const Arrivals<JointCall>& calls) {
    const Destinations devices(context.strategy().worker_devices());
    std::vector<std::vector<torch::Tensor>> results;
    collectives::Group* const between = context.strategy().collectives();
    const auto brought = internal::brought_by(between, [&] { return Transposed(calls); });
    for (const auto& value : brought) {
      // A process that brings another number of tensors makes another call.
      const std::string call =
          brought.size() == 1
              ? "all_gather"
              : fmt::format("all_gather, {} of {}", results.size() + 1, brought.size());
      const auto all =
          between == nullptr ? value : internal::values_of_all(*between, call, value, left());
      results.push_back(gather_implementation(all, devices, axis, options));
    }
    GiveResults(calls, results);
  };
  context.meet(fmt::format("all_gather axis {} by {}", axis, name()), mine, joint, options.timeout);
  return std::move(mine.results);
}

std::vector<std::vector<torch::Tensor>> CrossDeviceOps::batch_reduce_implementation(
    ReduceOp op, const std::vector<std::vector<torch::Tensor>>& values, const Destinations& to,
    const CommunicationOptions& options) {
  std::vector<std::vector<torch::Tensor>> results;
  for (const auto& value : values) {
    results.push_back(reduce_implementation(op, value, to, options));
  }
  return results;
}

std::vector<torch::Tensor> CrossDeviceOps::gather_implementation(
    const std::vector<torch::Tensor>& values, const Destinations& to, int axis,
    const CommunicationOptions&) {
  torch::Tensor joined;
  {
    const device::PlaceScope scope(to.places()[0]);
    joined = internal::gather_tensors(values, axis);
    // One value alone was not moved.
    joined = device::Placed(internal::here(joined), to.places()[0]);
  }
  std::vector<torch::Tensor> results{joined};
  for (std::size_t d = 1; d < to.places().size(); ++d) {
    results.push_back(internal::copy_to(joined, to.places()[d]));
  }
  return results;
}

std::vector<torch::Tensor> CrossDeviceOps::reduce_to_one(ReduceOp op,
                                                         const std::vector<torch::Tensor>& values,
                                                         device::Place device,
                                                         const Destinations& to) {
  torch::Tensor reduced;
  {
    const device::PlaceScope scope(device);
    reduced = internal::reduce_tensors(op, values, Axes());
  }
  std::vector<torch::Tensor> results;
  for (const device::Place place : to.places()) {
    // The result itself stays where it was made, unless it is one of the values.
    const bool own = place == device && values.size() > 1;
    results.push_back(own ? device::Placed(reduced, place) : internal::copy_to(reduced, place));
  }
  return results;
}

void CrossDeviceOps::note_once(std::string_view message) {
  if (!noted_.exchange(true)) log::Warning("{}: {}", name(), message);
}

void CrossDeviceOps::note_sparse() {
  if (!is_all_reduce() || noted_sparse_.exchange(true)) return;
  log::Warning("{}: sparse values are joined on one device and copied, not all-reduced", name());
}

ReductionToOneDevice::ReductionToOneDevice(const std::optional<std::string>& device,
                                           Accumulate accumulate)
    : accumulate_(std::move(accumulate)) {
  if (device.has_value()) device_ = Destinations(*device).places()[0];
}

std::vector<torch::Tensor> ReductionToOneDevice::reduce_implementation(
    ReduceOp op, const std::vector<torch::Tensor>& values, const Destinations& to,
    const CommunicationOptions&) {
  const device::Place device = device_.value_or(to.places()[0]);
  if (accumulate_ == nullptr) return reduce_to_one(op, values, device, to);
  torch::Tensor sum;
  {
    const device::PlaceScope scope(device);
    std::vector<torch::Tensor> together;
    for (const torch::Tensor& value : values) together.push_back(internal::here(value));
    sum = accumulate_(together);
    if (op == ReduceOp::kMean) {
      sum = internal::mean_of(sum, static_cast<double>(values.size()));
    }
  }
  return CopyToAll(sum, to);
}

namespace {

bool AllGpusOfTheirOwn(const std::vector<std::string>& devices, const MachineFacts& facts) {
  std::set<int> cards;
  for (const std::string& name : devices) {
    const device::Place device = value_of(device::ParsePlace(name));
    if (!device::IsGpu(device)) return false;
    const auto index = static_cast<std::size_t>(device.index);
    // A GPU that nothing is known of has a card of its own.
    const int card = index < facts.gpu_cards.size() ? facts.gpu_cards[index] : -1 - device.index;
    if (!cards.insert(card).second) return false;
  }
  return true;
}

// CPUs need no facts, and libtorch is not asked for its cards.
MachineFacts FactsFor(const std::vector<std::string>& devices) {
  const bool gpus = std::any_of(devices.begin(), devices.end(), [](const std::string& name) {
    const Result<device::Place> parsed = device::ParsePlace(name);
    return parsed.ok() && device::IsGpu(*parsed);
  });
  return gpus ? machine_facts() : MachineFacts{};
}

}  // namespace

MachineFacts machine_facts() {
  return {.nccl = internal::nccl_in_build(), .gpu_cards = device::LogicalGpus::OfProcess().Cards()};
}

std::shared_ptr<CrossDeviceOps> select_cross_device_ops(const std::vector<std::string>& devices,
                                                        const MachineFacts& facts) {
  if (AllGpusOfTheirOwn(devices, facts) && facts.nccl) return std::make_shared<NcclAllReduce>();
  return std::make_shared<ReductionToOneDevice>();
}

std::shared_ptr<CrossDeviceOps> select_cross_device_ops(const std::vector<std::string>& devices) {
  return select_cross_device_ops(devices, FactsFor(devices));
}

std::shared_ptr<CrossDeviceOps> mirrored_cross_device_ops(const std::vector<std::string>& devices) {
  return mirrored_cross_device_ops(devices, FactsFor(devices));
}

std::shared_ptr<CrossDeviceOps> mirrored_cross_device_ops(const std::vector<std::string>& devices,
                                                          const MachineFacts& facts) {
  std::set<device::Place::Type> types;
  for (const std::string& name : devices) {
    types.insert(value_of(device::ParsePlace(name)).type);
  }
  if (types.size() > 1) return std::make_shared<ReductionToOneDevice>();
  const bool nccl = facts.nccl && AllGpusOfTheirOwn(devices, facts);
  return std::make_shared<CollectiveAllReduce>(nccl ? CommunicationImplementation::kNccl
                                                    : CommunicationImplementation::kRing);
}

std::shared_ptr<CrossDeviceOps> cross_device_ops_for(const std::shared_ptr<CrossDeviceOps>& ops,
                                                     torch::ScalarType type,
                                                     const std::vector<std::string>& devices) {
  if (type != torch::kInt32) return ops;
  for (const std::string& name : devices) {
    const Result<device::Place> parsed = device::ParsePlace(name);
    if (parsed.ok() && device::IsGpu(*parsed)) {
      return std::make_shared<ReductionToOneDevice>();
    }
  }
  return ops;
}

std::vector<std::vector<std::size_t>> group_by_size(const std::vector<torch::Tensor>& tensors,
                                                    const BytesPerPack& bytes_per_pack) {
  std::vector<std::optional<std::size_t>> bytes;
  for (const torch::Tensor& tensor : tensors) {
    bytes.push_back(tensor.defined() && !tensor.is_sparse() ? std::optional(tensor.nbytes())
                                                            : std::nullopt);
  }
  return collectives::GroupBySize(bytes, bytes_per_pack);
}

}  // namespace muster
