#include "strategy/parameter_server/per_worker_variable.h"

#include "common/base/mutex.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/cluster/function.h"

namespace muster {

struct WorkerVariable::State {
  Mutex mutex;
  torch::Tensor value MUSTER_GUARDED_BY(mutex);  // replaced, never changed

  // Before anything is computed with it.
  void Require(const torch::Tensor& given) const MUSTER_REQUIRES(mutex) {
    RequireDefined(given);
    if (given.dim() > 0 && !given.sizes().equals(value.sizes())) {
      raise(InvalidArgument("a per-worker variable has shape {}; it is given {}", ShapeText(value),
                            ShapeText(given)));
    }
    // As of other variables: 0.5 added to an integer again and again would be nothing, unsaid.
    if (!c10::canCast(given.scalar_type(), value.scalar_type())) {
      raise(InvalidArgument("a per-worker variable is {} and cannot be given {}: convert it first",
                            torch::toString(value.scalar_type()),
                            torch::toString(given.scalar_type())));
    }
  }
  static void RequireDefined(const torch::Tensor& given) {
    if (!given.defined()) raise(InvalidArgument("a per-worker variable is given no tensor"));
  }
  void Store(const torch::Tensor& next) MUSTER_REQUIRES(mutex) {
    value = torch::empty_like(value).copy_(next.expand_as(value));
  }
};

WorkerVariable::WorkerVariable(const torch::Tensor& initial) : state_(std::make_shared<State>()) {
  State::RequireDefined(initial);
  const MutexLock lock(state_->mutex);
  state_->value = initial.detach().clone();
}

torch::Tensor WorkerVariable::value() const {
  const MutexLock lock(state_->mutex);
  return state_->value;
}

void WorkerVariable::assign(const torch::Tensor& value) {
  const torch::NoGradGuard no_grad;
  const MutexLock lock(state_->mutex);
  state_->Require(value);
  state_->Store(value);
}

void WorkerVariable::assign_add(const torch::Tensor& value) {
  const torch::NoGradGuard no_grad;
  const MutexLock lock(state_->mutex);
  state_->Require(value);
  state_->Store(state_->value + value);
}

void WorkerVariable::assign_sub(const torch::Tensor& value) {
  const torch::NoGradGuard no_grad;
  const MutexLock lock(state_->mutex);
  state_->Require(value);
  state_->Store(state_->value - value);
}

namespace internal {
namespace per_worker_variable {

WorkerVariable make(const torch::Tensor& initial) { return WorkerVariable(initial); }
torch::Tensor read(const WorkerVariable& variable) { return variable.value(); }

}  // namespace per_worker_variable
}  // namespace internal
}  // namespace muster

MUSTER_FUNCTION(muster::internal::per_worker_variable::make);
MUSTER_FUNCTION(muster::internal::per_worker_variable::read);

namespace muster {

namespace functions = internal::per_worker_variable;

PerWorkerVariable::PerWorkerVariable(ClusterCoordinator& coordinator, const torch::Tensor& initial)
    : PerWorkerValues(coordinator.create_per_worker_resource<functions::make>(initial)) {}

std::vector<torch::Tensor> PerWorkerVariable::read_all(ClusterCoordinator& coordinator) const {
  return coordinator.create_per_worker_resource<functions::read>(*this).fetch();
}

}  // namespace muster
