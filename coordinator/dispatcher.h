// Hands the closures of one view of a job to its workers and takes their results.
//
// Every handing-out is an attempt with a number that never repeats, not even across restarts of the
// coordinator (epoch << 32 | n); a result counts only for the attempt that the closure has now, so
// a worker that was given up is never believed.
//
// Closures that were in flight when their executor ended are suspects: they go to the front of the
// queue and run again alone, so that the next crash has one culprit; after a crash by its own doing
// nothing else is begun before they are cleared. A suspect that succeeds is
// cleared. One that is alone when its executors end, again and again, is poison.
//
// Threading: not thread-safe; the coordinator's strand owns it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/step_rule.h"
#include "coordinator/adoption.h"
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
    // A closure whose executor ends this often by its own doing, all times but the first with
    // nothing else in flight, on two workers or on the only one, is given up.
    int crash_limit = 3;
    // The same for ends that somebody else may have brought about (kill -9, a machine without
    // memory): chance must be as good as excluded.
    int kill_limit = 6;
    // So many crashes of any closures, none of which succeeded in between.
    int barren_limit = 5;
    // The same for steps without an end, each of which takes a whole --step-timeout.
    int endless_limit = 3;
    // One worker, and each closure needs what the one before it has done: what comes back goes to
    // the front of the queue.
    bool in_order = false;
    // How far steps may run ahead of each other, and the last one that was done before.
    StepRule steps = {};
    std::uint64_t start = 0;
  };
  // Takes an assignment to a worker; never fails (a lost worker is reported by RemoveWorker).
  using Send = std::function<void(const TaskId&, const v1::ClosureAssignment&)>;

  // `clock` outlives it.
  Dispatcher(Options options, const Clock& clock, Send send);

  ClosureQueue& queue() { return queue_; }
  const ClosureQueue& queue() const { return queue_; }

  // At once after its beginning: what is applied everywhere is done already, what else is below the
  // highest runs again.
  void Adopt(const AppliedClosures& applied, std::uint64_t start_step);

  // The worker takes closures from now on; harmless if it did already.
  void AddWorker(const TaskId& worker);
  // What it had in flight goes back to the queue (returned, the oldest first).
  std::vector<ClosureKey> RemoveWorker(const TaskId& worker);
  // As RemoveWorker, after its executor has ended; what it had in flight is suspect from now on.
  enum class Cause {
    kItself,   // a signal of its own making, an exit code
    kEndless,  // a step without an end
    kOutside,  // may have been somebody else: weak evidence
  };
  struct Verdict {
    ClosureKey closure;
    std::string why;  // "closure 7 has ended its executor 3 times ..."
  };
  struct Crash {
    std::vector<ClosureKey> requeued;
    // This closure is to be given up.
    std::optional<Verdict> poison;
  };
  Crash CrashWorker(const TaskId& worker, const std::string& how, Cause cause);
  // No closures for this worker until then.
  void HoldWorker(const TaskId& worker, TimePoint until);
  std::size_t workers() const { return workers_.size(); }

  // Gives out as much as workers may have. Paused: nothing (a parameter server is missing).
  void Pump();
  void set_paused(bool paused) { paused_ = paused; }
  // Draining: only steps up to the newest that was given out, and what a synchronous step of it has
  // more, so that steps 1..last_step() are done, and none above, once nothing is in flight.
  void set_draining(bool draining) { draining_ = draining; }
  std::uint64_t last_step() const { return last_step_; }

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
  struct Suspect {
    int crashes = 0;        // by their own doing
    int alone = 0;          // of these, with nothing else in flight
    int alone_outside = 0;  // from outside, with nothing else in flight
    std::set<TaskId> on;
  };

  bool IsSuspect(const ClosureKey& key) const { return suspects_.contains(key); }
  // A suspect whose executor has ended by its own doing.
  bool EndsExecutors(const ClosureKey& key) const;
  // The closure that this worker should have now. None: there is none for it.
  std::optional<ClosureKey> Next(const TaskId& task, const Worker& worker);
  // Whether its step may begin.
  bool MayBegin(const ClosureKey& key) const;
  // The same while draining.
  std::optional<ClosureKey> NextOfCut(const Worker& worker);
  // It ended that worker's executor, and there is another one to try.
  bool BetterElsewhere(const Suspect& suspect, const TaskId& task) const;
  std::optional<Verdict> Judge(const ClosureKey& blamed, bool alone, const std::string& how) const;

  const Options options_;
  const Clock& clock_;
  const Send send_;
  ClosureQueue queue_;
  std::map<TaskId, Worker> workers_;
  std::map<ClosureKey, Suspect> suspects_;
  // Since a closure succeeded.
  int barren_crashes_ = 0;
  int endless_steps_ = 0;
  std::map<v1::ClosureKind, std::deque<v1::ClosureResult>> results_;
  std::uint32_t last_attempt_ = 0;
  std::uint64_t train_done_ = 0;
  bool paused_ = false;
  bool draining_ = false;
  IntervalSet trained_;          // train closures that are done
  std::uint64_t last_step_ = 0;  // the highest train closure that was given out; 0: none
  std::optional<TimePoint> dry_since_;
};

}  // namespace muster::coordinator
