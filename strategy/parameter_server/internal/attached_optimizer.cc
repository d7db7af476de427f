#include "strategy/parameter_server/internal/attached_optimizer.h"

#include <algorithm>
#include <tuple>
#include <typeinfo>

#include <c10/util/Type.h>

#include "common/storage/checkpoint.h"
#include "common/torch/dtypes.h"
#include "strategy/base/internal/bytes_of.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/parameter_server/internal/closure_session.h"
#include "strategy/train/internal/optimizer_slots.h"
#include "strategy/train/internal/optimizer_state.h"
#include "strategy/values/sparse.h"
#include "strategy/variables/internal/ordinary.h"

namespace muster::internal {
namespace {

namespace optim = torch::optim;

constexpr std::string_view kCount = "step";

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

// By their numbers on the servers (ps/optimizer.h).
std::vector<std::string_view> SlotsOf(v1::OptimizerKind kind) {
  switch (kind) {
    case v1::OPTIMIZER_KIND_MOMENTUM:
      return {"momentum"};
    case v1::OPTIMIZER_KIND_ADAGRAD:
      return {"sum"};
    case v1::OPTIMIZER_KIND_ADAM:
    case v1::OPTIMIZER_KIND_ADAMW:
      return {"exp_avg", "exp_avg_sq"};
    default:
      return {};
  }
}

// Whether updates depend on how many there were.
bool Counts(v1::OptimizerKind kind) {
  return kind != v1::OPTIMIZER_KIND_SGD && kind != v1::OPTIMIZER_KIND_MOMENTUM;
}

}  // namespace

// The learning rate is not part of it: it comes with each gradient.
v1::OptimizerSpec OptimizerSpecOf(const optim::OptimizerOptions& options) {
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

AttachedOptimizer::AttachedOptimizer(const torch::optim::OptimizerOptions& options,
                                     std::vector<Variable> variables)
    : spec_(OptimizerSpecOf(options)),
      learning_rate_(options.get_lr()),
      variables_(std::move(variables)) {
  RequireLearningRate(learning_rate_);
  if (variables_.empty()) raise(InvalidArgument("ServerOptimizer: no variables"));
  for (const Variable& variable : variables_) {
    RemoteComponent& remote = remote_component(variable);
    RequireFloating(variable, remote);
    components_.push_back(&remote);
    names_.insert(remote.name());
  }
  std::vector<RemoteComponent*> claimed;
  try {
    for (RemoteComponent* const component : components_) {
      if (!component->ClaimOptimizer()) {
        raise(FailedPrecondition("variable {} has an optimizer already: it can have one alone",
                                 component->name()));
      }
      claimed.push_back(component);
    }
    if (claimed[0]->made_here()) Attach();
  } catch (...) {
    for (RemoteComponent* const component : claimed) component->ReleaseOptimizer();
    throw;
  }
}

void AttachedOptimizer::Release() const {
  for (RemoteComponent* const component : components_) component->ReleaseOptimizer();
}

void AttachedOptimizer::Attach() const {
  const std::shared_ptr<PsConnection> connection = components_[0]->connection();
  {
    const MutexLock lock(mutex_);
    if (connection != nullptr && attached_.lock() == connection) return;
  }
  std::vector<ps::VariableHandle> placed;
  for (const RemoteComponent* component : components_) placed.push_back(component->placed());
  Status status = connection->client().Attach(placed, spec_);
  if (status.code() == StatusCode::kFailedPrecondition) {
    status = Annotate(status, "an optimizer has the same options in every process");
  }
  connection->RaiseUnlessOk(status, ClosurePhase::kWrites);
  const MutexLock lock(mutex_);
  attached_ = connection;
}

RemoteComponent& AttachedOptimizer::ComponentOf(const Variable& variable) const {
  RemoteComponent& remote = remote_component(variable);
  // By name: a variable may have come as an argument.
  if (names_.contains(remote.name())) return remote;
  raise(
      InvalidArgument("variable {} is none of this optimizer's {} variables, the first of "
                      "which is {}",
                      variable.name(), variables_.size(), variables_[0].name()));
}

// All gradients become updates before the first is written, so one that does not fit changes
// nothing. With kImmediate they are sent as one, which counts once when the closure runs again.
void AttachedOptimizer::Apply(const std::vector<VariableGradient>& gradients,
                              double learning_rate) {
  RequireLearningRate(learning_rate);
  std::vector<std::pair<RemoteComponent*, ps::WriteSet>> updates;
  for (const VariableGradient& gradient : gradients) {
    RemoteComponent& remote = ComponentOf(gradient.variable);
    const WriteArgument fitted = FittedGradient(gradient, remote);
    if (!fitted.values.defined()) continue;
    updates.emplace_back(&remote, remote.UpdateBy(fitted, learning_rate));
  }
  if (updates.empty()) return;
  Attach();
  if (ClosureSession* const session = ClosureSession::Current();
      session != nullptr && updates[0].first->writes() == Writes::kImmediate) {
    std::vector<ps::VariableHandle> variables;
    ps::WriteSet together;
    for (auto& [remote, update] : updates) {
      variables.push_back(remote->placed());
      together.Take(update);
    }
    return session->WriteNow(variables, [&](ps::WriteSet& set) { set.Take(together); });
  }
  ps::WriteSet outside_closures;
  for (auto& [remote, update] : updates) remote->AddUpdate(std::move(update), outside_closures);
  if (outside_closures.empty()) return;
  PsConnection& connection = *updates[0].first->connection();
  connection.RaiseUnlessOk(connection.client().Flush(outside_closures), ClosurePhase::kWrites);
}

std::string AttachedOptimizer::SlotOf(std::size_t i, std::string_view slot) const {
  return storage::SlotName(variables_[i].name(), std::string(slot));
}

PsConnection& AttachedOptimizer::RequireDriver(std::string_view call) const {
  if (components_[0]->made_here() && ClosureSession::Current() == nullptr) {
    return *components_[0]->connection();
  }
  raise(
      FailedPrecondition("{} of an optimizer on parameter servers is for the driver, outside "
                         "closures",
                         call));
}

std::vector<std::string> AttachedOptimizer::Names() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    for (const std::string_view slot : SlotsOf(spec_.kind())) names.push_back(SlotOf(i, slot));
    if (Counts(spec_.kind())) names.push_back(SlotOf(i, kCount));
  }
  return names;
}

std::map<std::string, torch::Tensor> AttachedOptimizer::Values() const {
  PsConnection& connection = RequireDriver("what is remembered");
  std::map<std::string, torch::Tensor> values;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const ps::VariableHandle placed = components_[i]->placed();
    const auto updates = connection.client().Updates(placed);
    connection.RaiseUnlessOk(updates.status());
    if (*updates == 0) continue;
    std::vector<ps::ReadRequest> requests;
    for (const std::string_view slot : SlotsOf(spec_.kind())) {
      const torch::Tensor value =
          torch::empty(placed->shape, torch::dtype(*ScalarTypeOf(placed->dtype)));
      values[SlotOf(i, slot)] = value;
      requests.push_back({.variable = placed,
                          .into = BytesOf(value),
                          .slot = static_cast<std::uint32_t>(requests.size() + 1)});
    }
    if (!requests.empty()) connection.RaiseUnlessOk(connection.client().Read(requests));
    if (!Counts(spec_.kind())) continue;
    values[SlotOf(i, kCount)] =
        torch::scalar_tensor(static_cast<std::int64_t>(*updates), torch::kLong);
  }
  return values;
}

void AttachedOptimizer::Check(const std::map<std::string, torch::Tensor>& values) const {
  (void)RequireDriver("a restore");
  std::size_t known = 0;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const std::vector<std::int64_t> sizes = variables_[i].sizes();
    std::vector<std::string_view> wanted = SlotsOf(spec_.kind());
    if (Counts(spec_.kind())) wanted.push_back(kCount);
    std::size_t there = 0;
    std::string missing;
    for (const std::string_view slot : wanted) {
      const std::string name = SlotOf(i, slot);
      const auto found = values.find(name);
      if (found == values.end()) {
        missing = name;
        continue;
      }
      ++there;
      CheckSlot(name, found->second, sizes, slot == kCount);
    }
    known += there;
    if (there == 0 || missing.empty()) continue;
    raise(InvalidArgument("optimizer state {} is missing, though others of {} are there", missing,
                          variables_[i].name()));
  }
  if (known == values.size()) return;
  const std::vector<std::string> names = Names();
  for (const auto& [name, value] : values) {
    if (std::ranges::find(names, name) != names.end()) continue;
    raise(InvalidArgument("optimizer state {} belongs to no variable of this optimizer", name));
  }
}

// Slots that are not restored become what they are before the first update.
void AttachedOptimizer::Restore(const std::map<std::string, torch::Tensor>& values) const {
  PsConnection& connection = RequireDriver("a restore");
  const Ordinary ordinary(device::Place{});
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    const ps::VariableHandle placed = components_[i]->placed();
    ps::WriteSet set;
    std::uint16_t number = 0;
    std::uint64_t updates = 0;
    for (const std::string_view slot : SlotsOf(spec_.kind())) {
      const auto found = values.find(SlotOf(i, slot));
      const auto type = torch::dtype(*ScalarTypeOf(placed->dtype));
      const torch::Tensor value =
          found == values.end() ? torch::full(placed->shape, spec_.initial_accumulator(), type)
                                : found->second.to(torch::kCPU, type.dtype()).contiguous();
      if (found != values.end()) updates = 1;
      raise_unless_ok(
          set.Update(placed, ps::ElementOp::kAssign, {.bytes = BytesOf(value)}, ++number));
    }
    connection.RaiseUnlessOk(connection.client().Flush(set), ClosurePhase::kWrites);
    if (const auto count = values.find(SlotOf(i, kCount)); count != values.end()) {
      updates = static_cast<std::uint64_t>(count->second.item<std::int64_t>());
    }
    connection.RaiseUnlessOk(connection.client().Attach(std::span(&placed, 1), spec_, updates),
                             ClosurePhase::kWrites);
  }
}

}  // namespace muster::internal
