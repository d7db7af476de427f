#include "worker/engine/device/random.h"

#include <mutex>
#include <optional>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace muster::device {
namespace {

// The dispatch key that is switched on in replica threads. It stands before autograd, and libtorch
// itself has no kernels for it: it is kept for libraries outside.
constexpr auto kKey = c10::DispatchKey::DeferredInit;

// Of one replica of one run.
struct Source {
  RunSeed* seed;
  int replica;
  bool seeded = false;
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
      if (IsOptionalGenerator(arguments[i]) && (*stack)[first + i].isNone()) {
        (*stack)[first + i] = c10::IValue(GeneratorHere());
      }
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

std::uint64_t Mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

struct RunSeed::Impl {
  std::mutex mutex;
  std::optional<std::uint64_t> base;  // guarded by mutex
};

RunSeed::RunSeed() : impl_(std::make_unique<Impl>()) {}
RunSeed::~RunSeed() = default;

std::uint64_t RunSeed::OfReplica(int replica) {
  const std::lock_guard lock(impl_->mutex);
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
