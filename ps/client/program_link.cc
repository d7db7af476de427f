#include "ps/client/program_link.h"

#include <array>
#include <cstring>
#include <utility>

#include "common/base/stream.h"
#include "ps/wire.h"

namespace muster::ps {
namespace {

using net::FrameHeader;

std::string_view NameOf(ProgramVerb verb) {
  switch (verb) {
    case ProgramVerb::kOpen:
      return "opening";
    case ProgramVerb::kCreate:
      return "making a variable";
    case ProgramVerb::kDelete:
      return "deleting a variable";
    case ProgramVerb::kLookup:
      return "looking a variable up";
    case ProgramVerb::kAttach:
      return "attaching an optimizer";
    case ProgramVerb::kRead:
      return "read";
    case ProgramVerb::kWrite:
      return "write";
    case ProgramVerb::kSettle:
      return "settling";
  }
  return "request";
}

}  // namespace

Result<std::unique_ptr<ProgramLink>> ProgramLink::Create(const ServerSession::Target& target,
                                                         const ServerSession::Options& options,
                                                         net::SpinLimit* spin) {
  const bool shared = options.link != LinkMode::kTcp && !target.unix_path.empty() &&
                      target.host_id == options.host_id;
  MUSTER_TRY_ASSIGN(auto arena, LinkArena::Create(shared));
  std::unique_ptr<ProgramLink> link(new ProgramLink(std::move(arena)));
  link->session_ = std::make_unique<ServerSession>(target, options, link->arena_->memory(), spin);
  return link;
}

Status ProgramLink::Connect(TimePoint deadline, bool patient) {
  MUSTER_TRY(patient ? session_->Connect(deadline) : session_->ConnectOnce(deadline));
  MUSTER_TRY(Send(ProgramVerb::kOpen, {}, {}, {}, deadline));
  MUSTER_TRY_ASSIGN(const auto answer, Receive(deadline));
  if (answer.size() != sizeof(space_)) {
    return GiveUp(
        DataLoss("{} answers with {} bytes, must be {}", name(), answer.size(), sizeof(space_)));
  }
  std::memcpy(&space_, answer.data(), sizeof(space_));
  return Ok();
}

// Closes for an error in the middle of a request; says which one was waited for in vain.
Status ProgramLink::GiveUp(const Status& error) {
  session_->Close();
  if (error.code() != StatusCode::kDeadlineExceeded) return error;
  return Annotate(error, NameOf(verb_));
}

Result<std::size_t> ProgramLink::Reserve(std::size_t bytes) {
  if (const auto offset = arena_->Reserve(bytes)) return *offset;
  // Whenever it comes again: no RESOURCE_EXHAUSTED, which would be waited for.
  return InvalidArgument("{}: a request of more than {} MiB; use more shards", name(),
                         LinkArena::room() >> 20);
}

Result<std::size_t> ProgramLink::PlaceValues(ReadPart& part) {
  if (part.lend == nullptr) return Reserve(part.into.size());
  *part.lend = arena_->Lend(part.lent_bytes);
  if (part.lend->owner != nullptr) return arena_->OffsetOf(*part.lend);
  *part.lend = Lent::Ordinary(part.lent_bytes);
  part.into = part.lend->bytes;
  return Reserve(part.into.size());
}

Status ProgramLink::SendFrame(ProgramVerb verb, const ProgramIds& ids,
                              std::span<const std::byte> meta, std::span<const iovec> payload,
                              TimePoint deadline) {
  verb_ = verb;
  const Status sent =
      session_->channel().Send(MakeHeader(verb, ++next_request_, ids), meta, payload, deadline);
  return sent.ok() ? sent : GiveUp(sent);
}

Status ProgramLink::Send(ProgramVerb verb, const ProgramIds& ids, std::span<const std::byte> meta,
                         std::span<const std::byte> payload, TimePoint deadline) {
  const iovec part = PartOf(payload);
  return SendFrame(verb, ids, meta, std::span(&part, payload.empty() ? 0 : 1), deadline);
}

Result<FrameHeader> ProgramLink::ReceiveHeader(TimePoint deadline) {
  if (const Status begun = session_->AwaitAnswer(deadline); !begun.ok()) return GiveUp(begun);
  auto reply = session_->channel().ReadFrame(deadline);
  if (!reply.ok()) return GiveUp(reply.status());
  if (!reply->has_value()) return GiveUp(Unavailable("{} closed the connection", name()));
  const FrameHeader header = **reply;
  const Status said = Annotate(net::StatusOf(header, session_->channel().meta()), name());
  if (header.request != next_request_) {
    // Request 0 names no request: the server's last words before it closes.
    if (!said.ok() && header.request == 0) return GiveUp(said);
    return GiveUp(
        DataLoss("{} answers request {}, asked was {}", name(), header.request, next_request_));
  }
  // Nobody reads what stands behind an error: the next answer would begin in the middle of it.
  if (!said.ok() && header.payload_bytes > 0) return GiveUp(said);
  MUSTER_TRY(said);
  return header;
}

Result<std::span<const std::byte>> ProgramLink::Receive(TimePoint deadline) {
  MUSTER_TRY_ASSIGN(const FrameHeader header, ReceiveHeader(deadline));
  if (header.payload_bytes == 0) return session_->channel().meta();
  return GiveUp(DataLoss("{} answers {} with {} bytes of payload", name(), NameOf(verb_),
                         header.payload_bytes));
}

// One request of all parts. Over shared memory the server writes into this link's arena, which
// lends room for it; over TCP the bytes come behind the answer.
Status ProgramLink::SendReads(const ProgramIds& ids, std::span<ReadPart> parts,
                              TimePoint deadline) {
  const bool arena = local();
  arena_->BeginRequest();
  reads_.clear();
  parts_.clear();
  offsets_.clear();
  for (ReadPart& part : parts) {
    ReadEntry& entry = reads_.emplace_back();
    entry.shard = part.shard;
    entry.slot = part.slot;
    entry.access = part.rows ? 1 : 0;
    entry.copied = arena && part.lend == nullptr ? 1 : 0;
    entry.ids = part.ids.size();
    entry.bytes = part.bytes();
    // A request that is repeated begins anew.
    if (part.lend != nullptr) part.into = {};
    if (!arena) {
      if (part.lend != nullptr) {
        *part.lend = Lent::Ordinary(part.lent_bytes);
        part.into = part.lend->bytes;
      }
      parts_.push_back(PartOf(part.ids));
      continue;
    }
    MUSTER_TRY_ASSIGN(entry.ids_offset, Reserve(part.ids.size_bytes()));
    MUSTER_TRY_ASSIGN(entry.values_offset, PlaceValues(part));
    offsets_.push_back(entry.values_offset);
    if (part.ids.empty()) continue;
    std::memcpy(arena_->At(entry.ids_offset), part.ids.data(), part.ids.size_bytes());
  }
  return SendFrame(ProgramVerb::kRead, ids, std::as_bytes(std::span(reads_)), parts_, deadline);
}

Status ProgramLink::ReceiveReads(std::span<ReadPart> parts, TimePoint deadline) {
  std::span<ReadPart> left = parts;
  while (!left.empty()) {
    MUSTER_TRY_ASSIGN(const FrameHeader header, ReceiveHeader(deadline));
    if (const Status status = ReceiveGroup(header, left, deadline); !status.ok()) {
      return GiveUp(status);
    }
  }
  if (!local()) return Ok();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].into.empty()) continue;
    std::memcpy(parts[i].into.data(), arena_->At(offsets_[i]), parts[i].into.size());
  }
  return Ok();
}

// One answering frame for the first of `left`; removes them.
Status ProgramLink::ReceiveGroup(const FrameHeader& header, std::span<ReadPart>& left,
                                 TimePoint deadline) {
  net::Channel& channel = session_->channel();
  const auto meta = channel.meta();
  const std::size_t count = meta.size() / sizeof(ReadMark);
  if (count == 0 || count > left.size() || meta.size() % sizeof(ReadMark) != 0 ||
      (count == left.size()) != ((header.flags & net::kFlagMore) == 0)) {
    return DataLoss("{} answers with {} bytes of meta for {} shards", name(), meta.size(),
                    left.size());
  }
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(&left[i].mark, meta.data() + i * sizeof(ReadMark), sizeof(ReadMark));
    if (!local()) expected += PaddedTo8(left[i].into.size());
  }
  if (header.payload_bytes != expected) {
    return DataLoss("{} answers with {} bytes of payload, must be {}", name(), header.payload_bytes,
                    expected);
  }
  for (std::size_t i = 0; i < count && !local(); ++i) {
    const auto into = left[i].into;
    MUSTER_TRY(channel.ReadPayload(into, deadline));
    std::array<std::byte, 8> padding;
    const std::size_t more = PaddedTo8(into.size()) - into.size();
    if (more > 0) MUSTER_TRY(channel.ReadPayload(std::span(padding).first(more), deadline));
  }
  left = left.subspan(count);
  return Ok();
}

// One request of all parts, whose values lie in the arena already, are copied into it, or go along.
Status ProgramLink::SendWrites(const ProgramIds& ids, std::span<const ShardWrite> parts,
                               TimePoint deadline) {
  const bool arena = local();
  arena_->BeginRequest();
  writes_.clear();
  parts_.clear();
  for (const ShardWrite& part : parts) {
    WriteEntry& entry = writes_.emplace_back();
    entry.shard = part.shard;
    entry.slot = part.slot;
    entry.op = part.op;
    entry.access = part.rows ? 1 : 0;
    entry.ids = part.ids.size();
    entry.bytes = part.values.size();
    entry.learning_rate = part.learning_rate;
    if (!arena) {
      parts_.push_back(PartOf(part.ids));
      parts_.push_back(PartOf(part.values));
      parts_.push_back(PartOf(PaddingOf(part.values.size())));
      continue;
    }
    MUSTER_TRY_ASSIGN(entry.ids_offset, Reserve(part.ids.size_bytes()));
    MUSTER_TRY_ASSIGN(entry.values_offset, Reserve(part.values.size()));
    if (!part.ids.empty()) {
      std::memcpy(arena_->At(entry.ids_offset), part.ids.data(), part.ids.size_bytes());
    }
    CopyFor(ReadBy::kAnother, arena_->At(entry.values_offset), part.values.data(),
            part.values.size());
  }
  return SendFrame(ProgramVerb::kWrite, ids, std::as_bytes(std::span(writes_)), parts_, deadline);
}

}  // namespace muster::ps
