#include "device/random.h"

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include "common/base/mutex.h"
#include "common/base/split_mix.h"

namespace muster::device {
namespace {

// The dispatch key that is switched on in replica threads. It stands before autograd, and libtorch
// itself has no kernels for it: it is kept for libraries outside.
constexpr auto kKey = c10::DispatchKey::DeferredInit;

// Where the numbers of one replica in one run come from.
struct Source {
  RunSeed* seed;
  int replica;
  bool seeded = false;
  std::uint64_t seeded_cards = 0;  // a bit for each card
};
thread_local Source* t_source = nullptr;

// The generator of this thread, with the seed of its replica.
at::Generator& GeneratorHere() {
  thread_local at::Generator generator = at::detail::createCPUGenerator();
  if (!t_source->seeded) {
    const std::uint64_t seed = t_source->seed->OfReplica(t_source->replica);
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
    t_source->seeded = true;
  }
  return generator;
}

// The same for a card.
at::Generator& GeneratorOn(c10::Device card) {
  thread_local std::map<c10::DeviceIndex, at::Generator> generators;
  const c10::DeviceIndex index = card.index();
  auto found = generators.find(index);
  if (found == generators.end()) {
    at::Generator ordinary = at::globalContext().defaultGenerator(card);
    const std::lock_guard lock(ordinary.mutex());
    found = generators.emplace(index, ordinary.clone()).first;
  }
  const std::uint64_t bit = std::uint64_t{1} << (index % 64);
  if ((t_source->seeded_cards & bit) == 0) {
    const std::uint64_t seed = t_source->seed->OfReplica(t_source->replica);
    const std::lock_guard lock(found->second.mutex());
    found->second.set_current_seed(seed);
    t_source->seeded_cards |= bit;
  }
  return found->second;
}

// Where an operation with these arguments draws: on the device that it is told, else where its
// first tensor lies.
c10::Device DeviceOf(const torch::jit::Stack& stack, std::size_t first) {
  std::optional<c10::Device> device;
  for (std::size_t i = first; i < stack.size(); ++i) {
    if (stack[i].isDevice()) {
      device = stack[i].toDevice();
      break;
    }
    if (!device && stack[i].isTensor() && stack[i].toTensor().defined()) {
      device = stack[i].toTensor().device();
    }
  }
  if (!device) return c10::DeviceType::CPU;
  if (!device->is_cuda() || device->has_index()) return *device;
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice();
}

bool IsOptionalGenerator(const c10::Argument& argument) {
  const auto& type = argument.type();
  return type->kind() == c10::TypeKind::OptionalType &&
         type->containedType(0)->kind() == c10::TypeKind::GeneratorType;
}

// In front of every operation that takes a generator: gives it this thread's if it was given none.
void FillIn(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (t_source != nullptr) {
    const auto& arguments = op.schema().arguments();
    const std::size_t first = stack->size() - arguments.size();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (!IsOptionalGenerator(arguments[i]) || !(*stack)[first + i].isNone()) continue;
      const c10::Device device = DeviceOf(*stack, first);
      if (device.is_cpu()) (*stack)[first + i] = c10::IValue(GeneratorHere());
      if (device.is_cuda()) (*stack)[first + i] = c10::IValue(GeneratorOn(device));
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// Once for the process; libraries stay registered as long as their objects live.
void InstallOnce() {
  static const bool installed = [] {
    static torch::Library all(torch::Library::IMPL, "_", c10::make_optional(kKey), __FILE__,
                              __LINE__);
    all.fallback(torch::CppFunction::makeFallthrough());
    static torch::Library aten(torch::Library::IMPL, "aten", c10::make_optional(kKey), __FILE__,
                               __LINE__);
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (name.name.rfind("aten::", 0) != 0) continue;
      const auto op = dispatcher.findOp(name);
      if (!op.has_value() || !op->hasSchema()) continue;
      for (const c10::Argument& argument : op->schema().arguments()) {
        if (!IsOptionalGenerator(argument)) continue;
        const std::string full =
            name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
        aten.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&FillIn>());
        break;
      }
    }
    return true;
  }();
  (void)installed;
}

}  // namespace

struct RunSeed::Impl {
  Mutex mutex;
  std::optional<std::uint64_t> base MUSTER_GUARDED_BY(mutex);
};

RunSeed::RunSeed() : impl_(std::make_unique<Impl>()) {}
RunSeed::~RunSeed() = default;

std::uint64_t RunSeed::OfReplica(int replica) {
  const MutexLock lock(impl_->mutex);
  if (!impl_->base.has_value()) {
    const at::Generator& generator = at::detail::getDefaultCPUGenerator();
    auto* const source = at::check_generator<at::CPUGeneratorImpl>(generator);
    const std::lock_guard source_lock(source->mutex_);
    impl_->base = source->random64();
  }
  return Mix(*impl_->base + static_cast<std::uint64_t>(replica));
}

struct GeneratorScope::Impl {
  Impl(RunSeed& seed, int replica) : source{&seed, replica}, outer(t_source), key(kKey) {
    t_source = &source;
  }
  ~Impl() { t_source = outer; }

  Source source;
  Source* const outer;
  c10::impl::IncludeDispatchKeyGuard key;
};

GeneratorScope::GeneratorScope(RunSeed& seed, int replica) {
  InstallOnce();
  impl_ = std::make_unique<Impl>(seed, replica);
}
GeneratorScope::~GeneratorScope() = default;

GeneratorPause::GeneratorPause() : paused_(std::exchange(t_source, nullptr)) {}
GeneratorPause::~GeneratorPause() { t_source = static_cast<Source*>(paused_); }

}  // namespace muster::device
