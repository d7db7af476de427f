// One client's connection to a parameter server, served by one thread from handshake to close.
//
// Threading: Run() on its own thread; Stop() and the counts from any.
// Lifetime: the ServerContext outlives it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/rate_limit.h"
#include "common/base/status.h"
#include "common/net/arena.h"
#include "common/net/channel.h"
#include "common/net/handshake.h"
#include "common/net/spin.h"
#include "common/net/stage_pool.h"
#include "ps/server/job_table.h"
#include "ps/server/ps_server.h"
#include "ps/server/reclaimer.h"
#include "ps/wire.h"

namespace muster::ps {

// What the connections of one server share.
struct ServerContext {
  static constexpr Millis kWarnEvery{5'000};

  explicit ServerContext(PsServer::Options given, int cores)
      : options(std::move(given)),
        identity{.token = options.token, .host_id = options.host_id},
        stage(options.stage_budget_bytes / 2),
        spin(cores) {}

  const PsServer::Options options;
  const net::Identity identity;
  JobTable jobs;
  net::StagePool stage;
  net::SpinLimit spin;
  Reclaimer reclaimer;
  std::atomic<std::uint64_t> connections_now{0};
  std::atomic<std::uint64_t> connections_accepted{0};
  std::atomic<std::uint64_t> handshaking{0};
  std::atomic<std::uint64_t> local_links{0};
  std::atomic<std::uint64_t> handshakes_refused{0};
  std::atomic<std::uint64_t> bad_frames{0};
  std::atomic<std::uint64_t> unix_socket_bytes{0};

  // `limit` belongs to what is said: peers can cause these lines as often as they like.
  void Warn(RateLimit& limit, const std::string& line) const {
    if (!options.on_warning) return;
    if (const auto held = limit.Ask()) options.on_warning(line + MoreTimes(*held));
  }
  RateLimit refusals{kWarnEvery};
  RateLimit failures{kWarnEvery};
  RateLimit closings{kWarnEvery, 10};
  RateLimit shortages{kWarnEvery};
};

class Connection {
 public:
  Connection(ServerContext& context, net::Fd fd, net::LinkKind kind, const std::string& peer);

  // Returns when the peer has gone, broken the protocol, or Stop() was called.
  void Run();
  void Stop() { channel_.link().ShutDown(); }
  bool done() const { return done_; }
  bool handshaking() const { return handshaking_; }

 private:
  using Entries = std::span<const WireEntry>;
  struct Request {
    net::FrameHeader frame;
    Verb verb;
    WireIds ids;
  };

  Status Open();
  Status ReceiveArena(TimePoint deadline);
  // OK: the stream stands between two frames. An error ends the connection.
  Status ServeOne(const net::FrameHeader& frame);
  // The request itself; its error is the client's answer.
  Status Execute(const Request& request, const JobTable::Served& served);
  Result<std::vector<WireEntry>> ParseEntries(const Request& request,
                                              const JobShards& shards) const;

  Status PullLocal(const JobTable::Served& served, Entries entries);
  Status PullTcp(const Request& request, const JobTable::Served& served, Entries entries);
  // False: the group was answered with an error, which ends the request.
  Result<bool> SendGroup(const Request& request, const JobTable::Served& served, Entries group,
                         std::span<const std::byte> ids, std::span<std::byte> values, bool more);
  Status PushLocal(const Request& request, const JobTable::Served& served, Entries entries);
  Status PushTcp(const Request& request, const JobTable::Served& served, Entries entries);
  // Applies or assigns one shard's part.
  Status Change(const Request& request, const JobTable::Served& served, const WireEntry& entry,
                std::span<const std::int64_t> ids, std::span<const float> values);

  // Memory of this connection for a small transfer, of the stage pool for a large one.
  Result<std::span<std::byte>> Stage(std::uint64_t bytes);
  // Ids, copied out of the arena: a peer must not change them once they are checked.
  Result<std::span<const std::int64_t>> LocalIds(const WireEntry& entry);
  // Values in the arena, while `use` works on them; the pages that stay resident are bounded.
  Status WithArenaValues(const WireEntry& entry,
                         const std::function<Status(std::span<float>)>& use);
  // What may stay resident of this connection's arena.
  std::uint64_t ResidentLimit() const;
  void Refuse(const Status& error);
  TimePoint TransferDeadline(std::uint64_t bytes = 0) const;

  ServerContext& context_;
  net::Channel channel_;
  std::optional<net::PeerArena> arena_;
  std::atomic<bool> done_{false};
  std::atomic<bool> handshaking_{true};
  // The current request's staging, answers per entry, and whether its answer has been sent.
  std::vector<std::byte> small_;
  std::optional<net::StagePool::Lease> lease_;
  std::vector<std::uint64_t> results_;
  bool answered_ = false;
};

}  // namespace muster::ps
