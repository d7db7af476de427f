#include "ps/server/connection.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <poll.h>

#include "ps/server/answer_groups.h"
#include "ps/step_signal.h"

namespace muster::ps {
namespace {

using net::FrameHeader;
using net::LinkKind;

// More ids than this in one entry are refused before anything is sized by them.
constexpr std::uint64_t kMaxIds = 1ULL << 28;
// More than any memory has: sums of as many entries as there may be fit into 64 bits.
constexpr std::uint64_t kMaxFloats = 1ULL << 45;
constexpr Millis kLinger{200};
// How often a wait looks whether its peer is still there.
constexpr Millis kLookForPeer{50};

bool PeerIsGone(int socket) {
  pollfd entry{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) > 0;
}

std::uint64_t IdBytes(const WireEntry& entry) { return entry.ids * sizeof(std::int64_t); }

std::span<float> AsFloats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}
std::uint64_t ExpectedPayload(Verb verb, std::span<const WireEntry> entries) {
  std::uint64_t bytes = 0;
  for (const WireEntry& entry : entries) {
    bytes += IdBytes(entry) + (IsPull(verb) ? 0 : PaddedTo8(ValueBytes(entry)));
  }
  return bytes;
}

Status CheckEntry(const WireEntry& entry, Verb verb, std::span<const ShardInfo> shards) {
  if (entry.shard >= shards.size()) {
    return InvalidArgument("shard {} of {}: this server was asked for another plan", entry.shard,
                           shards.size());
  }
  const ShardInfo& shard = shards[entry.shard];
  const bool rows = entry.access == static_cast<std::uint32_t>(WireAccess::kRows);
  if (entry.access > 1 || (verb == Verb::kPullRows && !rows) ||
      ((verb == Verb::kPullDense || verb == Verb::kAssign) && rows) || (!rows && entry.ids != 0)) {
    return InvalidArgument("shard {}: access {} does not fit a request of kind {}", entry.shard,
                           entry.access, static_cast<int>(verb));
  }
  if (entry.ids > kMaxIds) {
    return ResourceExhausted("shard {}: {} ids in one request, limit {}", entry.shard, entry.ids,
                             kMaxIds);
  }
  if (entry.floats > kMaxFloats) {
    return ResourceExhausted("shard {}: {} values in one request, limit {}", entry.shard,
                             entry.floats, kMaxFloats);
  }
  const auto row = static_cast<std::uint64_t>(shard.row_elements);
  const std::uint64_t want = rows ? entry.ids * row : static_cast<std::uint64_t>(shard.rows) * row;
  if (entry.floats != want) {
    return InvalidArgument("shard {} of variable {}: {} values, must be {}", entry.shard,
                           shard.variable, entry.floats, want);
  }
  return Ok();
}

}  // namespace

Connection::Connection(ServerContext& context, std::unique_ptr<net::Socket> socket)
    : context_(context),
      socket_(*socket),
      channel_(std::move(socket), {.meta_bytes = 4096, .payload_bytes = 0}),
      memory_(context, channel_) {
  if (socket_.kind() == LinkKind::kUnix) channel_.ExpectDescriptor();
}

TimePoint Connection::TransferDeadline(std::uint64_t bytes) const {
  return channel_.After(context_.options.transfer_timeout + TimeFor(bytes));
}

void Connection::Run() {
  const bool local = channel_.link().kind() == LinkKind::kUnix;
  Status status = Open();
  handshaking_ = false;
  --context_.handshaking;
  // Who left without a word was not refused: it may have asked for a sign of life.
  if (!status.ok() && status.code() != StatusCode::kUnavailable) ++context_.handshakes_refused;
  if (status.ok() && local) ++context_.local_links;
  const bool opened = status.ok();
  std::uint64_t counted = 0;
  while (status.ok()) {
    auto frame = channel_.ReadFrame(TimePoint::max(), context_.options.quiet_limit);
    if (!frame.ok() || !frame->has_value()) {
      status = frame.ok() ? Status() : frame.status();
      break;
    }
    status = ServeOne(**frame);
    if (local) {
      const std::uint64_t bytes = channel_.link().bytes();
      context_.unix_socket_bytes += bytes - std::exchange(counted, bytes);
    }
  }
  if (opened && local) --context_.local_links;
  if (!status.ok()) Refuse(status);
  memory_.DropArena();
  channel_.link().ShutDown();
  --context_.connections_now;
  done_ = true;
}

void Connection::Refuse(const Status& error) {
  // A peer that went away is no news: its daemon reports it.
  if (error.code() == StatusCode::kUnavailable) return;
  context_.Warn(context_.closings, fmt::format("data connection closed: {}", ToString(error)));
  // In the handshake, which has said so.
  const bool refused = error.code() == StatusCode::kUnauthenticated ||
                       error.code() == StatusCode::kPermissionDenied ||
                       error.code() == StatusCode::kAborted;
  if (refused) return;
  ++context_.bad_frames;
  (void)channel_.SendError({}, kReply, error, channel_.After(kLinger));
  (void)net::Finish(channel_.link(), channel_.clock(), channel_.After(kLinger));
}

Status Connection::Open() {
  const auto key_of = [this](const net::Hello& hello) {
    const std::string& token = context_.identity.token;
    // Executors of models go on under the next coordinator, and prove themselves as before.
    if (const auto model = JobOf(kModelRole, hello.role)) {
      return net::JobKey(token, *model, Epoch());
    }
    const auto program = JobOf(kProgramRole, hello.role);
    return program ? net::JobKey(token, *program, ProgramSubjectOf(hello).epoch) : token;
  };
  const auto admit = [this](const net::Hello& hello) {
    if (const auto program = JobOf(kProgramRole, hello.role)) {
      return AdmitProgram(hello, std::string(*program));
    }
    const auto model = JobOf(kModelRole, hello.role);
    if (!model) return InvalidArgument("a client \"{}\": wanted model or program", hello.role);
    model_ = *model;
    const WireSubject subject = SubjectOf(hello);
    return context_.jobs.Admit(model_, subject.job, subject.view);
  };
  const TimePoint deadline = channel_.After(context_.options.handshake_timeout);
  MUSTER_TRY_ASSIGN([[maybe_unused]] const net::Hello hello,
                    net::WelcomeClient(channel_, context_.identity, deadline, admit, key_of));
  if (channel_.link().kind() == LinkKind::kUnix) MUSTER_TRY(ReceiveArena(deadline));
  channel_.SetLimits({});
  channel_.SetQuietLimit(context_.options.quiet_limit);
  return Ok();
}

Status Connection::AdmitProgram(const net::Hello& hello, const std::string& job_id) {
  const ProgramSubject subject = ProgramSubjectOf(hello);
  const ProgramTime time{.epoch = subject.epoch, .incarnation = subject.incarnation};
  MUSTER_TRY_ASSIGN(auto space, context_.programs.Open(job_id, time, context_.pool()));
  program_.emplace(context_, channel_, memory_, std::move(space));
  return Ok();
}

Status Connection::ReceiveArena(TimePoint deadline) {
  MUSTER_TRY_ASSIGN(const std::optional<FrameHeader> header, channel_.ReadFrame(deadline));
  if (!header.has_value()) return Unavailable("peer left before it gave its arena");
  net::Fd fd = channel_.TakeDescriptor();
  if (header->kind != net::kArena || !fd.valid()) {
    return DataLoss("frame of kind {} where a local link needs an arena", header->kind);
  }
  MUSTER_TRY_ASSIGN(net::PeerArena arena, net::PeerArena::Map(std::move(fd), kMaxArenaBytes));
  memory_.SetArena(std::move(arena));
  channel_.ExpectDescriptor();
  FrameHeader reply = MakeHeader(Verb::kReply, header->request, {});
  reply.flags = net::kFlagRings;
  return channel_.Send(reply, {}, {}, deadline);
}

Status Connection::ReceiveRings(const FrameHeader& frame) {
  net::Fd fd = channel_.TakeDescriptor();
  if (!memory_.local() || socket_.uses_rings() || !fd.valid() || frame.payload_bytes != 0) {
    return DataLoss("rings come once, with a descriptor, behind a local link's arena");
  }
  MUSTER_TRY_ASSIGN(net::Rings rings, net::Rings::Map(std::move(fd)));
  MUSTER_TRY(
      channel_.Send(MakeHeader(Verb::kReply, frame.request, {}), {}, {}, TransferDeadline()));
  socket_.UseRings(std::move(rings));
  return Ok();
}

// Answers one request, whatever it asks: what the stream holds of it is read in any case, so that
// the next one can follow.
Status Connection::ServeOne(const FrameHeader& frame) {
  if (frame.kind == net::kRings) return ReceiveRings(frame);
  (void)channel_.TakeDescriptor();  // none is expected behind the first request
  if (program_) return program_->Serve(frame);
  const Request request{.frame = frame, .verb = static_cast<Verb>(frame.kind), .ids = IdsOf(frame)};
  if (!IsRequest(request.verb)) {
    return Unimplemented("{}: a frame of kind {} is no request to a parameter server",
                         channel_.link().peer(), frame.kind);
  }
  answered_ = false;
  auto served = context_.jobs.Find(model_, request.ids.job, request.ids.view);
  Status status = served.ok() ? Execute(request, *served) : served.status();
  memory_.EndRequest((frame.flags & net::kFlagMore) != 0);
  if (answered_) return status;
  // Nothing has been sent: the client gets the error, and the stream goes on behind the payload.
  MUSTER_TRY(channel_.SkipPayload(TransferDeadline(frame.payload_bytes)));
  if (!status.ok()) {
    return channel_.SendError(frame, kReply, status, TransferDeadline());
  }
  const FrameHeader reply =
      MakeHeader(Verb::kReply, frame.request, {.job = request.ids.job, .view = request.ids.view});
  MUSTER_TRY(channel_.Send(reply, std::as_bytes(std::span(results_)), {}, TransferDeadline()));
  memory_.Release();
  return Ok();
}

Result<std::vector<WireEntry>> Connection::ParseEntries(const Request& request,
                                                        const JobShards& shards) const {
  const auto meta = channel_.meta();
  const std::size_t count = meta.size() / sizeof(WireEntry);
  if (meta.size() % sizeof(WireEntry) != 0 || count == 0 || count > kMaxEntries) {
    return InvalidArgument("request {}: {} bytes of meta are not 1 to {} entries of {}",
                           request.frame.request, meta.size(), kMaxEntries, sizeof(WireEntry));
  }
  std::vector<WireEntry> entries(count);
  std::memcpy(entries.data(), meta.data(), meta.size());
  for (const WireEntry& entry : entries) {
    MUSTER_TRY(CheckEntry(entry, request.verb, shards.shards()));
  }
  const std::uint64_t payload = memory_.local() ? 0 : ExpectedPayload(request.verb, entries);
  if (request.frame.payload_bytes != payload) {
    return InvalidArgument("request {}: payload of {} bytes, its entries make {}",
                           request.frame.request, request.frame.payload_bytes, payload);
  }
  return entries;
}

Status Connection::Execute(const Request& request, const JobTable::Served& served) {
  MUSTER_TRY_ASSIGN(const std::vector<WireEntry> entries, ParseEntries(request, *served.shards));
  results_.clear();
  if (request.verb != Verb::kAssign) MUSTER_TRY(AwaitStep(request, served, entries));
  if (IsPull(request.verb)) {
    ++served.counters->pulls;
    return memory_.local() ? PullLocal(served, entries) : PullTcp(request, served, entries);
  }
  if (request.verb == Verb::kPush) ++served.counters->pushes;
  return memory_.local() ? PushLocal(request, served, entries) : PushTcp(request, served, entries);
}

// The wait ends in time whatever happens to the closures that it is for: who asked may be what
// keeps one of them from running.
Status Connection::AwaitStep(const Request& request, const JobTable::Served& served,
                             Entries entries) {
  StepSignal* const signal = served.shards->step_signal();
  if (signal == nullptr) return Ok();
  const TimePoint began = channel_.After(Millis(0));
  const TimePoint deadline =
      began + std::max(context_.options.step_timeout - memory_.waited(), Millis(0));
  // All waits of a call together must not last longer than the client does.
  const auto count = [&] {
    memory_.CountWait(std::chrono::ceil<Millis>(channel_.After(Millis(0)) - began));
  };
  std::optional<ClosureId> missing;
  bool waited = false;
  for (const WireEntry& entry : entries) {
    const auto met = [&] {
      missing = served.shards->Missing(entry.shard, request.ids.closure);
      return !missing.has_value();
    };
    if (met()) continue;
    if (!waited) ++served.counters->step_waits;
    waited = true;
    for (TimePoint now = channel_.After(Millis(0)); now < deadline && !PeerIsGone(socket_.fd());
         now = channel_.After(Millis(0))) {
      if (signal->WaitUntil(std::min(deadline, now + kLookForPeer), met)) break;
    }
    if (!missing.has_value()) continue;
    count();
    return Unavailable(
        "closure {} waits for closure {}, whose gradients have not come in {} ms: its worker is "
        "slow, or lost",
        request.ids.closure, *missing, context_.options.step_timeout.count());
  }
  if (waited) count();
  return Ok();
}

template <class Use>
Status Connection::WithValues(const WireEntry& entry, const Use& use) {
  return memory_.WithArena(entry.values_offset, ValueBytes(entry), alignof(float),
                           [&use](std::span<std::byte> bytes) { return use(AsFloats(bytes)); });
}

Status Connection::PullLocal(const JobTable::Served& served, Entries entries) {
  MUSTER_TRY(memory_.StageIds(entries));
  for (const WireEntry& entry : entries) {
    MUSTER_TRY_ASSIGN(const auto ids, memory_.LocalIds(entry.ids_offset, entry.ids));
    const bool dense = entry.access == static_cast<std::uint32_t>(WireAccess::kDense);
    MUSTER_TRY(WithValues(entry, [&](std::span<float> into) -> Status {
      MUSTER_TRY_ASSIGN(const std::uint64_t version,
                        dense ? served.shards->ReadDense(entry.shard, into)
                              : served.shards->ReadRows(entry.shard, ids, into));
      results_.push_back(version);
      return Ok();
    }));
    served.counters->local_bytes_in += IdBytes(entry);
    served.counters->local_bytes_out += ValueBytes(entry);
  }
  return Ok();
}

Status Connection::PullTcp(const Request& request, const JobTable::Served& served,
                           Entries entries) {
  // One piece of memory for ids and values: two that wait for each other could wait for ever.
  const std::uint64_t id_bytes = request.frame.payload_bytes;
  MUSTER_TRY_ASSIGN(const auto staging, memory_.Stage(id_bytes + LargestGroup(entries)));
  std::span<const std::byte> ids = staging.first(id_bytes);
  if (const Status read = channel_.ReadPayload(staging.first(id_bytes), TransferDeadline(id_bytes));
      !read.ok()) {
    answered_ = true;
    return read;
  }
  served.counters->tcp_bytes_in += id_bytes;
  while (!entries.empty()) {
    const Entries group = FirstGroup(entries).entries;
    entries = entries.subspan(group.size());
    MUSTER_TRY_ASSIGN(const bool goes_on, SendGroup(request, served, group, ids,
                                                    staging.subspan(id_bytes), !entries.empty()));
    if (!goes_on) return Ok();
    for (const WireEntry& entry : group) ids = ids.subspan(IdBytes(entry));
  }
  return Ok();
}

// Reads the group into `values`, back to back, and sends it as one frame. False: an entry could not
// be read, the client has been told, and the rest of the request is not answered.
Result<bool> Connection::SendGroup(const Request& request, const JobTable::Served& served,
                                   Entries group, std::span<const std::byte> ids,
                                   std::span<std::byte> values, bool more) {
  results_.clear();
  std::uint64_t used = 0;
  for (const WireEntry& entry : group) {
    const auto into = AsFloats(values.subspan(used, ValueBytes(entry)));
    const bool dense = entry.access == static_cast<std::uint32_t>(WireAccess::kDense);
    const auto version =
        dense ? served.shards->ReadDense(entry.shard, into)
              : served.shards->ReadRows(entry.shard, AsIds(ids.first(IdBytes(entry))), into);
    if (!version.ok()) {
      answered_ = true;
      MUSTER_TRY(channel_.SendError(request.frame, kReply, version.status(), TransferDeadline()));
      return false;
    }
    results_.push_back(*version);
    ids = ids.subspan(IdBytes(entry));
    used += PaddedTo8(ValueBytes(entry));
    served.counters->tcp_bytes_out += ValueBytes(entry);
  }
  const FrameHeader reply = MakeHeader(Verb::kReply, request.frame.request,
                                       {.job = request.ids.job, .view = request.ids.view},
                                       more ? net::kFlagMore : std::uint16_t{0});
  const iovec payload{.iov_base = values.data(), .iov_len = used};
  answered_ = true;
  MUSTER_TRY(channel_.Send(reply, std::as_bytes(std::span(results_)), std::span(&payload, 1),
                           TransferDeadline(used)));
  return true;
}

Status Connection::PushLocal(const Request& request, const JobTable::Served& served,
                             Entries entries) {
  MUSTER_TRY(memory_.StageIds(entries));
  for (const WireEntry& entry : entries) {
    MUSTER_TRY_ASSIGN(const auto ids, memory_.LocalIds(entry.ids_offset, entry.ids));
    MUSTER_TRY(WithValues(entry, [&](std::span<float> values) {
      return Change(request, served, entry, ids, values);
    }));
    served.counters->local_bytes_in += IdBytes(entry) + ValueBytes(entry);
  }
  return Ok();
}

Status Connection::PushTcp(const Request& request, const JobTable::Served& served,
                           Entries entries) {
  MUSTER_TRY_ASSIGN(const auto payload, memory_.Stage(request.frame.payload_bytes));
  if (const Status read = channel_.ReadPayload(payload, TransferDeadline(payload.size()));
      !read.ok()) {
    answered_ = true;
    return read;
  }
  std::uint64_t at = 0;
  for (const WireEntry& entry : entries) {
    const auto ids = AsIds(payload.subspan(at, IdBytes(entry)));
    at += IdBytes(entry);
    const auto values = AsFloats(payload.subspan(at, ValueBytes(entry)));
    at += PaddedTo8(ValueBytes(entry));
    MUSTER_TRY(Change(request, served, entry, ids, values));
    served.counters->tcp_bytes_in += IdBytes(entry) + ValueBytes(entry);
  }
  return Ok();
}

Status Connection::Change(const Request& request, const JobTable::Served& served,
                          const WireEntry& entry, std::span<const std::int64_t> ids,
                          std::span<const float> values) {
  if (request.verb == Verb::kAssign) {
    results_.push_back(0);
    return served.shards->Assign(entry.shard, values);
  }
  const PushId id{.closure = request.ids.closure, .attempt = request.ids.attempt};
  const bool dense = entry.access == static_cast<std::uint32_t>(WireAccess::kDense);
  MUSTER_TRY_ASSIGN(const ApplyOutcome outcome,
                    dense ? served.shards->ApplyDense(entry.shard, id, values)
                          : served.shards->ApplyRows(entry.shard, id, ids, values));
  const bool duplicate = outcome == ApplyOutcome::kDuplicate;
  if (duplicate) ++served.counters->duplicates;
  results_.push_back(
      static_cast<std::uint64_t>(duplicate ? WireOutcome::kDuplicate : WireOutcome::kApplied));
  return Ok();
}

}  // namespace muster::ps
