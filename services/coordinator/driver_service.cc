#include "services/coordinator/driver_service.h"

#include "common/rpc/credentials.h"

namespace muster::coordinator {
namespace {

// Serves a call that names a job by its id. A request lives until its call has been answered.
template <class Reply, class Request, class Call>
grpc::ServerUnaryReactor* ServeJob(Front& front, grpc::CallbackServerContext* context,
                                   const Request* request, Reply* reply, Call call) {
  return Serve(
      front, context, tls::Role::kNode, "drive", reply,
      [&front, request, call](Coordinator& core, const services::Caller& caller, auto then) {
        // Drivers are processes of the coordinator's host, and have its certificate.
        if (!caller.MayBe(rpc::kCoordinatorTask)) {
          return then(front.Refuse(
              caller, "drive", request->job_id(),
              PermissionDenied("{} may not drive a job: its driver has the certificate of node {}, "
                               "the coordinator's",
                               caller.ToString(), rpc::kCoordinatorTask)));
        }
        const Result<ModelJob*> job = core.FindModel(request->job_id());
        if (!job.ok()) return then(job.status());
        call(**job, *request, std::move(then));
      });
}

}  // namespace

grpc::ServerUnaryReactor* DriverServiceImpl::OpenJob(grpc::CallbackServerContext* context,
                                                     const v1::OpenJobRequest* request,
                                                     v1::OpenJobReply* reply) {
  return ServeJob(front_, context, request, reply, [](ModelJob& job, const auto& asked, auto then) {
    job.OpenJob(asked, std::move(then));
  });
}

grpc::ServerUnaryReactor* DriverServiceImpl::BeginEvaluation(
    grpc::CallbackServerContext* context, const v1::BeginEvaluationRequest* request,
    v1::BeginEvaluationReply* reply) {
  return ServeJob(front_, context, request, reply, [](ModelJob& job, const auto& asked, auto then) {
    job.BeginEvaluation(asked, std::move(then));
  });
}

grpc::ServerUnaryReactor* DriverServiceImpl::SaveCheckpoint(
    grpc::CallbackServerContext* context, const v1::SaveCheckpointRequest* request,
    v1::SaveCheckpointReply* reply) {
  return ServeJob(front_, context, request, reply, [](ModelJob& job, const auto& asked, auto then) {
    job.SaveCheckpoint(asked, std::move(then));
  });
}

grpc::ServerUnaryReactor* DriverServiceImpl::ReportProgress(
    grpc::CallbackServerContext* context, const v1::ReportProgressRequest* request,
    v1::ReportProgressReply* reply) {
  return ServeJob(front_, context, request, reply, [](ModelJob& job, const auto& asked, auto then) {
    then(job.ReportProgress(asked));
  });
}

grpc::ServerUnaryReactor* DriverServiceImpl::FinishJob(grpc::CallbackServerContext* context,
                                                       const v1::FinishJobRequest* request,
                                                       v1::FinishJobReply* reply) {
  return ServeJob(front_, context, request, reply, [](ModelJob& job, const auto& asked, auto then) {
    job.FinishJob(asked, [then](const Status& status) {
      then(status.ok() ? Result<v1::FinishJobReply>(v1::FinishJobReply()) : status);
    });
  });
}

}  // namespace muster::coordinator
