#include "services/worker/file_fetch.h"

#include <grpcpp/client_context.h>

#include "muster/v1/cluster.grpc.pb.h"

namespace muster::services {

// A context that Close() reaches while the call lasts.
class FileFetch::Call {
 public:
  explicit Call(FileFetch& owner) : owner_(owner) {
    Authorize(context, owner.token_);
    const MutexLock lock(owner_.mutex_);
    owner_.calls_.insert(&context);
    if (owner_.closed_) context.TryCancel();
  }
  ~Call() {
    const MutexLock lock(owner_.mutex_);
    owner_.calls_.erase(&context);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  grpc::ClientContext context;

 private:
  FileFetch& owner_;
};

FileFetch::FileFetch(const ControlPlane& control, Scheduler& timers, Millis limit)
    : channel_(MakeChannel(control.coordinator, control.tls)),
      token_(control.token),
      timers_(timers),
      limit_(limit) {}

Status FileFetch::Fetch(const std::string& sha256, const FileCache::Sink& sink) {
  const auto stub = v1::ClusterService::NewStub(channel_);
  Call call(*this);
  v1::FetchFileRequest request;
  request.set_sha256(sha256);
  const auto reader = stub->FetchFile(&call.context, request);
  rpc::Transfer transfer(timers_, limit_, [&call] { call.context.TryCancel(); });
  v1::FileChunk chunk;
  while (true) {
    transfer.Waits();
    const bool more = reader->Read(&chunk);
    transfer.Went(more ? chunk.data().size() : 0);
    if (!more) break;
    moved_ += chunk.data().size();
    if (chunk.total_bytes() > 0) transfer.SetTotal(chunk.total_bytes());
    if (Status status = sink(chunk.data()); !status.ok()) {
      call.context.TryCancel();
      (void)reader->Finish();
      return status;
    }
  }
  const Status ended = FromGrpc(reader->Finish());
  if (!ended.ok() && closed()) return Cancelled("fetch from the coordinator: this daemon ends");
  return Annotate(transfer.Explain(ended), "fetch from the coordinator");
}

bool FileFetch::closed() const {
  const MutexLock lock(mutex_);
  return closed_;
}

void FileFetch::Close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  for (grpc::ClientContext* const call : calls_) call->TryCancel();
}

}  // namespace muster::services
