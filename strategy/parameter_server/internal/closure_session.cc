#include "strategy/parameter_server/internal/closure_session.h"

#include "common/torch/dtypes.h"
#include "strategy/base/internal/bytes_of.h"
#include "strategy/base/internal/raise.h"
#include "strategy/cluster/internal/running_closure.h"
#include "strategy/cluster/worker_context.h"
#include "strategy/variables/internal/ordinary.h"

namespace muster::internal {
namespace {

// The session of the closure whose replica this thread is.
thread_local ClosureSession* of_replica = nullptr;

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

ClosureSession* ClosureSession::Current() {
  if (of_replica != nullptr) return of_replica;
  RunningClosure* const closure = running_closure();
  if (closure == nullptr || closure->context.build()) return nullptr;
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

ClosureSession::Scope::Scope(ClosureSession* session) : before_(of_replica) {
  if (session != nullptr) of_replica = session;
}

ClosureSession::Scope::~Scope() { of_replica = before_; }

torch::Tensor ClosureSession::ReadLocked(Held& held, const ps::VariableHandle& variable) {
  if (!held.snapshot.defined()) held.snapshot = ReadVariable(*connection_, variable, &set_);
  return held.snapshot;
}

torch::Tensor ClosureSession::Read(const ps::VariableHandle& variable) {
  throw_if_cancelled();
  const MutexLock lock(mutex_);
  return ReadLocked(held_[variable->id], variable);
}

torch::Tensor ClosureSession::Leaf(const ps::VariableHandle& variable, int slot, bool gradients) {
  throw_if_cancelled();
  const MutexLock lock(mutex_);
  Held& held = held_[variable->id];
  torch::Tensor& leaf = AtSlot(held.leaves, slot);
  if (leaf.defined()) return leaf;
  const torch::Tensor value = ReadLocked(held, variable);
  leaf = AtSlot(held.of_module, slot);
  if (leaf.defined()) {
    GiveValue(leaf, value);
  } else {
    leaf = NewLeaf(value, slot, gradients);
  }
  return leaf;
}

void ClosureSession::Fill(const std::vector<ModuleLeaf>& leaves, int slot) {
  throw_if_cancelled();
  const MutexLock lock(mutex_);
  std::vector<ps::VariableHandle> missing;
  std::vector<Held*> holders;
  for (const ModuleLeaf& one : leaves) {
    Held& held = held_[one.variable->id];
    AtSlot(held.of_module, slot) = one.leaf;
    if (held.snapshot.defined()) continue;
    missing.push_back(one.variable);
    holders.push_back(&held);
  }
  if (!missing.empty()) {
    std::vector<torch::Tensor> values = ReadVariables(*connection_, missing, &set_);
    for (std::size_t i = 0; i < values.size(); ++i) holders[i]->snapshot = std::move(values[i]);
  }
  for (const ModuleLeaf& one : leaves) {
    Held& held = held_[one.variable->id];
    torch::Tensor& leaf = AtSlot(held.leaves, slot);
    if (leaf.is_same(one.leaf)) continue;
    GiveValue(one.leaf, held.snapshot);
    leaf = one.leaf;
  }
}

torch::Tensor ClosureSession::Gather(const ps::VariableHandle& variable,
                                     const torch::Tensor& rows) {
  throw_if_cancelled();
  const MutexLock lock(mutex_);
  return GatherRows(*connection_, variable, rows, &set_);
}

void ClosureSession::Wrote(const ps::VariableHandle& variable) {
  ++writes_;
  Held& held = held_[variable->id];
  held.snapshot = torch::Tensor();
  held.leaves.clear();
}

void ClosureSession::Flush() {
  const MutexLock lock(mutex_);
  FlushLocked();
}

void ClosureSession::FlushLocked() {
  connection_->RaiseUnlessOk(connection_->client().Flush(set_), ClosurePhase::kWrites);
}

}  // namespace muster::internal
