#include "ps/client/server_session.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "common/net/socket.h"
#include "ps/wire.h"

namespace muster::ps {
namespace {

constexpr Millis kFirstRetry{10};
constexpr Millis kLastRetry{200};
constexpr std::array<std::byte, 8> kZeros{};

Millis Until(TimePoint deadline) {
  const auto left = std::chrono::ceil<Millis>(deadline - std::chrono::steady_clock::now());
  return std::max(left, Millis(0));
}

}  // namespace

std::span<const std::byte> PaddingOf(std::uint64_t bytes) {
  return std::span(kZeros).first(PaddedTo8(bytes) - bytes);
}

Result<LinkMode> LinkModeOf(std::string_view name) {
  if (name.empty() || name == "auto") return LinkMode::kAuto;
  if (name == "tcp") return LinkMode::kTcp;
  if (name == "local") return LinkMode::kLocal;
  return InvalidArgument("link \"{}\": wanted auto, tcp or local", name);
}

ServerSession::ServerSession(Target target, Options options, const net::Arena& arena,
                             net::SpinLimit* spin)
    : target_(std::move(target)),
      options_(std::move(options)),
      arena_(arena),
      spin_(spin),
      name_(fmt::format("ps:{} ({})", target_.index, target_.tcp_address)) {}

bool ServerSession::local() const {
  return channel_ != nullptr && channel_->link().kind() == net::LinkKind::kUnix;
}

bool ServerSession::WantsLocal() const {
  return options_.link != LinkMode::kTcp && !target_.unix_path.empty() &&
         target_.host_id == options_.host_id && arena_.fd() >= 0;
}

net::Identity ServerSession::Self() const {
  return {.token = options_.key, .host_id = options_.host_id, .tls = options_.tls};
}

Status ServerSession::Connect(TimePoint deadline) {
  Millis pause = kFirstRetry;
  for (;;) {
    const Status status = ConnectOnce(deadline);
    if (status.ok()) return status;
    if (status.code() != StatusCode::kUnavailable || Until(deadline) <= pause) return status;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLastRetry);
  }
}

Status ServerSession::ConnectOnce(TimePoint deadline) {
  const Status status = Greet(deadline);
  if (!status.ok()) Close();
  return status;
}

Status ServerSession::Greet(TimePoint deadline) {
  if (options_.link == LinkMode::kLocal && !WantsLocal()) {
    return FailedPrecondition("{} is not on this host ({}, here {}): link local cannot reach it",
                              name_, target_.host_id, options_.host_id);
  }
  if (WantsLocal()) {
    const Status local = ConnectLocal(deadline);
    if (local.ok() || local.code() != StatusCode::kUnavailable) return local;
    Close();
    if (options_.link == LinkMode::kLocal) return local;
  }
  auto fd = net::ConnectTcp(target_.tcp_address, deadline);
  if (!fd.ok()) return Annotate(fd.status(), name_);
  channel_ = std::make_unique<net::Channel>(*std::move(fd), net::LinkKind::kTcp, name_,
                                            options_.spin, spin_);
  return net::GreetServer(*channel_, Self(), options_.role, options_.subject, deadline);
}

Status ServerSession::ConnectLocal(TimePoint deadline) {
  auto fd = net::ConnectUnix(target_.unix_path, deadline);
  if (!fd.ok()) return Annotate(fd.status(), name_);
  auto made = std::make_unique<net::Socket>(*std::move(fd), net::LinkKind::kUnix, name_,
                                            options_.spin, spin_);
  net::Socket& socket = *made;
  channel_ = std::make_unique<net::Channel>(std::move(made));
  MUSTER_TRY(net::GreetServer(*channel_, Self(), options_.role, options_.subject, deadline));
  MUSTER_TRY_ASSIGN(const net::FrameHeader answer, HandOver(net::kArena, arena_.fd(), deadline));
  if ((answer.flags & net::kFlagRings) == 0) return Ok();
  MUSTER_TRY_ASSIGN(net::Rings rings, net::Rings::Create());
  MUSTER_TRY(HandOver(net::kRings, rings.fd(), deadline).status());
  socket.UseRings(std::move(rings));
  return Ok();
}

Result<net::FrameHeader> ServerSession::HandOver(net::FrameKind kind, int descriptor,
                                                 TimePoint deadline) {
  MUSTER_TRY(channel_->Send({.kind = kind}, {}, {}, deadline, descriptor));
  MUSTER_TRY_ASSIGN(const auto reply, channel_->ReadFrame(deadline));
  if (!reply.has_value()) return Unavailable("{} closed the connection", name_);
  MUSTER_TRY(Annotate(net::StatusOf(*reply, channel_->meta()), name_));
  if (reply->payload_bytes == 0) return *reply;
  return DataLoss("{} answers memory that is handed over with {} bytes", name_,
                  reply->payload_bytes);
}

// Off the path of requests that are answered soon: those never get to the first ping.
Status ServerSession::AwaitAnswer(TimePoint deadline) {
  const net::Channel& waiting = *channel_;
  const TimePoint began = waiting.clock().Now();
  std::string_view alive;
  for (TimePoint doubt = began + options_.ping_after;;) {
    MUSTER_TRY_ASSIGN(const bool came, channel_->AwaitFrame(std::min(doubt, deadline)));
    if (came) return Ok();
    const TimePoint now = waiting.clock().Now();
    if (now >= deadline) {
      const std::chrono::duration<double> waited = now - began;
      return DeadlineExceeded("{}: no answer in {:.3g} s{}", name_, waited.count(), alive);
    }
    doubt = deadline;
    if (now + options_.ping_limit >= deadline) continue;  // too late for a verdict
    MUSTER_TRY(Ping(now + options_.ping_limit));
    alive = ", though it is alive: it greets";
    doubt = waiting.clock().Now() + options_.ping_after;
  }
}

Status ServerSession::Ping(TimePoint deadline) const {
  const TimePoint began = std::chrono::steady_clock::now();
  const bool is_local = local();
  auto fd = is_local ? net::ConnectUnix(target_.unix_path, deadline)
                     : net::ConnectTcp(target_.tcp_address, deadline);
  Status status = fd.status();
  if (status.ok()) {
    net::Channel other(*std::move(fd), is_local ? net::LinkKind::kUnix : net::LinkKind::kTcp, name_,
                       net::SpinMode::kOff, nullptr);
    // Behind TLS the server waits for the client to begin.
    status = is_local || options_.tls == nullptr
                 ? other.ReadFrame(deadline).status()
                 : net::GreetServer(other, Self(), options_.role, options_.subject, deadline);
  }
  // Anything else is a sign of life, or tells itself on the connection that waits.
  if (status.code() != StatusCode::kDeadlineExceeded) return Ok();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
  return DeadlineExceeded(
      "{}: no answer, and no greeting to a new connection for {:.3g} s: its process is stopped, or "
      "its host hangs",
      name_, waited.count());
}

}  // namespace muster::ps
