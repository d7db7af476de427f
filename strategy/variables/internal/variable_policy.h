// The rules by which the components of a variable are read and written, one class for each kind of
// variable. The table of docs/strategies/README.md is the specification.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "strategy/base/options.h"
#include "strategy/base/torch.h"
#include "strategy/variables/internal/variable_write.h"
#include "strategy/variables/variable.h"

namespace muster {
class ReplicaContext;
namespace internal {
class VariableState;

// What each component is to be given.
class ArgumentOf {
 public:
  // `source`: the variable that it is read from; null: none.
  template <class F>
    requires(std::is_invocable_r_v<WriteArgument, const F&, int> && !std::is_same_v<F, ArgumentOf>)
  ArgumentOf(F of, VariableState* source = nullptr)  // NOLINT(google-explicit-constructor)
      : of_(std::move(of)), source_(source) {}

  WriteArgument operator()(int component) const { return of_(component); }
  VariableState* source() const { return source_; }

 private:
  std::function<WriteArgument(int component)> of_;
  VariableState* source_;
};

// A policy decides; the state that it is given has the components and the locks. Whoever asks has
// settled where it is: in a replica of the variable's strategy, in update context (where one
// component is meant), or across replicas.
//
// Threading: any thread; a policy does not change.
class VariablePolicy {
 public:
  virtual ~VariablePolicy() = default;
  virtual Variable::Kind kind() const = 0;

  // INVALID_ARGUMENT: no variable of these modes can have this type.
  virtual void CheckType(const VariableState&, torch::ScalarType) const {}

  // The component that a read or a write of the whole variable means in this thread's replica or
  // update context; -1: no single one.
  virtual int Own(const VariableState& state) const;

  // Across replicas: the value for arithmetic, and a snapshot of it, aggregated.
  virtual torch::Tensor Read(VariableState& state) const;
  virtual torch::Tensor ReadAcross(VariableState& state) const;
  // The same of this process's replicas alone: no call that others have to make.
  virtual torch::Tensor ReadHere(VariableState& state) const { return ReadAcross(state); }
  // false: there is no value across replicas; to read it is INVALID_ARGUMENT.
  virtual bool has_value_across() const { return true; }
  // What component `index` of another variable is given when it is assigned this one.
  virtual torch::Tensor ReadFor(VariableState& state, int index) const;

  // UNIMPLEMENTED: writes of this kind have no meaning for this variable.
  virtual void CheckWrite(const VariableState& state, WriteKind write) const = 0;
  virtual void WriteInReplica(VariableState& state, WriteKind write, ReplicaContext& replica,
                              const ArgumentOf& argument) const = 0;
  virtual void WriteAcross(VariableState& state, WriteKind write, const ArgumentOf& argument) const;
  // Component `index`'s part of `value`, when that becomes the variable's value.
  virtual torch::Tensor PartOf(const VariableState& state, int index,
                               const torch::Tensor& value) const;
  // Component `index`, where all replicas of all processes go on from `value`, which they come to
  // together and which each of them knows.
  virtual torch::Tensor GoingOnFrom(const VariableState& state, int index,
                                    const torch::Tensor& value) const;

  // A step in logical shards: one after the other is the replica of the first component.
  // What a shard begins with; `before`: the component's value before the step.
  virtual torch::Tensor BeforeShard(const torch::Tensor& before) const { return before; }
  // What a shard that has come to `value` adds to the sum over all shards.
  virtual torch::Tensor AddedBy(int shard, const torch::Tensor& value) const;
  // The component after all of them.
  virtual torch::Tensor AfterShards(const VariableState& state, const torch::Tensor& before,
                                    const torch::Tensor& sum, int shards) const;

  // true: all replicas use one component.
  virtual bool shared_by_replicas() const { return false; }
  // true: all components are equal; else each replica has a value of its own.
  virtual bool components_equal() const { return true; }
  // true: a buffer of a module shows the aggregated value in its first copy, outside run().
  virtual bool shows_across() const { return false; }
};

// kPlain: one component, which belongs to everybody. `asked`: what the same modes are under a
// strategy of several replicas; what types that has, this has.
std::unique_ptr<const VariablePolicy> PlainPolicy(std::unique_ptr<const VariablePolicy> asked);
// kMirrored: a component on each device, all equal. In replicas, their values are combined by
// `aggregation`.
std::unique_ptr<const VariablePolicy> OnWritePolicy(VariableAggregation aggregation);
// kAggregating: the same with one component for several replicas.
std::unique_ptr<const VariablePolicy> AggregatingPolicy(VariableAggregation aggregation);
// kSyncOnRead: each replica has its own; across replicas they are combined by `aggregation`.
std::unique_ptr<const VariablePolicy> OnReadPolicy(VariableAggregation aggregation);

}  // namespace internal
}  // namespace muster
