#include "strategy/multi_worker_mirrored/internal/elastic_state.h"

#include <algorithm>
#include <span>

#include "collectives/process/signature.h"
#include "strategy/base/internal/bytes_of.h"
#include "strategy/base/internal/plain.h"
#include "strategy/base/internal/raise.h"
#include "strategy/variables/internal/variable_state.h"

namespace muster::internal {
namespace {

// The donor's `value`, of whatever type and shape; undefined where it has none.
torch::Tensor Given(collectives::Group& group, int donor, const torch::Tensor& value) {
  const bool gives = group.rank() == donor;
  const torch::Tensor mine = gives && value.defined() ? plain_of(value.to(torch::kCPU)) : value;
  // Type and sizes; a type of -1: undefined.
  constexpr std::size_t kMostDimensions = 14;
  std::vector<std::int64_t> form(kMostDimensions + 2, -1);
  if (gives && mine.defined()) {
    if (static_cast<std::size_t>(mine.dim()) > kMostDimensions) {
      raise(Unimplemented("run_elastic(): a value of the state has {} dimensions; at most {}",
                          mine.dim(), kMostDimensions));
    }
    form[0] = static_cast<std::int64_t>(mine.scalar_type());
    form[1] = mine.dim();
    std::copy(mine.sizes().begin(), mine.sizes().end(), form.begin() + 2);
  }
  raise_unless_ok(group.Broadcast(std::as_writable_bytes(std::span(form)), donor));
  if (form[0] < 0) return {};
  const std::vector<std::int64_t> sizes(form.begin() + 2, form.begin() + 2 + form[1]);
  const torch::Tensor got =
      gives ? mine : torch::empty(sizes, static_cast<torch::ScalarType>(form[0]));
  if (got.numel() > 0) raise_unless_ok(group.Broadcast(BytesOf(got), donor));
  return got;
}

}  // namespace

ElasticState::ElasticState(TrackedValues tracked) : tracked_(std::move(tracked)) {
  if (tracked_.variables.empty()) {
    raise(InvalidArgument("run_elastic(): the state tracks no variable, so nothing would survive"));
  }
  for (const auto& [name, variable] : tracked_.variables) {
    if (!variable.is_initialized()) {
      raise(Unimplemented("run_elastic(): variable {} of the state has no value yet", name));
    }
    if (variable.kind() == Variable::Kind::kMirrored) continue;
    VariableState& state = *variable.state();
    if (variable.kind() != Variable::Kind::kSyncOnRead || !state.policy->has_value_across()) {
      raise(
          Unimplemented("run_elastic(): variable {} has no one value: what each replica keeps for "
                        "itself would be lost with it; give an ON_READ variable an aggregation "
                        "(SUM, MEAN or ONLY_FIRST_REPLICA)",
                        name));
    }
    settled_[name] = {&state, state.ReadAcross()};
  }
}

std::uint64_t ElasticState::signature() const {
  collectives::Signature signature;
  for (const auto& [name, variable] : tracked_.variables) {
    signature.Add(name).Add(static_cast<std::uint64_t>(variable.dtype()));
    for (const std::int64_t size : variable.sizes()) {
      signature.Add(static_cast<std::uint64_t>(size));
    }
  }
  for (const auto& [prefix, state] : tracked_.states) {
    for (const std::string& name : state->Names()) signature.Add(prefix + name);
  }
  return signature.value();
}

// All components go on from the value that they come to.
void ElasticState::Assign(const Settled& one) const {
  VariableState& state = *one.variable;
  state.WriteAll(WriteKind::kAssign, [&](int component) {
    return WriteArgument{.values = state.policy->GoingOnFrom(state, component, one.value)};
  });
}

void ElasticState::Settle() {
  const torch::NoGradGuard no_grad;
  for (auto& [name, one] : settled_) {
    one.value = one.variable->ReadAcross();
    Assign(one);
  }
}

void ElasticState::Spread() {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, one] : settled_) Assign(one);
}

ElasticState::Shards::Shards(ElasticState& state) : state_(state) {
  for (const auto& [name, one] : state_.settled_) {
    before_.push_back(one.variable->at(0).Snapshot().clone());
  }
}

void ElasticState::Shards::Begin() {
  const torch::NoGradGuard no_grad;
  std::size_t at = 0;
  for (const auto& [name, one] : state_.settled_) {
    one.variable->WriteOne(WriteKind::kAssign, 0,
                           {.values = one.variable->policy->BeforeShard(before_[at++])});
  }
}

std::vector<torch::Tensor> ElasticState::Shards::End(int shard) const {
  std::vector<torch::Tensor> values;
  for (const auto& [name, one] : state_.settled_) {
    values.push_back(one.variable->policy->AddedBy(shard, one.variable->at(0).Snapshot()));
  }
  return values;
}

void ElasticState::Shards::Take(std::span<const torch::Tensor> sums, int shards) {
  const torch::NoGradGuard no_grad;
  std::size_t at = 0;
  for (const auto& [name, one] : state_.settled_) {
    VariableState& state = *one.variable;
    state.WriteOne(WriteKind::kAssign, 0,
                   {.values = state.policy->AfterShards(state, before_[at], sums[at], shards)});
    ++at;
  }
}

void ElasticState::Keep() {
  const torch::NoGradGuard no_grad;
  kept_.resize(tracked_.variables.size());
  std::size_t at = 0;
  for (const auto& [name, variable] : tracked_.variables) {
    VariableState& state = *variable.state();
    std::vector<torch::Tensor>& kept = kept_[at++];
    if (const auto settled = settled_.find(name); settled != settled_.end()) {
      kept = {settled->second.value};
      continue;
    }
    kept.resize(static_cast<std::size_t>(state.size()));
    for (int c = 0; c < state.size(); ++c) {
      state.at(c).SnapshotInto(kept[static_cast<std::size_t>(c)]);
    }
  }
  kept_states_.resize(tracked_.states.size());
  for (std::size_t i = 0; i < kept_states_.size(); ++i) {
    tracked_.states[i].second->ValuesInto(kept_states_[i]);
  }
}

void ElasticState::Undo() {
  const torch::NoGradGuard no_grad;
  std::size_t at = 0;
  for (const auto& [name, variable] : tracked_.variables) {
    const std::vector<torch::Tensor>& kept = kept_[at++];
    if (const auto settled = settled_.find(name); settled != settled_.end()) {
      settled->second.value = kept.front();
      continue;
    }
    variable.state()->WriteAll(WriteKind::kAssign, [&](int component) {
      return WriteArgument{.values = kept[static_cast<std::size_t>(component)]};
    });
  }
  for (std::size_t i = 0; i < kept_states_.size(); ++i) {
    tracked_.states[i].second->Restore(kept_states_[i]);
  }
}

// All of it is received and checked before any of it takes the place of what was there.
void ElasticState::Stream(collectives::Group& group, int donor, bool takes) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> given;
  for (const auto& [name, variable] : tracked_.variables) {
    const auto settled = settled_.find(name);
    torch::Tensor value = Given(
        group, donor,
        settled == settled_.end() ? variable.state()->at(0).Snapshot() : settled->second.value);
    if (takes) given.push_back(std::move(value));
  }
  std::vector<Values> given_states;
  for (const auto& [prefix, state] : tracked_.states) {
    Values mine = state->Values();
    Values values;
    for (const std::string& name : state->Names()) {
      torch::Tensor value = Given(group, donor, mine[name]);
      if (value.defined()) values[name] = std::move(value);
    }
    if (!takes) continue;
    state->Check(values);
    given_states.push_back(std::move(values));
  }
  if (!takes) return;
  // The group may have been lost before this line: then nothing here is another worker's.
  std::size_t at = 0;
  for (const auto& [name, variable] : tracked_.variables) {
    const torch::Tensor& value = given[at++];
    const auto settled = settled_.find(name);
    if (settled == settled_.end()) {
      variable.state()->Restore(value);
    } else {
      settled->second.value = value;
    }
  }
  for (std::size_t i = 0; i < given_states.size(); ++i) {
    tracked_.states[i].second->Restore(given_states[i]);
  }
}

}  // namespace muster::internal
