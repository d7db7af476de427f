// JobService without gRPC, so that the commands are tested against a scripted coordinator.
// Errors are those of proto/muster/v1/jobs.proto, and:
//   kUnavailable: nothing answers.  kUnauthenticated: the token is not the cluster's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/version.h"
#include "common/rpc/transfer.h"
#include "muster/v1/jobs.pb.h"

namespace muster::cli {

// Threading: one call at a time; CancelCalls() from any thread.
class JobApi {
 public:
  virtual ~JobApi() = default;
  virtual Result<v1::HasFileReply> HasFile(const v1::HasFileRequest& request) = 0;
  // `read` answers the next piece, an empty one at the end; `bytes`: of all of them. May take as
  // long as they are taken. kUnavailable, too: they are not any more; says how far it had come.
  virtual Result<v1::UploadFileReply> Upload(const std::string& sha256, std::uint64_t bytes,
                                             const std::function<Result<std::string>()>& read) = 0;
  virtual Result<v1::SubmitJobReply> Submit(const v1::SubmitJobRequest& request) = 0;
  virtual Result<v1::ListJobsReply> List() = 0;
  virtual Result<v1::Job> Get(const std::string& job) = 0;
  // Answers when the job's version is above `version`, or after `limit`.
  virtual Result<v1::Job> Watch(const std::string& job, std::uint64_t version,
                                std::chrono::milliseconds limit) = 0;
  virtual Result<v1::Job> Stop(const v1::StopJobRequest& request) = 0;
  // Ends when the stream does.
  virtual Status ReadLogs(const v1::ReadLogsRequest& request,
                          const std::function<void(const v1::LogRecord&)>& on_record) = 0;
  virtual Result<v1::ClusterStatus> GetStatus() = 0;
  virtual Result<v1::ListCheckpointsReply> ListCheckpoints(const std::string& job) = 0;
  virtual Result<v1::CollectCheckpointsReply> CollectCheckpoints(
      const v1::CollectCheckpointsRequest& request) = 0;
  virtual Result<v1::DrainTaskReply> Drain(const v1::Task& task) = 0;
  virtual Result<v1::UndrainTaskReply> Undrain(const v1::Task& task) = 0;
  // `write` is given the pieces of the file, in order; an error of its own ends the call.
  virtual Status Backup(const std::function<Status(const std::string&)>& write) = 0;
  virtual Status ReportExit(const v1::ReportExitRequest& request) = 0;

  // Ends the call in progress, and every later one, with kCancelled.
  virtual void CancelCalls() = 0;
};

// A client of the cluster's coordinator. Connects with the first call.
// `printable`: what it answers is shown as it is, so control characters are spelled out.
// `warn` is told once when the coordinator is of another minor version than `version`, this
// program's. Of another major one each call is kFailedPrecondition.
// `stall_limit`: for how long nothing of an upload may move.
// `silence`: after so long without a byte from the coordinator its host is asked whether it is
// there, and has half of that time to answer; a call that is open then ends with kUnavailable.
struct Cluster;
std::unique_ptr<JobApi> NewGrpcJobApi(const Cluster& cluster, bool printable = false,
                                      std::function<void(const std::string&)> warn = nullptr,
                                      std::string_view version = Version(),
                                      std::chrono::milliseconds stall_limit = rpc::kStandsStill,
                                      std::chrono::milliseconds silence = std::chrono::seconds(10));

}  // namespace muster::cli
