// The evaluator: a process beside the driver that runs main(), too, and has no executors.
//
// Threading: any thread. Lifetime: that of the process; its daemon's end is the process's.
#pragma once

#include <map>
#include <stop_token>
#include <string>
#include <thread>

#include "program/runtime.h"

#include "common/base/mutex.h"
#include "common/process/message_pipe.h"

namespace muster::program::internal {

class EvaluatorRuntime final : public Evaluator {
 public:
  explicit EvaluatorRuntime(process::MessagePipe& pipe) : pipe_(pipe) {}

  // Says that it has begun, and begins to listen.
  Status Begin(const Options& options);

  std::stop_token stop_requested() const override { return stop_.get_token(); }
  void Evaluated(const std::string& checkpoint,
                 const std::map<std::string, double>& values) override;
  // How main() ends, once.
  void End(const Status& status);

 private:
  void Listen();

  process::MessagePipe& pipe_;
  std::stop_source stop_;
  Mutex mutex_;
  bool ended_ MUSTER_GUARDED_BY(mutex_) = false;
  std::thread listener_;
};

}  // namespace muster::program::internal
