// JobService (proto/muster/v1/jobs.proto) over the coordinator.
#pragma once

#include <string>
#include <utility>

#include "muster/v1/jobs.grpc.pb.h"
#include "services/coordinator/file_store.h"
#include "services/coordinator/front.h"

namespace muster::coordinator {

// Lifetime: `front` and `files` outlive it.
class JobServiceImpl : public v1::JobService::CallbackService {
 public:
  JobServiceImpl(Front& front, const FileStore& files, std::string state_directory)
      : front_(front), files_(files), state_directory_(std::move(state_directory)) {}

  grpc::ServerUnaryReactor* HasFile(grpc::CallbackServerContext* context,
                                    const v1::HasFileRequest* request,
                                    v1::HasFileReply* reply) override;
  grpc::ServerReadReactor<v1::UploadFileRequest>* UploadFile(grpc::CallbackServerContext* context,
                                                             v1::UploadFileReply* reply) override;
  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::SubmitJobReply* reply) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsReply* reply) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request, v1::Job* reply) override;
  grpc::ServerUnaryReactor* WatchJob(grpc::CallbackServerContext* context,
                                     const v1::WatchJobRequest* request, v1::Job* reply) override;
  grpc::ServerUnaryReactor* StopJob(grpc::CallbackServerContext* context,
                                    const v1::StopJobRequest* request, v1::Job* reply) override;
  grpc::ServerWriteReactor<v1::LogRecord>* ReadLogs(grpc::CallbackServerContext* context,
                                                    const v1::ReadLogsRequest* request) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::ClusterStatus* reply) override;
  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext* context,
                                            const v1::ListCheckpointsRequest* request,
                                            v1::ListCheckpointsReply* reply) override;
  grpc::ServerUnaryReactor* CollectCheckpoints(grpc::CallbackServerContext* context,
                                               const v1::CollectCheckpointsRequest* request,
                                               v1::CollectCheckpointsReply* reply) override;
  grpc::ServerUnaryReactor* DrainTask(grpc::CallbackServerContext* context,
                                      const v1::DrainTaskRequest* request,
                                      v1::DrainTaskReply* reply) override;
  grpc::ServerUnaryReactor* UndrainTask(grpc::CallbackServerContext* context,
                                        const v1::UndrainTaskRequest* request,
                                        v1::UndrainTaskReply* reply) override;
  grpc::ServerWriteReactor<v1::FileChunk>* Backup(grpc::CallbackServerContext* context,
                                                  const v1::BackupRequest* request) override;
  grpc::ServerUnaryReactor* ReportExit(grpc::CallbackServerContext* context,
                                       const v1::ReportExitRequest* request,
                                       v1::ReportExitReply* reply) override;

 private:
  Front& front_;
  const FileStore& files_;
  const std::string state_directory_;
};

}  // namespace muster::coordinator
