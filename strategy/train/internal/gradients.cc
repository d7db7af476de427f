#include "strategy/train/internal/gradients.h"

#include <algorithm>
#include <utility>

#include "collectives/group.h"
#include "common/base/words.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/internal/between.h"
#include "strategy/core/replica_context.h"
#include "strategy/core/strategy.h"
#include "strategy/reduce/cross_device_ops.h"

namespace muster::internal {
namespace {

// Large enough that a meeting costs nothing beside it, small enough to be a fraction of the memory.
constexpr std::int64_t kPackBytes = std::int64_t{64} << 20;

using Kind = GradientKind;

void Join(std::vector<Kind>& all, const std::vector<Kind>& one, std::size_t replica) {
  if (one.size() != all.size()) {
    raise(InvalidArgument("replica 0 brings {}, replica {} {}", Counted(all.size(), "gradient"),
                          replica, one.size()));
  }
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::max(all[i], one[i]);
}

// The same over processes.
void JoinBetween(collectives::Group& between, std::vector<Kind>& kinds) {
  std::vector<Kind> joined(kinds.size());
  const collectives::ReduceBuffer buffer{.type = DType::kUint8,
                                         .shape = {static_cast<std::int64_t>(kinds.size())},
                                         .in = kinds.data(),
                                         .out = joined.data()};
  raise_unless_ok(between.AllReduce(collectives::Reduction::kMax, {&buffer, 1}));
  kinds = std::move(joined);
}

torch::Tensor NoRows(const torch::Tensor& parameter) {
  std::vector<std::int64_t> shape = parameter.sizes().vec();
  shape[0] = 0;
  const torch::Tensor indices =
      torch::empty({1, 0}, torch::dtype(torch::kLong).device(parameter.device()));
  const torch::Tensor values =
      torch::empty(shape, torch::dtype(parameter.scalar_type()).device(parameter.device()));
  return torch::sparse_coo_tensor(indices, values, parameter.sizes());
}

// The gradient in the form that all replicas bring it in.
torch::Tensor InForm(Kind kind, const torch::Tensor& gradient, const torch::Tensor& parameter) {
  if (kind == Kind::kRows) return gradient.defined() ? gradient.detach() : NoRows(parameter);
  if (!gradient.defined()) {
    return torch::zeros(parameter.sizes(),
                        torch::dtype(parameter.scalar_type()).device(parameter.device()));
  }
  return gradient.is_sparse() ? gradient.to_dense() : gradient.detach();
}

// `sums` of those that are there, in the places of all.
std::vector<torch::Tensor> Spread(const std::vector<Kind>& kinds, std::vector<torch::Tensor> sums) {
  std::vector<torch::Tensor> all(kinds.size());
  auto next = sums.begin();
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] == Kind::kNone) continue;
    all[i] = kinds[i] == Kind::kRows ? next->coalesce() : std::move(*next);
    ++next;
  }
  return all;
}

}  // namespace

std::vector<Kind> KindsOf(const std::vector<torch::Tensor>& gradients) {
  std::vector<Kind> kinds;
  for (const torch::Tensor& gradient : gradients) {
    const bool rows = gradient.defined() && gradient.is_sparse() && gradient.sparse_dim() == 1;
    kinds.push_back(!gradient.defined() ? Kind::kNone : rows ? Kind::kRows : Kind::kDense);
  }
  return kinds;
}

std::vector<Kind> AgreeOnKinds(ReplicaContext& replica, std::vector<Kind> mine) {
  replica.meet("sum of gradients", mine, [&](const Arrivals<std::vector<Kind>>& all) {
    std::vector<Kind>& joined = all[0];
    collectives::Group* const between = replica.strategy().collectives();
    brought_by(between, [&] {
      for (std::size_t r = 1; r < all.size(); ++r) Join(joined, all[r], r);
    });
    if (between != nullptr) JoinBetween(*between, joined);
    for (std::size_t r = 1; r < all.size(); ++r) all[r] = joined;
  });
  return mine;
}

std::vector<torch::Tensor> SumOverReplicas(ReplicaContext& replica,
                                           const std::vector<torch::Tensor>& gradients,
                                           const std::vector<torch::Tensor>& parameters) {
  return SumOfKinds(replica, AgreeOnKinds(replica, KindsOf(gradients)), gradients, parameters);
}

std::vector<torch::Tensor> SumOfKinds(ReplicaContext& replica, const std::vector<Kind>& kinds,
                                      const std::vector<torch::Tensor>& gradients,
                                      const std::vector<torch::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> mine;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] != Kind::kNone) mine.push_back(InForm(kinds[i], gradients[i], parameters[i]));
  }
  if (mine.empty()) return gradients;
  return Spread(kinds, replica.all_reduce(ReduceOp::kSum, mine, {.bytes_per_pack = kPackBytes}));
}

std::vector<torch::Tensor> SumOnto(CrossDeviceOps& ops, const std::string& device,
                                   const std::vector<std::vector<torch::Tensor>>& gradients,
                                   const std::vector<torch::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  std::vector<Kind> kinds = KindsOf(gradients[0]);
  for (std::size_t r = 1; r < gradients.size(); ++r) Join(kinds, KindsOf(gradients[r]), r);
  std::vector<torch::Tensor> sums;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i] == Kind::kNone) continue;
    std::vector<torch::Tensor> values;
    for (const auto& of_replica : gradients) {
      // A replica that has none adds none.
      if (of_replica[i].defined()) values.push_back(InForm(kinds[i], of_replica[i], parameters[i]));
    }
    const PerReplica<torch::Tensor> value(std::move(values));
    sums.push_back(ops.reduce(ReduceOp::kSum, value, device, {.bytes_per_pack = kPackBytes})[0]);
  }
  return Spread(kinds, std::move(sums));
}

}  // namespace muster::internal
