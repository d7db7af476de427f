// Names for the things that messages speak of, each a type of its own so that one cannot be passed
// for another.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

#include <fmt/core.h>

namespace muster {

// A counter under a name: Id<struct EpochTag>. Ordered, hashable, prints as its number.
template <class Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(std::uint64_t value) : value_(value) {}
  constexpr std::uint64_t value() const { return value_; }
  constexpr Id Next() const { return Id(value_ + 1); }
  constexpr auto operator<=>(const Id&) const = default;

 private:
  std::uint64_t value_ = 0;
};

// +1 at each start of the coordinator, kept on its disk. A lower one is never obeyed.
using Epoch = Id<struct EpochTag>;
// Unique for each registration of a daemon with one coordinator.
using SessionId = Id<struct SessionTag>;
// A daemon's own count of its streams to the coordinator.
using StreamId = Id<struct StreamTag>;
// Unique for each command of one coordinator's life.
using CommandId = Id<struct CommandTag>;
// The time of a job between two returns to a checkpoint; +1 at each. A lower one is never obeyed.
using ViewId = Id<struct ViewTag>;
// A job as a number, on the data plane and in the journal: never used again.
using JobNumber = Id<struct JobNumberTag>;
// Which of the processes that followed each other in one place, a driver's or an executor's. A
// lower one is never obeyed.
using Incarnation = Id<struct IncarnationTag>;
// Dense from 1 in each job.
using ClosureId = Id<struct ClosureTag>;
// Which of the groups of processes that one job forms, one after another; 0: none. A lower one is
// over.
using Generation = Id<struct GenerationTag>;
// A set of launched processes that begin and end together, in its job: never used again. A higher
// one replaces a lower one.
using LaunchNumber = Id<struct LaunchTag>;
// A program's variable, by its driver's count: never used again.
using VariableId = Id<struct VariableTag>;

// The n-th of its kind in an epoch, as a number that no other epoch repeats.
constexpr std::uint64_t InEpoch(Epoch epoch, std::uint32_t n) { return epoch.value() << 32 | n; }

// One execution of a closure; attempts never repeat across restarts.
class Attempt {
 public:
  constexpr Attempt() = default;
  constexpr explicit Attempt(std::uint64_t value) : value_(value) {}
  constexpr Attempt(Epoch epoch, std::uint32_t n) : value_(InEpoch(epoch, n)) {}
  constexpr std::uint64_t value() const { return value_; }
  constexpr auto operator<=>(const Attempt&) const = default;

 private:
  std::uint64_t value_ = 0;
};

// "worker", 1. Prints as worker:1.
struct TaskId {
  std::string type;
  int index = 0;
  auto operator<=>(const TaskId&) const = default;
  std::string ToString() const { return fmt::format("{}:{}", type, index); }
};

}  // namespace muster

template <class Tag>
struct std::hash<muster::Id<Tag>> {
  std::size_t operator()(const muster::Id<Tag>& id) const noexcept {
    return std::hash<std::uint64_t>{}(id.value());
  }
};

// By its number; fmt/core.h is enough for this.
template <class Tag>
struct fmt::formatter<muster::Id<Tag>> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  auto format(const muster::Id<Tag>& id, fmt::format_context& context) const {
    return fmt::format_to(context.out(), "{}", id.value());
  }
};
