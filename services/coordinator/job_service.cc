#include "services/coordinator/job_service.h"

#include "common/rpc/stalled_call.h"
#include "services/coordinator/backup_stream.h"
#include "services/coordinator/log_stream.h"

namespace muster::coordinator {
namespace {

constexpr Millis kMostWatch{60'000};

// Receives one upload; it touches nothing but its file, so it stays on gRPC's threads.
class UploadStream : public grpc::ServerReadReactor<v1::UploadFileRequest> {
 public:
  UploadStream(Front& front, grpc::CallbackServerContext* context, const FileStore& files,
               v1::UploadFileReply* reply)
      : front_(front),
        files_(files),
        reply_(reply),
        stalled_(front.strand, front.stall_limit, [context] { context->TryCancel(); }) {
    const auto caller = front.Authorize(*context, tls::Role::kSubmitter, "upload");
    if (caller.ok()) {
      who_ = caller->ToString();
      Next();
    } else {
      Answer(caller.status());
    }
  }
  void OnReadDone(bool ok) override {
    stalled_.Went();
    if (!ok) return End(OfDisk(Complete()));
    if (const Status status = Take(); !status.ok()) return End(OfDisk(status));
    Next();
  }
  void OnDone() override { delete this; }

 private:
  void Next() {
    stalled_.Waits();
    StartRead(&in_);
  }
  Status Take() {
    if (writer_ == nullptr) {
      sha256_ = in_.sha256();  // later messages do not name it
      MUSTER_TRY_ASSIGN(writer_, files_.Begin(sha256_));
    }
    return writer_->Append(in_.data());
  }
  Status Complete() {
    if (writer_ == nullptr) return InvalidArgument("an upload's first message names its SHA-256");
    MUSTER_TRY_ASSIGN(const std::uint64_t bytes, writer_->Commit());
    reply_->set_bytes(bytes);
    return Ok();
  }
  void End(const Status& status) {
    front_.audit.Change(who_, "upload", sha256_, status);
    Answer(status);
  }
  void Answer(const Status& status) { Finish(services::ToGrpc(status)); }

  Front& front_;
  const FileStore& files_;
  std::string who_;
  std::string sha256_;
  v1::UploadFileReply* const reply_;
  v1::UploadFileRequest in_;
  std::unique_ptr<FileStore::Writer> writer_;
  rpc::StalledCall stalled_;
};

}  // namespace

grpc::ServerUnaryReactor* JobServiceImpl::HasFile(grpc::CallbackServerContext* context,
                                                  const v1::HasFileRequest* request,
                                                  v1::HasFileReply* reply) {
  return Serve(front_, context, tls::Role::kSubmitter, "upload", reply,
               [this, request](Coordinator&, auto then) {
                 const Result<std::string> path = files_.Path(request->sha256());
                 if (!path.ok()) return then(path.status());
                 files_.Look(front_.disks, request->sha256(), [then](bool there) {
                   v1::HasFileReply answer;
                   answer.set_present(there);
                   then(std::move(answer));
                 });
               });
}

grpc::ServerReadReactor<v1::UploadFileRequest>* JobServiceImpl::UploadFile(
    grpc::CallbackServerContext* context, v1::UploadFileReply* reply) {
  return new UploadStream(front_, context, files_, reply);
}

grpc::ServerUnaryReactor* JobServiceImpl::SubmitJob(grpc::CallbackServerContext* context,
                                                    const v1::SubmitJobRequest* request,
                                                    v1::SubmitJobReply* reply) {
  return Serve(
      front_, context, tls::Role::kSubmitter, "submit", reply,
      [this, request](Coordinator& core, const services::Caller& caller, auto then) {
        v1::SubmitJobRequest owned = *request;
        // Nodes are not people.
        owned.set_owner(caller.role == tls::Role::kNode ? "" : caller.names.front());
        if (owned.dry_run()) return core.Submit(owned, std::move(then));
        core.Submit(owned, Recorded<v1::SubmitJobReply>(
                               front_, caller, "submit", owned.spec().name(), std::move(then),
                               [](const v1::SubmitJobReply& answer) { return answer.job().id(); }));
      });
}

grpc::ServerUnaryReactor* JobServiceImpl::ListJobs(grpc::CallbackServerContext* context,
                                                   const v1::ListJobsRequest*,
                                                   v1::ListJobsReply* reply) {
  return Serve(front_, context, tls::Role::kViewer, "jobs", reply,
               [this](Coordinator& core, const services::Caller& caller, auto then) {
                 front_.audit.Look(caller.ToString(), "jobs", "", Ok());
                 then(core.List());
               });
}

grpc::ServerUnaryReactor* JobServiceImpl::GetJob(grpc::CallbackServerContext* context,
                                                 const v1::GetJobRequest* request, v1::Job* reply) {
  return Serve(front_, context, tls::Role::kViewer, "describe", reply,
               [this, request](Coordinator&, const services::Caller& caller, auto then) {
                 const Result<Job*> job = front_.Look(caller, "describe", request->job());
                 if (!job.ok()) return then(job.status());
                 (*job)->Describe(std::move(then));
               });
}

grpc::ServerUnaryReactor* JobServiceImpl::WatchJob(grpc::CallbackServerContext* context,
                                                   const v1::WatchJobRequest* request,
                                                   v1::Job* reply) {
  return Serve(front_, context, tls::Role::kViewer, "watch", reply,
               [this, request](Coordinator&, const services::Caller& caller, auto then) {
                 const Result<Job*> job = front_.Look(caller, "watch", request->job());
                 if (!job.ok()) return then(job.status());
                 (*job)->Watch(request->version(),
                               std::min(Millis(request->timeout_ms()), kMostWatch),
                               std::move(then));
               });
}

grpc::ServerUnaryReactor* JobServiceImpl::StopJob(grpc::CallbackServerContext* context,
                                                  const v1::StopJobRequest* request,
                                                  v1::Job* reply) {
  return Serve(front_, context, tls::Role::kSubmitter, "stop", reply,
               [this, request](Coordinator& core, const services::Caller& caller, auto then) {
                 const Result<Job*> job = core.Find(request->job());
                 front_.audit.Change(caller.ToString(), "stop",
                                     job.ok() ? (*job)->id() : request->job(), job.status());
                 if (!job.ok()) return then(job.status());
                 (*job)->Stop(Millis(request->grace_ms()));
                 (*job)->WhenWritten([job = *job, then](const Status& written) {
                   if (!written.ok()) return then(written);
                   job->Describe(then);
                 });
               });
}

grpc::ServerWriteReactor<v1::LogRecord>* JobServiceImpl::ReadLogs(
    grpc::CallbackServerContext* context, const v1::ReadLogsRequest* request) {
  return StreamLogs(front_, context, *request);
}

grpc::ServerUnaryReactor* JobServiceImpl::GetStatus(grpc::CallbackServerContext* context,
                                                    const v1::GetStatusRequest*,
                                                    v1::ClusterStatus* reply) {
  return Serve(front_, context, tls::Role::kViewer, "status", reply,
               [this](Coordinator& core, const services::Caller& caller, auto then) {
                 front_.audit.Look(caller.ToString(), "status", "", Ok());
                 then(core.Status());
               });
}

grpc::ServerUnaryReactor* JobServiceImpl::ListCheckpoints(grpc::CallbackServerContext* context,
                                                          const v1::ListCheckpointsRequest* request,
                                                          v1::ListCheckpointsReply* reply) {
  return Serve(front_, context, tls::Role::kViewer, "checkpoints", reply,
               [this, request](Coordinator& core, const services::Caller& caller, auto then) {
                 (void)front_.Look(caller, "checkpoints", request->job());
                 core.ListCheckpoints(request->job(), std::move(then));
               });
}

grpc::ServerUnaryReactor* JobServiceImpl::CollectCheckpoints(
    grpc::CallbackServerContext* context, const v1::CollectCheckpointsRequest* request,
    v1::CollectCheckpointsReply* reply) {
  return Serve(front_, context, tls::Role::kSubmitter, "collect", reply,
               [this, request](Coordinator& core, const services::Caller& caller, auto then) {
                 if (request->dry_run()) return core.CollectCheckpoints(*request, std::move(then));
                 core.CollectCheckpoints(
                     *request, Recorded<v1::CollectCheckpointsReply>(
                                   front_, caller, "collect", request->job(), std::move(then)));
               });
}

grpc::ServerUnaryReactor* JobServiceImpl::DrainTask(grpc::CallbackServerContext* context,
                                                    const v1::DrainTaskRequest* request,
                                                    v1::DrainTaskReply* reply) {
  return Serve(front_, context, tls::Role::kSubmitter, "drain", reply,
               [this, request](Coordinator& core, const services::Caller& caller, auto then) {
                 const TaskId task = FromProto(request->task());
                 core.TakeOut(task, caller.names.empty() ? "" : caller.ToString(),
                              Recorded<v1::DrainTaskReply>(front_, caller, "drain", task.ToString(),
                                                           std::move(then)));
               });
}

grpc::ServerUnaryReactor* JobServiceImpl::UndrainTask(grpc::CallbackServerContext* context,
                                                      const v1::UndrainTaskRequest* request,
                                                      v1::UndrainTaskReply* reply) {
  return Serve(front_, context, tls::Role::kSubmitter, "undrain", reply,
               [this, request](Coordinator& core, const services::Caller& caller, auto then) {
                 const TaskId task = FromProto(request->task());
                 core.LetIn(task, Recorded<v1::UndrainTaskReply>(front_, caller, "undrain",
                                                                 task.ToString(), std::move(then)));
               });
}

grpc::ServerWriteReactor<v1::FileChunk>* JobServiceImpl::Backup(
    grpc::CallbackServerContext* context, const v1::BackupRequest*) {
  return StreamBackup(front_, context, state_directory_);
}

grpc::ServerUnaryReactor* JobServiceImpl::ReportExit(grpc::CallbackServerContext* context,
                                                     const v1::ReportExitRequest* request,
                                                     v1::ReportExitReply* reply) {
  return Serve(front_, context, tls::Role::kNode, "report-exit", reply,
               [this, request](Coordinator& core, const services::Caller& caller, auto then) {
                 const TaskId task = FromProto(request->task());
                 if (!caller.MayBe(task.ToString())) {
                   return then(front_.Refuse(
                       caller.ToString(), "report-exit", task.ToString(),
                       PermissionDenied("{} may not say how {} ended: its certificate does not "
                                        "name that task",
                                        caller.ToString(), task.ToString())));
                 }
                 core.OnDaemonExit(task, request->pid(), request->how());
                 then(v1::ReportExitReply());
               });
}

}  // namespace muster::coordinator
