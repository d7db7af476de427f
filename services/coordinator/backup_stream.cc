#include "services/coordinator/backup_stream.h"

#include <cerrno>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "common/net/fd.h"
#include "common/telemetry/log.h"
#include "coordinator/backup.h"
#include "services/coordinator/write_stream.h"

namespace muster::coordinator {
namespace {

constexpr std::size_t kChunk = 1 << 20;

// On the strand, as all of them, but for the disk's work.
class BackupStream : public WriteStream<v1::FileChunk> {
 public:
  BackupStream(Front& front, grpc::CallbackServerContext* context, std::string state_directory)
      : WriteStream(front, context), state_directory_(std::move(state_directory)) {}

  void Begin(const Result<services::Caller>& caller) {
    Hold();
    Post([this, caller] {
      if (!caller.ok()) return End(caller.status());
      front_.audit.Change(caller->ToString(), "backup", "", Ok());
      // Beside the state: what has room for one has room for the other, mostly.
      OnDisk([this] { return Make(); }, [this] { Next(); });
    });
  }

 private:
  void OnSent() override { Next(); }

  template <class Work, class Then>
  void OnDisk(Work work, Then then) {
    // No answer: no thread could be started for it.
    auto status = std::make_shared<Status>(ResourceExhausted("no thread can be started"));
    front_.disks.Run(
        "backup", [self = shared_from_this(), status, work = std::move(work)] { *status = work(); },
        [following = Following(shared_from_this(), this), this, status,
         then = std::move(then)]() mutable {
          const auto self = following.Comes();
          if (!status->ok()) return End(OfDisk(*status));
          then();
        });
  }

  // What follows a piece of the disk's work. When the coordinator stops, that is dropped instead:
  // the call ends, for which the server waits.
  class Following {
   public:
    Following(std::shared_ptr<void> self, BackupStream* call)
        : self_(std::move(self)), call_(call) {}
    ~Following() {
      if (self_ == nullptr) return;
      call_->Post([call = call_] { call->End(Front::Closing()); });
    }
    Following(Following&&) = default;
    Following& operator=(Following&&) = delete;
    // Returns what keeps the call.
    std::shared_ptr<void> Comes() { return std::move(self_); }

   private:
    std::shared_ptr<void> self_;
    BackupStream* const call_;
  };

  // Two at a time have files of their own; the name goes as soon as it is made. One that a crash
  // leaves before that goes at the next start.
  Status Make() {
    std::string path = fmt::format("{}/{}XXXXXX", state_directory_, kUnfinishedBackup);
    const net::Fd made(::mkostemp(path.data(), O_CLOEXEC));
    if (!made.valid()) return FromErrno(errno, "make " + path);
    const Result<BackupContents> contents = WriteBackup(state_directory_, path);
    file_.Reset(contents.ok() ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC) : -1);
    const int error = errno;
    (void)::unlink(path.c_str());
    if (!contents.ok()) return contents.status();
    if (!file_.valid()) return FromErrno(error, "read " + path);
    log::Info("backup: {} jobs and {} files, {} bytes", contents->jobs, contents->files,
              contents->bytes);
    return Ok();
  }
  void Next() {
    OnDisk([this] { return Read(); },
           [this] {
             if (chunk_.data().empty()) return End(Ok());
             Send(chunk_);
           });
  }
  Status Read() {
    std::string& data = *chunk_.mutable_data();
    data.resize(kChunk);
    const ssize_t got = ::read(file_.get(), data.data(), data.size());
    if (got < 0) return FromErrno(errno, "read the backup");
    data.resize(static_cast<std::size_t>(got));
    return Ok();
  }
  const std::string state_directory_;
  net::Fd file_;
  v1::FileChunk chunk_;
};

}  // namespace

grpc::ServerWriteReactor<v1::FileChunk>* StreamBackup(Front& front,
                                                      grpc::CallbackServerContext* context,
                                                      const std::string& state_directory) {
  auto stream = std::make_shared<BackupStream>(front, context, state_directory);
  stream->Begin(front.Authorize(*context, tls::Role::kSubmitter, "backup"));
  return stream.get();
}

}  // namespace muster::coordinator
