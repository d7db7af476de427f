#include <algorithm>
#include <memory>
#include <set>
#include <span>

#include "collectives/hierarchy.h"
#include "collectives/packing.h"
#include "collectives/together.h"
#include "common/base/time_left.h"
#include "common/base/words.h"
#include "device/gpu.h"
#include "device/placing.h"
#include "strategy/base/internal/plain.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/core/replica_context.h"
#include "strategy/core/strategy.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/reduce/internal/nccl.h"
#include "strategy/reduce/internal/replica_meeting.h"
#include "strategy/values/internal/copies.h"
#include "strategy/values/internal/reduction.h"

namespace muster {
namespace {

using Values = std::vector<std::vector<torch::Tensor>>;

std::size_t PacksOf(std::string_view name, int num_packs) {
  if (num_packs < 0) raise(InvalidArgument("{} requires num_packs >= 0, not {}", name, num_packs));
  return static_cast<std::size_t>(num_packs);
}

// Where the components lie.
std::vector<device::Place> DevicesOf(const std::vector<torch::Tensor>& values) {
  std::vector<device::Place> devices;
  for (const torch::Tensor& value : values) devices.push_back(device::PlaceOf(value));
  return devices;
}

bool AnyGpu(const std::vector<device::Place>& devices) {
  return std::any_of(devices.begin(), devices.end(), device::IsGpu);
}

// GPUs of cards of their own.
bool NcclServes(const std::vector<device::Place>& devices) {
  if (!internal::nccl_in_build() || devices.size() < 2) return false;
  std::set<int> cards;
  return std::all_of(devices.begin(), devices.end(), [&](device::Place place) {
    return device::IsGpu(place) && cards.insert(device::TorchDevice(place).index()).second;
  });
}

}  // namespace

std::vector<torch::Tensor> AllReduceOps::reduce_implementation(
    ReduceOp op, const std::vector<torch::Tensor>& values, const Destinations& to,
    const CommunicationOptions& options) {
  return batch_reduce_implementation(op, {values}, to, options)[0];
}

Values AllReduceOps::batch_reduce_implementation(ReduceOp op, const Values& values,
                                                 const Destinations& to,
                                                 const CommunicationOptions& options) {
  const bool can = std::all_of(values.begin(), values.end(), [&](const auto& components) {
    return DevicesOf(components) == to.places();
  });
  if (can && serves(to.places())) return all_reduce_batch(op, values, to, options);
  if (can) note_once("these devices are reduced on one of them, and the result copied");
  Values results;
  for (const auto& components : values) {
    results.push_back(reduce_to_one(op, components, to.places()[0], to));
  }
  return results;
}

HierarchicalCopyAllReduce::HierarchicalCopyAllReduce(int num_packs)
    : num_packs_(PacksOf(name(), num_packs)) {}

bool HierarchicalCopyAllReduce::serves(const std::vector<device::Place>& devices) const {
  return devices.size() > 1 && !AnyGpu(devices);
}

// All tensors that have kernels are laid end to end, and each pack of them goes by a route of its
// own; the others are reduced on the first device.
Values HierarchicalCopyAllReduce::all_reduce_batch(ReduceOp op, const Values& values,
                                                   const Destinations& to,
                                                   const CommunicationOptions&) {
  const auto reduction =
      op == ReduceOp::kSum ? collectives::Reduction::kSum : collectives::Reduction::kMean;
  // Tensors, and what they are reduced to, by buffer and by device.
  struct Buffer {
    DType type;
    std::vector<torch::Tensor> inputs;  // contiguous; kept alive
    std::vector<const void*> sources;
    std::vector<void*> destinations;
  };
  std::vector<Buffer> buffers;
  std::vector<std::size_t> counts;
  Values results(values.size());
  // In reverse: the gradients of the last layers are ready first.
  for (std::size_t i = values.size(); i-- > 0;) {
    // Shapes and types that do not fit, and types without kernels, are told or done there.
    const auto type = internal::dtype_of(values[i][0].scalar_type());
    const bool fits = std::all_of(values[i].begin(), values[i].end(), [&](const auto& value) {
      return value.sizes().equals(values[i][0].sizes()) &&
             value.scalar_type() == values[i][0].scalar_type();
    });
    if (!fits || !type.has_value() || !collectives::Reducible(*type)) {
      results[i] = reduce_to_one(op, values[i], to.places()[0], to);
      continue;
    }
    Buffer buffer{*type, {}, {}, {}};
    for (std::size_t d = 0; d < values[i].size(); ++d) {
      const device::PlaceScope scope(to.places()[d]);
      buffer.inputs.push_back(internal::plain_of(values[i][d].detach()));
      buffer.sources.push_back(buffer.inputs.back().data_ptr());
      results[i].push_back(torch::empty(
          values[i][d].sizes(),
          torch::dtype(internal::scalar_type_of(collectives::ResultType(reduction, *type)))));
      buffer.destinations.push_back(results[i].back().data_ptr());
    }
    buffers.push_back(std::move(buffer));
    counts.push_back(static_cast<std::size_t>(values[i][0].numel()));
  }
  const auto reduce = [&](std::size_t route, std::size_t buffer, collectives::Range range) {
    collectives::HierarchicalReduce(reduction, buffers[buffer].type, route, buffers[buffer].sources,
                                    buffers[buffer].destinations, range);
  };
  if (num_packs_ == 0) {
    for (std::size_t b = 0; b < buffers.size(); ++b) reduce(b, b, {0, counts[b]});
    return results;
  }
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  for (std::size_t pack = 0; pack < num_packs_; ++pack) {
    for (const collectives::Piece& piece :
         collectives::PiecesOf(counts, collectives::SplitOf(total, pack, num_packs_))) {
      reduce(pack, piece.buffer, piece.range);
    }
  }
  return results;
}

NcclAllReduce::NcclAllReduce(int num_packs) { (void)PacksOf(name(), num_packs); }

bool NcclAllReduce::serves(const std::vector<device::Place>& devices) const {
  return NcclServes(devices);
}

Values NcclAllReduce::all_reduce_batch(ReduceOp op, const Values& values, const Destinations& to,
                                       const CommunicationOptions&) {
  Values results(values.size());
  for (std::size_t i = values.size(); i-- > 0;) {
    if (!internal::nccl_all_reduce(op, values[i], results[i])) {
      results[i] = reduce_to_one(op, values[i], to.places()[0], to);
    }
  }
  return results;
}

bool CollectiveAllReduce::serves(const std::vector<device::Place>& devices) const {
  if (!AnyGpu(devices)) return true;
  return implementation_ == CommunicationImplementation::kNccl && NcclServes(devices);
}

// Called in cross-replica context, where one thread has all values: the sums of the ring, in the
// same order, without its meetings.
Values CollectiveAllReduce::all_reduce_batch(ReduceOp op, const Values& values,
                                             const Destinations& to, const CommunicationOptions&) {
  Values results(values.size());
  const bool gpus = AnyGpu(to.places());
  for (std::size_t i = values.size(); i-- > 0;) {
    const bool done = gpus ? internal::nccl_all_reduce(op, values[i], results[i])
                           : internal::reduce_buffers(op, values[i], to.places(), results[i]);
    if (!done) {
      results[i] = reduce_to_one(op, values[i], to.places()[0], to);
    }
  }
  return results;
}

namespace {

collectives::Reduction ReductionOf(ReduceOp op) {
  return op == ReduceOp::kSum ? collectives::Reduction::kSum : collectives::Reduction::kMean;
}

// What a replica brings to an all-reduce, and gets.
struct Brought {
  std::vector<torch::Tensor> inputs;  // kept alive
  std::vector<torch::Tensor> results;
  // In reverse: the gradients of the last layers are ready first. Of packs[p] the first is
  // buffers[packs[p]]; one more that is their end.
  std::vector<collectives::ReduceBuffer> buffers;
  std::vector<std::size_t> packs;

  std::span<const collectives::ReduceBuffer> pack(std::size_t p) const {
    return std::span(buffers).subspan(packs[p], packs[p + 1] - packs[p]);
  }
};

Brought BroughtOf(collectives::Reduction reduction, const std::vector<torch::Tensor>& values,
                  const BytesPerPack& bytes_per_pack) {
  const std::vector<torch::Tensor> reversed(values.rbegin(), values.rend());
  Brought brought;
  brought.results.resize(values.size());
  for (const std::vector<std::size_t>& pack : group_by_size(reversed, bytes_per_pack)) {
    brought.packs.push_back(brought.buffers.size());
    for (const std::size_t i : pack) {
      const DType type = *internal::dtype_of(reversed[i].scalar_type());
      const DType result = collectives::ResultType(reduction, type);
      torch::Tensor& to = brought.results[values.size() - 1 - i];
      const torch::Tensor& from =
          brought.inputs.emplace_back(internal::plain_of(internal::here(reversed[i])));
      to = torch::empty(reversed[i].sizes(), torch::dtype(internal::scalar_type_of(result)));
      brought.buffers.push_back({type, reversed[i].sizes().vec(), from.data_ptr(), to.data_ptr()});
    }
  }
  brought.packs.push_back(brought.buffers.size());
  return brought;
}

// Replicas' threads share host memory; for GPUs the last replica to come does all. Rare types have
// no kernels: libtorch adds them, on the last replica to come.
bool InHostMemory(ReplicaContext& context, const std::vector<torch::Tensor>& values) {
  if (context.strategy().uses_gpus()) return false;
  return std::all_of(values.begin(), values.end(), [](const torch::Tensor& value) {
    return internal::dtype_of(value.scalar_type()).has_value();
  });
}

}  // namespace

std::vector<torch::Tensor> CollectiveAllReduce::all_reduce(ReplicaContext& context, ReduceOp op,
                                                           const std::vector<torch::Tensor>& values,
                                                           const CommunicationOptions& options) {
  internal::check_op(op);
  if (!InHostMemory(context, values)) {
    return CrossDeviceOps::all_reduce(context, op, values, options);
  }
  const internal::AllReplicas group(context);
  Brought mine = BroughtOf(ReductionOf(op), values, options.bytes_per_pack);
  const TimeLeft left(options.timeout);
  for (std::size_t p = 0; p + 1 < mine.packs.size(); ++p) {
    raise_unless_ok(group->AllReduce(ReductionOf(op), mine.pack(p), left()));
  }
  return std::move(mine.results);
}

// Replicas of this process meet once, to begin; the packs then travel one after another beside what
// the callers do, and each replica waits for its results when it wants them.
internal::StartedTensors CollectiveAllReduce::start_all_reduce(
    ReplicaContext& context, ReduceOp op, const std::vector<torch::Tensor>& values,
    const CommunicationOptions& options) {
  internal::check_op(op);
  collectives::Group* const between = context.strategy().collectives();
  if (between == nullptr || !InHostMemory(context, values)) {
    return CrossDeviceOps::start_all_reduce(context, op, values, options);
  }
  const collectives::Reduction reduction = ReductionOf(op);
  const collectives::Timeout timeout = options.timeout;
  const auto mine = std::make_shared<Brought>(BroughtOf(reduction, values, options.bytes_per_pack));
  struct Call {
    std::shared_ptr<Brought> brought;
    collectives::Pending pending;
  } call{mine, {}};
  // The last replica of this process to come begins it for all of them.
  const auto begin = [&](const std::vector<std::shared_ptr<Brought>>& all) {
    return between->Start([=](collectives::Group& group) -> Status {
      const TimeLeft left(timeout);
      for (std::size_t p = 0; p + 1 < all[0]->packs.size(); ++p) {
        std::vector<std::span<const collectives::ReduceBuffer>> packs;
        for (const auto& one : all) packs.push_back(one->pack(p));
        MUSTER_TRY(packs.size() == 1 ? group.AllReduce(reduction, packs[0], left())
                                     : collectives::ReduceJointly(group, reduction, packs, left()));
      }
      return Ok();
    });
  };
  if (context.strategy().num_local_replicas() == 1) {
    call.pending = begin({mine});
  } else {
    const auto joint = [&](const Arrivals<Call>& calls) {
      std::vector<std::shared_ptr<Brought>> all;
      std::vector<std::span<const collectives::ReduceBuffer>> buffers;
      for (const Call& one : calls) {
        all.push_back(one.brought);
        buffers.emplace_back(one.brought->buffers);
      }
      Status status = collectives::CheckSame(buffers);
      const bool packed_alike = std::all_of(
          all.begin(), all.end(), [&](const auto& one) { return one->packs == all[0]->packs; });
      if (status.ok() && !packed_alike) {
        status = InvalidArgument(
            "start_all_reduce: the replicas of a process have different bytes_per_pack; all need "
            "the same");
      }
      if (!status.ok()) {
        between->Abort(status);
        raise(status);
      }
      const collectives::Pending pending = begin(all);
      for (Call& one : calls) one.pending = pending;
    };
    context.meet(fmt::format("start of all_reduce {} by {}", name_of(op), name()), call, joint,
                 timeout);
  }
  return {[results = mine->results, pending = call.pending] {
            raise_unless_ok(pending.Wait());
            return results;
          },
          [pending = call.pending] { return pending.Done(); }};
}

namespace {

// What a replica says of a tensor before it is gathered.
struct Said {
  std::int64_t type;
  std::vector<std::int64_t> shape;
};

// In place of a type: why there is nothing to gather.
constexpr std::int64_t kSaidUndefined = -1;
constexpr std::int64_t kSaidSparse = -2;

// The axis, then for each tensor its type, rank and sizes.
std::vector<std::int64_t> Encode(const std::vector<torch::Tensor>& values, int axis) {
  std::vector<std::int64_t> said{axis};
  for (const torch::Tensor& value : values) {
    if (!value.defined() || value.layout() != torch::kStrided) {
      said.insert(said.end(), {value.defined() ? kSaidSparse : kSaidUndefined, 0});
      continue;
    }
    said.push_back(static_cast<std::int64_t>(value.scalar_type()));
    said.push_back(value.dim());
    said.insert(said.end(), value.sizes().begin(), value.sizes().end());
  }
  return said;
}

std::vector<Said> Decode(const std::vector<std::int64_t>& said) {
  std::vector<Said> tensors;
  for (std::size_t at = 1; at < said.size();) {
    const auto from = said.begin() + static_cast<std::ptrdiff_t>(at) + 2;
    tensors.push_back({said[at], {from, from + said[at + 1]}});
    at += 2 + tensors.back().shape.size();
  }
  return tensors;
}

// A tensor that one replica cannot bring is an error of all.
void RefuseUnfit(const std::vector<std::vector<Said>>& all, std::size_t i) {
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r][i].type == kSaidUndefined) {
      raise(InvalidArgument("all_gather of an undefined tensor: tensor {} of replica {}", i, r));
    }
    if (all[r][i].type == kSaidSparse) {
      raise(Unimplemented(
          "all_gather does not support IndexedSlices or other sparse tensors: tensor {} of replica "
          "{} is one",
          i, r));
    }
  }
}

// The pieces of one tensor by replica, and the shape of them joined. INVALID_ARGUMENT: they do not
// fit.
collectives::GatherBuffer PlanGather(const std::vector<std::vector<std::int64_t>>& shapes, int axis,
                                     std::size_t element_bytes, std::vector<std::int64_t>& joined) {
  internal::check_gather(shapes, axis);
  const auto along = static_cast<std::size_t>(axis);
  collectives::GatherBuffer buffer;
  std::size_t inner = element_bytes;
  for (std::size_t d = 0; d < shapes[0].size(); ++d) {
    if (d < along) buffer.blocks *= static_cast<std::size_t>(shapes[0][d]);
    if (d > along) inner *= static_cast<std::size_t>(shapes[0][d]);
  }
  joined = shapes[0];
  joined[along] = 0;
  for (const auto& shape : shapes) {
    joined[along] += shape[along];
    buffer.block_bytes.push_back(static_cast<std::size_t>(shape[along]) * inner);
  }
  return buffer;
}

}  // namespace

// Replicas say first what they bring, so that who has what cannot be joined is an error of all of
// them; then the bytes travel.
std::vector<torch::Tensor> CollectiveAllReduce::all_gather(ReplicaContext& context,
                                                           const std::vector<torch::Tensor>& values,
                                                           int axis,
                                                           const CommunicationOptions& options) {
  if (context.strategy().uses_gpus()) {
    return CrossDeviceOps::all_gather(context, values, axis, options);
  }
  const internal::AllReplicas group(context);
  const TimeLeft left(options.timeout);
  const auto said = group->Exchange("all_gather", Encode(values, axis), left());
  raise_unless_ok(said.status());
  // Every replica checks the same things from here on, so all of them throw, or none.
  std::vector<std::vector<Said>> all;
  for (std::size_t r = 0; r < said->size(); ++r) {
    all.push_back(Decode((*said)[r]));
    if ((*said)[r][0] != (*said)[0][0]) {
      raise(InvalidArgument("all_gather: replica {} gathers along axis {}, replica 0 along {}", r,
                            (*said)[r][0], (*said)[0][0]));
    }
    if (all[r].size() != all[0].size()) {
      raise(InvalidArgument("all_gather: replica {} brings {}, replica 0 {}", r,
                            Counted(all[r].size(), "tensor"), all[0].size()));
    }
  }
  std::vector<torch::Tensor> inputs, results;
  std::vector<collectives::GatherBuffer> buffers;
  for (std::size_t i = 0; i < all[0].size(); ++i) {
    RefuseUnfit(all, i);
    std::vector<std::vector<std::int64_t>> shapes;
    for (std::size_t r = 0; r < all.size(); ++r) {
      shapes.push_back(all[r][i].shape);
      if (context.strategy().require_static_shapes() && shapes[r] != shapes[0]) {
        raise(InvalidArgument(
            "all_gather: {} gathers equal shapes only; tensor {} is {} on replica {}, {} on "
            "replica 0",
            context.strategy().name(), i, ShapeText(shapes[r]), r, ShapeText(shapes[0])));
      }
      if (all[r][i].type == all[0][i].type) continue;
      raise(InvalidArgument("all_gather: tensor {} is {} on replica {}, {} on replica 0", i,
                            torch::toString(static_cast<torch::ScalarType>(all[r][i].type)), r,
                            torch::toString(static_cast<torch::ScalarType>(all[0][i].type))));
    }
    std::vector<std::int64_t> joined;
    buffers.push_back(PlanGather(shapes, axis, values[i].element_size(), joined));
    inputs.push_back(internal::plain_of(internal::here(values[i])));
    results.push_back(torch::empty(joined, torch::dtype(values[i].scalar_type())));
    buffers.back().in = inputs.back().data_ptr();
    buffers.back().out = results.back().data_ptr();
  }
  raise_unless_ok(group->AllGather(buffers, left()));
  return results;
}

}  // namespace muster
