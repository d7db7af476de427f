// How variables come into being: creators, then the strategy.
#include <algorithm>
#include <cctype>
#include <utility>

#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/base/internal/shape_text.h"
#include "strategy/core/context.h"
#include "strategy/core/default_strategy.h"
#include "strategy/core/internal/between.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/strategy.h"
#include "strategy/variables/internal/variable_state.h"

namespace muster {
namespace internal {
namespace {

// What the innermost NoVariables of this thread says.
thread_local const char* none_here = nullptr;

[[noreturn]] void RaiseNoVariables(const char* where, const VariableSpec& spec) {
  raise(InvalidArgument("{} creates the variable \"{}\": create variables before, in the driver",
                        where, spec.name));
}

void CheckModes(const Strategy& strategy, const VariableSpec& spec) {
  const VariableOptions& options = spec.options;
  if (options.synchronization > VariableSynchronization::kOnRead) {
    raise(InvalidArgument(
        "Invalid variable synchronization mode: {} for variable: {}; it is one of AUTO, NONE, "
        "ON_WRITE, ON_READ",
        static_cast<int>(options.synchronization), spec.name));
  }
  if (options.aggregation > VariableAggregation::kOnlyFirstReplica) {
    raise(InvalidArgument(
        "Invalid variable aggregation mode: {} for variable: {}; it is one of NONE, SUM, MEAN, "
        "ONLY_FIRST_REPLICA",
        static_cast<int>(options.aggregation), spec.name));
  }
  if (options.synchronization == VariableSynchronization::kNone &&
      &strategy != &default_strategy()) {
    raise(InvalidArgument(
        "NONE variable synchronization mode is not supported with {} (variable: {}); use ON_WRITE "
        "or ON_READ",
        strategy.name(), spec.name));
  }
}

// One for each component.
std::vector<device::Place> DevicesFor(const Strategy& strategy, const VariableSpec& spec,
                                      bool on_read) {
  std::vector<std::string> names;
  if (&strategy != &default_strategy()) {
    names = on_read ? strategy.worker_devices() : strategy.parameter_devices();
  }
  // Which server others live on is for their maker.
  const std::vector<std::string> others =
      strategy.component_maker() == nullptr ? spec.colocated_devices : std::vector<std::string>();
  const std::size_t count = std::max<std::size_t>(1, names.size());
  std::vector<device::Place> devices;
  for (std::size_t i = 0; i < count; ++i) {
    if (!others.empty()) {
      devices.push_back(value_of(device::FindPlace(others[std::min(i, others.size() - 1)])));
    } else {
      devices.push_back(names.empty() ? device::PlaceScope::Current()
                                      : value_of(device::FindPlace(names[i])));
    }
  }
  return devices;
}

// Without a last "_<number>": replicas may number what they create.
std::string_view CanonicalName(std::string_view name) {
  std::size_t end = name.size();
  while (end > 0 && std::isdigit(static_cast<unsigned char>(name[end - 1])) != 0) --end;
  return end < name.size() && end > 0 && name[end - 1] == '_' ? name.substr(0, end - 1) : name;
}

// What a variable is beside its name and its value, as far as that is known without making the
// value.
struct Looks {
  bool trainable;
  VariableSynchronization synchronization;
  VariableAggregation aggregation;
  bool initialize;
  std::optional<torch::ScalarType> type;
  std::optional<std::vector<std::int64_t>> shape;
};

Looks LooksOf(const VariableSpec& spec) {
  const VariableOptions& options = spec.options;
  const bool on_read = options.synchronization == VariableSynchronization::kOnRead;
  return {.trainable = options.trainable.value_or(!on_read),
          .synchronization = options.synchronization == VariableSynchronization::kAuto
                                 ? VariableSynchronization::kOnWrite
                                 : options.synchronization,
          .aggregation = options.aggregation,
          .initialize = options.initialize,
          .type = options.dtype ? options.dtype : spec.initial_value.type(),
          .shape = spec.initial_value.shape()};
}

// How they differ, as the one and as the other has it; both empty: not at all.
std::pair<std::string, std::string> Difference(const Looks& one, const Looks& other) {
  const auto both = [](auto text, const auto& a, const auto& b) {
    return std::pair<std::string, std::string>(text(a), text(b));
  };
  if (one.shape && other.shape && *one.shape != *other.shape) {
    return both([](const auto& shape) { return "of shape " + ShapeText(shape); }, *one.shape,
                *other.shape);
  }
  if (one.type && other.type && *one.type != *other.type) {
    return both([](auto type) { return fmt::format("as {}", torch::toString(type)); }, *one.type,
                *other.type);
  }
  if (one.synchronization != other.synchronization) {
    return both([](auto mode) { return fmt::format("with synchronization {}", name_of(mode)); },
                one.synchronization, other.synchronization);
  }
  if (one.aggregation != other.aggregation) {
    return both([](auto mode) { return fmt::format("with aggregation {}", name_of(mode)); },
                one.aggregation, other.aggregation);
  }
  if (one.trainable != other.trainable) {
    return both([](bool is) { return std::string(is ? "trainable" : "not trainable"); },
                one.trainable, other.trainable);
  }
  if (one.initialize != other.initialize) {
    return both([](bool is) { return std::string(is ? "with a value" : "without a value"); },
                one.initialize, other.initialize);
  }
  return {};
}

// FAILED_PRECONDITION: replica `second` creates another variable than replica `one`.
void CheckSame(const VariableSpec& first, int one, const VariableSpec& other, int second) {
  if (CanonicalName(other.name) != CanonicalName(first.name)) {
    raise(FailedPrecondition(
        "replicas must create the same variables in the same order, but replica {} creates \"{}\" "
        "and replica {} \"{}\"",
        one, first.name, second, other.name));
  }
  const auto [here, there] = Difference(LooksOf(first), LooksOf(other));
  if (here == there) return;
  raise(FailedPrecondition(
      "replicas must create the same variables in the same order, but replica {} creates \"{}\" {} "
      "and replica {} \"{}\" {}",
      one, first.name, here, second, other.name, there));
}

// All replicas create the variable together.
Variable CreateInReplica(ReplicaContext& replica, const VariableSpec& spec) {
  struct Arrival {
    const VariableSpec& spec;
    Variable result;
  } mine{spec, {}};
  Strategy& strategy = replica.strategy();
  replica.meet("creation of a variable", mine, [&](const Arrivals<Arrival>& all) {
    const VariableSpec& first = all[0].spec;
    const int here = strategy.first_replica();
    brought_by(strategy.collectives(), [&] {
      for (std::size_t r = 1; r < all.size(); ++r) {
        CheckSame(first, here, all[r].spec, here + static_cast<int>(r));
      }
    });
    const FrameGuard merge({.kind = Frame::Kind::kMerge, .strategy = &strategy});
    const Variable made = MakeVariable(strategy, first);
    for (Arrival& one : all) one.result = made;
  });
  return mine.result;
}

Variable CreateByStrategy(const VariableSpec& spec) {
  ReplicaContext* const replica = get_replica_context();
  if (replica == nullptr || &replica->strategy() == &default_strategy()) {
    return MakeVariable(get_strategy(), spec);
  }
  return CreateInReplica(*replica, spec);
}

void RequireDefaultStrategy() {
  if (!has_strategy()) return;
  raise(FailedPrecondition(
      "Mixing different Strategy objects: a variable was created under {} inside a scope of the "
      "default strategy",
      get_strategy().name()));
}

// What a scope of the default strategy opens: it refuses to make variables under any other
// strategy.
std::shared_ptr<VariableCreator> DefaultScopeCreator() {
  return std::make_shared<VariableCreator>(
      [](const std::function<Variable(VariableSpec)>& next, VariableSpec spec) {
        RequireDefaultStrategy();
        return next(std::move(spec));
      });
}

// Open creators, innermost first. In a merge call this thread's replica has nothing to say: which
// one of them runs it is chance.
std::vector<std::shared_ptr<VariableCreator>> OpenCreators() {
  std::vector<std::shared_ptr<VariableCreator>> creators;
  const std::vector<Frame>& frames = Frames::OfThisThread().all();
  bool skip = false;
  for (auto frame = frames.rbegin(); frame != frames.rend(); ++frame) {
    if (frame->kind == Frame::Kind::kMerge) skip = true;
    if (frame->kind == Frame::Kind::kReplica) skip = false;
    if (!skip && frame->kind == Frame::Kind::kCreator) {
      creators.push_back(frame->creator == nullptr
                             ? DefaultScopeCreator()
                             : std::static_pointer_cast<VariableCreator>(frame->creator));
    }
  }
  return creators;
}

Variable CreateFrom(const std::vector<std::shared_ptr<VariableCreator>>& creators,
                    std::size_t begin, VariableSpec spec) {
  if (begin == creators.size()) return CreateByStrategy(spec);
  return (*creators[begin])(
      [&creators, begin](VariableSpec changed) {
        return CreateFrom(creators, begin + 1, std::move(changed));
      },
      std::move(spec));
}

void GiveFirstValue(VariableState& state, const VariableSpec& spec, device::Place device) {
  if (spec.restored) return state.Restore(spec.restored());
  if (!spec.options.initialize) return;
  torch::Tensor value;
  {
    const device::PlaceScope here(device);
    if (state.InitializeInParts(spec.initial_value)) return;
    value = brought_by(state.strategy->collectives(),
                       [&] { return state.at(0).FirstValue(spec.initial_value); });
  }
  state.Initialize(value);
}

// The others wait for this process's first value: they hear that it has none, and all go on.
void TellOfNoValue(const Strategy& strategy, const VariableSpec& spec) {
  collectives::Group* const between = strategy.collectives();
  if (between == nullptr || spec.restored || !spec.options.initialize) return;
  try {
    (void)value_of_first(*between, CallOfFirstValue(spec.name), torch::Tensor());
  } catch (const Error&) {  // why there is none says more
  }
}

// The variable without components; its modes, its type and `devices` are settled.
std::shared_ptr<VariableState> StateFor(Strategy& strategy, const VariableSpec& spec,
                                        std::vector<device::Place>& devices) {
  CheckModes(strategy, spec);
  const VariableOptions& options = spec.options;
  const bool on_read = options.synchronization == VariableSynchronization::kOnRead;
  devices = DevicesFor(strategy, spec, on_read);
  auto state = std::make_shared<VariableState>();
  state->name = spec.name;
  state->strategy = strategy.ref();
  state->synchronization = options.synchronization == VariableSynchronization::kAuto
                               ? VariableSynchronization::kOnWrite
                               : options.synchronization;
  state->aggregation = options.aggregation;
  state->trainable = options.trainable.value_or(!on_read);
  state->dtype = options.dtype;
  state->initial_value = spec.initial_value;
  const bool shared = devices.size() == 1 && strategy.num_local_replicas() > 1;
  state->policy = on_read  ? OnReadPolicy(options.aggregation)
                  : shared ? AggregatingPolicy(options.aggregation)
                           : OnWritePolicy(options.aggregation);
  if (!strategy.distributes_variables()) state->policy = PlainPolicy(std::move(state->policy));
  if (options.dtype) state->policy->CheckType(*state, *options.dtype);
  return state;
}

}  // namespace

NoVariables::NoVariables(const char* where)
    : before_(std::exchange(none_here, where)),
      creators_([where](const auto&, const VariableSpec& spec) -> Variable {
        RaiseNoVariables(where, spec);
      }) {}
NoVariables::~NoVariables() { none_here = before_; }

// Settles the modes and devices, makes the components, then gives them their first value.
Variable MakeVariable(Strategy& strategy, const VariableSpec& spec) {
  if (none_here != nullptr) RaiseNoVariables(none_here, spec);
  std::vector<device::Place> devices;
  std::shared_ptr<VariableState> state;
  try {
    state = StateFor(strategy, spec, devices);
  } catch (const Error&) {
    TellOfNoValue(strategy, spec);
    throw;
  }
  for (std::size_t r = 0; r < devices.size(); ++r) {
    std::string name = r == 0 ? spec.name : fmt::format("{}/replica_{}", spec.name, r);
    ComponentMaker* const maker = strategy.component_maker();
    state->components.push_back(maker != nullptr
                                    ? maker->Make(std::move(name), devices[r], spec)
                                    : std::make_unique<OwnComponent>(std::move(name), devices[r]));
  }
  try {
    GiveFirstValue(*state, spec, devices[0]);
  } catch (const c10::OutOfMemoryError& error) {
    raise(ResourceExhausted("variable {}: {}", spec.name, error.what_without_backtrace()));
  }
  return Variable(state);
}

}  // namespace internal

torch::Tensor InitialValue::part(const VariablePart& part) const {
  torch::Tensor value = parts_->make(part);
  if (value.defined() && value.sizes().equals(part.shape) && value.scalar_type() == parts_->type) {
    return value;
  }
  raise(InvalidArgument(
      "an initial value in parts: the part at {} must be {} of shape {}; it is {}",
      ShapeText(part.offset), torch::toString(parts_->type), ShapeText(part.shape),
      value.defined()
          ? fmt::format("{} of shape {}", torch::toString(value.scalar_type()), ShapeText(value))
          : "undefined"));
}

Variable Variable::create(std::string name, InitialValue initial_value, VariableOptions options) {
  return internal::CreateFrom(
      internal::OpenCreators(), 0,
      VariableSpec{std::move(name), std::move(initial_value), std::move(options)});
}

Variable Variable::create(InitialValue initial_value, VariableOptions options) {
  return create("Variable", std::move(initial_value), std::move(options));
}

VariableCreatorScope::VariableCreatorScope(VariableCreator creator)
    : ticket_(internal::Frames::OfThisThread().Push(
          {.kind = internal::Frame::Kind::kCreator,
           .creator = std::make_shared<VariableCreator>(std::move(creator))})) {}

VariableCreatorScope::~VariableCreatorScope() {
  (void)internal::Frames::OfThisThread().Abandon(ticket_);
}

}  // namespace muster
