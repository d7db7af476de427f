#include <atomic>
#include <cstdlib>
#include <optional>
#include <utility>

#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>

#include "cli/cluster_finder.h"
#include "cli/job_api.h"
#include "cli/printable.h"
#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/version_skew.h"
#include "common/base/words.h"
#include "common/net/probe_tls.h"
#include "common/rpc/credentials.h"
#include "common/rpc/names.h"
#include "common/rpc/transfer.h"
#include "common/rpc/version_key.h"
#include "muster/v1/jobs.grpc.pb.h"

namespace muster::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The deadlines that jobs.proto names.
constexpr seconds kShort{10};
constexpr seconds kSubmit{120};
constexpr seconds kCollect{600};
constexpr std::chrono::hours kBackup{1};
// A log that is not followed is finite; one that is followed has the job's own end.
constexpr std::chrono::hours kLogs{24 * 365};
// Above the longest wait inside Watch.
constexpr seconds kWatchSlack{5};
// For a handshake that asks why there was none.
constexpr seconds kProbe{3};

// Its words may quote a job's own. `answered`: the coordinator itself has said so.
Status FromGrpc(const grpc::Status& status, const std::string& address, tls::Context* tls,
                bool answered) {
  if (status.ok()) return Ok();
  const auto code = static_cast<StatusCode>(status.error_code());
  // No worker for a dry run, a database that cannot be written: it is there, and says what is not.
  if (answered && code == StatusCode::kUnavailable) {
    return MakeStatus(code, Printable(status.error_message()));
  }
  // Then gRPC has made the code of HTTP's, which says nothing of a cluster.
  if (status.error_message().find("http2 header with status") != std::string::npos) {
    return Unavailable(
        "no coordinator answers at {}: what listens there speaks HTTP/2 but no gRPC: a proxy, or "
        "another program ({})",
        address, Printable(status.error_message()));
  }
  if (code == StatusCode::kUnavailable) {
    const Status trouble = net::TlsTrouble(address, tls, std::string(rpc::kCoordinatorTask),
                                           "command", std::chrono::steady_clock::now() + kProbe);
    if (!trouble.ok()) {
      return Annotate(trouble, fmt::format("the coordinator at {}", address));
    }
    return Unavailable("no coordinator answers at {}: {}", address,
                       Printable(TransportWords(status.error_message())));
  }
  if (code == StatusCode::kDeadlineExceeded) {
    return DeadlineExceeded("the coordinator at {} took too long: {}", address,
                            Printable(TransportWords(status.error_message())));
  }
  if (code == StatusCode::kUnauthenticated) {
    return Unauthenticated("the coordinator at {} refused this caller: {}", address,
                           Printable(status.error_message()));
  }
  if (code == StatusCode::kUnimplemented && status.error_message().empty()) {
    return Unimplemented("{}: {}", address, kNoSuchCall);
  }
  return MakeStatus(code, Printable(status.error_message()));
}

class GrpcJobApi final : public JobApi {
 public:
  GrpcJobApi(const Cluster& cluster, bool printable, std::function<void(const std::string&)> warn,
             std::string_view version, milliseconds stall_limit, milliseconds silence)
      : address_(cluster.address),
        token_(cluster.token),
        tls_(cluster.tls),
        printable_(printable),
        warn_(std::move(warn)),
        version_(version),
        stall_limit_(stall_limit),
        silence_(silence) {
    // gRPC's own lines beside our errors help nobody who has not asked for them.
    if (std::getenv("GRPC_VERBOSITY") == nullptr) {
      gpr_set_log_function([](gpr_log_func_args*) {});
    }
    Connect();
  }

  Result<v1::HasFileReply> HasFile(const v1::HasFileRequest& request) override {
    return Unary<v1::HasFileReply>(kShort, &v1::JobService::Stub::HasFile, request);
  }
  Result<v1::SubmitJobReply> Submit(const v1::SubmitJobRequest& request) override {
    return Unary<v1::SubmitJobReply>(kSubmit, &v1::JobService::Stub::SubmitJob, request);
  }
  Result<v1::ListJobsReply> List() override {
    return Unary<v1::ListJobsReply>(kShort, &v1::JobService::Stub::ListJobs, v1::ListJobsRequest());
  }
  Result<v1::Job> Get(const std::string& job) override {
    v1::GetJobRequest request;
    request.set_job(job);
    return Unary<v1::Job>(kShort, &v1::JobService::Stub::GetJob, request);
  }
  Result<v1::Job> Watch(const std::string& job, std::uint64_t version,
                        milliseconds limit) override {
    v1::WatchJobRequest request;
    request.set_job(job);
    request.set_version(version);
    request.set_timeout_ms(static_cast<std::uint32_t>(limit.count()));
    return Unary<v1::Job>(limit + kWatchSlack, &v1::JobService::Stub::WatchJob, request);
  }
  Result<v1::Job> Stop(const v1::StopJobRequest& request) override {
    return Unary<v1::Job>(kShort, &v1::JobService::Stub::StopJob, request);
  }
  Result<v1::ClusterStatus> GetStatus() override {
    return Unary<v1::ClusterStatus>(kShort, &v1::JobService::Stub::GetStatus,
                                    v1::GetStatusRequest());
  }
  Result<v1::ListCheckpointsReply> ListCheckpoints(const std::string& job) override {
    v1::ListCheckpointsRequest request;
    request.set_job(job);
    return Unary<v1::ListCheckpointsReply>(kShort, &v1::JobService::Stub::ListCheckpoints, request);
  }

  Result<v1::CollectCheckpointsReply> CollectCheckpoints(
      const v1::CollectCheckpointsRequest& request) override {
    return Unary<v1::CollectCheckpointsReply>(kCollect, &v1::JobService::Stub::CollectCheckpoints,
                                              request);
  }
  Result<v1::DrainTaskReply> Drain(const v1::Task& task) override {
    v1::DrainTaskRequest request;
    *request.mutable_task() = task;
    return Unary<v1::DrainTaskReply>(kShort, &v1::JobService::Stub::DrainTask, request);
  }
  Result<v1::UndrainTaskReply> Undrain(const v1::Task& task) override {
    v1::UndrainTaskRequest request;
    *request.mutable_task() = task;
    return Unary<v1::UndrainTaskReply>(kShort, &v1::JobService::Stub::UndrainTask, request);
  }

  // However long the whole takes: the call is ended only when no piece moves, or none can be read.
  Result<v1::UploadFileReply> Upload(const std::string& sha256, std::uint64_t bytes,
                                     const std::function<Result<std::string>()>& read) override {
    Call call(*this, std::nullopt);
    ThreadScheduler timers;
    rpc::Transfer transfer(timers, stall_limit_, [&call] { call.context.TryCancel(); }, bytes);
    v1::UploadFileReply reply;
    const auto channel = channel_;  // outlives the stream
    const auto writer = stub_->UploadFile(&call.context, &reply);
    v1::UploadFileRequest piece;
    piece.set_sha256(sha256);
    while (true) {
      Result<std::string> data = read();
      if (!data.ok()) {
        call.context.TryCancel();
        (void)writer->Finish();
        return data.status();
      }
      const std::size_t size = data->size();
      // An empty file still sends its hash.
      if (size == 0 && piece.sha256().empty()) break;
      piece.set_data(*std::move(data));
      transfer.Waits();
      const bool taken = writer->Write(piece);
      transfer.Went(taken ? size : 0);
      // A refused write ends the stream; Finish says why.
      if (!taken || size == 0) break;
      piece.clear_sha256();
    }
    transfer.Waits();
    writer->WritesDone();
    const grpc::Status ended = writer->Finish();
    transfer.Went(0);
    MUSTER_TRY(transfer.Explain(Answer(ended)));
    return reply;
  }

  Status ReadLogs(const v1::ReadLogsRequest& request,
                  const std::function<void(const v1::LogRecord&)>& on_record) override {
    Call call(*this, kLogs);
    const auto channel = channel_;  // outlives the stream
    const auto reader = stub_->ReadLogs(&call.context, request);
    v1::LogRecord record;
    while (reader->Read(&record)) {
      if (printable_) MakePrintable(record);
      on_record(record);
    }
    return Answer(reader->Finish());
  }

  Status Backup(const std::function<Status(const std::string&)>& write) override {
    Call call(*this, kBackup);
    const auto channel = channel_;  // outlives the stream
    const auto reader = stub_->Backup(&call.context, v1::BackupRequest());
    v1::FileChunk chunk;
    while (reader->Read(&chunk)) {
      if (Status status = write(chunk.data()); !status.ok()) {
        call.context.TryCancel();
        (void)reader->Finish();
        return status;
      }
    }
    return Answer(reader->Finish());
  }

  Status ReportExit(const v1::ReportExitRequest& request) override {
    return Unary<v1::ReportExitReply>(seconds(1), &v1::JobService::Stub::ReportExit, request)
        .status();
  }

  void CancelCalls() override {
    const MutexLock lock(mutex_);
    cancelled_ = true;
    if (current_ != nullptr) current_->TryCancel();
  }

 private:
  // A context that CancelCalls() reaches while the call lasts.
  struct Call {
    Call(GrpcJobApi& api, std::optional<milliseconds> limit) : owner(api) {
      if (limit) context.set_deadline(std::chrono::system_clock::now() + *limit);
      if (!api.token_.empty()) {
        context.AddMetadata("authorization", "Bearer " + api.token_);
      }
      const MutexLock lock(api.mutex_);
      api.current_ = &context;
      if (api.cancelled_) context.TryCancel();
    }
    ~Call() {
      const MutexLock lock(owner.mutex_);
      owner.current_ = nullptr;
    }
    GrpcJobApi& owner;
    grpc::ClientContext context;
  };

  void Connect() {
    grpc::ChannelArguments arguments;
    // The time that one attempt to connect may take.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
    // A host that has vanished closes no connection, and the deadline of a log that is followed is
    // a year. Only while a call is open, where a log without a line counts as no data.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(silence_.count()));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(silence_.count() / 2));
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetMaxReceiveMessageSize(64 << 20);
    arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, rpc::kMsBetweenLookups);
    // The cluster's own addresses are no business of a proxy.
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // Its own connection: one that was refused would keep the next channel from trying.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ =
        grpc::CreateCustomChannel(rpc::TargetOf(address_), rpc::ClientCredentials(tls_), arguments);
    stub_ = v1::JobService::NewStub(channel_);
  }

  // Whoever asks again does so on another channel: gRPC tries to connect again when it likes, up to
  // seconds later.
  Status Answer(const grpc::Status& status, bool answered = false) {
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) Connect();
    if (status.error_code() == grpc::StatusCode::CANCELLED && WasCancelled()) {
      return Cancelled("interrupted before the coordinator at {} had answered", address_);
    }
    return FromGrpc(status, address_, tls_.get(), answered);
  }

  bool WasCancelled() {
    const MutexLock lock(mutex_);
    return cancelled_;
  }

  // What a coordinator sends with each answer, and nobody else does.
  static bool HasVersion(const grpc::ClientContext& context) {
    return context.GetServerInitialMetadata().contains(rpc::kVersionKey);
  }

  // Says which it is with each answer.
  Status CheckVersion(const grpc::ClientContext& context) {
    const auto& metadata = context.GetServerInitialMetadata();
    const auto found = metadata.find(rpc::kVersionKey);
    if (found == metadata.end()) return Ok();
    const VersionSkew skew =
        CompareVersions("this program", version_, {found->second.data(), found->second.size()});
    if (const auto warn = std::exchange(warn_, nullptr); warn && !skew.warning.empty()) {
      warn(skew.warning);
    }
    return skew.refusal;
  }

  template <class Reply, class Method, class Request>
  Result<Reply> Unary(milliseconds limit, Method method, const Request& request) {
    Call call(*this, limit);
    Reply reply;
    const grpc::Status status = ((*stub_).*method)(&call.context, request, &reply);
    MUSTER_TRY(CheckVersion(call.context));
    MUSTER_TRY(Answer(status, HasVersion(call.context)));
    if (printable_) MakePrintable(reply);
    return reply;
  }

  const std::string address_;
  const std::string token_;
  const std::shared_ptr<tls::Context> tls_;
  const bool printable_;
  std::function<void(const std::string&)> warn_;
  const std::string version_;
  const milliseconds stall_limit_;
  const milliseconds silence_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> stub_;
  Mutex mutex_;
  grpc::ClientContext* current_ MUSTER_GUARDED_BY(mutex_) = nullptr;
  bool cancelled_ MUSTER_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<JobApi> NewGrpcJobApi(const Cluster& cluster, bool printable,
                                      std::function<void(const std::string&)> warn,
                                      std::string_view version, milliseconds stall_limit,
                                      milliseconds silence) {
  return std::make_unique<GrpcJobApi>(cluster, printable, std::move(warn), version, stall_limit,
                                      silence);
}

}  // namespace muster::cli
