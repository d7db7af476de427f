// A connection to one parameter server: made, greeted, waited at, whatever is asked over it.
//
// Threading: one thread. Lifetime: the arena and the spin limit outlive it.
// Errors name the server ("ps:1 (127.0.0.1:4711)").
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <sys/uio.h>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/arena.h"
#include "common/net/channel.h"
#include "common/net/handshake.h"
#include "common/net/spin.h"

namespace muster::ps {

// A piece of a payload that is sent.
template <class T>
iovec PartOf(std::span<T> data) {
  // sendmsg takes pointers to non-const and only reads through them.
  return {.iov_base = const_cast<void*>(static_cast<const void*>(data.data())),
          .iov_len = data.size_bytes()};
}
// What follows so many bytes to make them a multiple of 8.
std::span<const std::byte> PaddingOf(std::uint64_t bytes);

enum class LinkMode { kAuto, kTcp, kLocal };
// As messages and settings name it; nothing given is auto.
//   kInvalidArgument: neither auto, tcp nor local.
Result<LinkMode> LinkModeOf(std::string_view name);

// Payload bytes moved, by kind of link.
struct LinkBytes {
  std::uint64_t tcp = 0;
  std::uint64_t local = 0;
};

class ServerSession {
 public:
  struct Target {
    std::uint32_t index = 0;
    std::string tcp_address;
    std::string unix_path;
    std::string host_id;
  };
  struct Options {
    // Proves the hello: the job's key.
    std::string key;
    // For connections over TCP; null: in the clear.
    std::shared_ptr<tls::KeyContext> tls = nullptr;
    // What the hello says.
    std::string role;
    net::Subject subject{};
    LinkMode link = LinkMode::kAuto;
    // common/net's host id of this process; a server with the same one is reached by shared memory.
    std::string host_id;
    // A server that has not begun its answer for this long is asked for a sign of life, on a
    // connection for that alone, again and again; one that gives none for `ping_limit` is stopped
    // and not waited for any longer. (Its kernel would take bytes for it.)
    Millis ping_after{1'000};
    Millis ping_limit{4'000};
    net::SpinMode spin = net::SpinMode::kAdaptive;
  };

  // `arena` is what a local link hands over; without a descriptor there is none.
  ServerSession(Target target, Options options, const net::Arena& arena, net::SpinLimit* spin);

  // Connects, local where the mode allows it; tries again until `deadline` while nobody listens.
  Status Connect(TimePoint deadline);
  // The same without trying again: after a loss the caller wants to know at once.
  Status ConnectOnce(TimePoint deadline);
  bool connected() const { return channel_ != nullptr; }
  void Close() { channel_.reset(); }
  // Connected, and over a Unix socket.
  bool local() const;

  const std::string& name() const { return name_; }
  // While connected.
  net::Channel& channel() { return *channel_; }
  const net::Channel& channel() const { return *channel_; }

  // Until an answer begins. kDeadlineExceeded: it does not, or the server gives no sign of life.
  Status AwaitAnswer(TimePoint deadline);

 private:
  bool WantsLocal() const;
  net::Identity Self() const;
  Status Greet(TimePoint deadline);
  Status ConnectLocal(TimePoint deadline);
  // Sends memory's descriptor; the server's answer.
  Result<net::FrameHeader> HandOver(net::FrameKind kind, int descriptor, TimePoint deadline);
  // Whether the server's process runs: it greets whoever connects.
  Status Ping(TimePoint deadline) const;

  const Target target_;
  const Options options_;
  const net::Arena& arena_;
  net::SpinLimit* const spin_;
  const std::string name_;
  std::unique_ptr<net::Channel> channel_;
};

}  // namespace muster::ps
