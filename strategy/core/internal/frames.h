// The stack of scopes of one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "strategy/core/internal/strategy_ref.h"

namespace muster {
class ReplicaContext;
class Strategy;

namespace internal {

struct Frame {
  enum class Kind { kScope, kReplica, kMerge, kUpdate, kDevice, kCreator };
  Kind kind = Kind::kScope;
  // Unique in this process, so that no scope ends one of another thread; 0 is no frame.
  std::size_t ticket = 0;
  Strategy* strategy = nullptr;       // kScope, kReplica, kMerge, kUpdate
  StrategyRef scoped = {};            // kScope: the same, which may end before its scope does
  ReplicaContext* replica = nullptr;  // kReplica
  int update_replica = 0;             // kUpdate
  // Its owner is gone while frames above it are open: it goes when they do.
  bool abandoned = false;
  // kCreator: the VariableCreator; null: a scope of the default strategy, in which no variable of
  // another strategy is made.
  std::shared_ptr<void> creator = nullptr;
};

class Frames {
 public:
  static Frames& OfThisThread();

  std::size_t Push(Frame frame);
  // OK and gone when it is on top; FailedPrecondition otherwise, naming what lies above it, or that
  // it was not opened on this thread.
  Status Pop(std::size_t ticket);
  // Pop, or mark as abandoned.
  Status Abandon(std::size_t ticket);
  // The innermost frame that says which strategy is current; null: none. FAILED_PRECONDITION: that
  // strategy has been destroyed within its own scope.
  const Frame* Context() const;
  const std::vector<Frame>& all() const { return frames_; }
  // Replaces the stack: a replica's thread takes over its caller's creators.
  std::vector<Frame> Exchange(std::vector<Frame> frames);

 private:
  void DropAbandoned();

  std::vector<Frame> frames_;
};

// Pushes for the life of the object.
class FrameGuard {
 public:
  explicit FrameGuard(Frame frame) : ticket_(Frames::OfThisThread().Push(std::move(frame))) {}
  ~FrameGuard() { (void)Frames::OfThisThread().Abandon(ticket_); }
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;

 private:
  const std::size_t ticket_;
};

// Throws unless cross-replica calls of `strategy` may be made here: FAILED_PRECONDITION, inside a
// replica function, or inside a scope of another strategy.
void RequireCrossReplica(const Strategy& strategy, std::string_view call, std::string_view instead);
// `strategy` ends: when it is the global one, whoever asks for the current strategy is told so.
void ForgetGlobalStrategy(const Strategy* strategy);
// Throws "Mixing different Strategy objects" when another strategy than `strategy` is current.
void RequireNoOther(const Strategy& strategy);

}  // namespace internal
}  // namespace muster
