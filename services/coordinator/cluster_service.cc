#include "services/coordinator/cluster_service.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/version_skew.h"
#include "common/base/words.h"
#include "common/rpc/transfer.h"
#include "common/telemetry/log.h"

namespace muster::coordinator {
namespace {

// A stream that is ending has so long to write what is on its way before it is cut off.
constexpr Millis kEndGrace{1'000};

// One daemon's control stream. Everything but the gRPC callbacks themselves, which only post, runs
// on the strand; the object lives until gRPC and the coordinator have both let go of it.
class AttachStream : public grpc::ServerBidiReactor<v1::DaemonMessage, v1::CoordinatorMessage>,
                     public DaemonLink,
                     public std::enable_shared_from_this<AttachStream> {
 public:
  AttachStream(Front& front, grpc::CallbackServerContext* context)
      : front_(front), context_(context) {}

  void Begin(const Result<services::Caller>& caller) {
    self_ = shared_from_this();
    Post([this, caller] {
      if (!caller.ok()) return End(caller.status());
      caller_ = *caller;
      StartRead(&in_);
    });
  }

  // --- DaemonLink, on the strand.
  void Send(const v1::CoordinatorMessage& message) override {
    if (ending_) return;
    out_.push_back(message);
    WriteNext();
  }
  void End(const Status& status) override {
    if (ending_) return;
    ending_ = services::ToGrpc(status);
    if (!writing_) return FinishNow();
    (void)front_.strand.RunAfter(kEndGrace, [self = shared_from_this()] {
      if (!self->finished_) self->context_->TryCancel();
    });
  }

  // --- gRPC's callbacks, on its threads.
  void OnReadDone(bool ok) override {
    Post([this, ok] { ok ? Read() : Closed(); });
  }
  void OnWriteDone(bool) override {
    Post([this] {
      writing_ = false;
      if (!out_.empty()) out_.pop_front();
      WriteNext();
    });
  }
  void OnDone() override {
    Post([this] {
      Closed();
      self_.reset();
    });
  }

 private:
  template <class Function>
  void Post(Function function) {
    front_.strand.Post(
        [self = shared_from_this(), function = std::move(function)]() mutable { function(); });
  }

  void WriteNext() {
    if (writing_ || finished_) return;
    if (!out_.empty()) {
      writing_ = true;
      StartWrite(&out_.front());
    } else if (ending_) {
      FinishNow();
    }
  }

  void FinishNow() {
    if (std::exchange(finished_, true)) return;
    Finish(*ending_);
  }

  void Read() {
    if (finished_ || ending_) return;
    if (front_.core == nullptr) return End(Front::Closing());
    if (const Status may = front_.still_allowed(caller_); !may.ok()) return End(may);
    if (!session_) {
      if (!in_.has_register_()) {
        return End(InvalidArgument("the first message of a stream must be Register"));
      }
      if (const Status status = CheckTask(in_.register_()); !status.ok()) return End(status);
      if (const Status status = CheckVersion(in_.register_()); !status.ok()) return End(status);
      const Result<SessionId> session = front_.core->Register(in_.register_(), shared_from_this());
      if (!session.ok()) return End(session.status());
      session_ = *session;
    } else {
      front_.core->OnMessage(*session_, std::move(in_));
    }
    if (finished_ || ending_) return;
    in_.Clear();
    StartRead(&in_);
  }

  // A certificate names the tasks that its holder may be.
  Status CheckTask(const v1::Register& given) const {
    const std::string task = FromProto(given.task()).ToString();
    if (caller_.MayBe(task)) return Ok();
    return front_.Refuse(
        caller_.ToString(), "attach", task,
        PermissionDenied("{} has the certificate of node {}: give it one of its own", task,
                         Joined(caller_.names)));
  }

  // Each daemon comes again and again; what is odd about it is logged once.
  Status CheckVersion(const v1::Register& given) {
    const std::string task = fmt::format("{}:{}", given.task().type(), given.task().index());
    const VersionSkew skew = CompareVersions(task, given.version(), front_.version);
    if (!skew.warning.empty() && front_.told_of_versions.insert(skew.warning).second) {
      log::Warning("{}", skew.warning);
    }
    return skew.refusal;
  }

  void Closed() {
    if (session_ && front_.core != nullptr) {
      front_.core->OnStreamEnded(*std::exchange(session_, std::nullopt));
    }
    if (!ending_) ending_ = grpc::Status::OK;
    out_.resize(writing_ ? 1 : 0);
    WriteNext();
  }

  Front& front_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<AttachStream> self_;
  v1::DaemonMessage in_;
  std::deque<v1::CoordinatorMessage> out_;
  services::Caller caller_;  // of whose certificate it may be the tasks; none: any
  std::optional<SessionId> session_;
  std::optional<grpc::Status> ending_;
  bool writing_ = false;
  bool finished_ = false;
};

// Streams a file; it touches nothing but that file, so it stays on gRPC's threads.
class FileStream : public grpc::ServerWriteReactor<v1::FileChunk> {
 public:
  FileStream(Front& front, grpc::CallbackServerContext* context, const FileStore& files,
             const std::string& sha256)
      : stalled_(front.strand, front.stall_limit, [context] { context->TryCancel(); }) {
    const Status authorized = front.Authorize(*context, tls::Role::kNode, "fetch").status();
    const Status opened = authorized.ok() ? Open(files, sha256) : authorized;
    if (opened.ok()) {
      Next();
    } else {
      Finish(services::ToGrpc(opened));
    }
  }
  void OnWriteDone(bool ok) override {
    stalled_.Went();
    if (!ok) return Finish(grpc::Status::CANCELLED);
    chunk_.clear_total_bytes();
    Next();
  }
  void OnDone() override { delete this; }

 private:
  Status Open(const FileStore& files, const std::string& sha256) {
    MUSTER_TRY_ASSIGN(path_, files.Path(sha256));
    file_.open(path_, std::ios::binary);
    // Only a file that is not there may be the job's mistake.
    if (!file_ && errno != ENOENT) {
      const Status why = FromErrno(errno, "read " + path_);
      return why.code() == StatusCode::kResourceExhausted ? why : Unknown("{}", Message(why));
    }
    if (!file_) return NotFound("no file with SHA-256 {} has been uploaded", sha256);
    std::error_code unknown;
    const auto bytes = std::filesystem::file_size(path_, unknown);
    if (!unknown) chunk_.set_total_bytes(bytes);
    return Ok();
  }
  void Next() {
    std::string& data = *chunk_.mutable_data();
    data.resize(rpc::kPieceBytes);
    file_.read(data.data(), static_cast<std::streamsize>(data.size()));
    data.resize(static_cast<std::size_t>(file_.gcount()));
    if (data.empty()) return Finish(services::ToGrpc(HowItEnded()));
    stalled_.Waits();
    StartWrite(&chunk_);
  }

  // Whoever fetches it would take a short file for a damaged one, and not look at this disk.
  Status HowItEnded() const {
    if (!file_.bad()) return Ok();
    return Unknown("the disk of the coordinator failed in the midst of {}", path_);
  }

  std::string path_;
  std::ifstream file_;
  v1::FileChunk chunk_;
  rpc::StalledCall stalled_;
};

}  // namespace

grpc::ServerBidiReactor<v1::DaemonMessage, v1::CoordinatorMessage>* ClusterServiceImpl::Attach(
    grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<AttachStream>(front_, context);
  stream->Begin(front_.Authorize(*context, tls::Role::kNode, "attach"));
  return stream.get();
}

grpc::ServerWriteReactor<v1::FileChunk>* ClusterServiceImpl::FetchFile(
    grpc::CallbackServerContext* context, const v1::FetchFileRequest* request) {
  return new FileStream(front_, context, files_, request->sha256());
}

}  // namespace muster::coordinator
