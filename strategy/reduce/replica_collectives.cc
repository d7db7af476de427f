// all_reduce and all_gather of a replica context: leaves of nests, and their gradients. How values
// travel is up to the strategy's cross-device ops.
#include <algorithm>

#include "common/base/time_left.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/context.h"
#include "strategy/core/internal/between.h"
#include "strategy/core/replica_context.h"
#include "strategy/core/strategy.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/reduce/internal/replica_meeting.h"
#include "strategy/values/internal/copies.h"
#include "strategy/values/internal/reduction.h"
#include "strategy/values/sparse.h"

namespace muster {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What a forward needs besides tensors; on its caller's stack.
struct Call {
  ReplicaContext& context;
  ReduceOp op = ReduceOp::kSum;
  int axis = 0;
  const CommunicationOptions& options;
};

const Call& CallAt(std::int64_t address) { return *reinterpret_cast<const Call*>(address); }
std::int64_t AddressOf(const Call& call) { return reinterpret_cast<std::int64_t>(&call); }

// Which replica made the forward call. The context object itself ends with its run.
void Save(AutogradContext* saved, const Call& call) {
  saved->saved_data["strategy"] = reinterpret_cast<std::int64_t>(&call.context.strategy());
  saved->saved_data["replica"] = call.context.replica_id_in_sync_group();
  saved->saved_data["op"] = static_cast<int>(call.op);
  saved->saved_data["axis"] = call.axis;
  saved->saved_data["pack"] = static_cast<std::int64_t>(std::size_t{call.options.bytes_per_pack});
  saved->saved_data["timeout"] = static_cast<std::int64_t>(
      call.options.timeout.value_or(std::chrono::milliseconds(0)).count());
}

// The context of a backward call: replicas meet in it, so it must be made where the forward was.
ReplicaContext& ContextOf(AutogradContext* saved) {
  const auto replica = saved->saved_data["replica"].toInt();
  ReplicaContext* const context = get_replica_context();
  if (context == nullptr || context->replica_id_in_sync_group() != replica ||
      reinterpret_cast<std::int64_t>(&context->strategy()) !=
          saved->saved_data["strategy"].toInt()) {
    raise(FailedPrecondition(
        "the gradient of a collective call of replica {} needs the other replicas: call backward() "
        "inside the replica function",
        replica));
  }
  return *context;
}

CommunicationOptions OptionsOf(AutogradContext* saved) {
  CommunicationOptions options{.bytes_per_pack = saved->saved_data["pack"].toInt()};
  if (const auto timeout = saved->saved_data["timeout"].toInt(); timeout > 0) {
    options.timeout = std::chrono::milliseconds(timeout);
  }
  return options;
}

// Where the values of the forward lie: what comes back to them lies there, too.
void SaveDevices(AutogradContext* saved, at::TensorList values) {
  std::vector<std::int64_t> cards;
  for (const torch::Tensor& value : values) {
    cards.push_back(value.device().is_cpu() ? -1 : value.device().index());
  }
  saved->saved_data["cards"] = cards;
}
void ReturnToDevices(AutogradContext* saved, variable_list& gradients) {
  const std::vector<std::int64_t> cards = saved->saved_data["cards"].toIntVector();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const torch::Device to =
        cards[i] < 0 ? torch::Device(torch::kCPU)
                     : torch::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(cards[i]));
    if (!device::SameDevice(gradients[i].device(), to)) gradients[i] = gradients[i].to(to);
  }
}

bool IsDifferentiable(const torch::Tensor& value) {
  return value.is_floating_point() || value.is_complex();
}

// Integers have no gradients, whatever they become.
void MarkIntegers(AutogradContext* saved, at::TensorList values, const variable_list& results) {
  variable_list integers;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!IsDifferentiable(values[i])) integers.push_back(results[i]);
  }
  saved->mark_non_differentiable(integers);
}

// The gradients that backward was given for differentiable results, summed or averaged; undefined
// elsewhere. Where backward builds a graph (create_graph) they have a gradient in turn.
variable_list ReduceGradients(ReplicaContext& context, ReduceOp op, const variable_list& gradients,
                              const CommunicationOptions& options);

struct AllReduceFunction : torch::autograd::Function<AllReduceFunction> {
  static variable_list forward(AutogradContext* saved, at::TensorList values,
                               std::int64_t address) {
    const Call& call = CallAt(address);
    Save(saved, call);
    SaveDevices(saved, values);
    variable_list results = call.context.strategy().cross_device_ops().all_reduce(
        call.context, call.op, values.vec(), call.options);
    MarkIntegers(saved, values, results);
    return results;
  }
  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    const auto op = static_cast<ReduceOp>(saved->saved_data["op"].toInt());
    variable_list result = ReduceGradients(ContextOf(saved), op, gradients, OptionsOf(saved));
    ReturnToDevices(saved, result);
    result.emplace_back();
    return result;
  }
};

variable_list ReduceGradients(ReplicaContext& context, ReduceOp op, const variable_list& gradients,
                              const CommunicationOptions& options) {
  variable_list wanted;
  for (const torch::Tensor& gradient : gradients) {
    if (IsDifferentiable(gradient)) wanted.push_back(gradient);
  }
  const Call call{.context = context, .op = op, .options = options};
  variable_list reduced = AllReduceFunction::apply(at::TensorList(wanted), AddressOf(call));
  variable_list result;
  auto next = reduced.begin();
  for (const torch::Tensor& gradient : gradients) {
    result.push_back(IsDifferentiable(gradient) ? std::move(*next++) : torch::Tensor());
  }
  return result;
}

// Each replica's gradient is the sum, over replicas, of its own piece of their gradients.
struct AllGatherFunction : torch::autograd::Function<AllGatherFunction> {
  static variable_list forward(AutogradContext* saved, at::TensorList values,
                               std::int64_t address) {
    const Call& call = CallAt(address);
    Save(saved, call);
    SaveDevices(saved, values);
    variable_list results = call.context.strategy().cross_device_ops().all_gather(
        call.context, values.vec(), call.axis, call.options);
    std::vector<std::int64_t> sizes;
    for (const torch::Tensor& value : values) sizes.push_back(value.size(call.axis));
    saved->saved_data["sizes"] = sizes;
    MarkIntegers(saved, values, results);
    return results;
  }
  static variable_list backward(AutogradContext* saved, const variable_list& gradients) {
    ReplicaContext& context = ContextOf(saved);
    CommunicationOptions options = OptionsOf(saved);
    const TimeLeft left(options.timeout);
    const auto replica = static_cast<std::size_t>(saved->saved_data["replica"].toInt());
    const std::vector<std::int64_t> mine = saved->saved_data["sizes"].toIntVector();
    const internal::AllReplicas group(context);
    const auto sizes = group->Exchange("gradient of all_gather", mine, options.timeout);
    raise_unless_ok(sizes.status());
    options.timeout = left();
    variable_list result = ReduceGradients(context, ReduceOp::kSum, gradients, options);
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (!result[i].defined()) continue;
      std::int64_t offset = 0;
      for (std::size_t r = 0; r < replica; ++r) offset += (*sizes)[r][i];
      result[i] = result[i].narrow(saved->saved_data["axis"].toInt(), offset, mine[i]);
    }
    ReturnToDevices(saved, result);
    result.emplace_back();
    return result;
  }
};

// `result` of values that may want a gradient, which there is none of.
struct RefuseGradient : torch::autograd::Function<RefuseGradient> {
  static torch::Tensor forward(AutogradContext*, const torch::Tensor&, torch::Tensor result) {
    return result.detach();
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    raise(Unimplemented(
        "the gradient of all_reduce through IndexedSlices, and of start_all_reduce, is not "
        "supported"));
  }
};

torch::Tensor WithoutGradient(const torch::Tensor& value, const torch::Tensor& result) {
  const bool wanted = torch::GradMode::is_enabled() && value.requires_grad();
  return wanted ? RefuseGradient::apply(value, result) : result;
}

// All replicas' slices joined, one leaf after another; the result is a copy on this replica's
// device.
std::vector<IndexedSlices> ReduceSlices(const Call& call, const std::vector<IndexedSlices>& mine) {
  struct Part {
    const std::vector<IndexedSlices>& mine;
    TimeLeft left;
    std::vector<IndexedSlices> joined = {};
  } part{mine, TimeLeft(call.options.timeout)};
  const torch::NoGradGuard no_grad;
  call.context.strategy().cross_device_ops().note_sparse();
  const std::string name = fmt::format("all_reduce {} of IndexedSlices", name_of(call.op));
  const auto joint = [&](const Arrivals<Part>& all) {
    collectives::Group* const between = call.context.strategy().collectives();
    std::vector<const Part*> parts;
    for (std::size_t r = 0; r < all.size(); ++r) {
      parts.push_back(&all[r]);
      if (all[r].mine.size() == mine.size()) continue;
      const Status status = InvalidArgument(
          "all_reduce: replica {} of a process brings {} IndexedSlices, another one {}", r,
          all[r].mine.size(), mine.size());
      // Other processes would wait for this one.
      if (between != nullptr) between->Abort(status);
      raise(status);
    }
    const TimeLeft left = TimeLeft::OfFirst(parts);
    std::vector<IndexedSlices> joined;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      std::vector<IndexedSlices> leaf;
      for (const Part* one : parts) leaf.push_back(one->mine[i]);
      if (between != nullptr) {
        // A process that brings another number of them makes another call.
        const std::string each =
            mine.size() == 1 ? name : fmt::format("{}, {} of {}", name, i + 1, mine.size());
        leaf = internal::slices_of_all(*between, each, leaf, left());
      }
      joined.push_back(aggregate(leaf));
    }
    for (Part& one : all) one.joined = joined;
  };
  call.context.meet(name, part, joint, call.options.timeout);
  std::vector<IndexedSlices> results;
  const device::Place place = device::PlaceScope::Current();
  for (const IndexedSlices& joined : part.joined) {
    results.push_back(internal::copy_to(joined, place));
    // Not in place: a mean of integers is of another type.
    if (call.op != ReduceOp::kMean) continue;
    torch::Tensor& values = results.back().values;
    values = internal::mean_of(values, call.context.num_replicas_in_sync());
  }
  return results;
}

// What one replica gets: values of its own, as from several. Whoever writes into a result must not
// write into the argument.
std::vector<std::variant<torch::Tensor, IndexedSlices>> Alone(
    ReduceOp op, std::vector<std::variant<torch::Tensor, IndexedSlices>> leaves) {
  // A mean of integers is float64, of one replica's as well.
  const auto own = [op](const torch::Tensor& value) {
    const bool integers = torch::isIntegralType(value.scalar_type(), /*includeBool=*/false);
    return op == ReduceOp::kMean && integers ? value.to(torch::kDouble) : value.clone();
  };
  for (auto& leaf : leaves) {
    if (auto* const slices = std::get_if<IndexedSlices>(&leaf)) {
      slices->values = own(slices->values);
      slices->indices = slices->indices.clone();
      continue;
    }
    auto& tensor = std::get<torch::Tensor>(leaf);
    if (!tensor.defined()) raise(InvalidArgument("all_reduce of an undefined tensor"));
    tensor = own(tensor);
  }
  return leaves;
}

// All replicas hear of it, so it says whose it is.
[[noreturn]] void RefuseUndefined(const char* call, const ReplicaContext& replica) {
  raise(InvalidArgument("{} of an undefined tensor on replica {}", call,
                        replica.replica_id_in_sync_group()));
}

}  // namespace

// Two calls at most, on all replicas in this order: one for all dense leaves, one for all rows.
ReplicaContext::Leaves ReplicaContext::reduce_leaves(ReduceOp op, const Leaves& leaves,
                                                     const CommunicationOptions& options) {
  require_mine();
  internal::check_op(op);
  if (num_replicas_in_sync() == 1) return Alone(op, leaves);
  const TimeLeft left(options.timeout);
  const Call call{.context = *this, .op = op, .options = options};
  variable_list dense;
  std::vector<IndexedSlices> sparse;
  internal::brought_by(strategy_.collectives(), [&] {
    for (const Leaf& leaf : leaves) {
      if (const auto* const slices = std::get_if<IndexedSlices>(&leaf)) {
        sparse.push_back(*slices);
        continue;
      }
      const auto& tensor = std::get<torch::Tensor>(leaf);
      if (!tensor.defined()) RefuseUndefined("all_reduce", *this);
      if (is_slices(tensor)) {
        sparse.push_back(to_slices(tensor));
      } else {
        dense.push_back(tensor);
      }
    }
  });
  if (!dense.empty()) dense = AllReduceFunction::apply(at::TensorList(dense), AddressOf(call));
  if (!sparse.empty()) {
    CommunicationOptions rest = options;
    rest.timeout = left();
    sparse = ReduceSlices({.context = *this, .op = op, .options = rest}, sparse);
  }

  Leaves results;
  auto next_dense = dense.begin();
  auto next_sparse = sparse.begin();
  for (const Leaf& leaf : leaves) {
    if (const auto* const slices = std::get_if<IndexedSlices>(&leaf)) {
      next_sparse->values = WithoutGradient(slices->values, next_sparse->values);
      results.emplace_back(std::move(*next_sparse++));
    } else if (const auto& tensor = std::get<torch::Tensor>(leaf); tensor.is_sparse()) {
      results.emplace_back(WithoutGradient(tensor, to_sparse(*next_sparse++)));
    } else {
      results.emplace_back(std::move(*next_dense++));
    }
  }
  return results;
}

// Dense tensors travel while the caller goes on; rows, and everything where there is one replica,
// are summed before it returns.
ReplicaContext::StartedLeaves ReplicaContext::start_leaves(ReduceOp op, const Leaves& leaves,
                                                           const CommunicationOptions& options) {
  require_mine();
  internal::check_op(op);
  Leaves results(leaves.size());
  variable_list dense;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const auto* const tensor = std::get_if<torch::Tensor>(&leaves[i]);
    const bool rows = internal::brought_by(strategy_.collectives(), [&] {
      if (tensor != nullptr && !tensor->defined()) {
        RefuseUndefined("start_all_reduce", *this);
      }
      return tensor == nullptr || is_slices(*tensor);
    });
    if (rows || num_replicas_in_sync() == 1) {
      results[i] = reduce_leaves(op, {leaves[i]}, options)[0];
    } else {
      dense.push_back(tensor->detach());
      places.push_back(i);
    }
  }
  internal::StartedTensors started = internal::StartedTensors::ready({});
  if (!dense.empty()) {
    const torch::NoGradGuard no_grad;
    started = strategy_.cross_device_ops().start_all_reduce(*this, op, dense, options);
  }
  const auto wait = [=, wait_for = std::move(started.wait)] {
    Leaves all = results;
    variable_list reduced = wait_for();
    for (std::size_t i = 0; i < places.size(); ++i) all[places[i]] = reduced[i];
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (const auto* const value = std::get_if<torch::Tensor>(&leaves[i])) {
        auto& result = std::get<torch::Tensor>(all[i]);
        result = WithoutGradient(*value, result.detach());
      }
    }
    return all;
  };
  return {wait, std::move(started.done)};
}

Started<torch::Tensor> ReplicaContext::start_all_reduce(ReduceOp op, const torch::Tensor& value,
                                                        const CommunicationOptions& options) {
  StartedLeaves started = start_leaves(op, {value}, options);
  return {[wait = std::move(started.wait)] { return std::get<torch::Tensor>(wait()[0]); },
          std::move(started.done)};
}

// One call for all leaves. A replica that has one that cannot be joined makes it all the same where
// other processes wait.
ReplicaContext::Leaves ReplicaContext::gather_leaves(const Leaves& leaves, int axis,
                                                     const CommunicationOptions& options) {
  require_mine();
  variable_list values;
  Status unfit = Ok();
  for (const Leaf& leaf : leaves) {
    const auto* const tensor = std::get_if<torch::Tensor>(&leaf);
    if (tensor != nullptr && !tensor->defined()) {
      if (unfit.ok()) unfit = InvalidArgument("all_gather of an undefined tensor");
      values.emplace_back();
    } else if (tensor == nullptr || tensor->layout() != torch::kStrided) {
      if (unfit.ok()) {
        unfit = Unimplemented("all_gather does not support IndexedSlices or other sparse tensors");
      }
      // Any sparse tensor: that it is one is what is told.
      values.push_back(tensor != nullptr ? *tensor : torch::zeros({1}).to_sparse());
    } else if (num_replicas_in_sync() == 1) {
      values.push_back(internal::gather_tensors({*tensor}, axis));
    } else {
      values.push_back(*tensor);
    }
  }
  if (!unfit.ok()) {
    // Other processes would wait for this one: what it cannot bring, the exchange tells all.
    if (strategy_.collectives() != nullptr && num_replicas_in_sync() > 1) {
      const torch::NoGradGuard no_grad;
      (void)strategy_.cross_device_ops().all_gather(*this, values, axis, options);
    }
    raise(unfit);
  }
  if (num_replicas_in_sync() > 1 && !values.empty()) {
    const Call call{.context = *this, .axis = axis, .options = options};
    values = AllGatherFunction::apply(at::TensorList(values), AddressOf(call));
  }
  return {values.begin(), values.end()};
}

torch::Tensor ReplicaContext::all_reduce(ReduceOp op, const torch::Tensor& value,
                                         const CommunicationOptions& options) {
  return std::get<torch::Tensor>(reduce_leaves(op, {value}, options)[0]);
}

torch::Tensor ReplicaContext::all_gather(const torch::Tensor& value, int axis,
                                         const CommunicationOptions& options) {
  return std::get<torch::Tensor>(gather_leaves({value}, axis, options)[0]);
}

}  // namespace muster
