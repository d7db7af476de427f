#include "ps/client/program_servers.h"

#include <algorithm>
#include <utility>

#include "common/base/limits.h"
#include "ps/wire.h"

namespace muster::ps {
namespace {

constexpr Millis kFirstPause{1};
constexpr Millis kLastPause{50};

// Parts that go in one frame: at least one, and not so many that memory is filled.
template <class Part, class BytesOf>
std::size_t GroupOf(std::span<const Part> parts, const BytesOf& bytes_of) {
  std::uint64_t bytes = 0;
  std::size_t n = 0;
  for (; n < parts.size() && n < kMaxEntries; ++n) {
    bytes += bytes_of(parts[n]);
    if (n > 0 && bytes > ProgramLink::kGroupBytes) break;
  }
  return n;
}

std::uint64_t BytesOfRead(const ReadPart& part) { return part.ids.size_bytes() + part.bytes(); }
std::uint64_t BytesOfWrite(const ShardWrite& part) {
  return part.ids.size_bytes() + part.values.size();
}

std::span<ReadPart> NextReads(Share& share) {
  const auto left = std::span(share.reads).subspan(share.done);
  return left.first(GroupOf(std::span<const ReadPart>(left), BytesOfRead));
}

// Which of several servers' errors a call tells. One without room may have some later, so that it
// hides no other error; that somebody else has taken over outranks all.
int RankOf(const Status& status) {
  if (status.ok()) return 0;
  if (status.code() == StatusCode::kResourceExhausted) return 1;
  return status.code() == StatusCode::kAborted ? 3 : 2;
}

// All of a shard's writes go together: they are applied at once.
std::span<const ShardWrite> NextWrites(const Share& share) {
  const auto left = std::span(share.writes).subspan(share.done);
  std::size_t n = GroupOf(left, BytesOfWrite);
  if (n == left.size()) return left;
  std::size_t whole = n;
  while (whole > 0 && left[whole - 1].shard == left[n].shard) --whole;
  if (whole > 0) return left.first(whole);
  while (n < left.size() && left[n].shard == left[0].shard) ++n;
  return left.first(n);
}

// How many there are of the same shard before each, where writes stand shard by shard.
template <class Use>
void ForEachRank(std::span<const ShardWrite> writes, const Use& use) {
  std::size_t rank = 0;
  for (std::size_t i = 0; i < writes.size(); ++i) {
    rank = i > 0 && writes[i].shard == writes[i - 1].shard ? rank + 1 : 0;
    use(writes[i], rank);
  }
}

}  // namespace

// By each shard's own count, so that a write has the same number whatever is written elsewhere.
std::vector<std::vector<Share>> CutIntoFlushes(std::vector<Share> shares) {
  std::size_t flushes = 1;
  for (Share& share : shares) {
    std::ranges::stable_sort(share.writes, {}, &ShardWrite::shard);
    if (share.writes.size() <= kMaxEntries) continue;
    ForEachRank(share.writes, [&](const ShardWrite&, std::size_t rank) {
      flushes = std::max<std::size_t>(flushes, rank / kMaxEntries + 1);
    });
  }
  std::vector<std::vector<Share>> cut(flushes);
  if (flushes == 1) {
    cut[0] = std::move(shares);
    return cut;
  }
  for (const Share& share : shares) {
    for (std::vector<Share>& flush : cut) {
      flush.push_back({.server = share.server, .reads = {}, .writes = {}});
    }
    ForEachRank(share.writes, [&](const ShardWrite& write, std::size_t rank) {
      cut[rank / kMaxEntries].back().writes.push_back(write);
    });
  }
  return cut;
}

ProgramServers::ProgramServers(std::vector<ProgramServer> servers,
                               const ProgramClientOptions& options)
    : options_(options),
      session_{.key = options.key,
               .tls = options.tls,
               .role = RoleOf(kProgramRole, options.job_id),
               .subject = SubjectOf(
                   ProgramSubject{.epoch = options.epoch, .incarnation = options.incarnation}),
               .link = options.link,
               .host_id = options.host_id,
               .ping_after = options.ping_after,
               .ping_limit = options.ping_limit,
               .spin = options.spin},
      spin_(UsableProcessors()) {
  for (const ProgramServer& server : servers) {
    servers_.push_back(std::make_unique<Server>(server));
  }
}

Status ProgramServers::Open(TimePoint deadline) {
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    Leg leg;
    Share share{.server = server, .reads = {}, .writes = {}};
    leg.share = &share;
    MUSTER_TRY_ASSIGN(leg.link, ProgramLink::Create(target(server), session_, &spin_));
    MUSTER_TRY(Connect(server, *leg.link, deadline, /*patient=*/true));
    BringBack(leg);
  }
  return Ok();
}

Result<std::size_t> ProgramServers::Find(std::uint32_t index) const {
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    if (target(server).index == index) return server;
  }
  return InvalidArgument("ps:{}: the job has {} parameter servers, and this is none of them", index,
                         servers_.size());
}

std::vector<SpaceId> ProgramServers::spaces() const {
  std::vector<SpaceId> spaces;
  for (const auto& server : servers_) {
    const MutexLock lock(server->mutex);
    spaces.push_back(server->space);
  }
  return spaces;
}

LinkBytes ProgramServers::bytes() const { return {.tcp = tcp_bytes_, .local = local_bytes_}; }

std::vector<ReadCounts> ProgramServers::reads() const {
  std::vector<ReadCounts> reads;
  for (const auto& server : servers_) {
    reads.push_back({.requests = server->read_requests, .parts = server->read_parts});
  }
  return reads;
}

void ProgramServers::Count(const ProgramLink& link, std::uint64_t bytes) {
  (link.local() ? local_bytes_ : tcp_bytes_).fetch_add(bytes, std::memory_order_relaxed);
}

// Connects, and sees whether the server is the one that it was.
Status ProgramServers::Connect(std::size_t server, ProgramLink& link, TimePoint deadline,
                               bool patient) {
  MUSTER_TRY(link.Connect(deadline, patient));
  Server& at = *servers_[server];
  const MutexLock lock(at.mutex);
  if (at.space == SpaceId()) at.space = link.space();
  if (at.space != link.space() && at.lost.ok()) {
    at.lost = Unavailable("{} was restarted; its values are lost", link.name());
  }
  return at.lost;
}

Status ProgramServers::Take(Leg& leg, TimePoint deadline) {
  Server& at = *servers_[leg.share->server];
  {
    const MutexLock lock(at.mutex);
    MUSTER_TRY(at.lost);
    if (!at.idle.empty()) {
      leg.link = std::move(at.idle.back());
      at.idle.pop_back();
      return Ok();
    }
  }
  MUSTER_TRY_ASSIGN(leg.link, ProgramLink::Create(at.target, session_, &spin_));
  return Connect(leg.share->server, *leg.link, deadline, /*patient=*/false);
}

void ProgramServers::BringBack(Leg& leg) {
  if (leg.link == nullptr || !leg.link->connected()) return;
  Server& at = *servers_[leg.share->server];
  const MutexLock lock(at.mutex);
  at.idle.push_back(std::move(leg.link));
}

// The first error is kept, but for one of a higher rank.
Status ProgramServers::Round(std::span<Share* const> shares, const Exchange& exchange,
                             TimePoint deadline) {
  std::vector<Leg> legs(shares.size());
  for (std::size_t i = 0; i < shares.size(); ++i) {
    legs[i].share = shares[i];
    legs[i].status = Take(legs[i], deadline);
    if (legs[i].status.ok()) legs[i].status = exchange.send(*shares[i], *legs[i].link);
  }
  Status first;
  for (Leg& leg : legs) {
    if (leg.link != nullptr && leg.status.ok()) {
      leg.status = exchange.receive(*leg.share, *leg.link);
    }
    // The connection broke: once more on a new one. Whatever the server had done before, repeating
    // a request does no harm.
    const bool again = leg.link != nullptr && !leg.link->connected() &&
                       (leg.status.code() == StatusCode::kUnavailable ||
                        leg.status.code() == StatusCode::kDataLoss);
    if (again) {
      leg.status = Connect(leg.share->server, *leg.link, deadline, /*patient=*/false);
      if (leg.status.ok()) leg.status = exchange.send(*leg.share, *leg.link);
      if (leg.status.ok()) leg.status = exchange.receive(*leg.share, *leg.link);
    }
    BringBack(leg);
    if (RankOf(leg.status) > RankOf(first)) first = leg.status;
  }
  return first;
}

Status ProgramServers::Ask(std::size_t server, ProgramVerb verb, const ProgramIds& ids,
                           std::span<const std::byte> meta, std::span<const std::byte> payload,
                           TimePoint deadline,
                           absl::FunctionRef<Status(std::span<const std::byte> answer)> use) {
  Share share{.server = server, .reads = {}, .writes = {}};
  Share* const shares[] = {&share};
  return Round(shares,
               {.send =
                    [&](Share&, ProgramLink& link) {
                      Count(link, payload.size());
                      return link.Send(verb, ids, meta, payload, deadline);
                    },
                .receive = [&](Share&, ProgramLink& link) -> Status {
                  MUSTER_TRY_ASSIGN(const auto answer, link.Receive(deadline));
                  return use(answer);
                }},
               deadline);
}

// One group of each share's parts a round, until nothing is left; a server that has no room is
// asked again after a pause that grows.
Status ProgramServers::Rounds(std::span<Share> shares, TimePoint deadline,
                              absl::FunctionRef<std::size_t(const Share&)> left,
                              absl::FunctionRef<std::size_t(const Share&)> group,
                              const Exchange& exchange) {
  Millis pause = kFirstPause;
  for (;;) {
    std::vector<Share*> open;
    for (Share& share : shares) {
      if (left(share) > 0) open.push_back(&share);
    }
    if (open.empty()) return Ok();
    // A share that is done goes on, also where another one has to come again.
    const auto receive = [&](Share& share, ProgramLink& link) -> Status {
      const std::size_t n = group(share);
      MUSTER_TRY(exchange.receive(share, link));
      share.done += n;
      return Ok();
    };
    const Status status = Round(open, {.send = exchange.send, .receive = receive}, deadline);
    if (status.ok()) {
      pause = kFirstPause;
      continue;
    }
    if (status.code() != StatusCode::kResourceExhausted) return status;
    const TimePoint next = std::chrono::steady_clock::now() + pause;
    if (next >= deadline) return status;
    std::this_thread::sleep_until(next);
    pause = std::min(2 * pause, kLastPause);
  }
}

Status ProgramServers::ReadAll(std::span<Share> shares, const ProgramIds& ids, TimePoint deadline) {
  return Rounds(
      shares, deadline, [](const Share& share) { return share.reads.size() - share.done; },
      [](const Share& share) {
        const auto left = std::span(share.reads).subspan(share.done);
        return GroupOf(left, BytesOfRead);
      },
      {.send =
           [&](Share& share, ProgramLink& link) {
             const auto parts = NextReads(share);
             Server& server = *servers_[share.server];
             server.read_requests.fetch_add(1, std::memory_order_relaxed);
             server.read_parts.fetch_add(parts.size(), std::memory_order_relaxed);
             return link.SendReads(ids, parts, deadline);
           },
       .receive = [&](Share& share, ProgramLink& link) -> Status {
         const auto parts = NextReads(share);
         MUSTER_TRY(link.ReceiveReads(parts, deadline));
         for (const ReadPart& part : parts) Count(link, BytesOfRead(part));
         return Ok();
       }});
}

Status ProgramServers::WriteAll(std::span<Share> shares, const ProgramIds& ids,
                                TimePoint deadline) {
  return Rounds(
      shares, deadline, [](const Share& share) { return share.writes.size() - share.done; },
      [](const Share& share) { return NextWrites(share).size(); },
      {.send = [&](Share& share,
                   ProgramLink& link) { return link.SendWrites(ids, NextWrites(share), deadline); },
       .receive = [&](Share& share, ProgramLink& link) -> Status {
         MUSTER_TRY(link.Receive(deadline).status());
         for (const ShardWrite& part : NextWrites(share)) Count(link, BytesOfWrite(part));
         return Ok();
       }});
}

}  // namespace muster::ps
