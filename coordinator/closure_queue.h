// The closures of one job: first in, first out, each in one of three places: queued, in flight, or
// settled. Nothing here waits: a caller that would have to asks again when something has changed.
//
// After the first failure the queue takes nothing more and gives nothing out; when nothing is in
// flight, Raise() hands the error out once, cancels what is queued, and the queue is clean again.
//
// Invariant: a closure is queued or in flight at most once; a settled one is never run again.
// Threading: not thread-safe; the coordinator's strand owns it.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "common/base/status.h"
#include "coordinator/interval_set.h"
#include "muster/v1/common.pb.h"

namespace muster::coordinator {

struct ClosureKey {
  v1::ClosureKind kind = v1::CLOSURE_KIND_UNSPECIFIED;
  std::uint64_t id = 0;
  auto operator<=>(const ClosureKey&) const = default;
};
// "7,9"
std::string Ids(std::span<const ClosureKey> closures);

class ClosureQueue {
 public:
  enum class PutResult { kQueued, kKnown, kFull, kFailed };

  static constexpr std::size_t kCapacity = 262'144;

  explicit ClosureQueue(std::size_t capacity = kCapacity) : capacity_(capacity) {}

  // Appends. kKnown: queued, in flight or settled already; nothing is done. kFull: not taken; ask
  // again. kFailed: an error waits for Raise(); not taken.
  PutResult Put(ClosureKey key);
  // For a queue that takes the place of one that was lost, in ascending order and before anything
  // is put: settled there, first..last; or admitted there, whatever the capacity is here.
  void Settle(v1::ClosureKind kind, std::uint64_t first, std::uint64_t last);
  void Readmit(ClosureKey key);
  // The oldest queued closure, now in flight. None: nothing is queued, or an error is pending.
  std::optional<ClosureKey> Get();
  // That one, out of its turn. False: it is not queued, or an error is pending.
  bool Take(ClosureKey key);
  // What is queued, the next one first.
  const std::deque<ClosureKey>& waiting() const { return queue_; }
  // Back to the end of the queue, to be run again (even beyond the capacity: it was admitted once);
  // or to its front: what is known to be troublesome, or to be needed by what comes after it.
  // With an error pending the closure is cancelled instead. kInternal: it is not in flight.
  enum class Place { kEnd, kFront };
  Status PutBack(ClosureKey key, Place place = Place::kEnd);
  // kInternal: it is not in flight.
  Status MarkFinished(ClosureKey key);
  // The first error is kept, later ones are dropped. kInternal: it is not in flight.
  Status MarkFailed(ClosureKey key, const Status& error);

  // The pending error, once nothing is in flight; cancels everything queued (which may be put
  // again) and clears the error. None: no error, or something is still in flight.
  std::optional<Status> Raise();
  bool failed() const { return !error_.ok(); }
  // Nothing queued, nothing in flight.
  bool idle() const { return queue_.empty() && in_flight_.empty(); }
  std::size_t queued() const { return queue_.size(); }
  std::size_t in_flight() const { return in_flight_.size(); }

  // Forgets the settled closures of a kind, which may then be put again, and drops queued ones.
  void Forget(v1::ClosureKind kind);

 private:
  Status TakeFromFlight(ClosureKey key);

  const std::size_t capacity_;
  std::deque<ClosureKey> queue_;
  std::set<ClosureKey> in_flight_;
  // Everything ever put and not cancelled.
  std::map<v1::ClosureKind, IntervalSet> known_;
  Status error_;
};

}  // namespace muster::coordinator
