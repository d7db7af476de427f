#include "device/replica_group.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <pthread.h>

#include "common/base/time_left.h"
#include "common/base/words.h"

namespace muster::device {
namespace {

// Thrown through a replica's stack when it is not its own failure; never leaves the group.
thread_local bool t_unwinding = false;

// The fork()s between the program's start and this process.
std::atomic<unsigned> g_forks{0};
unsigned Forks() {
  static const int watched =
      pthread_atfork(nullptr, nullptr, [] { g_forks.fetch_add(1, std::memory_order_relaxed); });
  (void)watched;
  return g_forks.load(std::memory_order_relaxed);
}

// What waking a thread takes, about: who looks longer loses more than sleep would have cost.
constexpr auto kLook = std::chrono::microseconds(50);

// Replicas do equal work, so the others often come within this time. The processor is left to any
// other thread that wants it.
void LookBeforeSleep(const std::atomic<bool>& over) {
  const auto end = std::chrono::steady_clock::now() + kLook;
  while (!over && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

}  // namespace

ReplicaGroup::ReplicaGroup(int replicas, Throw make_exception)
    : make_exception_(std::move(make_exception)),
      forks_(Forks()),
      threads_(std::make_unique<Threads>()),
      size_(replicas),
      states_(static_cast<std::size_t>(replicas), State::kIdle),
      arrivals_(static_cast<std::size_t>(replicas)),
      errors_(static_cast<std::size_t>(replicas)),
      unwound_(static_cast<std::size_t>(replicas)) {
  threads_->all.reserve(static_cast<std::size_t>(replicas));
  try {
    for (int r = 0; r < replicas; ++r) threads_->all.emplace_back([this, r] { ThreadMain(r); });
  } catch (const std::exception& error) {
    // Those that have started must end here: the destructor of an object that was never whole is
    // not called.
    const std::size_t started = threads_->all.size();
    StopThreads();
    std::rethrow_exception(make_exception_(ResourceExhausted(
        "a thread for replica {} of {} cannot be had: {}; the user's limit of processes (ulimit "
        "-u), or that of the container or service (pids.max, TasksMax), is reached",
        started, replicas, error.what())));
  }
}

ReplicaGroup::~ReplicaGroup() {
  if (Forks() != forks_) {
    (void)threads_.release();
    return;
  }
  StopThreads();
}

void ReplicaGroup::StopThreads() {
  {
    const MutexLock lock(threads_->mutex);
    stopping_ = true;
  }
  threads_->first.notify_all();
  threads_->start.notify_all();
  for (std::thread& thread : threads_->all) thread.join();
}

// Wakes the replicas for one run, waits until all have come to rest, and rethrows what the lowest
// of those that failed by themselves threw.
void ReplicaGroup::Run(const std::function<void(int)>& replica) {
  if (Forks() != forks_) {
    std::rethrow_exception(make_exception_(FailedPrecondition(
        "this process was forked from one that had used this strategy, and the threads of its {} "
        "replicas stayed there: make the strategy after fork(), or start the child by exec()",
        size())));
  }
  MutexLock lock(threads_->mutex);
  function_ = &replica;
  running_ = size();
  waiting_ = 0;
  cancelled_ = false;
  meeting_ = std::make_shared<Meeting>();
  for (std::size_t r = 0; r < states_.size(); ++r) {
    states_[r] = State::kRunning;
    errors_[r] = nullptr;
    unwound_[r] = false;
  }
  ++run_;
  threads_->first.notify_one();
  while (running_ > 0) threads_->done.wait(threads_->mutex);
  function_ = nullptr;

  std::exception_ptr first;
  for (std::size_t r = 0; r < errors_.size() && first == nullptr; ++r) {
    if (errors_[r] != nullptr && !unwound_[r]) first = errors_[r];
  }
  for (std::size_t r = 0; r < errors_.size() && first == nullptr; ++r) first = errors_[r];
  for (std::exception_ptr& error : errors_) error = nullptr;
  lock.unlock();
  if (first != nullptr) std::rethrow_exception(first);
}

void ReplicaGroup::ThreadMain(int replica) {
  std::uint64_t seen = 0;
  while (true) {
    const std::function<void(int)>* function = nullptr;
    {
      const MutexLock lock(threads_->mutex);
      if (replica == 0) {
        while (!stopping_ && run_ == seen) threads_->first.wait(threads_->mutex);
        started_ = run_;
      } else {
        while (!stopping_ && started_ == seen) threads_->start.wait(threads_->mutex);
      }
      if (stopping_) return;
      seen = started_;
      function = function_;
    }
    if (replica == 0) threads_->start.notify_all();
    std::exception_ptr error;
    t_unwinding = false;
    try {
      (*function)(replica);
    } catch (...) {
      error = std::current_exception();
    }
    Finish(replica, std::move(error));
  }
}

void ReplicaGroup::Finish(int replica, std::exception_ptr error) {
  const auto r = static_cast<std::size_t>(replica);
  const MutexLock lock(threads_->mutex);
  states_[r] = error == nullptr ? State::kReturned : State::kFailed;
  unwound_[r] = error != nullptr && t_unwinding;
  if (error != nullptr) cancelled_ = true;
  // The caller's from here on: the last owner frees it, with no thread of ours beside it.
  errors_[r] = std::move(error);
  FailMeetingIfStuck();
  if (--running_ == 0) threads_->done.notify_all();
}

void ReplicaGroup::FailMeetingIfStuck() {
  if (waiting_ == 0) return;
  if (cancelled_) {
    EndMeeting(
        make_exception_(Cancelled("another replica failed while this one waited: {}", Describe())),
        /*unwinds=*/true);
    return;
  }
  bool somebody_returned = false;
  for (const State state : states_) {
    if (state == State::kRunning) return;
    somebody_returned = somebody_returned || state == State::kReturned;
  }
  if (somebody_returned) EndMeeting(make_exception_(MismatchedCalls()));
}

Status ReplicaGroup::MismatchedCalls() const {
  return FailedPrecondition(
      "every replica must make the same merge and collective calls in the same order, but {}",
      Describe());
}

void ReplicaGroup::EndMeeting(std::exception_ptr error, bool unwinds) {
  for (State& state : states_) {
    if (state == State::kWaiting) state = State::kRunning;
  }
  waiting_ = 0;
  meeting_->error = std::move(error);
  meeting_->unwinds = unwinds;
  meeting_->over = true;
  meeting_ = std::make_shared<Meeting>();
  threads_->meet.notify_all();
}

std::string ReplicaGroup::Describe() const {
  std::vector<std::string> replicas;
  for (std::size_t r = 0; r < states_.size(); ++r) {
    std::string does = "is running";
    if (states_[r] == State::kWaiting) does = "waits in " + arrivals_[r].kind;
    if (states_[r] == State::kReturned) does = "has returned";
    if (states_[r] == State::kFailed) does = "has failed";
    replicas.push_back(fmt::format("replica {} {}", r, does));
  }
  return Joined(replicas);
}

// The last one to come does the joint work, without the lock, while the others sleep. A replica
// that has failed or returned, another call, or the deadline of any of them ends the meeting for
// all.
void ReplicaGroup::Meet(int replica, Arrival arrival,
                        const std::function<void(std::vector<void*>&)>& joint,
                        std::optional<std::chrono::milliseconds> timeout) {
  const auto r = static_cast<std::size_t>(replica);
  MutexLock lock(threads_->mutex);
  if (cancelled_) {
    t_unwinding = true;
    std::rethrow_exception(make_exception_(
        Cancelled("another replica failed before this one's {}: {}", arrival.kind, Describe())));
  }
  const std::shared_ptr<Meeting> meeting = meeting_;
  arrivals_[r] = std::move(arrival);
  states_[r] = State::kWaiting;
  ++waiting_;
  if (waiting_ < size()) {
    FailMeetingIfStuck();
    lock.unlock();
    LookBeforeSleep(meeting->over);
    lock.lock();
    if (timeout.has_value() && timeout->count() > 0) {
      const TimePoint deadline = After(*timeout);
      while (!meeting->over && threads_->meet.wait_until(threads_->mutex, deadline)) {
      }
      // Where all have come, the last one is at the joint work.
      if (!meeting->over && waiting_ < size()) {
        EndMeeting(make_exception_(DeadlineExceeded("not all replicas came within {} ms: {}",
                                                    timeout->count(), Describe())));
      }
    }
    while (!meeting->over) threads_->meet.wait(threads_->mutex);
  } else if (!SameCalls()) {
    EndMeeting(make_exception_(MismatchedCalls()));
  } else {
    // Everybody is here, and sleeps: the joint work needs no lock.
    std::vector<void*> arguments;
    arguments.reserve(arrivals_.size());
    for (const Arrival& one : arrivals_) arguments.push_back(one.arguments);
    lock.unlock();
    std::exception_ptr error;
    try {
      joint(arguments);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    EndMeeting(std::move(error));
  }
  if (meeting->error != nullptr) {
    // Not whether any has failed by now: one that got the same error may have been quicker.
    t_unwinding = meeting->unwinds;
    std::rethrow_exception(meeting->error);
  }
}

bool ReplicaGroup::SameCalls() const {
  for (const Arrival& one : arrivals_) {
    if (one.kind != arrivals_[0].kind) return false;
  }
  return true;
}

}  // namespace muster::device
