// The parameter servers of a program's client: their links, which calls take and bring back, and
// calls to several of them at once.
//
// Threading: any thread. A call has its links to itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <absl/functional/function_ref.h>

#include "common/base/mutex.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/spin.h"
#include "ps/client/program_link.h"
#include "ps/client/program_types.h"

namespace muster::ps {

// One server's part of a call.
struct Share {
  // Index into the client's servers.
  std::size_t server = 0;
  std::vector<ReadPart> reads;
  std::vector<ShardWrite> writes;
  // What has been done of them.
  std::size_t done = 0;
};

// A call's writes, each share's shard by shard in their order, as flushes to be sent one after
// another: one, but where a shard has more writes than a frame has room for, which it applies at
// once.
std::vector<std::vector<Share>> CutIntoFlushes(std::vector<Share> shares);

class ProgramServers {
 public:
  ProgramServers(std::vector<ProgramServer> servers, const ProgramClientOptions& options);

  // Connects to each.
  Status Open(TimePoint deadline);

  std::size_t size() const { return servers_.size(); }
  // The server of a task index. kInvalidArgument: there is none.
  Result<std::size_t> Find(std::uint32_t index) const;
  const ServerSession::Target& target(std::size_t server) const { return servers_[server]->target; }
  std::vector<SpaceId> spaces() const;
  LinkBytes bytes() const;
  std::vector<ReadCounts> reads() const;

  // One request to one server; `use` gets the answer. A link that broke is made again once, and the
  // request repeated: repeating any does no harm.
  Status Ask(std::size_t server, ProgramVerb verb, const ProgramIds& ids,
             std::span<const std::byte> meta, std::span<const std::byte> payload,
             TimePoint deadline, absl::FunctionRef<Status(std::span<const std::byte> answer)> use);
  // Reads and writes of all shares, all servers at once, in groups of parts that are not too large.
  // A server without room, or too far behind, is asked again until the deadline, unless another one
  // has an error that does not pass.
  Status ReadAll(std::span<Share> shares, const ProgramIds& ids, TimePoint deadline);
  Status WriteAll(std::span<Share> shares, const ProgramIds& ids, TimePoint deadline);

 private:
  struct Server {
    Server(const ProgramServer& given) : target(given.target), space(given.space) {}
    const ServerSession::Target target;
    Mutex mutex;
    std::vector<std::unique_ptr<ProgramLink>> idle MUSTER_GUARDED_BY(mutex);
    SpaceId space MUSTER_GUARDED_BY(mutex);
    // Not OK: it was restarted.
    Status lost MUSTER_GUARDED_BY(mutex);
    std::atomic<std::uint64_t> read_requests{0};
    std::atomic<std::uint64_t> read_parts{0};
  };
  // What a call does on a link: a request out, its answer in.
  struct Exchange {
    absl::FunctionRef<Status(Share&, ProgramLink&)> send;
    absl::FunctionRef<Status(Share&, ProgramLink&)> receive;
  };
  // One share's way through a round.
  struct Leg {
    Share* share = nullptr;
    std::unique_ptr<ProgramLink> link;
    Status status;
  };

  Status Take(Leg& leg, TimePoint deadline);
  Status Connect(std::size_t server, ProgramLink& link, TimePoint deadline, bool patient);
  void BringBack(Leg& leg);
  // The exchange with all, all sent before the first answer is awaited.
  Status Round(std::span<Share* const> shares, const Exchange& exchange, TimePoint deadline);
  // Rounds until all shares are done.
  Status Rounds(std::span<Share> shares, TimePoint deadline,
                absl::FunctionRef<std::size_t(const Share&)> left,
                absl::FunctionRef<std::size_t(const Share&)> group, const Exchange& exchange);
  void Count(const ProgramLink& link, std::uint64_t bytes);

  const ProgramClientOptions options_;
  const ServerSession::Options session_;
  net::SpinLimit spin_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::atomic<std::uint64_t> tcp_bytes_{0};
  std::atomic<std::uint64_t> local_bytes_{0};
};

}  // namespace muster::ps
