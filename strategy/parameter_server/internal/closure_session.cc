#include "strategy/parameter_server/internal/closure_session.h"

#include "common/torch/dtypes.h"
#include "strategy/base/internal/raise.h"
#include "strategy/cluster/internal/running_closure.h"
#include "strategy/variables/internal/ordinary.h"

namespace muster::internal {
namespace {

// The session of the closure whose replica this thread is.
thread_local ClosureSession* of_replica = nullptr;

std::span<std::byte> BytesOf(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

torch::Tensor Read(PsConnection& connection, ps::ReadRequest request,
                   const std::vector<std::int64_t>& sizes, ps::WriteSet* own) {
  const Ordinary ordinary(device::Place{});
  const torch::Tensor value =
      torch::empty(sizes, torch::dtype(*ScalarTypeOf(request.variable->dtype)));
  request.into = BytesOf(value);
  connection.RaiseUnlessOk(connection.client().Read(std::span(&request, 1), own));
  return value;
}

}  // namespace

torch::Tensor ReadVariable(PsConnection& connection, const ps::VariableHandle& variable,
                           ps::WriteSet* own) {
  return Read(connection, {.variable = variable}, variable->shape, own);
}

torch::Tensor GatherRows(PsConnection& connection, const ps::VariableHandle& variable,
                         const torch::Tensor& rows, ps::WriteSet* own) {
  const torch::Tensor ids = rows.to(torch::kCPU, torch::kLong).contiguous();
  std::vector<std::int64_t> sizes = variable->shape;
  sizes[0] = ids.numel();
  if (ids.numel() == 0) {
    return torch::empty(sizes, torch::dtype(*ScalarTypeOf(variable->dtype)));
  }
  return Read(connection,
              {.variable = variable,
               .rows = true,
               .ids = {ids.data_ptr<std::int64_t>(), static_cast<std::size_t>(ids.numel())}},
              sizes, own);
}

torch::Tensor NewLeaf(const torch::Tensor& value, int slot, bool gradients) {
  const device::Place place = slot > 0 ? device::PlaceScope::Current() : device::Place{};
  const Ordinary ordinary(place);
  torch::Tensor leaf = value.to(device::TorchDevice(place)).variable_data();
  leaf.set_requires_grad(gradients);
  return leaf;
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
    const auto session = std::make_shared<ClosureSession>(std::move(connection),
                                                          ClosureId(closure->context.closure()),
                                                          Attempt(closure->context.attempt()));
    closure->kept = session;
    closure->at_end = [closure, session] {
      if (closure->context.cancelled()) {
        raise(
            Cancelled("another closure has failed, or the coordinator is gone: what this closure "
                      "writes is not wanted any more"));
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

torch::Tensor ClosureSession::ReadLocked(std::uint64_t component,
                                         const ps::VariableHandle& variable) {
  torch::Tensor& snapshot = snapshots_[component];
  if (!snapshot.defined()) snapshot = ReadVariable(*connection_, variable, &set_);
  return snapshot;
}

torch::Tensor ClosureSession::Read(std::uint64_t component, const ps::VariableHandle& variable) {
  const MutexLock lock(mutex_);
  return ReadLocked(component, variable);
}

torch::Tensor ClosureSession::Leaf(std::uint64_t component, const ps::VariableHandle& variable,
                                   int slot, bool gradients) {
  const MutexLock lock(mutex_);
  const auto index = static_cast<std::size_t>(slot);
  std::vector<torch::Tensor>& leaves = leaves_[component];
  if (leaves.size() <= index) leaves.resize(index + 1);
  torch::Tensor& leaf = leaves[index];
  if (!leaf.defined()) leaf = NewLeaf(ReadLocked(component, variable), slot, gradients);
  return leaf;
}

torch::Tensor ClosureSession::Gather(const ps::VariableHandle& variable,
                                     const torch::Tensor& rows) {
  const MutexLock lock(mutex_);
  return GatherRows(*connection_, variable, rows, &set_);
}

void ClosureSession::Flush() {
  const MutexLock lock(mutex_);
  connection_->RaiseUnlessOk(connection_->client().Flush(set_), ClosurePhase::kWrites);
}

}  // namespace muster::internal
