// The executor's conversation with its worker daemon: messages in, answers out
// (proto/muster/v1/executor.proto).
//
// Threading: Serve() computes on the calling thread and receives on one of its own, so that batches
// of assigned closures are read ahead and the end of the daemon is noticed during a long step.
// Lifetime: the pipe outlives it.
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
#include "services/executor/job_run.h"

namespace muster::executor {

class Executor {
 public:
  struct Options {
    // The cluster's token, for the parameter servers.
    std::string token;
    // Runs on the receiving thread when the daemon has closed the pipe; may end the process.
    std::function<void(const Status&)> on_closed;
  };

  Executor(process::MessagePipe& pipe, Options options);

  // Until the pipe closes; returns why (kUnavailable: closed, the ordinary end).
  Status Serve();

 private:
  void Receive();
  std::optional<v1::ToExecutor> Next();
  Status Handle(const v1::ToExecutor& message);
  Status Start(const v1::ExecutorStart& start);
  Status Check(const v1::ToExecutor& message);
  Status GiveValues(const v1::GetValues& request);
  Status RunClosure(const v1::ClosureAssignment& assignment);

  process::MessagePipe& pipe_;
  const Options options_;

  Mutex mutex_;
  Condition arrived_;
  std::deque<v1::ToExecutor> inbox_ MUSTER_GUARDED_BY(mutex_);
  Status closed_ MUSTER_GUARDED_BY(mutex_);
  // Set under the mutex; the receiving thread announces closures to it.
  std::shared_ptr<JobRun> run_;
};

}  // namespace muster::executor
