// Protobuf messages between a daemon and its child over a socket pair: u32 little-endian length,
// then the message.
//
// Threading: Send() from any thread, one message at a time; Receive() from one thread; Shutdown()
// from any. Lifetime: owns the descriptor.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"

namespace google::protobuf {
class MessageLite;
}

namespace muster::process {

class MessagePipe {
 public:
  // A longer message is refused at both ends.
  static constexpr std::uint32_t kMaxMessageBytes = 64u << 20;

  // `descriptor`: a connected stream socket in blocking mode.
  explicit MessagePipe(int descriptor) : descriptor_(descriptor) {}
  ~MessagePipe();
  MessagePipe(const MessagePipe&) = delete;
  MessagePipe& operator=(const MessagePipe&) = delete;

  // Two connected descriptors, both close-on-exec (process::Child hands one on under number 3).
  static Result<std::pair<int, int>> MakePair();

  // Writes the whole message.
  //   kUnavailable: the peer has closed, or Shutdown() was called.
  //   kDeadlineExceeded: the peer has not read for `limit`; the pipe is then shut down, since the
  //   stream may have stopped within a message.
  //   kResourceExhausted: longer than kMaxMessageBytes.
  Status Send(const google::protobuf::MessageLite& message, Millis limit = Millis(10'000));

  // Reads the next message. Without `limit` it waits until one comes or the pipe closes; `limit`
  // bounds the wait for the first byte and then for each further piece.
  //   kUnavailable: the peer has closed between messages, or Shutdown() was called.
  //   kDeadlineExceeded: nothing came in time; harmless between messages.
  //   kDataLoss: closed within a message, an oversized length, or not this kind of message.
  Status Receive(google::protobuf::MessageLite& message,
                 std::optional<Millis> limit = std::nullopt);

  // Ends both directions: a waiting Receive() or Send() returns kUnavailable. Idempotent.
  void Shutdown();

  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
  Mutex send_mutex_;  // keeps messages whole
};

}  // namespace muster::process
