#include "strategy/core/strategy.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <torch/version.h>

#include "collectives/group.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/words.h"
#include "device/cpu_allocator.h"
#include "device/placing.h"
#include "device/random.h"
#include "device/replica_group.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/internal/closure_here.h"
#include "strategy/core/internal/early_turns.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/internal/runs.h"
#include "strategy/core/internal/strategy_ref.h"

namespace muster {
namespace {

std::vector<std::string> CanonicalNames(const std::vector<device::Place>& devices) {
  std::vector<std::string> names;
  for (const device::Place place : devices) names.push_back(place.Canonical());
  return names;
}

// libtorch keeps autocast's types and cache switch apart from the rest of a thread's state.
struct Autocast {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  static torch::ScalarType type_here() { return at::autocast::get_autocast_dtype(at::kCPU); }
  static torch::ScalarType gpu_type_here() { return at::autocast::get_autocast_dtype(at::kCUDA); }
  static void set_types(torch::ScalarType cpu, torch::ScalarType gpu) {
    at::autocast::set_autocast_dtype(at::kCPU, cpu);
    at::autocast::set_autocast_dtype(at::kCUDA, gpu);
  }
  static bool enabled() {
    return at::autocast::is_autocast_enabled(at::kCPU) ||
           at::autocast::is_autocast_enabled(at::kCUDA);
  }
#else
  static torch::ScalarType type_here() { return at::autocast::get_autocast_cpu_dtype(); }
  static torch::ScalarType gpu_type_here() { return at::autocast::get_autocast_gpu_dtype(); }
  static void set_types(torch::ScalarType cpu, torch::ScalarType gpu) {
    at::autocast::set_autocast_cpu_dtype(cpu);
    at::autocast::set_autocast_gpu_dtype(gpu);
  }
  static bool enabled() { return at::autocast::is_cpu_enabled() || at::autocast::is_enabled(); }
#endif
  torch::ScalarType type = type_here();
  torch::ScalarType gpu_type = gpu_type_here();
  bool cache = at::autocast::is_autocast_cache_enabled();

  void apply() const {
    set_types(type, gpu_type);
    at::autocast::set_autocast_cache_enabled(cache);
  }
};

// A replica thread has the caller's autocast while this lives. What it cast stays behind: the next
// run may come with other values in the same weights.
class AutocastGuard {
 public:
  explicit AutocastGuard(const Autocast& callers) { callers.apply(); }
  ~AutocastGuard() {
    if (Autocast::enabled()) at::autocast::clear_cache();
    own_.apply();
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  const Autocast own_;
};

// A backward pass of GPU tensors runs on threads of libtorch, one for each card. While this lives,
// it runs on the thread that asks for it: replicas meet in it, and those of one card would wait for
// each other on one thread.
class BackwardOnThisThread {
 public:
#if TORCH_VERSION_MAJOR >= 2
  explicit BackwardOnThisThread(bool wanted) : outer_(state().get_multithreading_enabled()) {
    if (wanted) state().set_multithreading_enabled(false);
  }
  ~BackwardOnThisThread() { state().set_multithreading_enabled(outer_); }

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }
  const bool outer_;
#else
  explicit BackwardOnThisThread(bool) {}
#endif
 public:
  BackwardOnThisThread(const BackwardOnThisThread&) = delete;
  BackwardOnThisThread& operator=(const BackwardOnThisThread&) = delete;
};

std::exception_ptr MakeException(const Status& status) {
  return std::make_exception_ptr(ToError(status));
}

}  // namespace

struct Strategy::Impl {
  // One group for each run() that is going on at the same time: from several threads, or from
  // within a merge_call, whose replicas' threads are taken.
  class Lease {
   public:
    explicit Lease(Impl& impl) : impl_(impl), group_(impl.Take()) {}
    ~Lease() { impl_.Give(std::move(group_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    device::ReplicaGroup& group() { return *group_; }

   private:
    Impl& impl_;
    std::unique_ptr<device::ReplicaGroup> group_;
  };

  std::unique_ptr<device::ReplicaGroup> Take() {
    {
      const MutexLock lock(mutex);
      if (!idle.empty()) {
        auto group = std::move(idle.back());
        idle.pop_back();
        return group;
      }
    }
    return std::make_unique<device::ReplicaGroup>(static_cast<int>(devices.size()), MakeException);
  }
  void Give(std::unique_ptr<device::ReplicaGroup> group) {
    const MutexLock lock(mutex);
    idle.push_back(std::move(group));
  }

  std::vector<device::Place> devices;
  bool uses_gpus = false;
  int threads_per_replica = 1;
  internal::Runs runs;
  internal::EarlyTurns early_turns;
  const std::shared_ptr<internal::StrategyRef::Life> life =
      std::make_shared<internal::StrategyRef::Life>(nullptr);
  const internal::StrategyRef ref{life};
  Mutex mutex;
  std::vector<std::unique_ptr<device::ReplicaGroup>> idle MUSTER_GUARDED_BY(mutex);
};

Strategy::Strategy(std::vector<device::Place> compute_devices,
                   std::vector<device::Place> parameter_devices,
                   std::shared_ptr<CrossDeviceOps> ops,
                   std::shared_ptr<::muster::collectives::Group> group)
    : worker_devices_(CanonicalNames(compute_devices)),
      parameter_devices_(CanonicalNames(parameter_devices)),
      ops_(std::move(ops)),
      impl_(std::make_unique<Impl>()) {
  set_collectives(std::move(group));
  impl_->life->store(this);
  device::InstallCpuAllocator();
  const std::size_t cores = static_cast<std::size_t>(UsableProcessors());
  impl_->threads_per_replica = std::max(1, static_cast<int>(cores / compute_devices.size()));
  impl_->uses_gpus = std::any_of(compute_devices.begin(), compute_devices.end(), device::IsGpu);
  impl_->devices = std::move(compute_devices);
}

Strategy::~Strategy() {
  impl_->life->store(nullptr);
  internal::ForgetGlobalStrategy(this);
}

void Strategy::set_collectives(std::shared_ptr<::muster::collectives::Group> group) {
  group_ = std::move(group);
  processes_ = group_ == nullptr ? 1 : group_->size();
  first_replica_ = group_ == nullptr ? 0 : group_->rank() * num_local_replicas();
}

const internal::StrategyRef& Strategy::ref() const { return impl_->ref; }

internal::Runs& Strategy::runs() const { return impl_->runs; }

internal::EarlyTurns& Strategy::early_turns() const { return impl_->early_turns; }

void internal::StrategyRef::RaiseDestroyed() {
  raise(
      FailedPrecondition("the strategy that this was made under has been destroyed: a strategy "
                         "must outlive its variables, modules and optimizers"));
}

torch::Device Strategy::torch_device(int replica) const {
  if (replica < 0 || replica >= num_local_replicas()) {
    raise(OutOfRange("replica {} of a strategy of {}", replica, num_local_replicas()));
  }
  return device::TorchDevice(impl_->devices[static_cast<std::size_t>(replica)]);
}

bool Strategy::uses_gpus() const { return impl_->uses_gpus; }

// One replica runs on the caller's thread, with random numbers of its own where other processes
// have more of them. Several run on threads of their own, each with the state of libtorch and the
// open creators that the caller has, and leaves its thread as it was.
void Strategy::run_replicas(const std::function<void(int)>& replica) {
  using internal::Frame;
  using internal::Frames;
  if (impl_->devices.size() == 1) {
    ReplicaContext context(*this, 0, nullptr);
    const internal::FrameGuard frame(
        {.kind = Frame::Kind::kReplica, .strategy = this, .replica = &context});
    const device::PlaceScope here(impl_->devices[0]);
    if (processes_ == 1) return replica(0);
    device::RunSeed seed;
    const device::GeneratorScope generator(seed, first_replica_);
    const BackwardOnThisThread backward(impl_->uses_gpus);
    return replica(0);
  }
  // What a replica's thread takes over from its caller: the closure that it works for, GradMode,
  // InferenceMode, autocast and the like, and the open variable creator scopes.
  internal::RunningClosure* const closure = internal::ClosureHere::Current();
  const at::ThreadLocalState torch_state;
  const Autocast autocast;
  device::RunSeed seed;
  std::vector<Frame> inherited;
  for (const Frame& frame : Frames::OfThisThread().all()) {
    if (frame.kind == Frame::Kind::kCreator) inherited.push_back(frame);
  }
  const internal::Runs::Scope going_on(impl_->runs);
  Impl::Lease lease(*impl_);
  lease.group().Run([&](int r) {
    const internal::ClosureHere works_for(closure);
    const at::ThreadLocalStateGuard torch_guard(torch_state);
    const AutocastGuard autocast_guard(autocast);
    const BackwardOnThisThread backward(impl_->uses_gpus);
    const device::GeneratorScope generator(seed, first_replica_ + r);
    if (at::get_num_threads() != impl_->threads_per_replica) {
      at::set_num_threads(impl_->threads_per_replica);
    }
    Frames& frames = Frames::OfThisThread();
    const std::vector<Frame> own = frames.Exchange(inherited);
    struct Restore {
      Frames& frames;
      const std::vector<Frame>& own;
      ~Restore() { (void)frames.Exchange(own); }
    } const restore{frames, own};
    ReplicaContext context(*this, r, &lease.group());
    const internal::FrameGuard frame(
        {.kind = Frame::Kind::kReplica, .strategy = this, .replica = &context});
    const device::PlaceScope here(impl_->devices[static_cast<std::size_t>(r)]);
    replica(r);
  });
}

void Strategy::require_cross_replica(std::string_view call, std::string_view instead) const {
  internal::RequireCrossReplica(*this, call, instead);
}

void Strategy::check_size(int components) const {
  if (components == num_local_replicas()) return;
  raise(InvalidArgument("a value with {} was given to a strategy of {}",
                        Counted(components, "component"),
                        Counted(num_local_replicas(), "replica")));
}

void Strategy::on_replica_threads(const std::function<void(int)>& body) const {
  Impl::Lease lease(*impl_);
  lease.group().Run(body);
}

}  // namespace muster
