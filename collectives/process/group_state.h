// What one member of a group of processes knows of the others, and when the group is over: sans-IO,
// events and the time go in, what to tell the others comes out.
//
// A group is over for all with its first error: a member that is lost, one that leaves while others
// still need it, an error of one member's call, a deadline, members that call different things and
// wait for each other. Every member is told by every other, so that the news arrives whatever link
// breaks first. A group is never repaired; a new one is formed.
//
// Threading: not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/scheduler.h"
#include "common/base/status.h"

namespace muster::collectives {

// How far a member is with the group's operations, which are numbered from 1.
struct Progress {
  std::uint64_t begun = 0;
  std::uint64_t done = 0;
  // What the one that was begun last is called with: the same on all members (signature.h).
  std::uint64_t signature = 0;
  bool operator==(const Progress&) const = default;
};

class GroupState {
 public:
  // tasks[r] names rank r in messages: "worker:1".
  GroupState(int rank, std::vector<std::string> tasks);

  // What is to be told to every other member that is there.
  struct News {
    std::optional<Progress> progress;
    // The group is over, by this.
    std::optional<Status> end;
  };

  // From the others' links. A lost link without OnLeft() is a lost member.
  void OnProgress(int from, Progress progress);
  void OnEnd(int from, const Status& why);
  void OnLeft(int from, Progress progress);
  void OnLost(int from, const Status& why);
  // An error of this member's own call. The first error of all counts.
  void Fail(const Status& why);

  // The others have to know of `mine` when it has lasted: what stands still is seen by it, and so
  // are members in one operation who call different things, of which none may send the other
  // anything.
  News Tick(Progress mine, TimePoint now);

  // kOk: the group lives. Else how it ended, the same code on every member.
  const Status& failure() const { return failure_; }
  // That operation cannot end: a member left before it. OK: all are there for it.
  Status Check(std::uint64_t operation) const;
  // The others that have not begun an operation, as far as is known; rank order.
  std::vector<int> NotBegun(std::uint64_t operation) const;
  // "worker:1 and worker:3 (which have not begun it)" for who is waited for in an operation.
  // `waiting`: ranks whose bytes are missing.
  std::string Awaited(std::uint64_t operation, const std::vector<int>& waiting) const;
  const std::string& task(int rank) const { return tasks_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(tasks_.size()); }

  // A member that is in one operation says so this often.
  static constexpr Millis kSayEvery{100};

 private:
  struct Peer {
    Progress progress;
    bool left = false;
  };
  void End(const Status& why);
  // Ends the group where another member calls something else in the same operation.
  void Compare(Progress mine);

  const int rank_;
  const std::vector<std::string> tasks_;
  std::vector<Peer> peers_;  // own place unused
  Status failure_;
  bool end_said_ = false;
  Progress said_;
  // Since when progress is what it is now.
  Progress seen_;
  TimePoint seen_since_;
};

}  // namespace muster::collectives
