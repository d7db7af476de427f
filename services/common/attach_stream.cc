#include "services/common/attach_stream.h"

#include <chrono>
#include <deque>
#include <new>
#include <utility>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include "common/base/mutex.h"
#include "common/net/probe_tls.h"
#include "common/rpc/credentials.h"
#include "muster/v1/cluster.grpc.pb.h"
#include "services/common/grpc_channel.h"

namespace muster::services {
namespace {

// How many calls gRPC still has.
struct OpenCalls {
  Mutex mutex;
  Condition ended;
  int count MUSTER_GUARDED_BY(mutex) = 0;
};

class CallMark {
 public:
  explicit CallMark(std::shared_ptr<OpenCalls> calls) : calls_(std::move(calls)) {
    const MutexLock lock(calls_->mutex);
    ++calls_->count;
  }
  CallMark(const CallMark&) = delete;
  CallMark& operator=(const CallMark&) = delete;
  ~CallMark() {
    const MutexLock lock(calls_->mutex);
    --calls_->count;
    calls_->ended.notify_all();
  }

 private:
  const std::shared_ptr<OpenCalls> calls_;
};

// The channel of all streams. The last reference to a channel may not be dropped by a thread of
// gRPC's, which would wait for itself (gRPC 1.51 aborts), and no event may come when whoever takes
// them is gone: so its owner waits for the calls.
class OwnedChannel {
 public:
  explicit OwnedChannel(const ControlPlane& control)
      : channel_(MakeChannel(control.coordinator, control.tls)) {}
  OwnedChannel(const OwnedChannel&) = delete;
  OwnedChannel& operator=(const OwnedChannel&) = delete;
  ~OwnedChannel() {
    constexpr std::chrono::seconds kPatience{2};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    const MutexLock lock(calls_->mutex);
    while (calls_->count > 0 && calls_->ended.wait_until(calls_->mutex, deadline)) {
    }
    if (calls_->count == 0) return;
    // It is leaked, which harms a process at its end less than an abort.
    (void)new (std::nothrow) std::shared_ptr<grpc::Channel>(channel_);
  }

  const std::shared_ptr<grpc::Channel>& get() const { return channel_; }
  const std::shared_ptr<OpenCalls>& calls() const { return calls_; }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::shared_ptr<OpenCalls> calls_ = std::make_shared<OpenCalls>();
};

// Lives until gRPC is done with it, longer than the GrpcStream that its owner drops.
class Reactor final : public grpc::ClientBidiReactor<v1::DaemonMessage, v1::CoordinatorMessage> {
 public:
  Reactor(const OwnedChannel& channel, const Token& token, AttachEvents events)
      : mark_(std::make_shared<const CallMark>(channel.calls())),
        channel_(channel.get()),
        stub_(v1::ClusterService::NewStub(channel_)),
        events_(std::move(events)) {
    Authorize(context_, token);
  }

  void Begin(std::shared_ptr<Reactor> self) {
    self_ = std::move(self);
    stub_->async()->Attach(&context_, this);
    AddHold();  // writes are started from outside; released with the last read
    StartRead(&incoming_);
    StartCall();
  }

  void Write(v1::DaemonMessage message) {
    const MutexLock lock(mutex_);
    if (closed_ || finishing_) return;
    queue_.push_back(std::move(message));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  std::size_t Pending() {
    const MutexLock lock(mutex_);
    return queue_.size();
  }

  void FinishWrites() {
    const MutexLock lock(mutex_);
    if (closed_ || finishing_) return;
    finishing_ = true;
    if (queue_.empty()) StartWritesDone();
  }

  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (ok) {
      events_.on_message(std::exchange(incoming_, {}));
      StartRead(&incoming_);
      return;
    }
    {
      const MutexLock lock(mutex_);
      closed_ = true;
    }
    RemoveHold();
  }

  void OnWriteDone(bool ok) override {
    const MutexLock lock(mutex_);
    queue_.pop_front();
    if (!ok || closed_) {
      closed_ = true;
      return;
    }
    if (!queue_.empty()) {
      StartWrite(&queue_.front());
    } else if (finishing_) {
      StartWritesDone();
    }
  }

  // Lets go of the channel before it tells the owner, who may end the process then.
  void OnDone(const grpc::Status& status) override {
    const Status why = FromGrpc(status);
    const auto on_closed = events_.on_closed;
    const auto mark = mark_;  // until the owner has been told: it is there at least so long
    std::exchange(self_, nullptr).reset();  // `this` may be gone from here on
    on_closed(why);
  }

 private:
  const std::shared_ptr<const CallMark> mark_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::ClusterService::Stub> stub_;
  const AttachEvents events_;
  grpc::ClientContext context_;
  v1::CoordinatorMessage incoming_;
  std::shared_ptr<Reactor> self_;

  Mutex mutex_;
  std::deque<v1::DaemonMessage> queue_ MUSTER_GUARDED_BY(mutex_);
  bool closed_ MUSTER_GUARDED_BY(mutex_) = false;
  bool finishing_ MUSTER_GUARDED_BY(mutex_) = false;
};

class GrpcStream final : public AttachStream {
 public:
  explicit GrpcStream(std::shared_ptr<Reactor> reactor) : reactor_(std::move(reactor)) {}
  ~GrpcStream() override { reactor_->Cancel(); }
  void Write(v1::DaemonMessage message) override { reactor_->Write(std::move(message)); }
  std::size_t Pending() const override { return reactor_->Pending(); }
  void FinishWrites() override { reactor_->FinishWrites(); }

 private:
  const std::shared_ptr<Reactor> reactor_;
};

}  // namespace

OpenAttachStream GrpcAttachStreams(const ControlPlane& control) {
  return [channel = std::make_shared<const OwnedChannel>(control),
          token = control.token](AttachEvents events) {
    grpc::experimental::ChannelResetConnectionBackoff(channel->get().get());
    auto reactor = std::make_shared<Reactor>(*channel, token, std::move(events));
    reactor->Begin(reactor);
    return std::make_unique<GrpcStream>(std::move(reactor));
  };
}

std::function<Status()> ExplainByTls(const ControlPlane& control) {
  return [address = control.coordinator, context = control.tls] {
    constexpr std::chrono::seconds kLimit{3};
    return net::TlsTrouble(address, context.get(), std::string(rpc::kCoordinatorTask), "daemon",
                           std::chrono::steady_clock::now() + kLimit);
  };
}

}  // namespace muster::services
