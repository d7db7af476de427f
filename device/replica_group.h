// The threads of N replicas, and the points where they meet.
//
// A run starts one function on every replica's thread. The caller wakes replica 0 and sleeps, and
// replica 0 wakes the others: a caller that woke all would still be on a processor itself, and two
// replicas would often begin on one, for some milliseconds. Between meetings replicas run
// concurrently.
// At a meeting all replicas must arrive with the same kind of call; the last to arrive does the
// joint work, on its own thread, and all go on. So a meeting costs one wake-up for each other
// replica, or none for one that comes just before the last: it looks for a moment before it sleeps.
//
// When a replica throws, replicas that wait at a meeting are unwound with kCancelled, the others at
// their next meeting. When one returns while another waits, or they meet with different calls, all
// that wait get kFailedPrecondition, which names the replicas. Run() returns only when all threads
// rest.
//
// The threads do not follow a fork(): in the child Run() throws kFailedPrecondition, and the group
// goes without a wait for threads that are not there.
//
// Threading: Run() from one thread at a time; Meet() from the replicas' threads inside Run().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace muster::device {

// One replica's part of a meeting. Kinds are compared by value: they say which call in the program
// this is ("merge_call of <type>", "all_reduce SUM").
struct Arrival {
  std::string kind;
  void* arguments = nullptr;
};

class ReplicaGroup {
 public:
  // Builds the exception that a status becomes where it leaves the group; strategy/ throws its own.
  using Throw = std::function<std::exception_ptr(const Status&)>;

  // Throws kResourceExhausted: not all threads could be started; none is left.
  ReplicaGroup(int replicas, Throw make_exception);
  ~ReplicaGroup();

  int size() const { return size_; }

  // Runs `replica(r)` for every r on r's thread; rethrows the exception of the lowest replica that
  // failed by itself (one that was only unwound does not count). kFailedPrecondition: in a child.
  void Run(const std::function<void(int)>& replica);

  // Called by replica r. The last to arrive runs `joint` with everybody's arguments in replica
  // order; what it throws is thrown in every replica. Returns when it has run.
  // With a timeout, those who wait longer end the meeting with kDeadlineExceeded; 0 is none.
  void Meet(int replica, Arrival arrival, const std::function<void(std::vector<void*>&)>& joint,
            std::optional<std::chrono::milliseconds> timeout = std::nullopt);

 private:
  enum class State { kIdle, kRunning, kWaiting, kReturned, kFailed };
  // Each one who waits keeps its own meeting: the next one may begin before the last has left this.
  struct Meeting {
    std::atomic<bool> over = false;  // written with the mutex held
    std::exception_ptr error;        // read once it is over
    bool unwinds = false;            // the error is not that of those who get it
  };

  void ThreadMain(int replica);
  void StopThreads();
  void Finish(int replica, std::exception_ptr error);
  // What a child that was forked must not touch: a condition variable waits in its destructor for
  // threads that wait for it, and there they never do.
  struct Threads {
    Mutex mutex;
    Condition first, start, meet, done;
    std::vector<std::thread> all;
  };

  const Throw make_exception_;
  const unsigned forks_;  // before this group was made
  std::unique_ptr<Threads> threads_;

  // When those who have not arrived never will.
  void FailMeetingIfStuck() MUSTER_REQUIRES(threads_->mutex);
  void EndMeeting(std::exception_ptr error, bool unwinds = false) MUSTER_REQUIRES(threads_->mutex);
  bool SameCalls() const MUSTER_REQUIRES(threads_->mutex);
  Status MismatchedCalls() const MUSTER_REQUIRES(threads_->mutex);
  std::string Describe() const MUSTER_REQUIRES(threads_->mutex);

  const int size_;
  const std::function<void(int)>* function_ MUSTER_GUARDED_BY(threads_->mutex) = nullptr;
  std::uint64_t run_ MUSTER_GUARDED_BY(threads_->mutex) = 0;
  std::uint64_t started_ MUSTER_GUARDED_BY(threads_->mutex) =
      0;  // the run that replica 0 has begun
  std::shared_ptr<Meeting> meeting_ MUSTER_GUARDED_BY(threads_->mutex);
  int running_ MUSTER_GUARDED_BY(threads_->mutex) = 0;
  int waiting_ MUSTER_GUARDED_BY(threads_->mutex) = 0;
  bool stopping_ MUSTER_GUARDED_BY(threads_->mutex) = false;
  bool cancelled_ MUSTER_GUARDED_BY(threads_->mutex) = false;
  std::vector<State> states_ MUSTER_GUARDED_BY(threads_->mutex);
  std::vector<Arrival> arrivals_ MUSTER_GUARDED_BY(threads_->mutex);
  std::vector<std::exception_ptr> errors_ MUSTER_GUARDED_BY(threads_->mutex);
  std::vector<bool> unwound_ MUSTER_GUARDED_BY(threads_->mutex);
};

}  // namespace muster::device
