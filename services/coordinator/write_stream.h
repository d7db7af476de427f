// What all streams of messages to one caller have in common: their life, one message at a time, and
// the end of a caller that no longer reads.
#pragma once

#include <memory>
#include <utility>

#include "common/rpc/stalled_call.h"
#include "services/coordinator/front.h"

namespace muster::coordinator {

// Threading: on the strand; gRPC's callbacks only post. Lifetime: its own, from Hold() until gRPC
// has let go of it and nothing that was posted is left; `front` outlives it.
template <class Message>
class WriteStream : public grpc::ServerWriteReactor<Message>,
                    public std::enable_shared_from_this<WriteStream<Message>> {
 public:
  void OnWriteDone(bool ok) final {
    stalled_.Went();
    Post([this, ok] {
      if (!ok) return End(Cancelled("the reader has gone"));
      OnSent();
    });
  }
  void OnDone() final {
    Post([this] { self_.reset(); });
  }

 protected:
  WriteStream(Front& front, grpc::CallbackServerContext* context)
      : front_(front),
        stalled_(front.strand, front.stall_limit, [context] { context->TryCancel(); }) {}

  // The caller has what Send() was given last.
  virtual void OnSent() = 0;

  void Hold() { self_ = this->shared_from_this(); }
  template <class Function>
  void Post(Function function) {
    front_.strand.Post([self = this->shared_from_this(), function = std::move(function)]() mutable {
      function();
    });
  }
  // One at a time; `message` stays until OnSent().
  void Send(const Message& message) {
    stalled_.Waits();
    this->StartWrite(&message);
  }
  void End(const Status& status) {
    if (!std::exchange(finished_, true)) this->Finish(services::ToGrpc(status));
  }
  bool finished() const { return finished_; }

  Front& front_;

 private:
  rpc::StalledCall stalled_;
  std::shared_ptr<WriteStream> self_;
  bool finished_ = false;
};

}  // namespace muster::coordinator
