#include "strategy/variables/internal/variable_policy.h"

#include <algorithm>

#include "common/base/words.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/internal/between.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/replica_context.h"
#include "strategy/core/strategy.h"
#include "strategy/values/internal/reduction.h"
#include "strategy/variables/internal/ordinary.h"
#include "strategy/variables/internal/variable_state.h"

namespace muster::internal {

int VariablePolicy::Own(const VariableState& state) const {
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame == nullptr || frame->strategy != state.strategy.get()) return -1;
  int index = -1;
  if (frame->kind == Frame::Kind::kReplica) index = frame->replica->local_replica_id();
  if (frame->kind == Frame::Kind::kUpdate) index = frame->update_replica;
  return std::min(index, state.size() - 1);
}

torch::Tensor VariablePolicy::Read(VariableState& state) const { return state.ReadComponent(0); }

torch::Tensor VariablePolicy::ReadAcross(VariableState& state) const { return state.Primary(); }

torch::Tensor VariablePolicy::ReadFor(VariableState& state, int) const { return state.Read(); }

void VariablePolicy::WriteAcross(VariableState& state, WriteKind write,
                                 const ArgumentOf& argument) const {
  state.WriteAll(write, argument);
}

torch::Tensor VariablePolicy::PartOf(const VariableState&, int, const torch::Tensor& value) const {
  return value;
}

torch::Tensor VariablePolicy::GoingOnFrom(const VariableState&, int,
                                          const torch::Tensor& value) const {
  return value;
}

torch::Tensor VariablePolicy::AddedBy(int, const torch::Tensor& value) const {
  return value.clone();
}

torch::Tensor VariablePolicy::AfterShards(const VariableState&, const torch::Tensor&,
                                          const torch::Tensor& sum, int) const {
  return sum;
}

namespace {

class Plain final : public VariablePolicy {
 public:
  explicit Plain(std::unique_ptr<const VariablePolicy> asked) : asked_(std::move(asked)) {}

  Variable::Kind kind() const override { return Variable::Kind::kPlain; }
  void CheckType(const VariableState& state, torch::ScalarType type) const override {
    asked_->CheckType(state, type);
  }
  int Own(const VariableState&) const override { return 0; }
  void CheckWrite(const VariableState&, WriteKind) const override {}
  void WriteInReplica(VariableState& state, WriteKind write, ReplicaContext&,
                      const ArgumentOf& argument) const override {
    state.WriteOne(write, 0, argument(0));
  }

 private:
  const std::unique_ptr<const VariablePolicy> asked_;
};

// What the replicas of all processes bring, in their order.
std::vector<WriteArgument> ArgumentsOfAll(collectives::Group& between, const std::string& call,
                                          const std::vector<WriteArgument>& mine) {
  std::vector<std::int64_t> numbers;
  std::vector<torch::Tensor> values;
  std::vector<torch::Tensor> indices;
  for (const WriteArgument& one : mine) {
    numbers.push_back(one.number ? 1 : 0);
    values.push_back(one.values);
    indices.push_back(one.indices);
  }
  const auto number = between.Exchange(call, numbers);
  raise_unless_ok(number.status());
  values = values_of_all(between, call, values);
  indices = values_of_all(between, call, indices);
  std::vector<WriteArgument> all;
  for (std::size_t r = 0; r < values.size(); ++r) {
    all.push_back({.number = (*number)[r / mine.size()][r % mine.size()] == 1,
                   .values = values[r],
                   .indices = indices[r]});
  }
  return all;
}

// All replicas come with their arguments, and what these come to goes to all components.
void WriteTogether(VariableState& state, WriteKind write, VariableAggregation aggregation,
                   ReplicaContext& replica, const ArgumentOf& argument) {
  struct Arrival {
    VariableState* variable;
    WriteArgument argument;
  } mine{&state, brought_by(replica.strategy().collectives(),
                            [&] { return argument(state.OwnComponent()); })};
  const std::string call = fmt::format("{} of variable {}", name_of(write), state.name);
  replica.meet(call, mine, [&](const Arrivals<Arrival>& arrivals) {
    collectives::Group* const between = replica.strategy().collectives();
    std::vector<WriteArgument> all;
    brought_by(between, [&] {
      for (const Arrival& arrival : arrivals) {
        if (arrival.variable != &state) {
          raise(FailedPrecondition("replicas write different variables that are both called {}",
                                   state.name));
        }
        all.push_back(arrival.argument);
      }
    });
    if (between != nullptr) {
      all = ArgumentsOfAll(*between, call, all);
    }
    // Whichever replica came last: this is the write of all.
    const FrameGuard merge({.kind = Frame::Kind::kMerge, .strategy = &replica.strategy()});
    const Ordinary ordinary(state.at(0).place());
    const WriteArgument one = Aggregate(write, state.name, aggregation, all, state.Primary());
    state.WriteAll(write, [&](int) { return one; });
  });
}

class OnWrite : public VariablePolicy {
 public:
  explicit OnWrite(VariableAggregation aggregation) : aggregation_(aggregation) {}

  Variable::Kind kind() const override { return Variable::Kind::kMirrored; }
  torch::Tensor ReadFor(VariableState& state, int index) const override {
    const bool across = state.OwnComponent() < 0 && index < state.size();
    return across ? state.ReadComponent(index) : state.Read();
  }
  void CheckWrite(const VariableState& state, WriteKind write) const override {
    const bool reduces =
        aggregation_ == VariableAggregation::kSum || aggregation_ == VariableAggregation::kMean;
    if (!reduces || write < WriteKind::kScatterMin) return;
    raise(
        Unimplemented("{} of variable {} is not defined for aggregation {}: use NONE or "
                      "ONLY_FIRST_REPLICA",
                      name_of(write), state.name, name_of(aggregation_)));
  }
  void WriteInReplica(VariableState& state, WriteKind write, ReplicaContext& replica,
                      const ArgumentOf& argument) const override {
    if (aggregation_ != VariableAggregation::kNone) {
      return WriteTogether(state, write, aggregation_, replica, argument);
    }
    WriteUncombined(state, write, replica, argument);
  }

 protected:
  // With aggregation NONE.
  virtual void WriteUncombined(VariableState& state, WriteKind write, ReplicaContext&,
                               const ArgumentOf& argument) const {
    const int own = state.OwnComponent();
    state.WriteOne(write, own, argument(own));
  }

 private:
  const VariableAggregation aggregation_;
};

class Aggregating final : public OnWrite {
 public:
  using OnWrite::OnWrite;

  Variable::Kind kind() const override { return Variable::Kind::kAggregating; }
  torch::Tensor ReadFor(VariableState& state, int) const override { return state.Read(); }
  bool shared_by_replicas() const override { return true; }

 protected:
  void WriteUncombined(VariableState& state, WriteKind write, ReplicaContext& replica,
                       const ArgumentOf&) const override {
    const int replicas = replica.num_replicas_in_sync();
    raise(InvalidArgument(
        "{} of variable {} inside run(): {} {} its one value, so create it with an aggregation "
        "(SUM, MEAN or ONLY_FIRST_REPLICA) that makes one of theirs",
        name_of(write), state.name, Counted(replicas, "replica"),
        Agreeing(replicas, "has", "share")));
  }
};

// What ON_READ variables have in common.
class OnRead : public VariablePolicy {
 public:
  Variable::Kind kind() const override { return Variable::Kind::kSyncOnRead; }
  torch::Tensor Read(VariableState& state) const final { return ReadAcross(state); }
  void CheckWrite(const VariableState& state, WriteKind write) const final {
    if (!is_scatter(write)) return;
    raise(Unimplemented("{} of variable {}: ON_READ variables have no scatter operations",
                        name_of(write), state.name));
  }
  void WriteInReplica(VariableState& state, WriteKind write, ReplicaContext&,
                      const ArgumentOf& argument) const final {
    const int own = state.OwnComponent();
    state.WriteOne(write, own, argument(own));
  }
  bool components_equal() const final { return false; }
  // The first replica's.
  torch::Tensor ReadAcross(VariableState& state) const override {
    collectives::Group* const between = state.strategy->collectives();
    if (between == nullptr) return state.Primary();
    const torch::Tensor mine = brought_by(between, [&] {
      state.Sync();
      return state.at(0).Snapshot();
    });
    const torch::Tensor first = value_of_first(*between, CallOf(state), mine);
    return first.defined() ? first : state.Primary();  // none has one
  }
  torch::Tensor ReadHere(VariableState& state) const override { return state.Primary(); }

 protected:
  static std::string CallOf(const VariableState& state) { return "read of variable " + state.name; }
  // The values of all components here. FAILED_PRECONDITION: one has none, as where some replicas
  // alone have assigned to it.
  static std::vector<torch::Tensor> Values(const VariableState& state) {
    return Required(state, Snapshots(state));
  }
  // Those of all processes, in the order of replicas. All of them hear that one has none: who
  // raised that alone would leave the others waiting.
  static std::vector<torch::Tensor> AllValues(VariableState& state) {
    collectives::Group* const between = state.strategy->collectives();
    if (between == nullptr) {
      (void)state.Primary();  // takes over what was done outside run()
      return Values(state);
    }
    const std::vector<torch::Tensor> mine = brought_by(between, [&] {
      state.Sync();
      return Snapshots(state);
    });
    return Required(state, values_of_all(*between, CallOf(state), mine));
  }
  // A sum of one is that one: nobody may get hold of a component's own storage to write in.
  static torch::Tensor Reduced(ReduceOp op, const std::vector<torch::Tensor>& values) {
    const torch::Tensor result = reduce_tensors(op, values, Axes());
    return values.size() == 1 ? result.clone() : result;
  }

 private:
  static std::vector<torch::Tensor> Snapshots(const VariableState& state) {
    std::vector<torch::Tensor> values;
    for (const auto& component : state.components) values.push_back(component->Snapshot());
    return values;
  }
  static std::vector<torch::Tensor> Required(const VariableState& state,
                                             std::vector<torch::Tensor> values) {
    for (std::size_t replica = 0; replica < values.size(); ++replica) {
      if (values[replica].defined()) continue;
      raise(FailedPrecondition(
          "variable {} is not initialised: replica {} has given it no value yet; call "
          "initialize(), or assign() in every replica",
          state.name, replica));
    }
    return values;
  }
};

class OnReadFirst final : public OnRead {
 public:
  torch::Tensor AddedBy(int shard, const torch::Tensor& value) const override {
    return shard == 0 ? value.clone() : torch::zeros_like(value);
  }
};

class OnReadNone final : public OnRead {
 public:
  torch::Tensor ReadAcross(VariableState& state) const override {
    (void)state.Primary();  // without a value that is what is wrong
    raise(InvalidArgument(
        "Could not convert from VariableAggregation.NONE: variable {} is ON_READ and has no "
        "aggregation; read its components, or read it inside run()",
        state.name));
  }
  bool has_value_across() const override { return false; }
};

class OnReadMean final : public OnRead {
 public:
  void CheckType(const VariableState& state, torch::ScalarType type) const override {
    if (!torch::isIntegralType(type, /*includeBool=*/true)) return;
    raise(InvalidArgument(
        "variable {} is ON_READ with aggregation MEAN and {}: the mean of integers is none; use a "
        "floating type, SUM, or ONLY_FIRST_REPLICA",
        state.name, torch::toString(type)));
  }
  torch::Tensor ReadAcross(VariableState& state) const override {
    const std::vector<torch::Tensor> all = AllValues(state);
    return MeanOf(state, all[static_cast<std::size_t>(state.strategy->first_replica())], all);
  }
  torch::Tensor ReadHere(VariableState& state) const override {
    const torch::Tensor first = state.Primary();
    return MeanOf(state, first, Values(state));
  }
  torch::Tensor AfterShards(const VariableState&, const torch::Tensor&, const torch::Tensor& sum,
                            int shards) const override {
    return sum / shards;
  }
  bool shows_across() const override { return true; }

 private:
  static torch::Tensor MeanOf(VariableState& state, const torch::Tensor& first,
                              const std::vector<torch::Tensor>& values) {
    const Ordinary ordinary(state.at(0).place());
    // The mean of equal values is that value, to the last bit: what is saved is what is restored.
    const bool equal = std::all_of(values.begin(), values.end(), [&](const torch::Tensor& value) {
      return value.equal(values[0].to(value.device()));
    });
    return equal ? first : Reduced(ReduceOp::kMean, values);
  }
};

// Its value is spread over the components.
class OnReadSum final : public OnRead {
 public:
  torch::Tensor ReadAcross(VariableState& state) const override {
    const std::vector<torch::Tensor> all = AllValues(state);
    const Ordinary ordinary(state.at(0).place());
    return Reduced(ReduceOp::kSum, all);
  }
  void WriteAcross(VariableState& state, WriteKind write,
                   const ArgumentOf& argument) const override {
    if (write != WriteKind::kAssign) {
      raise(InvalidArgument(
          "SyncOnReadVariable does not support {} in cross-replica context with aggregation SUM "
          "(variable {}): its value is spread over the replicas; assign() the new total",
          name_of(write), state.name));
    }
    const auto part = [&](int index) {
      WriteArgument one = argument(index);
      one.values = PartOf(state, index, one.values);
      return one;
    };
    state.WriteAll(write, {part, argument.source()});
  }
  // An equal share; what integers cannot divide is the first replica's. A sparse value, or one of a
  // type that does not convert, stays whole, and is refused where it is written.
  torch::Tensor PartOf(const VariableState& state, int index,
                       const torch::Tensor& value) const override {
    const torch::Tensor old = state.components[static_cast<std::size_t>(index)]->Snapshot();
    const torch::ScalarType type =
        old.defined() ? old.scalar_type() : state.dtype.value_or(value.scalar_type());
    if (!c10::canCast(value.scalar_type(), type) || value.layout() != torch::kStrided) return value;
    const torch::Tensor total = value.to(type);
    const Ordinary ordinary(device::Place{});
    const collectives::Group* const between = state.strategy->collectives();
    const int parts = between == nullptr ? state.size() : state.size() * between->size();
    if (!torch::isIntegralType(type, /*includeBool=*/true)) return total / parts;
    const torch::Tensor each = total.div(parts, "trunc");
    return OfFirstReplica(state, index) ? total - each * (parts - 1) : each;
  }
  // All of it is the first replica's.
  torch::Tensor GoingOnFrom(const VariableState& state, int index,
                            const torch::Tensor& value) const override {
    return OfFirstReplica(state, index) ? value : torch::zeros_like(value);
  }
  // Nothing: what it has at the end is what it adds.
  torch::Tensor BeforeShard(const torch::Tensor& before) const override {
    return torch::zeros_like(before);
  }
  torch::Tensor AfterShards(const VariableState& state, const torch::Tensor& before,
                            const torch::Tensor& sum, int) const override {
    return OfFirstReplica(state, 0) ? before + sum : before;
  }

 private:
  static bool OfFirstReplica(const VariableState& state, int index) {
    const collectives::Group* const between = state.strategy->collectives();
    return index == 0 && (between == nullptr || between->rank() == 0);
  }
};

}  // namespace

std::unique_ptr<const VariablePolicy> PlainPolicy(std::unique_ptr<const VariablePolicy> asked) {
  return std::make_unique<Plain>(std::move(asked));
}

std::unique_ptr<const VariablePolicy> OnWritePolicy(VariableAggregation aggregation) {
  return std::make_unique<OnWrite>(aggregation);
}

std::unique_ptr<const VariablePolicy> AggregatingPolicy(VariableAggregation aggregation) {
  return std::make_unique<Aggregating>(aggregation);
}

std::unique_ptr<const VariablePolicy> OnReadPolicy(VariableAggregation aggregation) {
  switch (aggregation) {
    case VariableAggregation::kNone:
      return std::make_unique<OnReadNone>();
    case VariableAggregation::kSum:
      return std::make_unique<OnReadSum>();
    case VariableAggregation::kMean:
      return std::make_unique<OnReadMean>();
    case VariableAggregation::kOnlyFirstReplica:
      break;
  }
  return std::make_unique<OnReadFirst>();
}

}  // namespace muster::internal
