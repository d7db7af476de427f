// How a module's tensors become variables and copies.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/default_strategy.h"
#include "strategy/core/internal/between.h"
#include "strategy/core/internal/frames.h"
#include "strategy/train/internal/module_state.h"
#include "strategy/train/module.h"
#include "strategy/values/internal/copies.h"

namespace muster::internal {
namespace {

using torch::nn::Module;
using NamedTensors = torch::OrderedDict<std::string, torch::Tensor>;

// Who keeps the parameters of modules instead of this process; null: nobody.
ComponentMaker* KeeperOf(const Strategy& strategy) {
  ComponentMaker* const maker = strategy.component_maker();
  return maker != nullptr && maker->keeps_modules() ? maker : nullptr;
}

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

torch::Tensor CloneOn(device::Place place, const torch::Tensor& tensor) {
  return copy_to(tensor.detach(), place);
}

device::Place PlaceOfReplica(const Strategy& strategy, int replica) {
  return device::FindPlace(strategy.worker_devices()[static_cast<std::size_t>(replica)]).value();
}

bool LiesOn(device::Place place, const torch::Tensor& tensor) {
  return device::SameDevice(tensor.device(), device::TorchDevice(place)) &&
         (tensor.numel() == 0 || device::PlaceOf(tensor) == place);
}

// Copying made two tensors of one. They get one storage, and one gradient: the leaf's.
void Tie(const torch::Tensor& leaf, const torch::Tensor& other) {
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

torch::Tensor FindIn(const ModuleState& state, int copy, const NamedTensors& named,
                     const std::string& name) {
  if (const torch::Tensor* const found = named.find(name)) return *found;
  raise(InvalidArgument(
      "distribute(): the copy of module {} for replica {} has no \"{}\": register everything in "
      "reset(), the same each time",
      state.name, copy, name));
}

void ListSubmodules(const std::string& name, ModuleCopies& copies) {
  for (const auto& copy : copies.copies) {
    std::vector<Module*>& flat = copies.flat.emplace_back();
    for (const auto& part : copy->modules()) flat.push_back(part.get());
    if (flat.size() != copies.flat[0].size()) {
      raise(InvalidArgument("distribute(): the copies of module {} have {} and {} submodules", name,
                            copies.flat[0].size(), flat.size()));
    }
  }
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
      const bool hosted = parameters && KeeperOf(strategy_) != nullptr;
      Variable variable = MakeVariable(strategy_, SpecFor(group, parameters, hosted));
      if (hosted) {
        AddHosted(group, named);
      } else if (variable.state()->size() < state_.size()) {
        AddShared(group, named, *variable.state());
      } else {
        AddMirrored(group, named, *variable.state(), parameters);
      }
      state_.types.push_back(group.tensor.scalar_type());
      (parameters ? state_.parameters : state_.buffers).push_back(std::move(variable));
    }
  }

  static VariableSpec SpecFor(const Group& group, bool parameters, bool initialize) {
    const torch::Tensor& first = group.tensor;
    const bool integers = torch::isIntegralType(first.scalar_type(), /*includeBool=*/true);
    VariableOptions options{.trainable = parameters && first.requires_grad(),
                            .synchronization = parameters ? VariableSynchronization::kOnWrite
                                                          : VariableSynchronization::kOnRead,
                            .aggregation = !parameters && integers
                                               ? VariableAggregation::kOnlyFirstReplica
                                               : VariableAggregation::kMean,
                            .dtype = first.scalar_type(),
                            .initialize = initialize};
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
      const device::Place home = PlaceOfReplica(strategy_, copy);
      const bool near = device::SameDevice(master.device(), device::TorchDevice(home));
      leaf.set_data(near ? master.detach() : CloneOn(home, master));
      Finish(copy, group, named, leaf);
      readers.push_back(leaf);
    }
    variable.Adopt(0, master, std::move(readers));
    Master(0).push_back(std::move(master));
  }

  // The value is elsewhere, the leaves get it when they are used.
  void AddHosted(const Group& group, const std::vector<NamedTensors>& named) {
    for (int copy = 0; copy < state_.size(); ++copy) {
      const torch::Tensor leaf = Find(copy, named, group.names[0]);
      const device::Place place = PlaceOfReplica(strategy_, copy);
      if (!LiesOn(place, leaf)) leaf.set_data(CloneOn(place, leaf));
      Finish(copy, group, named, leaf);
      Master(copy).push_back(leaf);
    }
  }

  void Finish(int copy, const Group& group, const std::vector<NamedTensors>& named,
              const torch::Tensor& leaf) {
    leaf.set_requires_grad(group.tensor.requires_grad());
    for (std::size_t i = 1; i < group.names.size(); ++i) {
      Tie(leaf, Find(copy, named, group.names[i]));
    }
    state_.leaves[static_cast<std::size_t>(copy)].push_back(leaf);
  }

  torch::Tensor Find(int copy, const std::vector<NamedTensors>& named,
                     const std::string& name) const {
    return FindIn(state_, copy, named[static_cast<std::size_t>(copy)], name);
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

// Elsewhere each would have a value of its own.
void RefuseSharedMemory(const Module& module) {
  const std::vector<Group> groups = GroupsOf(module.named_parameters());
  for (const Group& group : groups) {
    if (group.alias < 0) continue;
    raise(Unimplemented(
        "distribute(): parameters {} and {} of module {} share memory without being one tensor: "
        "register one tensor twice, or keep them apart",
        groups[static_cast<std::size_t>(group.alias)].names[0], group.names[0], module.name()));
  }
}

// Where a parameter or buffer lies.
struct Region {
  std::string name;  // "parameter first.weight"
  torch::Tensor tensor;
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;  // behind its last byte
};

void AddRegions(std::string_view kind, const NamedTensors& named, std::vector<Region>& regions) {
  for (const Group& group : GroupsOf(named)) {
    const torch::Tensor& tensor = group.tensor;
    // An alias gets the memory of the earlier one in each copy.
    if (group.alias >= 0 || tensor.numel() == 0) continue;
    if (tensor.layout() != torch::kStrided || !tensor.has_storage()) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
    if (begin == 0) continue;  // it has no memory yet
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < tensor.dim(); ++i) {
      last += (tensor.size(i) - 1) * tensor.stride(i);
    }
    const auto bytes = static_cast<std::uintptr_t>((last + 1) * tensor.element_size());
    regions.push_back({.name = fmt::format("{} {}", kind, group.names[0]),
                       .tensor = tensor,
                       .begin = begin,
                       .end = begin + bytes});
  }
}

// `regions` lie between the first one's begin and `end`. They may do so in turns, as columns of a
// matrix do: what counts is whether they have bytes in common.
void RefuseCommonBytes(const Module& module, std::span<const Region> regions, std::uintptr_t end) {
  const std::uintptr_t base = regions[0].begin;
  // Flags of bytes, or of as many as nothing here cuts in two: elements, mostly.
  std::uintptr_t unit = end - base;
  for (const Region& region : regions) {
    const auto element = static_cast<std::uintptr_t>(region.tensor.element_size());
    unit = std::gcd(unit, std::gcd(region.begin - base, element));
  }
  torch::Tensor taken =
      torch::zeros({static_cast<std::int64_t>((end - base) / unit)}, torch::kBool);
  const auto flags_of = [&](const Region& region) {
    const std::int64_t width = region.tensor.element_size() / static_cast<std::int64_t>(unit);
    std::vector<std::int64_t> sizes = region.tensor.sizes().vec();
    std::vector<std::int64_t> strides = region.tensor.strides().vec();
    for (std::int64_t& stride : strides) stride *= width;
    sizes.push_back(width);
    strides.push_back(1);
    return taken.as_strided(sizes, strides,
                            static_cast<std::int64_t>((region.begin - base) / unit));
  };
  for (const Region& region : regions) {
    torch::Tensor flags = flags_of(region);
    if (!flags.any().item<bool>()) {
      flags.fill_(true);
      continue;
    }
    taken.zero_();
    flags.fill_(true);
    const auto other = std::find_if(regions.begin(), regions.end(), [&](const Region& earlier) {
      return flags_of(earlier).any().item<bool>();
    });
    raise(InvalidArgument(
        "distribute(): {} and {} of module {} lie over the same memory, which its copies could not "
        "keep: register one of them and compute the other from it in forward(), or clone() one",
        other->name, region.name, module.name()));
  }
}

// Each tensor of a copy gets memory of its own, so what wrote to two at once would do so in the
// first copy alone.
void RefuseOverlaps(const Module& module) {
  const torch::NoGradGuard no_grad;
  std::vector<Region> regions;
  AddRegions("parameter", module.named_parameters(), regions);
  AddRegions("buffer", module.named_buffers(), regions);
  std::stable_sort(regions.begin(), regions.end(),
                   [](const Region& a, const Region& b) { return a.begin < b.begin; });
  for (auto first = regions.begin(); first != regions.end();) {
    std::uintptr_t end = first->end;
    auto last = first + 1;
    for (; last != regions.end() && last->begin < end; ++last) end = std::max(end, last->end);
    if (last - first > 1) RefuseCommonBytes(module, {first, last}, end);
    first = last;
  }
}

// All processes begin with the first one's values.
void TakeFirstValues(collectives::Group& between, const Module& module) {
  const torch::NoGradGuard no_grad;
  const auto take = [&](const std::vector<Group>& groups) {
    for (const Group& group : groups) {
      const std::string call = "module " + module.name() + ": " + group.names[0];
      group.tensor.detach().copy_(value_of_first(between, call, group.tensor));
    }
  };
  take(GroupsOf(module.named_parameters()));
  take(GroupsOf(module.named_buffers()));
}

}  // namespace

std::shared_ptr<Module> CopyOf(const Module& module) {
  try {
    const KeepRandomNumbers keep;
    return module.clone();
  } catch (const c10::Error& error) {
    raise(InvalidArgument("distribute(): module {} cannot be copied for the replicas: {}",
                          module.name(), error.what_without_backtrace()));
  }
}

std::unique_ptr<ModuleCopies> ModuleState::NewCopies() const {
  const torch::NoGradGuard no_grad;
  auto made = std::make_unique<ModuleCopies>();
  const std::vector<Group> wanted_parameters = GroupsOf(copies[0]->named_parameters());
  const std::vector<Group> wanted_buffers = GroupsOf(copies[0]->named_buffers());
  for (int copy = 0; copy < size(); ++copy) {
    const std::shared_ptr<Module> module = CopyOf(*copies[0]);
    const device::Place place = PlaceOfReplica(*strategy, copy);
    std::vector<torch::Tensor>& own = made->leaves.emplace_back();
    const auto take = [&](const std::vector<Group>& groups, const NamedTensors& named) {
      for (const Group& group : groups) {
        const torch::Tensor leaf = FindIn(*this, copy, named, group.names[0]);
        if (!LiesOn(place, leaf)) leaf.set_data(CloneOn(place, leaf));
        leaf.set_requires_grad(group.tensor.requires_grad());
        for (std::size_t i = 1; i < group.names.size(); ++i) {
          Tie(leaf, FindIn(*this, copy, named, group.names[i]));
        }
        own.push_back(leaf);
      }
    };
    take(wanted_parameters, module->named_parameters());
    take(wanted_buffers, module->named_buffers());
    made->copies.push_back(module);
  }
  ListSubmodules(name, *made);
  return made;
}

std::shared_ptr<ModuleState> DistributeModule(Strategy& strategy,
                                              const std::shared_ptr<Module>& module) {
  RequireCrossReplica(strategy, "distribute()", "it before run()");
  if (module == nullptr) raise(InvalidArgument("distribute(): no module"));
  ComponentMaker* const keeper = KeeperOf(strategy);
  if (keeper != nullptr) RefuseSharedMemory(*module);
  if (keeper != nullptr || strategy.num_local_replicas() > 1) RefuseOverlaps(*module);
  if (collectives::Group* const between = strategy.collectives()) {
    TakeFirstValues(*between, *module);
  }
  const auto state = std::make_shared<ModuleState>();
  state->strategy = strategy.ref();
  state->name = module->name();
  state->copies.push_back(module);
  // With one replica too, so that what works with one works with more.
  const std::shared_ptr<Module> probe = CopyOf(*module);
  for (int r = 1; r < strategy.num_local_replicas(); ++r) {
    state->copies.push_back(r == 1 ? probe : CopyOf(*module));
  }
  Distribution(strategy, *state).Run();
  ListSubmodules(state->name, *state);
  if (keeper != nullptr) state->host = keeper->HostModule(*state);
  if (state->size() > 1) strategy.runs().Add(state);
  return state;
}

}  // namespace muster::internal
