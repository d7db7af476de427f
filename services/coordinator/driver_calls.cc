#include "services/coordinator/driver_calls.h"

#include "common/messages/status_proto.h"

namespace muster::coordinator {
namespace {

using Then = std::function<void(const Status&, v1::DriverAnswer)>;

// The reply goes into the part of the answer that is its.
template <class Reply>
std::function<void(Result<Reply>)> Into(Reply* (v1::DriverAnswer::*part)(), Then then) {
  return [part, then = std::move(then)](Result<Reply> reply) {
    v1::DriverAnswer answer;
    if (reply.ok()) *(answer.*part)() = *std::move(reply);
    then(reply.status(), std::move(answer));
  };
}

}  // namespace

Result<ModelJob*> DriverCalls::JobOf(const Asker& asker, const std::string& job_id,
                                     Incarnation driver) const {
  if (job_id == asker.job && driver == asker.driver) return front_.core->FindModel(job_id);
  return front_.Refuse(
      "the driver of " + asker.job, "drive", job_id,
      PermissionDenied(
          "driver {} of job {} may not call as driver {} of job {}: it drives that one job alone",
          asker.driver, asker.job, driver, job_id));
}

// Each call goes to the job that it names, once its driver has been found to be that job's; the
// answer may come later.
void DriverCalls::Serve(const Asker& asker, const v1::DriverCall& call) {
  const Then then = [this, asker, number = call.number()](const Status& status,
                                                          v1::DriverAnswer answer) {
    answer.set_number(number);
    SetStatus(status, *answer.mutable_status());
    answer_(asker, std::move(answer));
  };
  const auto serve = [&](const auto& request, const auto& on) {
    const Result<ModelJob*> job = JobOf(asker, request.job_id(), Incarnation(request.driver()));
    if (!job.ok()) return then(job.status(), {});
    on(**job, request);
  };
  switch (call.asked_case()) {
    case v1::DriverCall::kOpenJob:
      return serve(call.open_job(), [&](ModelJob& job, const auto& request) {
        job.OpenJob(request, Into(&v1::DriverAnswer::mutable_open_job, then));
      });
    case v1::DriverCall::kBeginEvaluation:
      return serve(call.begin_evaluation(), [&](ModelJob& job, const auto& request) {
        job.BeginEvaluation(request, Into(&v1::DriverAnswer::mutable_begin_evaluation, then));
      });
    case v1::DriverCall::kSaveCheckpoint:
      return serve(call.save_checkpoint(), [&](ModelJob& job, const auto& request) {
        job.SaveCheckpoint(request, Into(&v1::DriverAnswer::mutable_save_checkpoint, then));
      });
    case v1::DriverCall::kReportProgress:
      return serve(call.report_progress(), [&](ModelJob& job, const auto& request) {
        Into(&v1::DriverAnswer::mutable_report_progress, then)(job.ReportProgress(request));
      });
    case v1::DriverCall::kFinishJob:
      return serve(call.finish_job(), [&](ModelJob& job, const auto& request) {
        job.FinishJob(request, [then](const Status& status) { then(status, {}); });
      });
    default:
      return then(Unimplemented("the driver asks what this coordinator does not know"), {});
  }
}

}  // namespace muster::coordinator
