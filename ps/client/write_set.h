// What a closure writes to variables: gathered here, sent by ProgramClient::Flush as one frame for
// each server, applied there once for each (closure, flush, shard), whatever the attempt.
//
// The sets of a closure's attempts reach each shard whole or not at all; different attempts may
// meet on different shards (torn, never doubled). Of more than 65,536 writes to one shard each
// 65,536 are a set of their own.
//
// Threading: one thread. Errors: kInvalidArgument names the variable, what was given and what is
// allowed; the set stays as it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "ps/client/program_variable.h"
#include "ps/elements.h"
#include "ps/program_wire.h"

namespace muster::ps {

class WriteSet {
 public:
  // A closure's: `attempt` as dispatch/core/attempt.h numbers it; a later one supersedes.
  // With a `step` (synchronous, from 1) it is staged, and applied with the others of that step when
  // a later one begins.
  WriteSet(ClosureId closure, Attempt attempt, std::uint64_t step = 0)
      : closure_(closure), attempt_(attempt), step_(step) {}
  // One of several threads' that write for a closure at the same time. Its flushes have numbers of
  // their own, so that each stands for the same writes when the closure runs again, whoever is
  // first then. It lies over the closure's set: reads see both, and a flush sends that one before.
  // In a synchronous step what it sends counts behind what the closure has written before, and
  // before what the closure writes when it has taken over (Take()).
  // `part`: 1 to kMostParts. Lifetime: `closure` stays where it is as long as this one is used.
  WriteSet(WriteSet& closure, std::uint64_t part)
      : closure_(closure.closure_),
        attempt_(closure.attempt_),
        step_(closure.step_),
        part_(part),
        under_(&closure) {
    closure.has_parts_ = true;
  }
  static constexpr std::uint64_t kMostParts = 255;
  // For no closure: applied once however often it is sent, in the order of Flush().
  WriteSet() = default;

  // values op= operands, for the whole variable or its optimizer's slot `slot - 1`.
  Status Update(const VariableHandle& variable, ElementOp op, const Operands& operands,
                std::uint16_t slot = 0);
  // The same for row ids[k] and row k of the operands; an id that comes twice counts twice.
  Status Scatter(const VariableHandle& variable, ElementOp op, std::span<const std::int64_t> ids,
                 const Operands& operands);
  // One update by the attached optimizer, at this learning rate.
  Status Gradient(const VariableHandle& variable, const Operands& gradient, double learning_rate);
  // The gradient of some rows; those of an id that comes twice are added up. Shards without ids
  // make no update.
  Status GradientRows(const VariableHandle& variable, std::span<const std::int64_t> ids,
                      const Operands& gradients, double learning_rate);

  // What waits in the other set comes behind what waits here, and what is sent from now on behind
  // what that has sent.
  void Take(WriteSet& other);

  bool empty() const { return writes_.empty(); }
  // Whether a write by an optimizer waits to be sent, whose outcome only the server knows; not of
  // what it lies over.
  bool HasGradient(const VariableInfo& variable) const;
  // These are of what it lies over, too. Whether a write to the variable waits to be sent.
  bool Touches(const VariableInfo& variable) const;
  // What waits, done to values that were read: to all of them, or to the rows of `ids`. Not for
  // gradients.
  void Overlay(const VariableInfo& variable, std::span<std::byte> values) const;
  void Overlay(const VariableInfo& variable, std::span<const std::int64_t> ids,
               std::span<std::byte> values) const;
  // Whether Overlay() needs no values: the whole variable is assigned.
  bool Replaces(const VariableInfo& variable) const;

  ClosureId closure() const { return closure_; }

 private:
  friend class ProgramClientImpl;

  struct Write {
    VariableHandle variable;
    std::uint16_t slot = 0;
    std::uint8_t op = 0;
    bool rows = false;
    std::vector<std::int64_t> ids;
    Operands operands;
    double learning_rate = 0;
  };

  Status Add(Write write);
  // The number of the next of so many flushes.
  //   kUnimplemented: there are no more.
  Result<std::uint64_t> NextFlush(std::size_t flushes);
  bool TouchesHere(const VariableInfo& variable) const;

  ClosureId closure_;
  // Without a closure: the writer's number, 0 while none is taken.
  Attempt attempt_;
  std::uint64_t step_ = 0;
  std::uint64_t part_ = 0;
  // Another set has been laid over this one.
  bool has_parts_ = false;
  // The count of the next flush.
  std::uint64_t flush_ = 1;
  // Not 0: so many writes, the first ones, went out under that number, and it is not known which
  // shards have them.
  std::size_t sent_ = 0;
  std::vector<Write> writes_;
  // What it lies over; null: nothing.
  WriteSet* under_ = nullptr;
};

}  // namespace muster::ps
