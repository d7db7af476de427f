#include "strategy/variables/extended.h"

#include "common/base/words.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/context.h"
#include "strategy/core/internal/frames.h"
#include "strategy/values/internal/copies.h"
#include "strategy/variables/internal/variable_state.h"

namespace muster {
namespace internal {
namespace {

void RequireVariableOf(const Strategy& strategy, const Variable& variable, std::string_view call) {
  if (&variable.strategy() == &strategy) return;
  raise(InvalidArgument("{}: variable {} was created under another strategy ({}), not this {}",
                        call, variable.name(), variable.strategy().name(), strategy.name()));
}

void UpdateOne(Strategy& strategy, VariableState& state, int index, UpdateCall& call) {
  const FrameGuard update(
      {.kind = Frame::Kind::kUpdate, .strategy = &strategy, .update_replica = index});
  const device::PlaceScope here(state.at(index).place());
  call.run(index);
}

}  // namespace

bool same_argument(const torch::Tensor& a, const torch::Tensor& b) {
  if (a.is_same(b)) return true;
  if (!a.defined() || !b.defined() || a.scalar_type() != b.scalar_type() ||
      a.layout() != b.layout()) {
    return false;
  }
  if (a.is_sparse()) {  // which libtorch does not compare
    const torch::NoGradGuard no_grad;
    const torch::Tensor one = a.coalesce();
    const torch::Tensor other = b.coalesce();
    return one.sizes().equals(other.sizes()) && one.sparse_dim() == other.sparse_dim() &&
           same_argument(one.indices(), other.indices()) &&
           same_argument(one.values(), other.values());
  }
  const torch::Tensor there = b.to(a.device());
  if (a.equal(there)) return true;
  // NaN is unequal to itself.
  const bool may_be_nan = a.is_floating_point() || a.is_complex();
  if (!may_be_nan || a.layout() != torch::kStrided || !a.sizes().equals(there.sizes()))
    return false;
  return ((a == there) | (torch::isnan(a) & torch::isnan(there))).all().item<bool>();
}

bool same_argument(const IndexedSlices& a, const IndexedSlices& b) {
  return a.dense_shape == b.dense_shape && same_argument(a.indices, b.indices) &&
         same_argument(a.values, b.values);
}

void raise_per_replica_argument() {
  raise(
      InvalidArgument("update() takes values that are the same on all components: a PerReplica "
                      "argument must be reduced first (reduce_to)"));
}

void check_mirrored_argument(const Variable& variable, int components) {
  const int wanted = variable.container().size();
  // Copies of one value: a lone component takes the first of however many there are.
  if (components == 1 || wanted == 1 || components == wanted) return;
  raise(InvalidArgument(
      "update() of variable {}, which has {}: a Mirrored argument has {}; one for "
      "each is needed, or one for all",
      variable.name(), Counted(static_cast<std::size_t>(wanted), "component"), components));
}

// Across replicas every component is updated, in order; in a replica its own. Replicas that share a
// component meet, and one of them updates it for all.
void run_update(Strategy& strategy, const Variable& variable, UpdateCall& call) {
  RequireVariableOf(strategy, variable, "update()");
  VariableState& state = *variable.state();
  ReplicaContext* const replica = state.Replica();
  if (replica == nullptr) {
    RequireNoOther(strategy);
    const int one = variable.component_index();
    if (one >= 0) return UpdateOne(strategy, state, one, call);
    for (int index = 0; index < state.size(); ++index) {
      UpdateOne(strategy, state, index, call);
    }
    return;
  }
  if (!state.policy->shared_by_replicas()) {
    return UpdateOne(strategy, state, state.OwnComponent(), call);
  }
  replica->meet("update of variable " + state.name + " by " + call.type(), call,
                [&](const Arrivals<UpdateCall>& all) {
                  UpdateCall& first = all[0];
                  for (std::size_t r = 1; r < all.size(); ++r) {
                    if (!first.same_arguments(all[r])) {
                      raise(InvalidArgument(
                          "update() of variable {}, which all replicas share: replica {} came with "
                          "other arguments than replica 0; reduce them first (all_reduce)",
                          state.name, r));
                    }
                  }
                  // Whichever replica came last: this is the update of all.
                  const FrameGuard merge({.kind = Frame::Kind::kMerge, .strategy = &strategy});
                  UpdateOne(strategy, state, 0, first);
                  for (std::size_t r = 1; r < all.size(); ++r) all[r].take_results(first);
                });
}

}  // namespace internal

Extended Strategy::extended() { return Extended(*this); }

Mirrored<torch::Tensor> Extended::place(const torch::Tensor& value, const Destinations& to) {
  std::vector<torch::Tensor> copies;
  for (const device::Place place : to.places()) copies.push_back(internal::copy_to(value, place));
  return Mirrored<torch::Tensor>(std::move(copies));
}

VariableCreatorScope Extended::colocate_vars_with(const Variable& variable) {
  if (&get_strategy() != &strategy_) {
    raise(FailedPrecondition("colocate_vars_with: Need to be inside scope of this {}",
                             strategy_.name()));
  }
  internal::RequireVariableOf(strategy_, variable, "colocate_vars_with()");
  return VariableCreatorScope(
      [devices = variable.devices()](const std::function<Variable(VariableSpec)>& next,
                                     VariableSpec spec) {
        spec.colocated_devices = devices;
        return next(std::move(spec));
      });
}

bool Extended::variable_created_in_scope(const Variable& variable) const {
  return &variable.strategy() == &strategy_;
}

torch::Tensor Extended::read_var(const Variable& variable) const {
  return variable.container().state()->ReadAcross();
}

}  // namespace muster
