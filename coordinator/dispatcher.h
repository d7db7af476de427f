// Hands the closures of one view of a job to its workers and takes their results.
//
// Every handing-out is an attempt with a number that never repeats, not even across restarts of the
// coordinator (epoch << 32 | n); a result counts only for the attempt that the closure has now, so
// a worker that was given up is never believed.
//
// Threading: not thread-safe; the coordinator's strand owns it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "coordinator/closure_queue.h"
#include "muster/v1/common.pb.h"
#include "muster/v1/driver.pb.h"

namespace muster::coordinator {

class Dispatcher {
 public:
  struct Options {
    std::string job_id;
    std::uint64_t view = 0;
    Epoch epoch;
    // Closures given to one worker at a time: one runs, the other's batch is being read.
    std::size_t in_flight_per_worker = 2;
    std::size_t queue_capacity = ClosureQueue::kCapacity;
    // A closure that crashes its executor this often, on two workers or on the only one, is given
    // up.
    int crash_limit = 3;
    // One worker, and each closure needs what the one before it has done: what comes back goes to
    // the front of the queue.
    bool in_order = false;
  };
  // Takes an assignment to a worker; never fails (a lost worker is reported by RemoveWorker).
  using Send = std::function<void(const TaskId&, const v1::ClosureAssignment&)>;

  // `clock` outlives it.
  Dispatcher(Options options, const Clock& clock, Send send);

  ClosureQueue& queue() { return queue_; }
  const ClosureQueue& queue() const { return queue_; }

  // The worker takes closures from now on; harmless if it did already.
  void AddWorker(const TaskId& worker);
  // What it had in flight goes back to the queue (returned, the oldest first).
  std::vector<ClosureKey> RemoveWorker(const TaskId& worker);
  // As RemoveWorker; its oldest closure in flight is blamed for the crash. A status: that closure
  // has crashed too often and the queue has failed with it.
  struct Crash {
    std::vector<ClosureKey> requeued;
    std::optional<Status> poison;
  };
  Crash CrashWorker(const TaskId& worker, const std::string& how);
  // No closures for this worker until then.
  void HoldWorker(const TaskId& worker, TimePoint until);
  std::size_t workers() const { return workers_.size(); }

  // Gives out as much as workers may have. Paused: nothing (a parameter server is missing).
  void Pump();
  void set_paused(bool paused) { paused_ = paused; }

  enum class Outcome {
    kDone,    // counted; the result is kept for TakeResults()
    kStale,   // not the current attempt: dropped
    kAgain,   // a peer was lost: the closure goes back to the queue
    kFailed,  // the user's error: the queue has failed
  };
  Outcome OnResult(const TaskId& worker, v1::ClosureResult result);

  // Moves results to `reply`, in order of arrival, as many as fit in a message; `more` says that
  // some are left. At most kMaxResults are kept of each kind: the oldest go first.
  void TakeResults(v1::ClosureKind kind, v1::FetchReply& reply);
  static constexpr std::size_t kMaxResults = 65'536;

  std::uint64_t train_done() const { return train_done_; }
  std::uint64_t done_by(const TaskId& worker) const;
  // When the queue ran dry; none while something is queued.
  std::optional<TimePoint> dry_since() const { return dry_since_; }
  // Drops everything of this kind that is not in flight (a new driver starts its evaluation again).
  void Forget(v1::ClosureKind kind);

 private:
  struct InFlight {
    ClosureKey key;
    std::uint64_t attempt = 0;
  };
  struct Worker {
    std::deque<InFlight> in_flight;
    TimePoint hold_until;
  };

  ClosureQueue::Place PlaceBack() const {
    return options_.in_order ? ClosureQueue::Place::kFront : ClosureQueue::Place::kEnd;
  }

  const Options options_;
  const Clock& clock_;
  const Send send_;
  ClosureQueue queue_;
  std::map<TaskId, Worker> workers_;
  std::map<ClosureKey, std::vector<TaskId>> crashes_;
  std::map<v1::ClosureKind, std::deque<v1::ClosureResult>> results_;
  std::map<TaskId, std::uint64_t> done_by_;
  std::uint32_t last_attempt_ = 0;
  std::uint64_t train_done_ = 0;
  bool paused_ = false;
  std::optional<TimePoint> dry_since_;
};

}  // namespace muster::coordinator
