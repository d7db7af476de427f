#include "services/trainer/driver_client.h"

#include <chrono>
#include <utility>

#include <grpcpp/client_context.h>

#include "common/messages/status_proto.h"
#include "muster/v1/driver.grpc.pb.h"
#include "services/common/grpc_channel.h"
#include "services/common/token.h"

namespace muster::trainer {
namespace {

using services::Authorize;
using services::FromGrpc;

// The coordinator answers within milliseconds; a checkpoint takes as long as the disks do, and
// buffers to evaluate with hold BeginEvaluation() for 30 s.
constexpr std::chrono::seconds kDeadline{60};
constexpr std::chrono::minutes kCheckpointDeadline{30};
// One OpenJob() call; it is repeated.
constexpr std::chrono::seconds kOpenSlice{30};

class DriverClient final : public DriverApi {
 public:
  DriverClient(std::shared_ptr<grpc::Channel> channel, const services::Token& token,
               std::string job_id, Incarnation driver)
      : stub_(v1::DriverService::NewStub(std::move(channel))),
        token_(token),
        job_id_(std::move(job_id)),
        driver_(driver) {}

  Result<v1::OpenJobReply> OpenJob() override {
    v1::OpenJobRequest request;
    request.set_job_id(job_id_);
    request.set_driver(driver_.value());
    v1::OpenJobReply reply;
    MUSTER_TRY(Call(&v1::DriverService::Stub::OpenJob, request, reply, kOpenSlice));
    return reply;
  }

  Result<v1::BeginEvaluationReply> BeginEvaluation(ViewId view,
                                                   const v1::ModelReport& report) override {
    auto request = Request<v1::BeginEvaluationRequest>(view);
    *request.mutable_report() = report;
    v1::BeginEvaluationReply reply;
    MUSTER_TRY(Call(&v1::DriverService::Stub::BeginEvaluation, request, reply, kDeadline));
    return reply;
  }

  Result<v1::SaveCheckpointReply> SaveCheckpoint(ViewId view, std::uint64_t step,
                                                 const v1::ModelReport& report) override {
    auto request = Request<v1::SaveCheckpointRequest>(view);
    request.set_step(step);
    *request.mutable_report() = report;
    v1::SaveCheckpointReply reply;
    MUSTER_TRY(Call(&v1::DriverService::Stub::SaveCheckpoint, request, reply, kCheckpointDeadline));
    return reply;
  }

  Result<v1::ReportProgressReply> Report(ViewId view, const v1::JobProgress& progress,
                                         const v1::EvaluationResult* evaluation) override {
    auto request = Request<v1::ReportProgressRequest>(view);
    *request.mutable_progress() = progress;
    if (evaluation != nullptr) *request.mutable_evaluation() = *evaluation;
    v1::ReportProgressReply reply;
    MUSTER_TRY(Call(&v1::DriverService::Stub::ReportProgress, request, reply, kDeadline));
    return reply;
  }

  Status Finish(ViewId view, const Status& status, const v1::EvaluationResult* evaluation,
                const v1::ModelReport& report) override {
    auto request = Request<v1::FinishJobRequest>(view);
    SetStatus(status, *request.mutable_status());
    if (evaluation != nullptr) *request.mutable_evaluation() = *evaluation;
    *request.mutable_report() = report;
    v1::FinishJobReply reply;
    return Call(&v1::DriverService::Stub::FinishJob, request, reply, kDeadline);
  }

 private:
  template <class Message>
  Message Request(ViewId view) const {
    Message request;
    request.set_job_id(job_id_);
    request.set_view(view.value());
    request.set_driver(driver_.value());
    return request;
  }

  template <class Message, class Reply, class Deadline>
  Status Call(grpc::Status (v1::DriverService::Stub::*method)(grpc::ClientContext*, const Message&,
                                                              Reply*),
              const Message& request, Reply& reply, Deadline deadline) {
    grpc::ClientContext context;
    Authorize(context, token_);
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    const Status status = FromGrpc(((*stub_).*method)(&context, request, &reply));
    // Its answers speak for themselves; that none came needs its name.
    const bool lost =
        status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDeadlineExceeded;
    return lost ? Annotate(status, "coordinator") : status;
  }

  const std::unique_ptr<v1::DriverService::Stub> stub_;
  const services::Token& token_;
  const std::string job_id_;
  const Incarnation driver_;
};

}  // namespace

std::unique_ptr<DriverApi> MakeDriverClient(std::shared_ptr<grpc::Channel> channel,
                                            const services::Token& token, std::string job_id,
                                            Incarnation driver) {
  return std::make_unique<DriverClient>(std::move(channel), token, std::move(job_id), driver);
}

}  // namespace muster::trainer
