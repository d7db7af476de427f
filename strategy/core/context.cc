#include "strategy/core/context.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <utility>

#include "common/base/words.h"
#include "device/cpu_allocator.h"
#include "device/placing.h"
#include "strategy/base/internal/raise.h"
#include "strategy/core/default_strategy.h"
#include "strategy/core/internal/frames.h"
#include "strategy/core/replica_context.h"

namespace muster {
namespace internal {
namespace {

std::atomic<Strategy*> g_global_strategy{nullptr};
// The global strategy was destroyed while it was the global one.
std::atomic<bool> g_global_destroyed{false};

// Tickets are unique in the process; threads draw their own, without a word to each other.
std::size_t NextTicket() {
  constexpr int kPerThread = 40;  // bits
  static std::atomic<std::size_t> threads{0};
  thread_local std::size_t last = threads.fetch_add(1, std::memory_order_relaxed) << kPerThread;
  return ++last;
}

// Null: none.
Strategy* GlobalStrategy() {
  if (g_global_destroyed.load()) {
    raise(
        FailedPrecondition("the global strategy has been destroyed: call "
                           "set_global_strategy(nullptr), or with another one, before that"));
  }
  return g_global_strategy.load();
}

bool SaysStrategy(const Frame& frame) {
  return frame.kind != Frame::Kind::kDevice && frame.kind != Frame::Kind::kCreator;
}

}  // namespace

Frames& Frames::OfThisThread() {
  thread_local Frames frames;
  return frames;
}

std::size_t Frames::Push(Frame frame) {
  frame.ticket = NextTicket();
  frames_.push_back(std::move(frame));
  return frames_.back().ticket;
}

Status Frames::Pop(std::size_t ticket) {
  const auto frame = std::find_if(frames_.begin(), frames_.end(),
                                  [ticket](const Frame& one) { return one.ticket == ticket; });
  if (frame == frames_.end()) {
    return FailedPrecondition(
        "this scope was not opened on this thread: close it on the thread that opened it");
  }
  if (frame + 1 == frames_.end()) {
    frames_.pop_back();
    DropAbandoned();
    return Ok();
  }
  switch (frames_.back().kind) {
    case Frame::Kind::kDevice:
      return FailedPrecondition(
          "Device scope nesting error: close the device scope that was opened inside this "
          "strategy scope first");
    case Frame::Kind::kCreator:
      return FailedPrecondition(
          "Variable creator scope nesting error: close the variable creator scope that was "
          "opened inside this strategy scope first");
    default:
      return FailedPrecondition(
          "Strategy scope nesting error: close the scope that was opened inside this one first");
  }
}

Status Frames::Abandon(std::size_t ticket) {
  const Status status = Pop(ticket);
  if (status.ok()) return status;
  for (Frame& frame : frames_) {
    if (frame.ticket == ticket) frame.abandoned = true;
  }
  return status;
}

void Frames::DropAbandoned() {
  while (!frames_.empty() && frames_.back().abandoned) frames_.pop_back();
}

const Frame* Frames::Context() const {
  for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
    if (!SaysStrategy(*frame)) continue;
    if (frame->kind == Frame::Kind::kScope && frame->scoped.get() == nullptr) {
      raise(
          FailedPrecondition("the strategy of the open scope has been destroyed: a strategy must "
                             "outlive its scopes; close this one first"));
    }
    return &*frame;
  }
  return nullptr;
}

std::vector<Frame> Frames::Exchange(std::vector<Frame> frames) {
  return std::exchange(frames_, std::move(frames));
}

void ForgetGlobalStrategy(const Strategy* strategy) {
  if (g_global_strategy.load() != strategy) return;
  g_global_strategy.store(nullptr);
  g_global_destroyed.store(true);
}

void RequireNoOther(const Strategy& strategy) {
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame != nullptr && frame->strategy != &strategy) {
    raise(FailedPrecondition(
        "Mixing different Strategy objects: this thread is inside a scope of another strategy"));
  }
}

void RequireCrossReplica(const Strategy& strategy, std::string_view call,
                         std::string_view instead) {
  RequireNoOther(strategy);
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame != nullptr && frame->kind == Frame::Kind::kReplica) {
    raise(
        FailedPrecondition("{} requires cross-replica context, use {}: this is inside a replica "
                           "function",
                           call, instead));
  }
}

}  // namespace internal

using internal::Frame;
using internal::Frames;

Strategy& get_strategy() {
  if (const Frame* const frame = Frames::OfThisThread().Context()) return *frame->strategy;
  if (Strategy* const global = internal::GlobalStrategy()) return *global;
  return default_strategy();
}

bool has_strategy() { return &get_strategy() != &default_strategy(); }

bool in_cross_replica_context() { return get_cross_replica_context() != nullptr; }

Strategy* get_cross_replica_context() {
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame == nullptr) return internal::GlobalStrategy();
  return frame->kind == Frame::Kind::kReplica ? nullptr : frame->strategy;
}

ReplicaContext* get_replica_context() {
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame == nullptr) {
    return internal::GlobalStrategy() == nullptr ? &default_replica_context() : nullptr;
  }
  return frame->kind == Frame::Kind::kReplica ? frame->replica : nullptr;
}

ReplicaContext& replica_context() {
  ReplicaContext* const context = get_replica_context();
  if (context == nullptr) {
    raise(FailedPrecondition(
        "this needs a replica context, but runs in cross-replica context: call it inside run()"));
  }
  return *context;
}

void set_global_strategy(Strategy* strategy) {
  if (Frames::OfThisThread().Context() != nullptr) {
    raise(FailedPrecondition("set_global_strategy: Must not be called inside a Strategy scope"));
  }
  if (strategy == &default_strategy()) strategy = nullptr;
  internal::g_global_strategy.store(strategy);
  internal::g_global_destroyed.store(false);
}

std::optional<int> get_update_replica_id() {
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame == nullptr || frame->kind != Frame::Kind::kUpdate) return std::nullopt;
  return frame->update_replica;
}

namespace detail {
void raise_no_component(int replica, int size) {
  raise(OutOfRange("replica {} of a value with {}", replica, Counted(size, "component")));
}

int current_replica() {
  const Frame* const frame = Frames::OfThisThread().Context();
  if (frame == nullptr || frame->kind != Frame::Kind::kReplica) return -1;
  return frame->replica->local_replica_id();
}
}  // namespace detail

struct DeviceScope::Impl {
  explicit Impl(device::Place place) : here(place), frame({.kind = Frame::Kind::kDevice}) {}
  device::PlaceScope here;
  internal::FrameGuard frame;
};

DeviceScope::DeviceScope(const std::string& device) {
  const device::Place place = value_of(device::FindPlace(device));
  device::InstallCpuAllocator();
  impl_ = std::make_unique<Impl>(place);
}

DeviceScope::~DeviceScope() = default;

Scope::Scope(Strategy& strategy) {
  const Frame* const frame = Frames::OfThisThread().Context();
  if (&strategy == &default_strategy() && frame != nullptr &&
      frame->strategy != &default_strategy()) {
    raise(FailedPrecondition(
        "Must not nest the default strategy's scope inside the scope of another strategy"));
  }
  if (&strategy == &default_strategy()) {
    ticket_ = Frames::OfThisThread().Push({.kind = Frame::Kind::kCreator});
    return;
  }
  internal::RequireCrossReplica(strategy, "scope()", "merge_call()");
  ticket_ = Frames::OfThisThread().Push(
      {.kind = Frame::Kind::kScope, .strategy = &strategy, .scoped = strategy.ref()});
}

Scope::Scope(Scope&& other) noexcept : ticket_(std::exchange(other.ticket_, 0)) {}

Scope::~Scope() {
  if (ticket_ == 0) return;
  if (const Status status = Frames::OfThisThread().Abandon(ticket_); !status.ok()) {
    std::fprintf(stderr, "muster: a scope ended out of order: %s\n", ToString(status).c_str());
  }
}

void Scope::close() {
  if (ticket_ == 0) return;
  if (const Status status = Frames::OfThisThread().Pop(ticket_); !status.ok()) raise(status);
  ticket_ = 0;
}

}  // namespace muster
