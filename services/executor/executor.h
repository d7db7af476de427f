// The executor's conversation with its worker daemon: messages in, answers out
// (proto/muster/v1/executor.proto). Closures come from the job's driver, another way
// (closure_server.h).
//
// Threading: Serve() obeys on the calling thread and receives on one of its own, so that the end of
// the daemon is noticed during a long command. Lifetime: the pipe outlives it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/process/message_pipe.h"
#include "muster/v1/executor.pb.h"
#include "services/executor/closure_server.h"
#include "services/executor/job_run.h"

namespace muster::executor {

class Executor {
 public:
  // `on_closed` runs on the receiving thread when the daemon has closed the pipe, or Serve() has
  // for an error, with that; it may end the process.
  using OnClosed = std::function<void(const Status&)>;

  Executor(process::MessagePipe& pipe, OnClosed on_closed);

  // Until the pipe closes; returns why (kUnavailable: closed, the ordinary end).
  Status Serve();

 private:
  void Receive();
  std::optional<v1::ToExecutor> Next(std::deque<v1::ToExecutor> Executor::* inbox);
  void JoinGroups();
  Status Handle(const v1::ToExecutor& message);
  Status Start(const v1::ExecutorStart& start);
  Status Check(const v1::ToExecutor& message);
  Status Begin(const v1::ExecutorStart& start, v1::ExecutorReady& ready);
  Status Evaluate(const v1::ToExecutor& message);
  Status GiveValues(const v1::GetValues& request);

  process::MessagePipe& pipe_;
  const OnClosed on_closed_;

  Mutex mutex_;
  Condition arrived_;
  std::deque<v1::ToExecutor> inbox_ MUSTER_GUARDED_BY(mutex_);
  std::deque<v1::ToExecutor> joins_ MUSTER_GUARDED_BY(mutex_);
  Status closed_ MUSTER_GUARDED_BY(mutex_);

  // Replaced under the lock; by the thread of Serve() alone, which needs none to look at it.
  std::shared_ptr<JobRun> run_;
  // Runs its closures.
  std::unique_ptr<ClosureServer> server_;
};

}  // namespace muster::executor
