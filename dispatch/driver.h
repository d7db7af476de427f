// The driver's side of dispatch: schedule, fetch and join over links to executors.
//
// Who waits in Fetch() or Join() reads the links itself and hands out what becomes possible: a
// closure alone costs no hand-over to another thread. While nobody waits, a thread of the driver's
// own does so. What is scheduled goes out at once to an executor that has nothing to do, and
// gathers otherwise until results come back.
//
// An executor whose link breaks loses its closures to the others at once; why it broke is for
// others to say (Crashed()). Connecting to it again is for its owner, too.
//
// Errors of closures are Statuses that ErrorOf() (wire.h) takes apart: origin, task, retries. The
// first one is returned once, by whichever of Schedule, Join and Done comes first, when nothing is
// in flight any more; all that was queued then is cancelled. So is kResourceExhausted, the driver's
// own: it has found no memory for a result.
//
// Threading: any thread. Lifetime: remote values may outlive the driver; those not ready then never
// are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/core/closure_dispatcher.h"

#include "common/base/ids.h"
#include "common/base/kept_bytes.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/duplex_link.h"
#include "common/net/handshake.h"

namespace muster::dispatch {

class DriverCore;

// The future of one closure. Its value lives as long as its last copy.
class RemoteValue {
 public:
  RemoteValue() = default;
  RemoteValue(const RemoteValue& other);
  RemoteValue(RemoteValue&& other) noexcept
      : core_(std::exchange(other.core_, nullptr)), slot_(other.slot_) {}
  RemoteValue& operator=(RemoteValue other) noexcept {
    std::swap(core_, other.core_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~RemoteValue();

  // kError, too, where Fetch() is kCancelled without waiting.
  ResultSlab::State state() const;
  // Waits for the value, which comes with its keeper; returns the closure's own error.
  //   kDeadlineExceeded: says whom it waits for.  kCancelled: the driver has ended before, or
  //   another closure has failed before this one began.
  Result<KeptBytes> Fetch(TimePoint deadline = TimePoint::max()) const;

 private:
  friend class Driver;
  friend class DriverCore;
  RemoteValue(std::shared_ptr<DriverCore> core, ResultSlab::Slot slot)
      : core_(std::move(core)), slot_(slot) {}

  std::shared_ptr<DriverCore> core_;
  ResultSlab::Slot slot_ = ResultSlab::kNone;
};

// What happens to closures beside their first run. Called under the driver's lock: to be quick, and
// not to call the driver.
class DriverWatcher {
 public:
  virtual ~DriverWatcher() = default;
  // Its link is gone; these are in the queue again.
  virtual void OnRequeued(const std::string& task, std::span<const ClosureId> closures) = 0;
  // Trouble of the cluster's, as the task says: it is in the queue again.
  virtual void OnReturned(const std::string& task, ClosureId closure, const Status& why) = 0;
  // A further execution.
  virtual void OnGivenAgain(const std::string& task, ClosureId closure) = 0;
};

class Driver {
 public:
  static constexpr Incarnation kAnyExecutor{~std::uint64_t{0}};

  struct Options {
    ClosureDispatcher::Options dispatch = {};
    // The token is the job's key.
    net::Identity identity = {};
    // FunctionTable::hash() of the program.
    std::uint64_t functions = 0;
    net::SpinMode spin = net::SpinMode::kAdaptive;
    net::DuplexLink::Options link = {};
    // A worker's first closure waits so long for each number before its own ("worker:2": twice),
    // `most_start_delay` at most, if that is not 0.
    std::chrono::milliseconds start_delay{0};
    std::chrono::milliseconds most_start_delay{0};
    // The link to this executor has broken and its closures are in the queue again; on some thread,
    // without locks, when the task may have another one already.
    std::function<void(const std::string& task, Incarnation incarnation, const Status& why)>
        on_lost = {};
    // Outlives the driver.
    DriverWatcher* watcher = nullptr;
  };
  explicit Driver(Options options);
  ~Driver();

  // Opens a link to an executor: "127.0.0.1:7000", or the path of a Unix socket.
  //   kUnavailable, kDeadlineExceeded: it does not answer.  kUnauthenticated: another key.
  //   kAborted: it has a newer driver.  kInvalidArgument: another program.
  //   kAlreadyExists: the task has a link.
  Status Connect(const std::string& task, Incarnation incarnation, net::LinkKind kind,
                 const std::string& address, TimePoint deadline);
  // Ends a link; its closures go to others. That of a later executor than `last` stays.
  void Disconnect(const std::string& task, const Status& why, Incarnation last = kAnyExecutor);
  // The verdict about an executor that has ended; see ClosureDispatcher::CrashWorker. Nothing, if a
  // later one than `last` has closures by now: what that one ran is known no more.
  ClosureDispatcher::Crash Crashed(const std::string& task, const std::string& how,
                                   Suspects::Cause cause, std::span<const ClosureId> running = {},
                                   Incarnation last = kAnyExecutor);
  // See ClosureDispatcher::set_draining() and set_paused().
  enum class Pace { kFree, kDrain, kPause };
  void SetPace(Pace pace);

  // Waits while the queue is full. Arguments are copied, unless they are long and kept.
  //   An earlier closure's error: this one is cancelled.  kDeadlineExceeded: no room came.
  //   kInvalidArgument: more argument bytes than ever fit.
  // `turns_of`: per-worker values that it has a turn of: behind its arguments stand the numbers (8
  // bytes each) of the turns, which are its own whichever worker runs it; one that is cancelled
  // leaves them to the next.
  // `step`: see ClosureDispatcher::Schedule.
  // `terms`: an execution that takes longer than it may is the closure's error, kDeadlineExceeded,
  // and the end of its executor.
  Result<RemoteValue> Schedule(std::uint32_t function, const KeptBytes& arguments,
                               TimePoint deadline = TimePoint::max(),
                               std::span<const ClosureId> turns_of = {}, std::uint64_t step = 0,
                               const ClosureTerms& terms = {});
  // ClosureDispatcher::Options::staleness, second_runs and errors from now on.
  void SetStaleness(std::uint64_t staleness);
  void SetSecondRuns(std::uint32_t most);
  void SetErrors(const ErrorPolicy::Options& errors);
  // What it was made with.
  const Options& options() const;
  // As RemoteValue::Fetch().  kInvalidArgument: it is not this driver's.
  Result<KeptBytes> Fetch(const RemoteValue& value, TimePoint deadline = TimePoint::max());
  // Waits until all closures have ended.  kDeadlineExceeded: says how many have not.
  Status Join(TimePoint deadline = TimePoint::max());
  // Whether they have. Waits only where one has failed, for what was in flight then.
  Result<bool> Done(TimePoint deadline = TimePoint::max());

  // Values that each worker has one of; the id goes into the arguments of closures that use it.
  //   kInvalidArgument: more argument bytes than ever fit.
  Result<ClosureId> CreatePerWorker(std::uint32_t function, const KeptBytes& arguments);
  // It ends when all closures that are scheduled now have ended: they may use it.
  void ReleasePerWorker(ClosureId value);
  // Waits until it is built there, or has failed to be; what its build has left as its value.
  //   kNotFound: no such value or task.  kAborted: the worker is lost.  kDeadlineExceeded: says who
  //   is at work, unless the deadline is TimePoint::min(): it was a look.
  Result<KeptBytes> AwaitPerWorker(ClosureId value, const std::string& task, TimePoint deadline);

  struct Counts {
    std::size_t queued = 0;
    std::size_t in_flight = 0;
    std::size_t workers = 0;
    std::uint64_t scheduled = 0;
    std::uint64_t succeeded = 0;
    // Executions that were not their closure's first.
    std::uint64_t reruns = 0;
    // All up to this one have ended for good.
    ClosureId settled;
    // All closures of steps have, whatever others do; with SetStaleness() alone.
    bool steps_ended = true;
    // Nothing beyond what was given out will be, and that has ended (SetPace).
    bool drained = false;
    // An error waits for Schedule, Join or Done.
    bool failed = false;
    std::size_t futures = 0;
    // Results of closures that came, and how long their functions ran, all in all. Without builds
    // of per-worker values.
    std::uint64_t executions = 0;
    std::chrono::nanoseconds run{0};
    // Calls of Fetch() that have ended, and how long they took.
    std::uint64_t fetches = 0;
    std::chrono::nanoseconds fetch{0};
    // Executors that were lost; tasks that had another one afterwards, and how long that took.
    std::uint64_t losses = 0;
    std::uint64_t recoveries = 0;
    std::chrono::nanoseconds recovery{0};
  };
  Counts counts() const;
  // What is waited for, for people: "2 queued, 3 in flight on worker:0, worker:1".
  std::string Waiting() const;

 private:
  const std::shared_ptr<DriverCore> core_;
};

}  // namespace muster::dispatch
