#include "common/process/message_pipe.h"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>

#include <google/protobuf/message_lite.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace muster::process {
namespace {

// Waits until `events` are possible on the descriptor. No limit: -1.
Status Await(int descriptor, short events, std::optional<Millis> limit, const char* what) {
  const auto end = std::chrono::steady_clock::now() + limit.value_or(Millis(0));
  for (;;) {
    int wait_ms = -1;
    if (limit) {
      const auto left = std::chrono::ceil<Millis>(end - std::chrono::steady_clock::now()).count();
      wait_ms = left > 0 ? static_cast<int>(left) : 0;
    }
    pollfd entry{descriptor, events, 0};
    const int ready = poll(&entry, 1, wait_ms);
    if (ready > 0) return Ok();
    if (ready == 0) {
      return DeadlineExceeded("message pipe: the peer {} for {} ms", what, limit->count());
    }
    if (errno != EINTR) return FromErrno(errno, "poll on the message pipe");
  }
}

// `got` counts what has arrived before an error.
Status ReadFull(int descriptor, void* into, std::size_t size, std::optional<Millis> limit,
                std::size_t& got) {
  got = 0;
  while (got < size) {
    const ssize_t n = recv(descriptor, static_cast<char*>(into) + got, size - got, MSG_DONTWAIT);
    if (n > 0) {
      got += static_cast<std::size_t>(n);
    } else if (n == 0 || errno == ECONNRESET) {
      return Unavailable("message pipe: closed by the peer");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      MUSTER_TRY(Await(descriptor, POLLIN, limit, "has sent nothing"));
    } else if (errno != EINTR) {
      return FromErrno(errno, "read from the message pipe");
    }
  }
  return Ok();
}

Status WriteFull(int descriptor, const std::string& bytes, Millis limit) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n =
        send(descriptor, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      MUSTER_TRY(Await(descriptor, POLLOUT, limit, "has read nothing"));
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return Unavailable("message pipe: closed by the peer");
    } else if (errno != EINTR) {
      return FromErrno(errno, "write to the message pipe");
    }
  }
  return Ok();
}

}  // namespace

MessagePipe::~MessagePipe() { close(descriptor_); }

Result<std::pair<int, int>> MessagePipe::MakePair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return FromErrno(errno, "socketpair");
  }
  return std::pair(ends[0], ends[1]);
}

Status MessagePipe::Send(const google::protobuf::MessageLite& message, Millis limit) {
  const std::size_t size = message.ByteSizeLong();
  if (size > kMaxMessageBytes) {
    return ResourceExhausted("message pipe: a message of {} bytes, limit {}", size,
                             kMaxMessageBytes);
  }
  std::string bytes;
  bytes.reserve(4 + size);
  for (int shift = 0; shift < 32; shift += 8) {
    bytes.push_back(static_cast<char>(size >> shift & 0xff));
  }
  message.AppendToString(&bytes);

  const MutexLock lock(send_mutex_);
  const Status status = WriteFull(descriptor_, bytes, limit);
  if (!status.ok()) Shutdown();
  return status;
}

Status MessagePipe::Receive(google::protobuf::MessageLite& message, std::optional<Millis> limit) {
  unsigned char prefix[4];
  std::size_t got = 0;
  if (Status status = ReadFull(descriptor_, prefix, sizeof prefix, limit, got); !status.ok()) {
    if (got == 0) return status;
    return DataLoss("message pipe: ended after {} of 4 bytes of a length ({})", got,
                    Message(status));
  }
  const std::uint32_t size =
      prefix[0] | prefix[1] << 8 | prefix[2] << 16 | static_cast<std::uint32_t>(prefix[3]) << 24;
  if (size > kMaxMessageBytes) {
    return DataLoss("message pipe: the peer announced {} bytes, limit {}", size, kMaxMessageBytes);
  }
  std::string bytes(size, '\0');
  if (Status status = ReadFull(descriptor_, bytes.data(), size, limit, got); !status.ok()) {
    return DataLoss("message pipe: ended after {} of {} bytes of a message ({})", got, size,
                    Message(status));
  }
  if (!message.ParseFromString(bytes)) {
    return DataLoss("message pipe: {} bytes that are no {}", size, message.GetTypeName());
  }
  return Ok();
}

void MessagePipe::Shutdown() { shutdown(descriptor_, SHUT_RDWR); }

}  // namespace muster::process
