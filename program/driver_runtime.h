// The driver's side of a program: links to the executors that its daemon names, and what the daemon
// is told.
//
// A thread of its own reads what the daemon says, another one reports.
//
// Threading: any thread. Lifetime: that of the process; its daemon's end is the process's.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "program/driver_links.h"
#include "program/runtime.h"

#include "common/base/mutex.h"
#include "common/process/message_pipe.h"
#include "muster/v1/program.pb.h"

namespace muster::program::internal {

class DriverRuntime final : public Runtime {
 public:
  DriverRuntime(const v1::ProgramStart& start, process::MessagePipe& pipe,
                dispatch::Driver::Options options);

  // Says that it has begun, and begins to listen and to report.
  Status Begin(const Options& options);

  dispatch::Driver& dispatch() override { return links_.driver(); }
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
  void Listen();
  void SetMembers(const v1::ProgramMembers& members);
  void ReportNow();
  void ReportAgainAndAgain();

  process::MessagePipe& pipe_;
  std::stop_source stop_;

  Mutex mutex_;
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
  DriverLinks links_;
};

}  // namespace muster::program::internal
