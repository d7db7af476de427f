// A driver's links to the executors that its daemon names.
//
// Each member has a thread that connects it, and again after a break, until its daemon says that it
// is gone.
//
// Threading: any thread. Lifetime: that of the process, as `start`.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "dispatch/driver.h"
#include "program/runtime.h"

#include "common/base/mutex.h"
#include "muster/v1/program.pb.h"

namespace muster::program::internal {

// What a daemon's verdict says of who ended an executor.
dispatch::Suspects::Cause CauseOf(v1::ExecutorVerdict::Cause cause);

class DriverLinks {
 public:
  // What `start` says goes before what `options` have: epoch, incarnation, key.
  DriverLinks(const v1::ProgramStart& start, dispatch::Driver::Options options);

  dispatch::Driver& driver() { return driver_; }

  // Takes the new list: keepers of those that are new begin, those of the others end. False: it is
  // older than the one before it.
  bool SetMembers(const v1::ProgramMembers& members);
  // Passes the verdict on, if it is about the executor that had the task's closures last.
  dispatch::ClosureDispatcher::Crash OnVerdict(const v1::ExecutorVerdict& verdict);
  // Joins the keepers that have ended. False: of members that are gone some have not.
  bool Reap();

  // See Runtime. Stopped: kCancelled.
  Status AwaitWorkers(std::size_t n, TimePoint deadline, const std::stop_token& stop);
  // Who waits looks again.
  void Wake();
  std::vector<Worker> workers() const;
  // All that ever were.
  std::vector<Task> tasks() const;
  v1::ProgramMembers known() const;

 private:
  struct Member {
    v1::ProgramWorker worker;
    std::string task;
    bool wanted = true;
    bool connected = false;
    // Links that broke, so that one that does so before it is known to be there is not missed.
    std::uint64_t breaks = 0;
    Status last;  // of the last try
    bool over = false;
    // For its keeper: one for all would wake a thousand at each change of one.
    Condition changed;
    std::thread keeper;

    Incarnation incarnation() const { return Incarnation(worker.incarnation()); }
  };

  void OnLost(const std::string& task, Incarnation incarnation);
  // No more of it; the caller disconnects it without the lock.
  void Retire(std::map<std::string, std::shared_ptr<Member>>::iterator member)
      MUSTER_REQUIRES(mutex_);
  void JoinEnded() MUSTER_REQUIRES(mutex_);
  void Keep(const std::shared_ptr<Member>& member);
  Status Connect(const v1::ProgramWorker& worker, const std::string& task);
  std::string Missing(std::size_t n) const MUSTER_REQUIRES(mutex_);

  const v1::ProgramStart& start_;

  mutable Mutex mutex_;
  Condition changed_;  // for who waits for workers
  std::map<std::string, std::shared_ptr<Member>> members_ MUSTER_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Member>> retired_ MUSTER_GUARDED_BY(mutex_);
  v1::ProgramMembers known_ MUSTER_GUARDED_BY(mutex_);
  // By index, of all members that ever were.
  std::set<std::uint32_t> workers_seen_ MUSTER_GUARDED_BY(mutex_);
  std::set<std::uint32_t> servers_seen_ MUSTER_GUARDED_BY(mutex_);

  // Last: its callback uses what is above.
  dispatch::Driver driver_;
};

}  // namespace muster::program::internal
