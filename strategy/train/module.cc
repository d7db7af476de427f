#include "strategy/train/module.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/core/context.h"
#include "strategy/core/default_strategy.h"
#include "strategy/core/internal/frames.h"
#include "strategy/train/internal/module_state.h"
#include "strategy/train/internal/python_state.h"
#include "strategy/values/sparse.h"

namespace muster {
namespace internal {
namespace {

using torch::nn::Module;
using NamedTensors = torch::OrderedDict<std::string, torch::Tensor>;

// One tensor of the original and all names that it has there.
struct Group {
  std::vector<std::string> names;
  torch::Tensor tensor;
  // An earlier one of the same list over the same storage; -1: none.
  int alias = -1;
};

bool SameStorage(const torch::Tensor& a, const torch::Tensor& b) {
  return a.numel() > 0 && a.scalar_type() == b.scalar_type() && a.sizes().equals(b.sizes()) &&
         a.strides().equals(b.strides()) && a.data_ptr() == b.data_ptr();
}

std::vector<Group> GroupsOf(const NamedTensors& named) {
  std::vector<Group> groups;
  for (const auto& item : named) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.tensor.is_same(item.value());
    });
    if (same != groups.end()) {
      same->names.push_back(item.key());
      continue;
    }
    Group group{.names = {item.key()}, .tensor = item.value()};
    for (std::size_t i = 0; i < groups.size() && group.alias < 0; ++i) {
      if (SameStorage(groups[i].tensor, item.value())) group.alias = static_cast<int>(i);
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// Copying a module draws initial values that nobody sees: the program's random numbers stay the
// same, however many replicas there are.
class KeepRandomNumbers {
 public:
  KeepRandomNumbers() : generator_(at::globalContext().defaultGenerator(at::kCPU)) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeepRandomNumbers() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  KeepRandomNumbers(const KeepRandomNumbers&) = delete;
  KeepRandomNumbers& operator=(const KeepRandomNumbers&) = delete;

 private:
  at::Generator generator_;
  torch::Tensor state_;
};

std::shared_ptr<Module> CopyOf(const Module& module) {
  try {
    const KeepRandomNumbers keep;
    return module.clone();
  } catch (const c10::Error& error) {
    raise(InvalidArgument("distribute(): module {} cannot be copied for the replicas: {}",
                          module.name(), error.what_without_backtrace()));
  }
}

// What a file holds under the names of `module`, whoever wrote it. What libtorch throws, too.
std::map<std::string, torch::Tensor> TensorsOf(const std::string& path, const Module& module) {
  if (IsPythonState(path)) return ReadPythonState(path);
  const std::shared_ptr<Module> loaded = CopyOf(module);
  torch::serialize::InputArchive archive;
  archive.load_from(path);
  loaded->load(archive);
  std::map<std::string, torch::Tensor> tensors;
  for (const NamedTensors& named : {loaded->named_parameters(), loaded->named_buffers()}) {
    for (const auto& item : named) tensors[item.key()] = item.value();
  }
  return tensors;
}

torch::Tensor CloneOn(device::Place place, const torch::Tensor& tensor) {
  return copy_to(tensor.detach(), place);
}

bool LiesOn(device::Place place, const torch::Tensor& tensor) {
  return device::SameDevice(tensor.device(), device::TorchDevice(place)) &&
         (tensor.numel() == 0 || device::PlaceOf(tensor) == place);
}

// Distributes the tensors of one module step by step.
class Distribution {
 public:
  Distribution(Strategy& strategy, ModuleState& state) : strategy_(strategy), state_(state) {}

  // Takes the tensors of the first copy, and by their names those of the others.
  void Run() {
    const torch::NoGradGuard no_grad;
    const std::vector<Group> parameters = GroupsOf(state_.copies[0]->named_parameters());
    const std::vector<Group> buffers = GroupsOf(state_.copies[0]->named_buffers());
    for (const auto& copy : state_.copies) {
      parameters_of_.push_back(copy->named_parameters());
      buffers_of_.push_back(copy->named_buffers());
    }
    state_.leaves.resize(state_.copies.size());
    AddAll(parameters, parameters_of_, /*parameters=*/true);
    AddAll(buffers, buffers_of_, /*parameters=*/false);
  }

 private:
  void AddAll(const std::vector<Group>& groups, const std::vector<NamedTensors>& named,
              bool parameters) {
    first_ = state_.types.size();
    for (const Group& group : groups) {
      Variable variable = MakeVariable(strategy_, SpecFor(group, parameters));
      if (variable.state()->size() < state_.size()) {
        AddShared(group, named, *variable.state());
      } else {
        AddMirrored(group, named, *variable.state(), parameters);
      }
      state_.types.push_back(group.tensor.scalar_type());
      (parameters ? state_.parameters : state_.buffers).push_back(std::move(variable));
    }
  }

  static VariableSpec SpecFor(const Group& group, bool parameters) {
    const torch::Tensor& first = group.tensor;
    const bool integers = torch::isIntegralType(first.scalar_type(), /*includeBool=*/true);
    VariableOptions options{.trainable = parameters && first.requires_grad(),
                            .synchronization = parameters ? VariableSynchronization::kOnWrite
                                                          : VariableSynchronization::kOnRead,
                            .aggregation = !parameters && integers
                                               ? VariableAggregation::kOnlyFirstReplica
                                               : VariableAggregation::kMean,
                            .dtype = first.scalar_type(),
                            .initialize = false};
    // initialize() finds the value that is there.
    return {.name = group.names[0],
            .initial_value = InitialValue([first] { return first.detach().clone(); }),
            .options = options};
  }

  // A component for each copy.
  void AddMirrored(const Group& group, const std::vector<NamedTensors>& named,
                   VariableState& variable, bool parameters) {
    const bool plain = &strategy_ == &default_strategy();
    variable.of_copies = state_.size() > 1;
    for (int copy = 0; copy < state_.size(); ++copy) {
      const device::Place place = variable.at(copy).place();
      const torch::Tensor leaf = Find(copy, named, group.names[0]);
      if (group.alias >= 0) {
        leaf.set_data(Leaf(copy, group.alias).detach());
      } else if (copy > 0 || (!plain && !LiesOn(place, leaf))) {
        leaf.set_data(CloneOn(place, group.tensor));
      }
      Finish(copy, group, named, leaf);
      std::vector<torch::Tensor> readers(static_cast<std::size_t>(copy) + 2);
      readers.back() = leaf;
      if (plain) readers[0] = leaf;  // there is no run() that would tell its replica from others
      // With several copies the value is a tensor of its own: the leaf may be given other memory.
      variable.Adopt(copy, variable.of_copies ? leaf.detach() : leaf, std::move(readers));
      if (parameters) Master(copy).push_back(leaf);
    }
  }

  // One value, and a leaf over it for each copy.
  void AddShared(const Group& group, const std::vector<NamedTensors>& named,
                 VariableState& variable) {
    variable.of_copies = true;
    torch::Tensor master = group.alias >= 0
                               ? Master(0)[static_cast<std::size_t>(group.alias)].detach()
                               : CloneOn(variable.at(0).place(), group.tensor);
    master.set_requires_grad(group.tensor.requires_grad());
    std::vector<torch::Tensor> readers(1);
    for (int copy = 0; copy < state_.size(); ++copy) {
      const torch::Tensor leaf = Find(copy, named, group.names[0]);
      // A replica on another card has a copy, which the component keeps equal.
      const device::Place home =
          device::FindPlace(strategy_.worker_devices()[static_cast<std::size_t>(copy)]).value();
      const bool near = device::SameDevice(master.device(), device::TorchDevice(home));
      leaf.set_data(near ? master.detach() : CloneOn(home, master));
      Finish(copy, group, named, leaf);
      readers.push_back(leaf);
    }
    variable.Adopt(0, master, std::move(readers));
    Master(0).push_back(std::move(master));
  }

  void Finish(int copy, const Group& group, const std::vector<NamedTensors>& named,
              const torch::Tensor& leaf) {
    leaf.set_requires_grad(group.tensor.requires_grad());
    for (std::size_t i = 1; i < group.names.size(); ++i) {
      Tie(leaf, Find(copy, named, group.names[i]));
    }
    state_.leaves[static_cast<std::size_t>(copy)].push_back(leaf);
  }

  // Copying made two tensors of one. They get one storage, and one gradient: the leaf's.
  static void Tie(const torch::Tensor& leaf, const torch::Tensor& other) {
    if (other.is_same(leaf)) return;
    other.set_data(leaf.detach());
    other.set_requires_grad(leaf.requires_grad());
    if (!leaf.requires_grad()) return;
    other.register_hook([leaf](const torch::Tensor& gradient) {
      const torch::NoGradGuard no_grad;
      torch::Tensor& sum = leaf.mutable_grad();
      sum = sum.defined() ? sum + gradient : gradient.detach().clone();
      return torch::zeros_like(gradient);
    });
  }

  torch::Tensor Find(int copy, const std::vector<NamedTensors>& named,
                     const std::string& name) const {
    const torch::Tensor* const found = named[static_cast<std::size_t>(copy)].find(name);
    if (found != nullptr) return *found;
    raise(InvalidArgument(
        "distribute(): the copy of module {} for replica {} has no \"{}\": register everything in "
        "reset(), the same each time",
        state_.name, copy, name));
  }
  const torch::Tensor& Leaf(int copy, int index) const {
    return state_.leaves[static_cast<std::size_t>(copy)][first_ + static_cast<std::size_t>(index)];
  }
  std::vector<torch::Tensor>& Master(int copy) {
    const auto index = static_cast<std::size_t>(copy);
    if (state_.masters.size() <= index) state_.masters.resize(index + 1);
    return state_.masters[index];
  }

  Strategy& strategy_;
  ModuleState& state_;
  std::vector<NamedTensors> parameters_of_;
  std::vector<NamedTensors> buffers_of_;
  std::size_t first_ = 0;
};

bool IsZero(const torch::Tensor& gradient) {
  return gradient.is_sparse() ? gradient._nnz() == 0 : !gradient.any().item<bool>();
}

}  // namespace

std::shared_ptr<ModuleState> DistributeModule(Strategy& strategy,
                                              const std::shared_ptr<Module>& module) {
  RequireCrossReplica(strategy, "distribute()", "it before run()");
  if (module == nullptr) raise(InvalidArgument("distribute(): no module"));
  if (strategy.component_maker() != nullptr) {
    raise(
        Unimplemented("distribute() under {}: the copies of a module would be this process's own; "
                      "make its values with Variable::create() and compute with them in closures",
                      strategy.name()));
  }
  const auto state = std::make_shared<ModuleState>();
  state->strategy = strategy.ref();
  state->name = module->name();
  state->copies.push_back(module);
  // With one replica too, so that what works with one works with more.
  const std::shared_ptr<Module> probe = CopyOf(*module);
  for (int r = 1; r < strategy.num_replicas_in_sync(); ++r) {
    state->copies.push_back(r == 1 ? probe : CopyOf(*module));
  }
  Distribution(strategy, *state).Run();
  for (const auto& copy : state->copies) {
    std::vector<Module*>& flat = state->flat.emplace_back();
    for (const auto& part : copy->modules()) flat.push_back(part.get());
    if (flat.size() != state->flat[0].size()) {
      raise(InvalidArgument("distribute(): the copies of module {} have {} and {} submodules",
                            state->name, state->flat[0].size(), flat.size()));
    }
  }
  if (state->size() > 1) strategy.runs().Add(state);
  return state;
}

void ModuleState::Each(void (VariableState::*call)()) const {
  for (const auto* list : {&parameters, &buffers}) {
    for (const Variable& one : *list) ((*one.state()).*call)();
  }
}

void ModuleState::Sync() const {
  if (size() == 1 || strategy->runs().any()) return;
  Each(&VariableState::TakeChanges);
}

void ModuleState::ShowMeans() const {
  if (size() == 1 || strategy->runs().any()) return;
  for (const Variable& one : buffers) one.state()->ShowAcross();
}

void ModuleState::BeginRun() {
  Each(&VariableState::TakeChanges);
  for (const Variable& one : buffers) one.state()->HideAcross();
}

void ModuleState::EndRun() { Each(&VariableState::Settle); }

device::Place ModuleState::parameter_device(int master) const {
  return parameters.empty() ? device::Place{} : parameters[0].state()->at(master).place();
}

ReplicaContext* ModuleState::Replica() const {
  ReplicaContext* const current = get_replica_context();
  if (current == nullptr) return nullptr;
  if (&current->strategy() == &*strategy) return current;
  if (current->num_replicas_in_sync() > 1) {
    raise(
        FailedPrecondition("Mixing different Strategy objects: module {} of a {} is used in a "
                           "replica of another strategy ({})",
                           name, strategy->name(), current->strategy().name()));
  }
  return nullptr;
}

int ModuleState::Here() const {
  int here = 0;
  const ReplicaContext* const replica = Replica();
  if (replica == nullptr) Sync();
  if (replica != nullptr) {
    here = replica->replica_id_in_sync_group();
  } else if (const auto updated = get_update_replica_id();
             updated && &get_strategy() == &*strategy) {
    here = std::min(*updated, size() - 1);
  }
  Check(here);
  return here;
}

void ModuleState::Check(int copy) const {
  const std::vector<torch::Tensor>& tensors = leaves[static_cast<std::size_t>(copy)];
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool parameter = i < parameters.size();
    const bool shared =
        parameter && central() && device::SameDevice(tensors[i].device(), masters[0][i].device());
    const bool same_type = tensors[i].scalar_type() == types[i];
    if (same_type && (!shared || tensors[i].is_alias_of(masters[0][i]))) continue;
    const Variable& variable = parameter ? parameters[i] : buffers[i - parameters.size()];
    if (same_type) {
      raise(FailedPrecondition(
          "parameter {} of module {} has other memory than the value that all replicas share: it "
          "was replaced after distribute(); write to the parameter, to its variable, or restore a "
          "Checkpoint instead",
          variable.name(), name));
    }
    raise(FailedPrecondition(
        "{} {} of module {} is {} now, but was {} when the module was distributed: change a "
        "module's type (module->to(dtype)) before distribute()",
        parameter ? "parameter" : "buffer", variable.name(), name,
        torch::toString(tensors[i].scalar_type()), torch::toString(types[i])));
  }
}

void ModuleState::Train(bool on) const {
  if (Replica() != nullptr) return copies[static_cast<std::size_t>(Here())]->train(on);
  for (const auto& copy : copies) copy->train(on);
}

void ModuleState::ZeroGrad() const {
  // Not filled with zeros: the next backward() stores its gradients instead of adding them.
  const auto drop = [&](std::size_t copy) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      leaves[copy][i].mutable_grad() = torch::Tensor();
    }
  };
  if (Replica() != nullptr) return drop(static_cast<std::size_t>(Here()));
  for (std::size_t copy = 0; copy < copies.size(); ++copy) drop(copy);
}

// Reads the file; where all of it fits, it is copied into the first copy, which the others follow.
void ModuleState::Load(const std::string& path) const {
  RequireCrossReplica(*strategy, "load()", "it outside run()");
  Sync();
  if (!std::filesystem::exists(path)) raise(NotFound("{}: no such file", path));
  const auto refuse = [&](std::string_view why) {
    raise(InvalidArgument("{} does not fit module {}: {}", path, name, why));
  };
  std::map<std::string, torch::Tensor> theirs;
  try {
    theirs = TensorsOf(path, *copies[0]);
  } catch (const Error& error) {
    refuse(error.message());
  } catch (const c10::Error& error) {
    refuse(error.what_without_backtrace());
  } catch (const std::exception& error) {
    refuse(error.what());
  }
  // All before any: what does not fit changes nothing.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> changes;
  for (const NamedTensors& tensors : {copies[0]->named_parameters(), copies[0]->named_buffers()}) {
    for (const auto& item : tensors) {
      const auto found = theirs.find(item.key());
      if (found == theirs.end()) refuse(fmt::format("it has no tensor {}", item.key()));
      if (!item.value().sizes().equals(found->second.sizes())) {
        refuse(fmt::format("its tensor {} has shape {}, the module's {}", item.key(),
                           ShapeText(found->second), ShapeText(item.value())));
      }
      changes.emplace_back(item.value(), found->second);
    }
  }
  const torch::NoGradGuard no_grad;
  for (auto& [ours, value] : changes) ours.copy_(value);
  Sync();
}

void ModuleState::Save(const std::string& path) const {
  RequireCrossReplica(*strategy, "save()", "it outside run()");
  Sync();
  ShowMeans();
  try {
    torch::serialize::OutputArchive archive;
    copies[0]->save(archive);
    archive.save_to(path);
  } catch (const std::exception& error) {
    const auto* const torchs = dynamic_cast<const c10::Error*>(&error);
    raise(Unavailable("{} cannot be written: {}", path,
                      torchs == nullptr ? error.what() : torchs->what_without_backtrace()));
  }
}

OutsideUse::OutsideUse(std::shared_ptr<ModuleState> module) : module_(std::move(module)) {
  for (std::size_t i = 0; i < module_->parameters.size(); ++i) {
    const torch::Tensor& gradient = module_->leaves[0][i].grad();
    versions_.push_back(gradient.defined() ? static_cast<std::int64_t>(gradient._version()) : -1);
  }
}

OutsideUse::~OutsideUse() {
  try {
    SpreadModes();
    SpreadZeros();
  } catch (...) {  // a destructor: what the user did to the first copy stands
  }
}

void OutsideUse::SpreadModes() const {
  const auto& flat = module_->flat;
  for (std::size_t copy = 1; copy < flat.size(); ++copy) {
    // Parents come first, so a module's own mode is set after its parent's was set for it.
    for (std::size_t i = 0; i < flat[copy].size(); ++i) {
      const bool on = flat[0][i]->is_training();
      if (flat[copy][i]->is_training() != on) flat[copy][i]->train(on);
    }
  }
}

void OutsideUse::SpreadZeros() const {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    const torch::Tensor& first = module_->leaves[0][i].grad();
    if (versions_[i] < 0) continue;
    if (first.defined() &&
        (static_cast<std::int64_t>(first._version()) == versions_[i] || !IsZero(first))) {
      continue;
    }
    for (std::size_t copy = 1; copy < module_->leaves.size(); ++copy) {
      torch::Tensor& other = module_->leaves[copy][i].mutable_grad();
      if (!first.defined()) other = torch::Tensor();
      if (other.defined()) other.zero_();
    }
  }
}

}  // namespace internal

const std::string& DistributedModuleBase::name() const { return state_->name; }
Strategy& DistributedModuleBase::strategy() const { return *state_->strategy; }
int DistributedModuleBase::size() const { return state_->size(); }
const std::vector<Variable>& DistributedModuleBase::parameters() const {
  return state_->parameters;
}
const std::vector<Variable>& DistributedModuleBase::buffers() const { return state_->buffers; }

Variable DistributedModuleBase::variable(const std::string& name) const {
  for (const auto* list : {&state_->parameters, &state_->buffers}) {
    for (const Variable& one : *list) {
      if (one.name() == name) return one;
    }
  }
  raise(NotFound("module {} has no parameter or buffer \"{}\"", state_->name, name));
}

void DistributedModuleBase::train(bool on) const { state_->Train(on); }
void DistributedModuleBase::zero_grad() const { state_->ZeroGrad(); }
void DistributedModuleBase::load(const std::string& path) const { state_->Load(path); }
void DistributedModuleBase::save(const std::string& path) const { state_->Save(path); }

int DistributedModuleBase::here() const { return state_->Here(); }

const std::shared_ptr<torch::nn::Module>& DistributedModuleBase::module(int copy) const {
  if (copy < 0 || copy >= state_->size()) {
    raise(OutOfRange("copy {} of module {}, which has {}", copy, state_->name, state_->size()));
  }
  return state_->copies[static_cast<std::size_t>(copy)];
}

void DistributedModuleBase::raise_other_type() const {
  raise(
      InvalidArgument("distribute(): clone() of module {} makes an object of another class: derive "
                      "the class itself "
                      "from torch::nn::Cloneable of it",
                      state_->name));
}

std::shared_ptr<internal::OutsideUse> DistributedModuleBase::outside() const {
  if (state_->size() == 1 || state_->Replica() != nullptr) return nullptr;
  state_->ShowMeans();
  return std::make_shared<internal::OutsideUse>(state_);
}

}  // namespace muster
