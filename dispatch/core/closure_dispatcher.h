// Hands the closures of one driver to workers and takes their results: events and the time go in,
// what to send comes out. Knows no jobs, no sockets and no messages.
//
// Closures are numbered from 1, or from behind what an earlier incarnation has settled. The queue
// is in the order of ids, always: what a lost worker had comes back to the front, oldest first.
// Every closure settles exactly once: with a value, its own error, or cancelled with others.
//
// With Options::second_runs a closure that may be executed twice at a time, and has run for much
// longer than others of its function, is given to a worker that would have nothing to do, too. What
// ends first counts; the other one is left to itself, and its worker gets nothing meanwhile.
//
// The first error of a user's closure fails the queue: nothing more is handed out, what is in
// flight is cancelled or ends, and then Raise() gives the error, cancels what is queued, and all is
// new.
//
// Threading: not thread-safe; the driver's lock or strand owns it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/core/assignment.h"
#include "dispatch/core/awaited_verdicts.h"
#include "dispatch/core/closure_error.h"
#include "dispatch/core/closure_slab.h"
#include "dispatch/core/credit.h"
#include "dispatch/core/open_steps.h"
#include "dispatch/core/per_worker_values.h"
#include "dispatch/core/result_slab.h"
#include "dispatch/core/suspects.h"
#include <absl/functional/function_ref.h>

#include "common/base/ids.h"
#include "common/base/scheduler.h"

namespace muster::dispatch {

// A worker's membership: one that left is never meant by the handle of the next.
struct WorkerHandle {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  auto operator<=>(const WorkerHandle&) const = default;
};

class ClosureDispatcher {
 public:
  // Inclusive.
  struct IdRange {
    ClosureId first;
    ClosureId last;
  };
  struct Options {
    Epoch epoch = {};
    std::uint16_t incarnation = 1;
    // Queued closures, and bytes of arguments of all that are not settled; more must wait.
    std::size_t capacity = 262'144;
    std::size_t argument_bytes = std::size_t{256} << 20;
    // No id beyond settled() + window is handed out: parameter servers remember as many marks.
    std::uint64_t window = 32'768;
    // How many steps closures may run ahead of each other (open_steps.h).
    std::uint64_t staleness = StepRule::kUnbounded;
    // So many closures at most are executed a second time at once.
    std::uint32_t second_runs = 0;
    CreditOptions credit = {};
    Suspects::Limits limits = {};
    ErrorPolicy::Options errors = {};
    // What an earlier incarnation has settled: all up to here, and these beyond, in order.
    // Scheduled again, they settle at once, without a value.
    ClosureId settled = {};
    std::vector<IdRange> settled_beyond = {};
    // Closures that wait so long while no worker is there fail the queue (kUnavailable); 0: they
    // wait for as long as it takes.
    std::chrono::milliseconds worker_patience{0};
    // It may have handed out closures up to this one: a drain includes them.
    ClosureId given = {};
    // What errors and verdicts call a closure; null: "closure 7".
    std::function<std::string(ClosureId)> name = {};
  };

  explicit ClosureDispatcher(Options options);

  // --- What the program does.
  enum class Admission {
    kQueued,
    // No room: call again when there is.
    kFull,
    // The queue has failed: the closure is cancelled, and Raise() has why.
    kFailed,
  };
  struct Scheduled {
    Admission admission = Admission::kQueued;
    ClosureId closure = {};  // 0 unless kQueued
    // The future, with one reference of the caller's; kNone if kFull.
    ResultSlab::Slot result = ResultSlab::kNone;
  };
  //   The arguments are copied. More than Options::argument_bytes in one closure is never admitted.
  //   `turns_of`: per-worker values that it has a turn of (per_worker_values.h), 8 bytes each
  //   behind its arguments.
  //   `step`: that the closure is a part of, from 1, never lower than the one before; 0: of none.
  Scheduled Schedule(std::uint32_t function, const KeptBytes& arguments,
                     std::span<const ClosureId> turns_of = {}, std::uint64_t step = 0,
                     const ClosureTerms& terms = {});
  // Options::staleness, Options::second_runs and Options::errors from now on.
  void set_staleness(std::uint64_t staleness) { steps_.set_staleness(staleness); }
  void set_second_runs(std::uint32_t most) { second_runs_ = most; }
  void set_errors(const ErrorPolicy::Options& errors) { policy_.set_options(errors); }
  // The pending error, once nothing is in flight, nor a second execution of what has failed or was
  // cancelled; then what was queued is cancelled and the error cleared. None: no error, or
  // something is still in flight.
  std::optional<ClosureError> Raise();
  // Fails the queue for what is no closure's own. Nothing, if it has failed.
  void FailQueue(ClosureError error);
  bool failed() const { return error_.has_value(); }
  // What is queued will never be handed out: it waits for Raise() to be cancelled.
  bool stranded() const { return failed() && !ends_awaited(); }
  // Nothing queued, nothing in flight.
  bool idle() const { return queue_.empty() && in_flight_ == 0; }
  // All closures of steps have ended for good; true without a bound of staleness.
  bool steps_ended() const { return steps_.empty(); }
  // Futures. The caller releases its references.
  ResultSlab& results() { return results_; }
  PerWorkerValues& per_worker() { return per_worker_; }

  // --- Who is there.
  // A worker that runs `slots` closures at a time. Its task may have been there before; must not be
  // there now.
  WorkerHandle AddWorker(const std::string& task, Incarnation incarnation, std::uint32_t slots);
  // Its link is gone, which says nothing of why: what it had goes back to the queue, the ids are
  // returned. What lost an executor before waits there for the verdict, or until the worker is
  // back. Harmless for a handle of the past.
  std::vector<ClosureId> RemoveWorker(WorkerHandle worker, const Status& why);
  // The verdict, before or after RemoveWorker: the task's executor has ended. What it had, or if
  // that is known what it was `running`, is suspect. The closure that is given up for it, if any,
  // has failed. A build that it was running, and that has ended as many executors there, one after
  // another, is given up on that worker, and fails the queue.
  struct Crash {
    std::vector<ClosureId> requeued;
    // All that it had when it ended, or when its link did; some may have ended elsewhere since.
    std::vector<ClosureId> had;
    std::optional<ClosureId> given_up;
    std::string why = {};
  };
  Crash CrashWorker(const std::string& task, const std::string& how, Suspects::Cause cause,
                    std::span<const ClosureId> running);
  // No closures for it until then.
  void HoldWorker(WorkerHandle worker, TimePoint until);
  std::size_t workers() const { return here_; }
  // The index in the task's handles, those of the past too; nullopt: it was never there.
  std::optional<std::uint32_t> IndexOf(const std::string& task) const;
  // One of them has nothing to do and may have more.
  bool any_idle() const { return idle_ > 0; }

  // --- What goes out and what comes in.
  using Send = absl::FunctionRef<void(WorkerHandle, const Assignment&)>;
  // Gives out as much as workers may have, one closure to each before any gets its second, first to
  // the one that last ran out of work.
  void Pump(TimePoint now, Send send);
  // When to call Pump() next though nothing happens: a hold ends, or the patience with workers that
  // do not come. TimePoint::max(): never.
  TimePoint next_timer() const;
  // After a failure, once: closures in flight up to this id are to be cancelled by all executors.
  std::optional<ClosureId> TakeCancel();

  enum class Outcome {
    kDone,       // it has succeeded
    kStale,      // not the current attempt: dropped
    kAgain,      // trouble of the cluster's: it is in the queue again
    kFailed,     // its own error
    kCancelled,  // ended while the queue failed
  };
  Outcome OnResult(WorkerHandle worker, const ClosureResult& result, TimePoint now);

  // Nothing is handed out while paused (a parameter server is missing).
  void set_paused(bool paused) { paused_ = paused; }
  // Draining: only closures up to the newest that was handed out, and what a synchronous step of
  // it has more, so that all up to the newest are done, and none above, once nothing is in flight:
  // drained().
  void set_draining(bool draining) { draining_ = draining; }
  bool drained() const {
    return draining_ && in_flight_ == 0 && settled() >= steps_.CutFrom(last_given_);
  }

  // All closures up to here are settled, for good.
  ClosureId settled() const { return ClosureId(slab_.base().value() - 1); }
  ClosureId last_scheduled() const { return slab_.last(); }
  std::size_t queued() const { return queue_.size(); }
  std::size_t in_flight() const { return in_flight_; }
  std::size_t in_flight(WorkerHandle worker) const;
  std::size_t argument_bytes() const { return argument_bytes_; }
  std::uint32_t credit(WorkerHandle worker) const;
  std::uint64_t succeeded() const { return succeeded_; }
  // By this dispatcher.
  std::uint64_t scheduled() const { return slab_.last().value() - options_.settled.value(); }
  // Executions that were not their closure's first.
  std::uint64_t reruns() const { return reruns_; }

 private:
  static constexpr std::uint32_t kNoWorker = ~std::uint32_t{0};
  struct Worker {
    std::string task;
    Incarnation incarnation{};
    std::uint32_t generation = 0;
    bool here = false;
    RecordList in_flight;
    std::uint32_t suspects = 0;  // of these
    std::uint32_t slots = 1;
    std::uint32_t extras = 0;  // executions that do not count
    Credit credit;
    bool held = false;
    TimePoint hold_until;
    std::chrono::milliseconds back_off{0};
    // The ring of those that may have more.
    bool ready = false;
    bool idle = false;  // ready, with nothing to do
    std::uint32_t previous = kNoWorker;
    std::uint32_t next = kNoWorker;
    // What it had when it was removed, until the verdict or until it is back.
    std::vector<ClosureId> had;

    // An error that names nobody is of this worker.
    void NameIn(ClosureError& error) const {
      if (!error.task.empty()) return;
      error.task = task;
      error.incarnation = incarnation;
    }
  };

  Worker* Find(WorkerHandle worker);
  const Worker* Find(WorkerHandle worker) const;
  void SetReady(std::uint32_t index, bool ready);
  // Ready if it has credit and is not held.
  void Refresh(std::uint32_t index);
  void EndHolds(TimePoint now);
  // Fails the queue when nobody has been there for it for too long.
  void LosePatience(TimePoint now);
  void BackOff(std::uint32_t index, TimePoint now);

  // The highest id that may be handed out now.
  ClosureId Limit() const;
  // Somebody holds its future, beside the record.
  bool IsWanted(const ClosureRecord& record) const {
    return results_.references(record.result) > 1;
  }
  void Give(std::uint32_t index, ClosureRecord& record, TimePoint now, Send send);
  void PumpBuilds(Send send);
  // With suspects, or draining: looks for what each worker may have.
  void PumpCarefully(TimePoint now, Send send);
  // `held`: nothing but suspects.
  ClosureRecord* NextFor(const Worker& worker, bool held);
  // It ended that worker's executor, and there is another one to try.
  bool BetterElsewhere(ClosureId closure, const Worker& worker) const;

  // An execution beside the one that counts: a second one of a closure that takes long, or what
  // goes on of one that has ended.
  struct Extra {
    ClosureId closure;
    std::uint64_t number = 0;
    std::uint16_t execution = 0;
    WorkerHandle worker;
    bool over = false;
    // Its closure has not succeeded: what it still writes must not be seen by what comes next.
    bool unwanted = false;
  };
  using ExtraAt = std::vector<Extra>::iterator;
  // See closure_dispatcher_second.cc.
  void RunAgain(TimePoint now, Send send);
  // TimePoint::max(): never.
  TimePoint LateAt(const ClosureRecord& record, TimePoint given) const;
  bool may_run_again() const;
  ExtraAt SecondOf(ClosureId closure);
  void DropExtra(ExtraAt extra);
  void DropExtrasOf(WorkerHandle worker);
  // The second execution is the one that counts from now on, and the other way round.
  void Exchange(Extra& extra, ClosureRecord& record);
  Outcome OnExtraResult(WorkerHandle handle, const ClosureResult& result, TimePoint now);
  void NoteRun(const ClosureRecord& record, std::chrono::nanoseconds run);

  void TakeFromFlight(ClosureRecord& record);
  // In flight -> the queue, in the order of ids; cancelled if the queue has failed.
  void PutBack(ClosureRecord& record);
  void PutBackAll(Worker& worker, std::vector<ClosureId>& ids);
  Outcome OnError(WorkerHandle worker, ClosureRecord& record, ClosureError error, TimePoint now);
  // As OnResult, for a build of a per-worker value.
  Outcome OnBuilt(WorkerHandle worker, const ClosureResult& result, TimePoint now);
  // The executor of that worker has ended while it built this value.
  void BlameBuild(std::uint32_t worker, ClosureId value, Suspects::Cause cause,
                  const std::string& how);
  // Its own error, and the queue's if it is the first.
  void Fail(ClosureRecord& record, ClosureError error);
  // Its end: the future's state is set already.
  void Settle(ClosureRecord& record, bool succeeded);
  bool ends_awaited() const {
    return in_flight_ > 0 || std::ranges::any_of(extras_, &Extra::unwanted);
  }
  void Cancel(ClosureRecord& record);
  void ReturnTurns(const ClosureRecord& record);
  void SettleInherited(ClosureRecord& record);
  void Remember(WorkerHandle worker, const ClosureResult& result);
  // Takes the turns, and makes the arguments with them.
  void AssignWithTurns(ClosureRecord& record, const KeptBytes& arguments,
                       std::span<const ClosureId> turns_of);
  std::string NameOf(ClosureId closure) const;

  const Options options_;
  ResultSlab results_;
  ClosureSlab slab_;
  RecordList queue_;
  OpenSteps steps_;
  PerWorkerValues per_worker_;
  // Turns of closures that are not settled.
  struct Turn {
    ClosureId value;
    std::uint64_t turn = 0;
  };
  std::map<ClosureId, std::vector<Turn>> turns_;
  std::deque<Worker> workers_;  // an index stays with its task
  std::map<std::string, std::uint32_t> by_task_;
  std::uint32_t ready_ = kNoWorker;
  std::size_t here_ = 0;
  std::optional<TimePoint> nobody_since_;  // and closures wait
  std::size_t holds_ = 0;
  std::size_t idle_ = 0;
  std::uint32_t second_runs_ = 0;
  std::vector<Extra> extras_;
  // Repeatable closures that are in flight, and since when.
  std::map<ClosureId, TimePoint> given_at_;
  // How long functions with such closures run, in nanoseconds, as an average that goes along.
  std::map<std::uint32_t, std::int64_t> typical_;
  Suspects suspects_;
  AwaitedVerdicts awaited_;
  ErrorPolicy policy_;
  std::optional<ClosureError> error_;
  bool cancel_pending_ = false;
  bool paused_ = false;
  bool draining_ = false;
  std::size_t in_flight_ = 0;
  std::size_t argument_bytes_ = 0;
  ClosureId last_given_;
  ClosureId back_;  // the last that came back to the queue
  std::uint64_t succeeded_ = 0;
  std::uint64_t executions_ = 0;
  std::uint64_t reruns_ = 0;
  std::size_t inherited_ = 0;  // ranges of settled_beyond that ids have passed
};

}  // namespace muster::dispatch
