// Stands between clients and one parameter server, over TCP, and loses answers, or adds to them.
//
// Threading: any thread. Lifetime: its clients end before it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/eventfd.h>
#include <unistd.h>

#include "common/net/channel.h"
#include "common/net/socket.h"
#include "ps/program_wire.h"
#include "tests/unit/ps/client/small_cluster.h"

namespace muster::ps::testing {

class LossyRelay {
 public:
  explicit LossyRelay(std::string server) : server_(std::move(server)) {
    listeners_.push_back(std::move(net::ListenTcp("127.0.0.1:0")).value());
    acceptor_ = std::thread([this] { AcceptAll(); });
  }
  ~LossyRelay() {
    stopping_ = true;
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));
    acceptor_.join();
    for (std::thread& thread : threads_) thread.join();
  }
  LossyRelay(const LossyRelay&) = delete;
  LossyRelay& operator=(const LossyRelay&) = delete;

  const std::string& address() const { return listeners_[0].address; }
  // The server gets the next so many requests of this kind; instead of its answers their clients
  // see that the connection has been closed.
  void LoseAnswersTo(ProgramVerb verb, int requests) {
    verb_ = static_cast<net::FrameKind>(verb);
    left_ = requests;
  }
  // Answers that are errors come with a payload, which no server sends.
  void LoadErrors() { load_errors_ = true; }

 private:
  void AcceptAll() {
    while (!stopping_) {
      auto accepted = net::Accept(listeners_, wake_.get(), Millis(60'000));
      if (!accepted.ok() || !accepted->fd.valid()) continue;
      threads_.emplace_back(
          [this, fd = std::move(accepted->fd)]() mutable { Serve(std::move(fd)); });
    }
  }

  // The server speaks first; from then on each frame of the client has one answer.
  void Serve(net::Fd from_client) {
    auto to_server = net::ConnectTcp(server_, Soon());
    if (!to_server.ok()) return;
    net::Channel client(std::move(from_client), net::LinkKind::kTcp, "client", net::SpinMode::kOff,
                        nullptr);
    net::Channel server(*std::move(to_server), net::LinkKind::kTcp, "server", net::SpinMode::kOff,
                        nullptr);
    bool goes_on = PassAnswer(server, client);
    while (goes_on) {
      const std::optional<net::FrameHeader> asked = Pass(client, server);
      if (!asked) return;
      if (asked->kind == verb_ && left_.fetch_sub(1) > 0) {
        (void)server.ReadFrame(Soon());
        return;
      }
      goes_on = PassAnswer(server, client);
    }
  }
  bool PassAnswer(net::Channel& server, net::Channel& client) const {
    for (;;) {
      const std::optional<net::FrameHeader> frame = Pass(server, client);
      if (!frame) return false;
      if ((frame->flags & net::kFlagMore) == 0) return true;
    }
  }
  std::optional<net::FrameHeader> Pass(net::Channel& from, net::Channel& to) const {
    const auto frame = from.ReadFrame(TimePoint::max(), Millis(5'000));
    if (!frame.ok() || !frame->has_value()) return std::nullopt;
    std::vector<std::byte> payload((*frame)->payload_bytes);
    if (!from.ReadPayload(payload, Soon()).ok()) return std::nullopt;
    if ((*frame)->status != 0 && load_errors_) payload.resize(8);
    const iovec part{.iov_base = payload.data(), .iov_len = payload.size()};
    if (!to.Send(**frame, from.meta(), std::span(&part, 1), Soon()).ok()) return std::nullopt;
    return **frame;
  }

  const std::string server_;
  std::vector<net::Listener> listeners_;
  const net::Fd wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::atomic<bool> stopping_{false};
  std::atomic<net::FrameKind> verb_{0};
  std::atomic<int> left_{0};
  std::atomic<bool> load_errors_{false};
  // The acceptor's, and the destructor's when that has ended.
  std::list<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace muster::ps::testing
