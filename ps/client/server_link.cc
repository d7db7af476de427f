#include "ps/client/server_link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/base/words.h"

namespace muster::ps {
namespace {

using net::FrameHeader;

// Answers to so many entries of a push, 8 bytes each, go through any link between hosts though
// nobody reads them yet.
constexpr std::size_t kUnreadAnswers = 4'096;

std::string_view NameOf(Verb verb) {
  if (verb == Verb::kPush) return "push";
  return verb == Verb::kAssign ? "assignment" : "pull";
}

std::uint64_t BytesOf(const CallEntry& entry) {
  return entry.ids.size_bytes() + entry.values.size_bytes();
}

}  // namespace

ServerLink::ServerLink(Target target, WireSubject job, ServerSession::Options session,
                       const net::Arena& arena, net::SpinLimit* spin)
    : job_(job), arena_(arena), session_(std::move(target), std::move(session), arena, spin) {}

void ServerLink::Count(std::uint64_t bytes) {
  (session_.local() ? bytes_.local : bytes_.tcp) += bytes;
}

std::span<CallEntry> ServerLink::NextFrame(const Call& call, std::span<CallEntry> left) const {
  const bool bounded = !session_.local() && !IsPull(call.verb);
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
  left_ = call.entries;
  return SendAhead(call, 0, deadline);
}

// A server whose answers nobody reads stops to read requests: both would wait for each other.
Status ServerLink::SendAhead(const Call& call, std::size_t unanswered, TimePoint deadline) {
  const std::size_t most = IsPull(call.verb) ? 0 : kUnreadAnswers;
  while (!left_.empty() && unanswered <= most) {
    Frame frame{.request = next_request_++, .entries = NextFrame(call, left_)};
    left_ = left_.subspan(frame.entries.size());
    frame.more = !left_.empty();
    const Status status = SendFrame(call, frame, deadline);
    if (!status.ok()) return GiveUp(call, frame.request, status);
    sent_.push_back(frame);
    unanswered += frame.entries.size();
  }
  return Ok();
}

Status ServerLink::SendFrame(const Call& call, const Frame& frame, TimePoint deadline) {
  const bool local = session_.local();
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
    parts_.push_back(PartOf(PaddingOf(bytes)));
  }
  const FrameHeader header = MakeHeader(
      call.verb, frame.request,
      {.job = job_.job, .view = job_.view, .closure = call.closure, .attempt = call.attempt},
      frame.more ? net::kFlagMore : std::uint16_t{0});
  return session_.channel().Send(header, std::as_bytes(std::span(table_)), parts_, deadline);
}

// A server whose end is closed reads nothing more.
Status ServerLink::GiveUp(const Call& call, std::uint64_t request, const Status& error) {
  if (session_.local() && error.code() != StatusCode::kUnavailable) abandoned_ = true;
  session_.Close();
  if (error.code() != StatusCode::kDeadlineExceeded) return error;
  const std::string of =
      call.closure > ClosureId() ? fmt::format(" of closure {}", call.closure) : "";
  return Annotate(error, fmt::format("{}{}, request {} for {}", NameOf(call.verb), of, request,
                                     Counted(call.entries.size(), "shard")));
}

Status ServerLink::Receive(Call& call, TimePoint deadline) {
  Status first;
  std::size_t unanswered = 0;
  for (const Frame& frame : sent_) unanswered += frame.entries.size();
  for (std::size_t i = 0; i < sent_.size() && connected(); ++i) {
    const Frame frame = sent_[i];
    Status status = ReceiveFrame(call, frame, deadline);
    unanswered -= frame.entries.size();
    if (connected()) {
      const Status sent = SendAhead(call, unanswered, deadline);
      if (status.ok()) status = sent;
    }
    if (first.ok()) first = status;
  }
  return first;
}

Status ServerLink::ReceiveFrame(const Call& call, const Frame& frame, TimePoint deadline) {
  std::span<CallEntry> left = frame.entries;
  while (!left.empty()) {
    if (const Status begun = session_.AwaitAnswer(deadline); !begun.ok()) {
      return GiveUp(call, frame.request, begun);
    }
    auto reply = session_.channel().ReadFrame(deadline);
    if (!reply.ok()) return GiveUp(call, frame.request, reply.status());
    if (!reply->has_value())
      return GiveUp(call, frame.request, Unavailable("{} closed the connection", session_.name()));
    const FrameHeader& header = **reply;
    const Status said = Annotate(net::StatusOf(header, session_.channel().meta()), session_.name());
    if (header.request != frame.request) {
      // Request 0 names no request: the server's last words before it closes.
      if (!said.ok() && header.request == 0) return GiveUp(call, frame.request, said);
      return GiveUp(call, frame.request,
                    DataLoss("{} answers request {}, asked was {}", session_.name(), header.request,
                             frame.request));
    }
    // Nobody reads what stands behind an error: the next answer would begin in the middle of it.
    if (!said.ok() && header.payload_bytes > 0) return GiveUp(call, frame.request, said);
    if (!said.ok()) return said;
    const Status status = ReceiveAnswer(call, header, left, deadline);
    if (!status.ok()) return GiveUp(call, frame.request, status);
  }
  return Ok();
}

// The answer is measured against what was asked before a byte of it is read into the caller's
// memory.
Status ServerLink::ReceiveAnswer(const Call& call, const FrameHeader& header,
                                 std::span<CallEntry>& left, TimePoint deadline) {
  const auto meta = session_.channel().meta();
  const std::size_t count = meta.size() / sizeof(std::uint64_t);
  if (count == 0 || count > left.size() || meta.size() % sizeof(std::uint64_t) != 0 ||
      (count == left.size()) != ((header.flags & net::kFlagMore) == 0)) {
    return DataLoss("{} answers with {} bytes of meta for {} shards", session_.name(), meta.size(),
                    left.size());
  }
  const bool payload = !session_.local() && IsPull(call.verb);
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(&left[i].result, meta.data() + i * sizeof(std::uint64_t), sizeof(std::uint64_t));
    if (payload) expected += PaddedTo8(left[i].values.size_bytes());
  }
  if (header.payload_bytes != expected) {
    return DataLoss("{} answers with {} bytes of payload, must be {}", session_.name(),
                    header.payload_bytes, expected);
  }
  for (const CallEntry& entry : left.first(count)) {
    Count(BytesOf(entry));
    if (!payload) continue;
    const auto values = std::as_writable_bytes(entry.values);
    MUSTER_TRY(session_.channel().ReadPayload(values, deadline));
    std::array<std::byte, 8> padding;
    const std::size_t more = PaddedTo8(values.size()) - values.size();
    if (more > 0)
      MUSTER_TRY(session_.channel().ReadPayload(std::span(padding).first(more), deadline));
  }
  left = left.subspan(count);
  return Ok();
}

}  // namespace muster::ps
