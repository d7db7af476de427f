#include "strategy/parameter_server/internal/closure_session.h"

#include <algorithm>
#include <utility>

#include "common/torch/dtypes.h"
#include "strategy/base/internal/bytes_of.h"
#include "strategy/base/internal/raise.h"
#include "strategy/cluster/internal/running_closure.h"
#include "strategy/cluster/worker_context.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/replica_context.h"
#include "strategy/core/strategy.h"
#include "strategy/variables/internal/ordinary.h"

namespace muster::internal {
namespace {

// That of the innermost Scope.
thread_local ClosureSession* of_scope = nullptr;

torch::Tensor& AtSlot(std::vector<torch::Tensor>& by_slot, int slot) {
  const auto index = static_cast<std::size_t>(slot);
  if (by_slot.size() <= index) by_slot.resize(index + 1);
  return by_slot[index];
}

}  // namespace

std::vector<torch::Tensor> ReadVariables(PsConnection& connection,
                                         const std::vector<ps::VariableHandle>& variables,
                                         ps::WriteSet* own) {
  const Ordinary ordinary(device::Place{});
  std::vector<ps::Lent> lent(variables.size());
  std::vector<ps::ReadRequest> requests;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    requests.push_back({.variable = variables[i], .lend = &lent[i]});
  }
  connection.RaiseUnlessOk(connection.client().Read(requests, own));
  std::vector<torch::Tensor> values;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    values.push_back(torch::from_blob(
        lent[i].bytes.data(), variables[i]->shape, [owner = lent[i].owner](void*) {},
        torch::dtype(*ScalarTypeOf(variables[i]->dtype))));
  }
  return values;
}

torch::Tensor ReadVariable(PsConnection& connection, const ps::VariableHandle& variable,
                           ps::WriteSet* own) {
  return ReadVariables(connection, {variable}, own)[0];
}

torch::Tensor GatherRows(PsConnection& connection, const ps::VariableHandle& variable,
                         const torch::Tensor& rows, ps::WriteSet* own) {
  const torch::Tensor ids = rows.to(torch::kCPU, torch::kLong).contiguous();
  std::vector<std::int64_t> sizes = variable->shape;
  sizes[0] = ids.numel();
  const Ordinary ordinary(device::Place{});
  const torch::Tensor values = torch::empty(sizes, torch::dtype(*ScalarTypeOf(variable->dtype)));
  if (ids.numel() == 0) return values;
  const ps::ReadRequest request{
      .variable = variable,
      .rows = true,
      .ids = {ids.data_ptr<std::int64_t>(), static_cast<std::size_t>(ids.numel())},
      .into = BytesOf(values)};
  connection.RaiseUnlessOk(connection.client().Read(std::span(&request, 1), own));
  return values;
}

torch::Tensor NewLeaf(const torch::Tensor& value, int slot, bool gradients) {
  const device::Place place = slot > 0 ? device::PlaceScope::Current() : device::Place{};
  const Ordinary ordinary(place);
  torch::Tensor leaf = value.to(device::TorchDevice(place)).variable_data();
  leaf.set_requires_grad(gradients);
  return leaf;
}

void GiveValue(const torch::Tensor& leaf, const torch::Tensor& value) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor near = value.to(leaf.device());
  if (leaf.data_ptr() == near.data_ptr()) return;
  leaf.set_data(near);
  leaf.unsafeGetTensorImpl()->bump_version();
}

int ReplicaHere() {
  // A replica may update() a component of its own, and is no less one among others meanwhile.
  const auto& frames = Frames::OfThisThread().all();
  const auto where = std::find_if(frames.rbegin(), frames.rend(), [](const Frame& frame) {
    return frame.kind != Frame::Kind::kUpdate && frame.kind != Frame::Kind::kDevice &&
           frame.kind != Frame::Kind::kCreator;
  });
  if (where == frames.rend() || where->kind != Frame::Kind::kReplica) return 0;
  return where->strategy->num_local_replicas() > 1 ? where->replica->local_replica_id() + 1 : 0;
}

// Made by the first call in a closure, and kept with it: at the closure's end it sends what was
// written, unless nobody wants it any more.
ClosureSession* ClosureSession::Current() {
  if (of_scope != nullptr) return of_scope;
  RunningClosure* const closure = running_closure();
  if (closure == nullptr || closure->context.build()) return nullptr;
  const MutexLock lock(closure->mutex);
  if (closure->kept == nullptr) {
    std::shared_ptr<PsConnection> connection = PsConnection::Current();
    if (connection == nullptr) {
      raise(
          FailedPrecondition("this closure's driver has made no ParameterServerStrategy: there are "
                             "no variables on parameter servers"));
    }
    const auto session =
        std::make_shared<ClosureSession>(std::move(connection), closure->context.closure(),
                                         closure->context.attempt(), closure->step);
    closure->kept = session;
    closure->at_end = [closure, session] {
      if (closure->context.cancelled()) {
        raise(
            Cancelled("another closure has failed, or the coordinator is gone: what this closure "
                      "writes is not wanted any more"));
      }
      if (!closure->context.EndsInTime()) {
        raise(Cancelled("this closure was given up at its deadline, before it wrote anything"));
      }
      session->Flush();
    };
  }
  return static_cast<ClosureSession*>(closure->kept.get());
}

ClosureSession::Scope::Scope(ClosureSession& session)
    : before_(std::exchange(of_scope, &session)) {}

ClosureSession::Scope::~Scope() { of_scope = before_; }

torch::Tensor ClosureSession::ReadLocked(Held& held, const ps::VariableHandle& variable,
                                         int replica) {
  ps::WriteSet& own = SetOf(replica);
  torch::Tensor& snapshot = held.SnapshotOf(replica);
  if (!snapshot.defined()) snapshot = ReadVariable(*connection_, variable, &own);
  return snapshot;
}

torch::Tensor ClosureSession::Read(const ps::VariableHandle& variable) {
  throw_if_cancelled();
  const MutexLock lock(mutex_);
  return ReadLocked(held_[variable->id], variable, ReplicaHere());
}

torch::Tensor ClosureSession::Leaf(const ps::VariableHandle& variable, int slot, bool gradients) {
  throw_if_cancelled();
  const MutexLock lock(mutex_);
  const int replica = ReplicaHere();
  if (replica == 0) TakeOver();
  Held& held = held_[variable->id];
  torch::Tensor& leaf = AtSlot(held.leaves, slot);
  if (leaf.defined()) return leaf;
  const torch::Tensor value = ReadLocked(held, variable, replica);
  leaf = AtSlot(held.of_module, slot);
  if (leaf.defined()) {
    GiveValue(leaf, value);
  } else {
    leaf = NewLeaf(value, slot, gradients);
  }
  return leaf;
}

// Who asks for the leaf of such a variable later is given the module's own: all gradients of it
// meet in one tensor.
void ClosureSession::Fill(const std::vector<ModuleLeaf>& leaves, int slot) {
  throw_if_cancelled();
  const MutexLock lock(mutex_);
  const int replica = ReplicaHere();
  ps::WriteSet& own = SetOf(replica);
  std::vector<ps::VariableHandle> missing;
  std::vector<torch::Tensor*> snapshots;
  for (const ModuleLeaf& one : leaves) {
    Held& held = held_[one.variable->id];
    AtSlot(held.of_module, slot) = one.leaf;
    torch::Tensor& snapshot = held.SnapshotOf(replica);
    if (snapshot.defined()) continue;
    missing.push_back(one.variable);
    snapshots.push_back(&snapshot);
  }
  if (!missing.empty()) {
    std::vector<torch::Tensor> values = ReadVariables(*connection_, missing, &own);
    for (std::size_t i = 0; i < values.size(); ++i) *snapshots[i] = std::move(values[i]);
  }
  for (const ModuleLeaf& one : leaves) {
    Held& held = held_[one.variable->id];
    torch::Tensor& leaf = AtSlot(held.leaves, slot);
    if (leaf.is_same(one.leaf)) continue;
    GiveValue(one.leaf, held.SnapshotOf(replica));
    leaf = one.leaf;
  }
}

torch::Tensor ClosureSession::Gather(const ps::VariableHandle& variable,
                                     const torch::Tensor& rows) {
  throw_if_cancelled();
  const MutexLock lock(mutex_);
  return GatherRows(*connection_, variable, rows, &SetOf(ReplicaHere()));
}

ps::WriteSet& ClosureSession::SetOf(int replica) {
  if (replica == 0) {
    TakeOver();
    return set_;
  }
  const auto part = static_cast<std::uint64_t>(replica);
  if (part > ps::WriteSet::kMostParts) {
    raise(
        Unimplemented("replica {} of a worker uses a variable on parameter servers: at most {} "
                      "replicas can",
                      replica - 1, ps::WriteSet::kMostParts));
  }
  return of_replicas_.try_emplace(replica, set_, part).first->second;
}

// What a flush of a replica has half sent goes again as it was, before anything changes: under
// another number it would be doubled where it is.
void ClosureSession::TakeOver() {
  if (!replicas_wrote_) return;
  for (auto& [replica, set] : of_replicas_) {
    connection_->RaiseUnlessOk(connection_->client().EndFlush(set), ClosurePhase::kWrites);
  }
  for (auto& [replica, set] : of_replicas_) set_.Take(set);
  for (auto& [id, held] : held_) {
    if (!held.of_replicas.empty()) held.Forget();
  }
  ++writes_;
  replicas_wrote_ = false;
}

void ClosureSession::Wrote(const ps::VariableHandle& variable, int replica) {
  ++writes_;
  Held& held = held_[variable->id];
  if (replica == 0) return held.Forget();
  replicas_wrote_ = true;
  held.of_replicas[replica] = torch::Tensor();
  AtSlot(held.leaves, replica) = torch::Tensor();
}

void ClosureSession::Flush() {
  const MutexLock lock(mutex_);
  FlushSet(SetOf(ReplicaHere()));
}

void ClosureSession::FlushSet(ps::WriteSet& set) {
  connection_->RaiseUnlessOk(connection_->client().Flush(set), ClosurePhase::kWrites);
}

}  // namespace muster::internal
