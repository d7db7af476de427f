// A connected stream socket that does not block: in the clear, or, once Encrypt() has been called,
// behind TLS. Reads and writes are those of the kernel in both cases, errno included.
//
// Threading: one thread reads and one writes at a time; ShutDown() from any.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include <absl/functional/function_ref.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/fd.h"
#include "common/tls/session.h"

namespace muster::net {

class Stream {
 public:
  explicit Stream(Fd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  bool encrypted() const { return session_ != nullptr; }

  // Shakes hands; from then on all bytes pass through the session, and no descriptors. Neither side
  // has anything on its way before.
  //   kDeadlineExceeded: the peer says nothing, or no TLS.  kUnavailable: it is gone.  Else as
  //   tls::Session's.
  Status Encrypt(std::unique_ptr<tls::Session> session, TimePoint deadline);
  // While encrypted.
  const tls::Session& session() const { return *session_; }

  // As recv() and sendmsg() with MSG_DONTWAIT. Who was told EAGAIN by Send() comes again with the
  // same bytes, or with more behind them. EPROTO: failure() says what.
  ssize_t Receive(std::span<std::byte> into);
  ssize_t Receive(std::span<const iovec> parts);
  ssize_t Send(std::span<iovec> parts);
  // The same with descriptors beside the bytes (socket_calls.h); in the clear only.
  ssize_t ReceiveWith(std::span<std::byte> into, absl::FunctionRef<void(Fd)> take);
  ssize_t SendWith(std::span<iovec> parts, int descriptor);
  // What TLS had against the peer; OK: nothing.
  Status failure() const;
  // Why a read or a write (`what`) of `peer` failed with `error`: that, or what the kernel says.
  Status Broken(int error, std::string_view what, const std::string& peer) const;

  void EndWrites();
  void ShutDown();

 private:
  // All ciphertext that waits. False: the socket takes no more now; -1 in `error`: errno.
  bool Flush(int& error) MUSTER_REQUIRES(mutex_);
  // Takes what the socket has. 0: the peer has closed; -1: errno.
  ssize_t Fill() MUSTER_REQUIRES(mutex_);
  Result<std::size_t> Take(std::span<iovec> parts) MUSTER_REQUIRES(mutex_);
  Status Wait(short events, TimePoint deadline);

  Fd fd_;
  // Set before the stream has a second thread. OpenSSL's object is not for two at a time.
  std::unique_ptr<tls::Session> session_;
  mutable Mutex mutex_;
  // Plaintext that is in the session's ciphertext, and that Send() has not answered for yet.
  std::size_t taken_ MUSTER_GUARDED_BY(mutex_) = 0;
  Status failure_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::net
