#include "strategy/train/module.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "common/base/whole_file.h"
#include "common/storage/file_system.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/core/context.h"
#include "strategy/core/internal/between.h"
#include "strategy/core/internal/frames.h"
#include "strategy/train/internal/module_state.h"
#include "strategy/train/internal/python_state.h"
#include "strategy/values/sparse.h"

namespace muster {
namespace internal {
namespace {

using torch::nn::Module;
using NamedTensors = torch::OrderedDict<std::string, torch::Tensor>;

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

// Beside the file, then in its place: a full disk, or an end in between, leaves what was saved
// before.
Status WriteArchive(torch::serialize::OutputArchive& archive, const std::string& path) {
  const Result<std::string> place = PlaceOfFile(path);
  if (!place.ok()) {  // a pipe or a device, which no file may replace
    archive.save_to(path);
    return Ok();
  }
  storage::FileSystem& disk = storage::RealFileSystem();
  const std::string staged = storage::TemporaryName(*place);
  MUSTER_TRY_ASSIGN(const auto file, disk.Create(staged));
  const auto write = [&]() -> Status {
    // libtorch hears of no failure: it would go on to write the archive's end, and fail anew.
    Status written = Ok();
    archive.save_to([&](const void* data, std::size_t size) {
      if (written.ok()) written = file->Append({static_cast<const std::byte*>(data), size});
      return size;
    });
    MUSTER_TRY(written);
    MUSTER_TRY(file->Sync());
    MUSTER_TRY(file->Close());
    MUSTER_TRY(disk.Rename(staged, *place));
    return disk.SyncFolder(storage::ParentOf(*place));
  };
  try {
    const Status status = write();
    if (!status.ok()) (void)disk.Remove(staged);
    return status;
  } catch (...) {
    (void)disk.Remove(staged);
    throw;
  }
}

bool IsZero(const torch::Tensor& gradient) {
  return gradient.is_sparse() ? gradient._nnz() == 0 : !gradient.any().item<bool>();
}

}  // namespace

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
    here = replica->local_replica_id();
  } else if (const auto updated = get_update_replica_id();
             updated && &get_strategy() == &*strategy) {
    here = std::min(*updated, size() - 1);
  }
  Check(here);
  if (host != nullptr) host->Fill(here);
  return here;
}

const ModuleCopies& ModuleState::Used() const {
  (void)*strategy;
  return host == nullptr ? *this : host->Used();
}

void ModuleState::Check(int copy) const {
  const std::vector<torch::Tensor>& tensors = Used().leaves[static_cast<std::size_t>(copy)];
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
  const auto& all = Used().copies;
  if (Replica() != nullptr) return all[static_cast<std::size_t>(Here())]->train(on);
  for (const auto& copy : all) copy->train(on);
}

void ModuleState::ZeroGrad() const {
  // Not filled with zeros: the next backward() stores its gradients instead of adding them.
  const ModuleCopies& used = Used();
  const auto drop = [&](std::size_t copy) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      used.leaves[copy][i].mutable_grad() = torch::Tensor();
    }
  };
  if (Replica() != nullptr) return drop(static_cast<std::size_t>(Here()));
  for (std::size_t copy = 0; copy < copies.size(); ++copy) drop(copy);
}

// Reads the file; where all of it fits, on all processes, it is copied into the first copy, which
// the others follow.
void ModuleState::Load(const std::string& path) const {
  RequireCrossReplica(*strategy, "load()", "it outside run()");
  const auto refuse = [&](std::string_view why) {
    raise(InvalidArgument("{} does not fit module {}: {}", path, name, why));
  };
  std::map<std::string, torch::Tensor> theirs;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> changes;
  // All before any: what does not fit changes nothing.
  const auto read = [&] {
    Sync();
    if (!std::filesystem::exists(path)) raise(NotFound("{}: no such file", path));
    try {
      theirs = TensorsOf(path, *copies[0]);
    } catch (const Error& error) {
      refuse(error.message());
    } catch (const c10::Error& error) {
      refuse(error.what_without_backtrace());
    } catch (const std::exception& error) {
      refuse(error.what());
    }
    for (const NamedTensors& tensors :
         {copies[0]->named_parameters(), copies[0]->named_buffers()}) {
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
  };
  ready_on_all(strategy->collectives(), "load of module " + name, read);
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; host != nullptr && i < parameters.size(); ++i) {
    parameters[i].state()->Restore(theirs.at(parameters[i].name()).to(types[i]));
  }
  for (auto& [ours, value] : changes) ours.copy_(value);
  Sync();
}

// Each process looks at its own copies, then the first one writes.
void ModuleState::Save(const std::string& path) const {
  RequireCrossReplica(*strategy, "save()", "it outside run()");
  collectives::Group* const between = strategy->collectives();
  brought_by(between, [&] {
    (void)Here();
    ShowMeans();
  });
  const auto write = [&] {
    try {
      torch::serialize::OutputArchive archive;
      Used().copies[0]->save(archive);
      raise_unless_ok(WriteArchive(archive, path));
    } catch (const Error& error) {
      raise(Unknown("{} cannot be written: {}", path, error.message()));
    } catch (const std::exception& error) {
      const auto* const torchs = dynamic_cast<const c10::Error*>(&error);
      raise(Unknown("{} cannot be written: {}", path,
                    torchs == nullptr ? error.what() : torchs->what_without_backtrace()));
    }
  };
  if (between == nullptr) return write();
  done_by_first(*between, "save of module " + name, write);
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

torch::nn::Module* DistributedModuleBase::hosted(int copy) const {
  if (state_->host == nullptr) return nullptr;
  return state_->Used().copies[static_cast<std::size_t>(copy)].get();
}

void DistributedModuleBase::raise_other_type() const {
  raise(
      InvalidArgument("distribute(): clone() of module {} makes an object of another class: derive "
                      "the class itself "
                      "from torch::nn::Cloneable of it",
                      state_->name));
}

std::shared_ptr<internal::OutsideUse> DistributedModuleBase::outside() const {
  const bool alone = state_->size() == 1 || state_->Replica() != nullptr;
  if (alone || &state_->Used() != state_.get()) return nullptr;
  state_->ShowMeans();
  return std::make_shared<internal::OutsideUse>(state_);
}

}  // namespace muster
