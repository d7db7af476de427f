#include "ps/client/server_link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "common/base/words.h"

namespace muster::ps {
namespace {

using net::FrameHeader;

constexpr Millis kFirstRetry{10};
constexpr Millis kLastRetry{200};
constexpr std::array<std::byte, 8> kZeros{};

std::string_view NameOf(Verb verb) {
  if (verb == Verb::kPush) return "push";
  return verb == Verb::kAssign ? "assignment" : "pull";
}

std::uint64_t BytesOf(const CallEntry& entry) {
  return entry.ids.size_bytes() + entry.values.size_bytes();
}

Millis Until(TimePoint deadline) {
  const auto left = std::chrono::ceil<Millis>(deadline - std::chrono::steady_clock::now());
  return std::max(left, Millis(0));
}

template <class T>
iovec PartOf(std::span<T> data) {
  // sendmsg takes pointers to non-const and only reads through them.
  return {.iov_base = const_cast<void*>(static_cast<const void*>(data.data())),
          .iov_len = data.size_bytes()};
}

}  // namespace

ServerLink::ServerLink(Target target, WireSubject job, const PsClient::Options& options,
                       const net::Arena& arena, net::SpinLimit* spin)
    : target_(std::move(target)),
      job_(job),
      options_(options),
      arena_(arena),
      spin_(spin),
      name_(fmt::format("ps:{} ({})", target_.index, target_.tcp_address)) {}

bool ServerLink::Local() const {
  return channel_ != nullptr && channel_->link().kind() == net::LinkKind::kUnix;
}

bool ServerLink::WantsLocal() const {
  return options_.link != LinkMode::kTcp && !target_.unix_path.empty() &&
         target_.host_id == options_.host_id && arena_.fd() >= 0;
}

void ServerLink::Count(std::uint64_t bytes) { (Local() ? bytes_.local : bytes_.tcp) += bytes; }

Status ServerLink::Connect(TimePoint deadline) {
  Millis pause = kFirstRetry;
  for (;;) {
    const Status status = ConnectOnce(deadline);
    if (status.ok()) return status;
    if (status.code() != StatusCode::kUnavailable || Until(deadline) <= pause) return status;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLastRetry);
  }
}

Status ServerLink::ConnectOnce(TimePoint deadline) {
  const Status status = Greet(deadline);
  if (!status.ok()) Close();
  return status;
}

Status ServerLink::Greet(TimePoint deadline) {
  if (options_.link == LinkMode::kLocal && !WantsLocal()) {
    return FailedPrecondition("{} is not on this host ({}, here {}): link local cannot reach it",
                              name_, target_.host_id, options_.host_id);
  }
  const net::Identity self{.token = options_.token, .host_id = options_.host_id};
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
  return net::GreetServer(*channel_, self, "worker", SubjectOf(job_), deadline);
}

Status ServerLink::ConnectLocal(TimePoint deadline) {
  auto fd = net::ConnectUnix(target_.unix_path, deadline);
  if (!fd.ok()) return Annotate(fd.status(), name_);
  channel_ = std::make_unique<net::Channel>(*std::move(fd), net::LinkKind::kUnix, name_,
                                            options_.spin, spin_);
  const net::Identity self{.token = options_.token, .host_id = options_.host_id};
  MUSTER_TRY(net::GreetServer(*channel_, self, "worker", SubjectOf(job_), deadline));
  MUSTER_TRY(channel_->Send({.kind = net::kArena}, {}, {}, deadline, arena_.fd()));
  MUSTER_TRY_ASSIGN(const auto reply, channel_->ReadFrame(deadline));
  if (!reply.has_value()) return Unavailable("{} closed the connection", name_);
  return Annotate(net::StatusOf(*reply, channel_->meta()), name_);
}

std::span<CallEntry> ServerLink::NextFrame(const Call& call, std::span<CallEntry> left) const {
  const bool bounded = !Local() && !IsPull(call.verb);
  std::uint64_t bytes = 0;
  std::size_t n = 0;
  while (n < left.size() && n < kMaxEntries) {
    bytes += BytesOf(left[n]);
    if (bounded && n > 0 && bytes > kFrameTarget) break;
    ++n;
  }
  return left.first(n);
}

Status ServerLink::Send(Call& call, TimePoint deadline) {
  sent_.clear();
  std::span<CallEntry> left(call.entries);
  while (!left.empty()) {
    const Frame frame{.request = next_request_++, .entries = NextFrame(call, left)};
    left = left.subspan(frame.entries.size());
    const Status status = SendFrame(call, frame, deadline);
    if (!status.ok()) return GiveUp(call, frame.request, status);
    sent_.push_back(frame);
  }
  return Ok();
}

Status ServerLink::SendFrame(const Call& call, const Frame& frame, TimePoint deadline) {
  const bool local = Local();
  table_.clear();
  parts_.clear();
  for (const CallEntry& entry : frame.entries) {
    WireEntry& wire = table_.emplace_back();
    wire.shard = entry.shard;
    wire.access = static_cast<std::uint32_t>(entry.access);
    wire.ids = entry.ids.size();
    wire.floats = entry.values.size();
    if (local) {
      wire.ids_offset = entry.ids.empty() ? 0 : arena_.OffsetOf(entry.ids.data());
      wire.values_offset = entry.values.empty() ? 0 : arena_.OffsetOf(entry.values.data());
      continue;
    }
    parts_.push_back(PartOf(entry.ids));
    if (IsPull(call.verb)) continue;
    const std::size_t bytes = entry.values.size_bytes();
    parts_.push_back(PartOf(entry.values));
    parts_.push_back(PartOf(std::span(kZeros).first(PaddedTo8(bytes) - bytes)));
  }
  const FrameHeader header = MakeHeader(
      call.verb, frame.request,
      {.job = job_.job, .view = job_.view, .closure = call.closure, .attempt = call.attempt});
  return channel_->Send(header, std::as_bytes(std::span(table_)), parts_, deadline);
}

// A server whose end is closed reads nothing more.
Status ServerLink::GiveUp(const Call& call, std::uint64_t request, const Status& error) {
  if (Local() && error.code() != StatusCode::kUnavailable) abandoned_ = true;
  Close();
  if (error.code() != StatusCode::kDeadlineExceeded) return error;
  const std::string of = call.closure > 0 ? fmt::format(" of closure {}", call.closure) : "";
  return Annotate(error, fmt::format("{}{}, request {} for {}", NameOf(call.verb), of, request,
                                     Counted(call.entries.size(), "shard")));
}

Status ServerLink::Receive(Call& call, TimePoint deadline) {
  Status first;
  for (const Frame& frame : sent_) {
    const Status status = ReceiveFrame(call, frame, deadline);
    if (first.ok()) first = status;
    if (!connected()) break;
  }
  return first;
}

// Off the path of requests that are answered soon: those never get to the first ping.
Status ServerLink::AwaitAnswer(TimePoint deadline) {
  const net::Channel& channel = *channel_;
  const TimePoint began = channel.clock().Now();
  std::string_view alive;
  for (TimePoint doubt = began + options_.ping_after;;) {
    MUSTER_TRY_ASSIGN(const bool came, channel_->AwaitFrame(std::min(doubt, deadline)));
    if (came) return Ok();
    const TimePoint now = channel.clock().Now();
    if (now >= deadline) {
      const std::chrono::duration<double> waited = now - began;
      return DeadlineExceeded("{}: no answer in {:.3g} s{}", name_, waited.count(), alive);
    }
    doubt = deadline;
    if (now + options_.ping_limit >= deadline) continue;  // too late for a verdict
    MUSTER_TRY(Ping(now + options_.ping_limit));
    alive = ", though it is alive: it greets";
    doubt = channel.clock().Now() + options_.ping_after;
  }
}

Status ServerLink::Ping(TimePoint deadline) const {
  const TimePoint began = std::chrono::steady_clock::now();
  const bool local = Local();
  auto fd = local ? net::ConnectUnix(target_.unix_path, deadline)
                  : net::ConnectTcp(target_.tcp_address, deadline);
  Status status = fd.status();
  if (status.ok()) {
    net::Channel channel(*std::move(fd), local ? net::LinkKind::kUnix : net::LinkKind::kTcp, name_,
                         net::SpinMode::kOff, nullptr);
    status = channel.ReadFrame(deadline).status();
  }
  // Anything else is a sign of life, or tells itself on the connection that waits.
  if (status.code() != StatusCode::kDeadlineExceeded) return Ok();
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
  return DeadlineExceeded(
      "{}: no answer, and no greeting to a new connection for {:.3g} s: its process is stopped, or "
      "its host hangs",
      name_, waited.count());
}

Status ServerLink::ReceiveFrame(const Call& call, const Frame& frame, TimePoint deadline) {
  std::span<CallEntry> left = frame.entries;
  while (!left.empty()) {
    if (const Status begun = AwaitAnswer(deadline); !begun.ok()) {
      return GiveUp(call, frame.request, begun);
    }
    auto reply = channel_->ReadFrame(deadline);
    if (!reply.ok()) return GiveUp(call, frame.request, reply.status());
    if (!reply->has_value())
      return GiveUp(call, frame.request, Unavailable("{} closed the connection", name_));
    const FrameHeader& header = **reply;
    const Status said = Annotate(net::StatusOf(header, channel_->meta()), name_);
    if (header.request != frame.request) {
      // Request 0 names no request: the server's last words before it closes.
      if (!said.ok() && header.request == 0) return GiveUp(call, frame.request, said);
      return GiveUp(
          call, frame.request,
          DataLoss("{} answers request {}, asked was {}", name_, header.request, frame.request));
    }
    if (!said.ok()) return said;
    const Status status = ReceiveAnswer(call, header, left, deadline);
    if (!status.ok()) return GiveUp(call, frame.request, status);
  }
  return Ok();
}

Status ServerLink::ReceiveAnswer(const Call& call, const FrameHeader& header,
                                 std::span<CallEntry>& left, TimePoint deadline) {
  const auto meta = channel_->meta();
  const std::size_t count = meta.size() / sizeof(std::uint64_t);
  if (count == 0 || count > left.size() || meta.size() % sizeof(std::uint64_t) != 0 ||
      (count == left.size()) != ((header.flags & net::kFlagMore) == 0)) {
    return DataLoss("{} answers with {} bytes of meta for {} shards", name_, meta.size(),
                    left.size());
  }
  const bool payload = !Local() && IsPull(call.verb);
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(&left[i].result, meta.data() + i * sizeof(std::uint64_t), sizeof(std::uint64_t));
    if (payload) expected += PaddedTo8(left[i].values.size_bytes());
  }
  if (header.payload_bytes != expected) {
    return DataLoss("{} answers with {} bytes of payload, must be {}", name_, header.payload_bytes,
                    expected);
  }
  for (const CallEntry& entry : left.first(count)) {
    Count(BytesOf(entry));
    if (!payload) continue;
    const auto values = std::as_writable_bytes(entry.values);
    MUSTER_TRY(channel_->ReadPayload(values, deadline));
    std::array<std::byte, 8> padding;
    const std::size_t more = PaddedTo8(values.size()) - values.size();
    if (more > 0) MUSTER_TRY(channel_->ReadPayload(std::span(padding).first(more), deadline));
  }
  left = left.subspan(count);
  return Ok();
}

}  // namespace muster::ps
