// The driver's side of a program: links to the executors that its daemon names, and what the daemon
// is told.
//
// Each member has a thread that connects it, and again after a break, until its daemon says that it
// is gone. A thread of its own reads what the daemon says, another one reports.
//
// Threading: any thread. Lifetime: that of the process; its daemon's end is the process's.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "program/runtime.h"

#include "common/base/mutex.h"
#include "common/process/message_pipe.h"
#include "muster/v1/program.pb.h"

namespace muster::program::internal {

class DriverRuntime final : public Runtime {
 public:
  DriverRuntime(const v1::ProgramStart& start, process::MessagePipe& pipe);

  // Says that it has begun, and begins to listen and to report.
  Status Begin(const Options& options);

  dispatch::Driver& dispatch() override { return driver_; }
  Status AwaitWorkers(std::size_t n, TimePoint deadline) override;
  std::vector<Worker> workers() const override;
  std::vector<Task> tasks() const override;
  void OnMembers(std::function<void(const v1::ProgramMembers&)> tell) override;
  std::stop_token stop_requested() const override { return stop_.get_token(); }
  void Report(std::string phase) override;
  void End(const Status& status) override;
  // End(OK), unless it has been called.
  void EndAtExit();

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
    std::thread keeper;
  };

  void Listen();
  void SetMembers(const v1::ProgramMembers& members);
  void OnVerdict(const v1::ExecutorVerdict& verdict);
  void OnLost(const std::string& task);
  // No more of it; the caller disconnects it without the lock.
  void Retire(std::map<std::string, std::shared_ptr<Member>>::iterator member)
      MUSTER_REQUIRES(mutex_);
  void Reap() MUSTER_REQUIRES(mutex_);
  void Keep(const std::shared_ptr<Member>& member);
  Status Connect(const v1::ProgramWorker& worker, const std::string& task);
  std::string Missing(std::size_t n) const MUSTER_REQUIRES(mutex_);
  void ReportNow();
  void ReportAgainAndAgain();

  const v1::ProgramStart& start_;
  process::MessagePipe& pipe_;
  std::stop_source stop_;

  mutable Mutex mutex_;
  Condition changed_;
  std::map<std::string, std::shared_ptr<Member>> members_ MUSTER_GUARDED_BY(mutex_);
  std::list<std::shared_ptr<Member>> retired_ MUSTER_GUARDED_BY(mutex_);
  v1::ProgramMembers known_ MUSTER_GUARDED_BY(mutex_);
  // By index, of all members that ever were.
  std::set<std::uint32_t> workers_seen_ MUSTER_GUARDED_BY(mutex_);
  std::set<std::uint32_t> servers_seen_ MUSTER_GUARDED_BY(mutex_);
  std::string phase_ MUSTER_GUARDED_BY(mutex_);

  Mutex tell_mutex_;  // one call at a time
  std::function<void(const v1::ProgramMembers&)> tell_ MUSTER_GUARDED_BY(tell_mutex_);

  Mutex report_mutex_;
  Condition report_changed_;
  bool ended_ MUSTER_GUARDED_BY(report_mutex_) = false;
  std::string sent_ MUSTER_GUARDED_BY(report_mutex_);
  std::vector<std::pair<TimePoint, std::uint64_t>> rate_ MUSTER_GUARDED_BY(report_mutex_);

  std::thread listener_;
  std::thread reporter_;
  // Last: its callback uses what is above.
  dispatch::Driver driver_;
};

}  // namespace muster::program::internal
