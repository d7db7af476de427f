// One execution of a registered function, and how its arguments and results begin.
//
// Threading: the closure's thread. Lifetime: that of the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "strategy/cluster/codec.h"
#include "strategy/cluster/worker_iterator.h"

namespace muster {

namespace dispatch {
class ClosureContext;
}  // namespace dispatch

namespace internal {

// The first byte of a closure's arguments; the second is the number of turns behind them.
inline constexpr std::uint8_t kEndOfDataIsAResult = 1;
inline constexpr std::uint8_t kBuildIterator = 2;  // of the dataset whose id follows
// With kBuildIterator, and then follow the elements of each closure and where the pass begins.
inline constexpr std::uint8_t kOneForAll = 4;
// The closure is of a step, whose number follows the header: 0 where steps are not synchronous.
inline constexpr std::uint8_t kOfStep = 8;
// Before each argument. kTurn: a per-worker value, with a turn.
enum class ArgumentKind : std::uint8_t { kValue, kPerWorker, kError, kTurn };
// The first byte of a result.
inline constexpr std::byte kValueFollows{0};
inline constexpr std::byte kEndOfData{1};
inline constexpr std::byte kTooLong{2};  // of a per-worker value
// What the dispatcher takes.
inline constexpr std::size_t kLongestValue = std::size_t{128} << 20;

// One execution, as the registered form of a function sees it.
class ClosureCall {
 public:
  explicit ClosureCall(dispatch::ClosureContext& context) : context_(context) {}

  std::span<const std::byte> arguments() const;
  Bytes& value();
  // It makes this worker's part of a per-worker value.
  bool build() const;
  void built(std::shared_ptr<void> object);
  // ClosureInputError: it could not be built here.
  std::shared_ptr<void> per_worker_value(std::uint64_t id);
  // In a build: where the last pass of this worker stood.
  PassPlace found() const;
  void leave(std::uint64_t id, const PassPlace& place);

  // It is of that synchronous step.
  void set_step(std::uint64_t step);
  // Turns stand behind the arguments.
  void set_turns(ByteReader turns) { turns_ = turns; }
  std::uint64_t next_turn() { return turns_.value<std::uint64_t>(); }

 private:
  dispatch::ClosureContext& context_;
  ByteReader turns_{{}};
};

}  // namespace internal
}  // namespace muster
