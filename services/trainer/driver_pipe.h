// The trainer's end of the pipe to its coordinator (proto/muster/v1/program.proto): what it asks,
// whose answers come among the other messages, and these.
//
// Threading: one thread calls, one takes messages; Send() from any. A thread of its own reads.
// Lifetime: that of the process, as the pipe's; the end of the pipe is the process's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/process/message_pipe.h"
#include "muster/v1/program.pb.h"
#include "services/trainer/driver_api.h"

namespace muster::trainer {

// Every call has a deadline; what it waits for is named in the error.
class DriverPipe final : public DriverApi {
 public:
  // `start`: the first message, which has come. `on_closed` runs on the reading thread.
  DriverPipe(process::MessagePipe& pipe, const v1::ProgramStart& start,
             std::function<void(const Status&)> on_closed);
  DriverPipe(const DriverPipe&) = delete;
  DriverPipe& operator=(const DriverPipe&) = delete;
  // Waits until the pipe has closed.
  ~DriverPipe() override;

  // The next message that answers no call; none: the pipe has closed.
  std::optional<v1::ToProgram> Next();
  // Waits while the coordinator stands still, which is no end.
  void Send(const v1::FromProgram& message);

  Result<v1::OpenJobReply> OpenJob() override;
  Result<v1::BeginEvaluationReply> BeginEvaluation(ViewId view,
                                                   const v1::ModelReport& report) override;
  Result<v1::SaveCheckpointReply> SaveCheckpoint(ViewId view, std::uint64_t step,
                                                 const v1::ModelReport& report) override;
  Result<v1::ReportProgressReply> Report(ViewId view, const v1::JobProgress& progress,
                                         const v1::EvaluationResult* evaluation) override;
  Status Finish(ViewId view, const Status& status, const v1::EvaluationResult* evaluation,
                const v1::ModelReport& report) override;

 private:
  void Read();
  template <class Request>
  void Fill(Request& request, ViewId view) const;
  Result<v1::DriverAnswer> Call(v1::FromProgram message, Millis limit);

  process::MessagePipe& pipe_;
  const std::string job_id_;
  const Incarnation driver_;
  const std::function<void(const Status&)> on_closed_;

  Mutex mutex_;
  Condition arrived_;
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;
  std::deque<v1::ToProgram> messages_ MUSTER_GUARDED_BY(mutex_);
  // The call that waits, and its answer.
  std::uint64_t call_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::optional<v1::DriverAnswer> answer_ MUSTER_GUARDED_BY(mutex_);

  std::thread reader_;
};

}  // namespace muster::trainer
