#include "services/trainer/driver_pipe.h"

#include <chrono>
#include <utility>

#include "common/messages/status_proto.h"

namespace muster::trainer {
namespace {

// The coordinator answers within milliseconds; a checkpoint takes as long as the disks do, and
// buffers to evaluate with hold BeginEvaluation() for 30 s.
constexpr std::chrono::seconds kDeadline{60};
constexpr std::chrono::minutes kCheckpointDeadline{30};
// One OpenJob() call; it is repeated.
constexpr std::chrono::seconds kOpenSlice{30};
// Its pipe is full while it stands still.
constexpr Millis kPatience{std::chrono::hours(24)};

}  // namespace

DriverPipe::DriverPipe(process::MessagePipe& pipe, const v1::ProgramStart& start,
                       std::function<void(const Status&)> on_closed)
    : pipe_(pipe),
      job_id_(start.job_id()),
      driver_(start.incarnation()),
      on_closed_(std::move(on_closed)),
      reader_([this] { Read(); }) {}

DriverPipe::~DriverPipe() {
  pipe_.Shutdown();
  reader_.join();
}

void DriverPipe::Read() {
  for (;;) {
    v1::ToProgram message;
    const Status status = pipe_.Receive(message);
    {
      const MutexLock lock(mutex_);
      if (!status.ok()) {
        closed_ = true;
      } else if (!message.has_answer()) {
        messages_.push_back(std::move(message));
      } else if (message.answer().number() == call_) {  // else of one that was given up
        answer_ = std::move(*message.mutable_answer());
      }
      arrived_.notify_all();
    }
    if (!status.ok()) return on_closed_(status);
  }
}

std::optional<v1::ToProgram> DriverPipe::Next() {
  const MutexLock lock(mutex_);
  while (!closed_ && messages_.empty()) arrived_.wait(mutex_);
  if (messages_.empty()) return std::nullopt;
  v1::ToProgram message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

// The reader learns that the coordinator has gone.
void DriverPipe::Send(const v1::FromProgram& message) { (void)pipe_.Send(message, kPatience); }

template <class Request>
void DriverPipe::Fill(Request& request, ViewId view) const {
  request.set_job_id(job_id_);
  request.set_view(view.value());
  request.set_driver(driver_.value());
}

Result<v1::DriverAnswer> DriverPipe::Call(v1::FromProgram message, Millis limit) {
  const TimePoint deadline = std::chrono::steady_clock::now() + limit;
  {
    const MutexLock lock(mutex_);
    message.mutable_call()->set_number(++call_);
    answer_.reset();
  }
  Send(message);
  const MutexLock lock(mutex_);
  while (!closed_ && !answer_ && arrived_.wait_until(mutex_, deadline)) {
  }
  if (answer_) {
    MUSTER_TRY(FromProto(answer_->status()));
    return *std::exchange(answer_, std::nullopt);
  }
  if (closed_) return Unavailable("coordinator: the pipe to it has closed");
  return DeadlineExceeded("coordinator: no answer in {} s", limit.count() / 1000);
}

Result<v1::OpenJobReply> DriverPipe::OpenJob() {
  v1::FromProgram message;
  v1::OpenJobRequest& request = *message.mutable_call()->mutable_open_job();
  request.set_job_id(job_id_);
  request.set_driver(driver_.value());
  MUSTER_TRY_ASSIGN(v1::DriverAnswer answer, Call(std::move(message), kOpenSlice));
  return std::move(*answer.mutable_open_job());
}

Result<v1::BeginEvaluationReply> DriverPipe::BeginEvaluation(ViewId view,
                                                             const v1::ModelReport& report) {
  v1::FromProgram message;
  v1::BeginEvaluationRequest& request = *message.mutable_call()->mutable_begin_evaluation();
  Fill(request, view);
  *request.mutable_report() = report;
  MUSTER_TRY_ASSIGN(const v1::DriverAnswer answer, Call(std::move(message), kDeadline));
  return answer.begin_evaluation();
}

Result<v1::SaveCheckpointReply> DriverPipe::SaveCheckpoint(ViewId view, std::uint64_t step,
                                                           const v1::ModelReport& report) {
  v1::FromProgram message;
  v1::SaveCheckpointRequest& request = *message.mutable_call()->mutable_save_checkpoint();
  Fill(request, view);
  request.set_step(step);
  *request.mutable_report() = report;
  MUSTER_TRY_ASSIGN(const v1::DriverAnswer answer, Call(std::move(message), kCheckpointDeadline));
  return answer.save_checkpoint();
}

Result<v1::ReportProgressReply> DriverPipe::Report(ViewId view, const v1::JobProgress& progress,
                                                   const v1::EvaluationResult* evaluation) {
  v1::FromProgram message;
  v1::ReportProgressRequest& request = *message.mutable_call()->mutable_report_progress();
  Fill(request, view);
  *request.mutable_progress() = progress;
  if (evaluation != nullptr) *request.mutable_evaluation() = *evaluation;
  MUSTER_TRY_ASSIGN(const v1::DriverAnswer answer, Call(std::move(message), kDeadline));
  return answer.report_progress();
}

Status DriverPipe::Finish(ViewId view, const Status& status, const v1::EvaluationResult* evaluation,
                          const v1::ModelReport& report) {
  v1::FromProgram message;
  v1::FinishJobRequest& request = *message.mutable_call()->mutable_finish_job();
  Fill(request, view);
  SetStatus(status, *request.mutable_status());
  if (evaluation != nullptr) *request.mutable_evaluation() = *evaluation;
  *request.mutable_report() = report;
  return Call(std::move(message), kDeadline).status();
}

}  // namespace muster::trainer
