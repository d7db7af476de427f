// Values that every worker has one of: datasets, iterators, tables. Each is built by a closure that
// belongs to its worker and goes before the closures of the queue, and is built again when a worker
// comes back. Join and done do not wait for builds, and an error of one stays with its value. One
// that ends its executor again and again is given up on that worker (ClosureDispatcher).
//
// Their ids are a range of their own (kPinned), since a build for a worker that is away must not
// hold the settled watermark.
//
// A value may leave bookmarks with the results of closures that use it; its next build on that
// worker is given the newest. And closures that use a value may have turns: 0, 1, 2... whichever
// worker runs them and however often, and a turn of one that is cancelled is the next one's.
//
// Threading: not thread-safe. Lifetime: the slab outlives this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/core/assignment.h"
#include "dispatch/core/closure_error.h"
#include "dispatch/core/result_slab.h"

namespace muster::dispatch {

class PerWorkerValues {
 public:
  // Set in the ids of per-worker values.
  static constexpr std::uint64_t kPinned = std::uint64_t{1} << 63;
  static constexpr bool IsPinned(ClosureId closure) { return (closure.value() & kPinned) != 0; }

  PerWorkerValues(Epoch epoch, std::uint16_t incarnation, ResultSlab& results)
      : epoch_(epoch), incarnation_(incarnation), results_(results) {}

  // Builds wait for each worker that is there; for the others the value is kAborted until they
  // come.
  ClosureId Create(std::uint32_t function, std::span<const std::byte> arguments);
  // Forgets it, what of it is being built too. Harmless when it is forgotten already.
  void Release(ClosureId value);
  // The state of the value on a worker. Belongs to the value: gone with Release().
  //   nullopt: no such value, or the worker has never been there.
  std::optional<ResultSlab::Slot> At(ClosureId value, std::uint32_t worker) const;

  void Join(std::uint32_t worker);
  void Leave(std::uint32_t worker, const ClosureError& why);
  // The next build for a worker, as an execution of this number (ErrorPolicy::Execution); valid
  // until the next call of anything here.
  std::optional<Assignment> Next(std::uint32_t worker, std::uint64_t number);
  bool waiting(std::uint32_t worker) const {
    return worker < workers_.size() && !workers_[worker].waiting.empty();
  }
  bool any_waiting() const { return waiting_ > 0; }
  // The number of the execution that the result is of, which is under way; nullopt: it is of none.
  std::optional<std::uint64_t> Running(std::uint32_t worker, const ClosureResult& result) const;
  // A build has ended that was under way when its value was released: the executor that has it now
  // is told again.
  void DropLate(ClosureId value) {
    if (!values_.contains(value)) released_.push_back(value);
  }
  // Such a result is the value's.
  void OnResult(std::uint32_t worker, const ClosureResult& result);
  // Such an execution is none: the value waits to be built again.
  //   False: it has been too often, its attempts have no more numbers.
  bool Again(std::uint32_t worker, ClosureId value);
  // How often the value's build has ended its worker's executor since it last came to an end there.
  struct Ends {
    int itself = 0;  // by its own doing
    int all = 0;
  };
  // Once more. Nothing: the value is gone, or is not built there any more.
  std::optional<Ends> CountEnd(std::uint32_t worker, ClosureId value, bool from_outside);
  // From now on this error is what the worker has of the value, whichever executor it gets.
  void GiveUp(std::uint32_t worker, ClosureId value, ClosureError error);
  // From a closure that has settled. Of a value that is gone, and older ones: no effect.
  void Remember(std::uint32_t worker, const Bookmark& bookmark);

  // The next turn of a value; 0 of one that is gone, whose closures have nothing to use.
  std::uint64_t TakeTurn(ClosureId value);
  void ReturnTurn(ClosureId value, std::uint64_t turn);

  // Values that executors may drop.
  std::vector<ClosureId> TakeReleased() { return std::exchange(released_, {}); }
  std::size_t size() const { return values_.size(); }

 private:
  struct Place {
    ResultSlab::Slot result = ResultSlab::kNone;
    std::uint16_t executions = 0;
    std::uint64_t number = 0;
    bool sent = false;
    bool given_up = false;
    Ends ends;
    // The newest bookmark's; 0: it has left none.
    std::uint64_t sequence = 0;
    std::vector<std::byte> bookmark;
  };
  struct Value {
    std::uint32_t function = 0;
    KeptBytes arguments;        // one copy, for all links
    std::vector<Place> places;  // by worker
    std::uint64_t turns = 0;    // that were taken
    std::set<std::uint64_t> returned;
  };
  struct Worker {
    bool here = false;
    ClosureError why;  // while it is away
    std::deque<ClosureId> waiting;
  };

  // A build for that worker; none any more.
  void Await(Worker& worker, ClosureId value) {
    worker.waiting.push_back(value);
    ++waiting_;
  }
  void AwaitNone(Worker& worker) {
    waiting_ -= worker.waiting.size();
    worker.waiting.clear();
  }

  const Epoch epoch_;
  const std::uint16_t incarnation_;
  ResultSlab& results_;
  ClosureId last_{kPinned};
  std::map<ClosureId, Value> values_;
  std::vector<Worker> workers_;
  std::size_t waiting_ = 0;  // of all workers
  std::vector<ClosureId> released_;
  std::vector<std::byte> sending_;  // arguments with a bookmark
};

}  // namespace muster::dispatch
