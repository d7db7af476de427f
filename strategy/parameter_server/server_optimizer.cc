#include "strategy/parameter_server/server_optimizer.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>

#include "common/base/mutex.h"
#include "muster/v1/job_spec.pb.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/parameter_server/internal/remote_component.h"
#include "strategy/values/sparse.h"

namespace muster {
namespace {

using internal::PsConnection;
using internal::RemoteComponent;
using internal::WriteArgument;
namespace optim = torch::optim;

void RefuseUnless(bool supported, const char* what) {
  if (!supported) raise(Unimplemented("{}: parameter servers do not have it", what));
}

template <class Options>
v1::OptimizerSpec AdamSpec(v1::OptimizerKind kind, const Options& options) {
  RefuseUnless(!options.amsgrad(), "amsgrad");
  v1::OptimizerSpec spec;
  spec.set_kind(kind);
  spec.set_beta1(std::get<0>(options.betas()));
  spec.set_beta2(std::get<1>(options.betas()));
  spec.set_epsilon(options.eps());
  spec.set_weight_decay(options.weight_decay());
  return spec;
}

v1::OptimizerSpec SgdSpec(const optim::SGDOptions& options) {
  RefuseUnless(options.dampening() == 0, "dampening of SGD");
  if (options.nesterov() && options.momentum() == 0) {
    raise(InvalidArgument("SGD: nesterov needs a momentum above 0"));
  }
  v1::OptimizerSpec spec;
  spec.set_kind(v1::OPTIMIZER_KIND_SGD);
  spec.set_weight_decay(options.weight_decay());
  if (options.momentum() == 0) return spec;
  spec.set_kind(v1::OPTIMIZER_KIND_MOMENTUM);
  spec.set_momentum(options.momentum());
  spec.set_nesterov(options.nesterov());
  return spec;
}

v1::OptimizerSpec AdagradSpec(const optim::AdagradOptions& options) {
  RefuseUnless(options.lr_decay() == 0, "lr_decay of Adagrad");
  v1::OptimizerSpec spec;
  spec.set_kind(v1::OPTIMIZER_KIND_ADAGRAD);
  spec.set_weight_decay(options.weight_decay());
  spec.set_epsilon(options.eps());
  spec.set_initial_accumulator(options.initial_accumulator_value());
  return spec;
}

// The learning rate is not part of it: it comes with each gradient.
v1::OptimizerSpec SpecOf(const optim::OptimizerOptions& options) {
  if (const auto* sgd = dynamic_cast<const optim::SGDOptions*>(&options)) return SgdSpec(*sgd);
  if (const auto* adam = dynamic_cast<const optim::AdamOptions*>(&options)) {
    return AdamSpec(v1::OPTIMIZER_KIND_ADAM, *adam);
  }
  if (const auto* adamw = dynamic_cast<const optim::AdamWOptions*>(&options)) {
    return AdamSpec(v1::OPTIMIZER_KIND_ADAMW, *adamw);
  }
  if (const auto* adagrad = dynamic_cast<const optim::AdagradOptions*>(&options)) {
    return AdagradSpec(*adagrad);
  }
  raise(Unimplemented("{}: parameter servers have SGD, Adam, AdamW and Adagrad",
                      c10::demangle(typeid(options).name())));
}

void RequireRate(double rate) {
  if (rate >= 0 && std::isfinite(rate)) return;
  raise(InvalidArgument("a learning rate of {}; it must be 0 or more", rate));
}

void RequireFloating(const Variable& variable, const RemoteComponent& remote) {
  const auto form = remote.form();
  if (!form || form->type == torch::kFloat || form->type == torch::kDouble) return;
  raise(InvalidArgument("variable {} is {}; an optimizer is for float32 and float64",
                        variable.name(), torch::toString(form->type)));
}

// As the server takes it; without values where there is nothing to update.
WriteArgument FittedGradient(const VariableGradient& given, const RemoteComponent& remote) {
  const torch::NoGradGuard no_grad;
  const auto* const dense = std::get_if<torch::Tensor>(&given.gradient);
  if (dense != nullptr && !dense->defined()) return {};
  if (dense == nullptr || is_slices(*dense)) {
    const IndexedSlices slices =
        dense == nullptr ? std::get<IndexedSlices>(given.gradient) : to_slices(*dense);
    if (!slices.values.defined()) return {};
    return remote.FittedRows(slices.values, slices.indices);
  }
  const std::vector<std::int64_t> sizes = remote.placed()->shape;
  if (!dense->sizes().equals(sizes)) {
    raise(InvalidArgument("variable {} has shape {}, its gradient {}: they must be the same",
                          given.variable.name(), ShapeText(sizes), ShapeText(dense->sizes())));
  }
  return remote.FittedWhole(*dense);
}

}  // namespace

struct ServerOptimizer::State {
  v1::OptimizerSpec spec;
  double learning_rate = 0;
  std::vector<Variable> variables;
  std::vector<RemoteComponent*> components;  // of `variables`, which keep them

  Mutex mutex;
  // Whose servers have it, as far as this process knows.
  std::weak_ptr<PsConnection> attached MUSTER_GUARDED_BY(mutex);

  // In the driver it gives the variables their optimizer; elsewhere it finds out whether the
  // driver's is the same. Once for each connection.
  void Attach() {
    const std::shared_ptr<PsConnection> connection = components[0]->connection();
    {
      const MutexLock lock(mutex);
      if (connection != nullptr && attached.lock() == connection) return;
    }
    std::vector<ps::VariableHandle> placed;
    for (const RemoteComponent* component : components) placed.push_back(component->placed());
    Status status = connection->client().Attach(placed, spec);
    if (status.code() == StatusCode::kFailedPrecondition) {
      status = Annotate(status, "a ServerOptimizer has the same options in every process");
    }
    connection->RaiseUnlessOk(status, ClosurePhase::kWrites);
    const MutexLock lock(mutex);
    attached = connection;
  }

  RemoteComponent& ComponentOf(const Variable& variable) const {
    RemoteComponent& remote = internal::remote_component(variable);
    if (std::ranges::find(components, &remote) != components.end()) return remote;
    raise(
        InvalidArgument("variable {} is none of this optimizer's {} variables, the first of "
                        "which is {}",
                        variable.name(), variables.size(), variables[0].name()));
  }
};

ServerOptimizer::ServerOptimizer(const torch::optim::OptimizerOptions& options,
                                 std::vector<Variable> variables) {
  const auto state = std::make_shared<State>();
  state->spec = SpecOf(options);
  state->learning_rate = options.get_lr();
  RequireRate(state->learning_rate);
  if (variables.empty()) raise(InvalidArgument("ServerOptimizer: no variables"));
  for (const Variable& variable : variables) {
    RemoteComponent& remote = internal::remote_component(variable);
    RequireFloating(variable, remote);
    state->components.push_back(&remote);
  }
  state->variables = std::move(variables);
  std::vector<RemoteComponent*> claimed;
  try {
    for (RemoteComponent* const component : state->components) {
      if (!component->ClaimOptimizer()) {
        raise(FailedPrecondition("variable {} has an optimizer already: it can have one alone",
                                 component->name()));
      }
      claimed.push_back(component);
    }
    if (claimed[0]->made_here()) state->Attach();
  } catch (...) {
    for (RemoteComponent* const component : claimed) component->ReleaseOptimizer();
    throw;
  }
  state_ = state;
}

const std::vector<Variable>& ServerOptimizer::variables() const {
  if (state_ != nullptr) return state_->variables;
  raise(FailedPrecondition("a ServerOptimizer that was made without options and variables"));
}

void ServerOptimizer::apply_gradients(const std::vector<VariableGradient>& gradients,
                                      std::optional<double> learning_rate) const {
  (void)variables();
  const double rate = learning_rate.value_or(state_->learning_rate);
  RequireRate(rate);
  std::vector<std::pair<RemoteComponent*, WriteArgument>> updates;
  for (const VariableGradient& gradient : gradients) {
    RemoteComponent& remote = state_->ComponentOf(gradient.variable);
    WriteArgument fitted = FittedGradient(gradient, remote);
    if (fitted.values.defined()) updates.emplace_back(&remote, std::move(fitted));
  }
  if (updates.empty()) return;
  state_->Attach();
  ps::WriteSet outside_closures;
  for (const auto& [remote, gradient] : updates) {
    remote->AddGradient(gradient, rate, outside_closures);
  }
  if (outside_closures.empty()) return;
  PsConnection& connection = *updates[0].first->connection();
  connection.RaiseUnlessOk(connection.client().Flush(outside_closures), ClosurePhase::kWrites);
}

}  // namespace muster
