#include "ps/server/program_requests.h"

#include <algorithm>
#include <utility>

#include "muster/v1/variables.pb.h"
#include "ps/server/answer_groups.h"
#include "ps/server/server_context.h"
#include "ps/wire.h"

namespace muster::ps {
namespace {

using net::FrameHeader;

// What elements of any dtype are aligned to.
constexpr std::size_t kAlign = 8;

FrameHeader ReplyTo(const FrameHeader& frame, std::uint16_t flags = 0) {
  return {.kind = kReply, .flags = flags, .request = frame.request};
}

// A program's transfer that finds no room may come again, like a write that is too far ahead.
Status MayComeAgain(const Status& status) {
  if (status.code() != StatusCode::kUnavailable) return status;
  return ResourceExhausted("{}", Message(status));
}

}  // namespace

TimePoint ProgramRequests::TransferDeadline(std::uint64_t bytes) const {
  return channel_.After(context_.options.transfer_timeout + TimeFor(bytes));
}

template <class T>
void ProgramRequests::Answer(std::span<const T> numbers) {
  const auto bytes = std::as_bytes(numbers);
  answer_.assign(bytes.begin(), bytes.end());
}

template <class Message>
Result<Message> ProgramRequests::ParseMeta() const {
  Message message;
  const auto meta = channel_.meta();
  if (message.ParseFromArray(meta.data(), static_cast<int>(meta.size()))) return message;
  return InvalidArgument("{} bytes of meta are no {}", meta.size(), Message::descriptor()->name());
}

Status ProgramRequests::Serve(const FrameHeader& frame) {
  if (!IsProgramRequest(frame.kind)) {
    return Unimplemented("{}: a frame of kind {} is no request about a program's variables",
                         channel_.link().peer(), frame.kind);
  }
  answer_.clear();
  answered_ = false;
  broken_ = Ok();
  space_->Settle(ProgramIdsOf(frame).settled);
  space_->BeginStep(StepOf(ProgramIdsOf(frame)));
  const Status status = Execute(frame);
  memory_.EndRequest();
  if (!broken_.ok() || answered_) return broken_;
  // Nothing has been sent: the stream goes on behind the payload.
  MUSTER_TRY(channel_.SkipPayload(TransferDeadline(frame.payload_bytes)));
  if (!status.ok()) return channel_.SendError(frame, kReply, status, TransferDeadline());
  MUSTER_TRY(channel_.Send(ReplyTo(frame), answer_, {}, TransferDeadline()));
  memory_.Release();
  return Ok();
}

// Leaves the answer in `answer_`, but of a read over TCP, which sends its own piece by piece.
Status ProgramRequests::Execute(const FrameHeader& frame) {
  switch (static_cast<ProgramVerb>(frame.kind)) {
    case ProgramVerb::kOpen: {
      const SpaceId number = space_->number();
      Answer(std::span(&number, 1));
      return Ok();
    }
    case ProgramVerb::kCreate:
      return Create(frame);
    case ProgramVerb::kDelete:
      return Delete();
    case ProgramVerb::kLookup:
      return Lookup();
    case ProgramVerb::kAttach:
      return Attach();
    case ProgramVerb::kRead: {
      MUSTER_TRY_ASSIGN(const std::vector<ReadEntry> entries,
                        ParseReads(channel_.meta(), frame.payload_bytes, memory_.local()));
      return memory_.local() ? ReadLocal(entries) : ReadTcp(frame, entries);
    }
    case ProgramVerb::kWrite:
      return Write(frame);
    case ProgramVerb::kSettle: {
      const Status ended = space_->EndSteps();
      space_->Trim();
      return ended;
    }
  }
  return Ok();
}

Result<std::span<std::byte>> ProgramRequests::Receive(std::uint64_t bytes, std::uint64_t more) {
  const auto staging = memory_.Stage(bytes + more);
  MUSTER_TRY(MayComeAgain(staging.status()));
  broken_ = channel_.ReadPayload(staging->first(bytes), TransferDeadline(bytes));
  MUSTER_TRY(broken_);
  return *staging;
}

Status ProgramRequests::Create(const FrameHeader& frame) {
  MUSTER_TRY_ASSIGN(const v1::CreateShard create, ParseMeta<v1::CreateShard>());
  if (!create.value() && frame.payload_bytes != 0) {
    return InvalidArgument("variable {}: a payload of {} bytes that is said to be no value",
                           create.variable().name(), frame.payload_bytes);
  }
  MUSTER_TRY_ASSIGN(const auto value, Receive(frame.payload_bytes));
  MUSTER_TRY_ASSIGN(const std::uint32_t shard, space_->Create(create, value));
  Answer(std::span(&shard, 1));
  return Ok();
}

Status ProgramRequests::Delete() {
  MUSTER_TRY_ASSIGN(const v1::ShardList list, ParseMeta<v1::ShardList>());
  return space_->Delete({list.shards().data(), static_cast<std::size_t>(list.shards_size())});
}

Status ProgramRequests::Lookup() {
  MUSTER_TRY_ASSIGN(const v1::LookupVariable lookup, ParseMeta<v1::LookupVariable>());
  MUSTER_TRY_ASSIGN(const v1::FoundVariable found, space_->Lookup(lookup.name()));
  answer_.resize(found.ByteSizeLong());
  (void)found.SerializeToArray(answer_.data(), static_cast<int>(answer_.size()));
  return Ok();
}

Status ProgramRequests::Attach() {
  MUSTER_TRY_ASSIGN(const v1::AttachOptimizer attach, ParseMeta<v1::AttachOptimizer>());
  return space_->Attach(attach);
}

Status ProgramRequests::ReadLocal(std::span<const ReadEntry> entries) {
  MUSTER_TRY(MayComeAgain(memory_.StageIds(entries)));
  std::vector<ReadMark> marks;
  marks.reserve(entries.size());
  for (const ReadEntry& entry : entries) {
    const auto ids = memory_.LocalIds(entry.ids_offset, entry.ids);
    MUSTER_TRY(MayComeAgain(ids.status()));
    MUSTER_TRY(memory_.WithArena(
        entry.values_offset, entry.bytes, kAlign, [&](std::span<std::byte> into) -> Status {
          MUSTER_TRY_ASSIGN(
              const ReadMark mark,
              space_->Read(entry.shard, entry.slot, entry.access == 1, *ids, into,
                           entry.copied == 1 ? ReadBy::kAnother : ReadBy::kThisProcessor));
          marks.push_back(mark);
          return Ok();
        }));
  }
  Answer(std::span<const ReadMark>(marks));
  return Ok();
}

Status ProgramRequests::ReadTcp(const FrameHeader& frame, std::span<const ReadEntry> entries) {
  const std::uint64_t most = LargestGroup(entries);
  // One entry is larger than a frame: everybody waits while room is made for it, so it is not made
  // for a size that no shard has.
  for (std::size_t i = 0; most > kFrameTarget && i < entries.size(); ++i) {
    const ReadEntry& entry = entries[i];
    MUSTER_TRY(space_->CheckSize(entry.shard, entry.access == 1, entry.ids, entry.bytes));
  }
  // One piece of memory for ids and values: two that wait for each other could wait for ever.
  MUSTER_TRY_ASSIGN(const auto staging, Receive(frame.payload_bytes, most));
  std::span<const std::byte> ids = staging.first(frame.payload_bytes);
  while (!entries.empty()) {
    const auto group = FirstGroup(entries);
    entries = entries.subspan(group.entries.size());
    MUSTER_TRY(SendGroup(frame, group.entries, ids,
                         staging.subspan(frame.payload_bytes, group.bytes), !entries.empty()));
  }
  return Ok();
}

Status ProgramRequests::SendGroup(const FrameHeader& frame, std::span<const ReadEntry> group,
                                  std::span<const std::byte>& ids, std::span<std::byte> values,
                                  bool more) {
  std::vector<ReadMark> marks;
  std::uint64_t used = 0;
  for (const ReadEntry& entry : group) {
    const std::uint64_t id_bytes = entry.ids * sizeof(std::int64_t);
    const auto mark = space_->Read(entry.shard, entry.slot, entry.access == 1,
                                   AsIds(ids.first(id_bytes)), values.subspan(used, entry.bytes));
    if (!mark.ok()) {
      // Also behind earlier groups: an error ends the answer.
      answered_ = true;
      broken_ = channel_.SendError(frame, kReply, mark.status(), TransferDeadline());
      return mark.status();
    }
    marks.push_back(*mark);
    ids = ids.subspan(id_bytes);
    used += PaddedTo8(entry.bytes);
  }
  const iovec payload{.iov_base = values.data(), .iov_len = used};
  answered_ = true;
  broken_ = channel_.Send(ReplyTo(frame, more ? net::kFlagMore : std::uint16_t{0}),
                          std::as_bytes(std::span(marks)), std::span(&payload, 1),
                          TransferDeadline(used));
  return broken_;
}

Result<std::vector<ShardWrite>> ProgramRequests::LocalWrites(std::span<const WriteEntry> entries) {
  std::uint64_t id_bytes = 0;
  for (const WriteEntry& entry : entries) id_bytes += entry.ids * sizeof(std::int64_t);
  // Ids are copied: a peer must not change them once they are checked.
  MUSTER_TRY_ASSIGN(std::span<std::byte> room, Receive(0, id_bytes));
  std::vector<ShardWrite> writes;
  writes.reserve(entries.size());
  for (const WriteEntry& entry : entries) {
    ShardWrite& write = writes.emplace_back();
    write.shard = entry.shard;
    write.slot = entry.slot;
    write.op = entry.op;
    write.rows = entry.access == 1;
    write.learning_rate = entry.learning_rate;
    MUSTER_TRY_ASSIGN(write.values, memory_.InArena(entry.values_offset, entry.bytes, kAlign));
    if (entry.ids == 0) continue;
    MUSTER_TRY_ASSIGN(const auto theirs,
                      memory_.InArena(entry.ids_offset, entry.ids * sizeof(std::int64_t), kAlign));
    std::ranges::copy(theirs, room.begin());
    write.ids = AsIds(room.first(theirs.size()));
    room = room.subspan(theirs.size());
  }
  return writes;
}

Result<std::vector<ShardWrite>> ProgramRequests::TcpWrites(const FrameHeader& frame,
                                                           std::span<const WriteEntry> entries) {
  MUSTER_TRY_ASSIGN(std::span<const std::byte> payload, Receive(frame.payload_bytes));
  std::vector<ShardWrite> writes;
  writes.reserve(entries.size());
  const auto take = [&payload](std::uint64_t bytes) {
    const auto taken = payload.first(bytes);
    payload = payload.subspan(PaddedTo8(bytes));
    return taken;
  };
  for (const WriteEntry& entry : entries) {
    const auto ids = AsIds(take(entry.ids * sizeof(std::int64_t)));
    writes.push_back({.shard = entry.shard,
                      .slot = entry.slot,
                      .op = entry.op,
                      .rows = entry.access == 1,
                      .ids = ids,
                      .values = take(entry.bytes),
                      .learning_rate = entry.learning_rate});
  }
  return writes;
}

Status ProgramRequests::Write(const FrameHeader& frame) {
  MUSTER_TRY_ASSIGN(const std::vector<WriteEntry> entries,
                    ParseWrites(channel_.meta(), frame.payload_bytes, memory_.local()));
  MUSTER_TRY_ASSIGN(const std::vector<ShardWrite> writes,
                    memory_.local() ? LocalWrites(entries) : TcpWrites(frame, entries));
  const ProgramIds ids = ProgramIdsOf(frame);
  const FlushId id{.closure = ids.closure, .attempt = ids.attempt, .flush = FlushOf(ids)};
  std::vector<bool> outcomes;
  MUSTER_TRY(space_->Write(id, writes, outcomes, StepOf(ids)));
  std::vector<std::uint64_t> numbers;
  for (const bool applied : outcomes) {
    numbers.push_back(
        static_cast<std::uint64_t>(applied ? WireOutcome::kApplied : WireOutcome::kDuplicate));
  }
  Answer(std::span<const std::uint64_t>(numbers));
  return Ok();
}

}  // namespace muster::ps
