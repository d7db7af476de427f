// Serves the closures of a job to its driver: the door of dispatch/ to a JobRun, and a pulse to the
// worker daemon, which sees no closures.
//
// Threading: made and used by one thread; threads of its own serve. Lifetime: run and pipe outlive
// it; destruction waits for the closure that runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "dispatch/executor.h"

#include "common/base/mutex.h"
#include "common/net/socket.h"
#include "common/process/message_pipe.h"
#include "muster/v1/cluster.pb.h"
#include "services/executor/job_run.h"

namespace muster::executor {

class ClosureServer {
 public:
  // As start.start().program() says.
  static Result<std::unique_ptr<ClosureServer>> Start(const v1::ExecutorStart& start, JobRun& run,
                                                      process::MessagePipe& pipe);
  ~ClosureServer();

  v1::DataEndpoint endpoint() const { return endpoint_; }
  void BeginPulse();
  // Takes no more closures; what it has runs on.
  void Drain();

 private:
  ClosureServer(JobRun& run, process::MessagePipe& pipe) : run_(run), pipe_(pipe) {}
  Status Open(const v1::ExecutorStart& start);
  Status Call(dispatch::ClosureContext& context);
  void AddPart(v1::ProgramPulse& pulse) const;
  void Pulse();

  JobRun& run_;
  process::MessagePipe& pipe_;
  unsigned threads_ = 1;
  dispatch::FunctionTable functions_;
  std::vector<net::Listener> listeners_;
  v1::DataEndpoint endpoint_;
  std::unique_ptr<dispatch::Executor> executor_;
  // The step, or batch, that runs: a closure's number says less.
  std::atomic<std::uint64_t> running_{0};
  std::atomic<bool> draining_{false};

  Mutex mutex_;
  Condition changed_;
  bool over_ MUSTER_GUARDED_BY(mutex_) = false;
  std::thread server_;
  std::thread pulse_;
};

}  // namespace muster::executor
