// One client's connection to a parameter server, served by one thread from handshake to close.
//
// Threading: Run() on its own thread; Stop() and the counts from any.
// Lifetime: the ServerContext outlives it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/net/channel.h"
#include "common/net/handshake.h"
#include "common/net/socket.h"
#include "ps/server/job_table.h"
#include "ps/server/program_requests.h"
#include "ps/server/request_memory.h"
#include "ps/server/server_context.h"
#include "ps/wire.h"

namespace muster::ps {

class Connection {
 public:
  Connection(ServerContext& context, net::Fd fd, net::LinkKind kind, const std::string& peer)
      : Connection(context, std::make_unique<net::Socket>(std::move(fd), kind, peer,
                                                          context.options.spin, &context.spin)) {}

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

  Connection(ServerContext& context, std::unique_ptr<net::Socket> socket);

  Status Open();
  // A program's hello, proven: its requests go to its own variables.
  Status AdmitProgram(const net::Hello& hello, const std::string& job_id);
  Status ReceiveArena(TimePoint deadline);
  // The client's rings: what follows the answer passes through them.
  Status ReceiveRings(const net::FrameHeader& frame);
  // OK: the stream stands between two frames. An error ends the connection.
  Status ServeOne(const net::FrameHeader& frame);
  // The request itself; its error is the client's answer.
  Status Execute(const Request& request, const JobTable::Served& served);
  Result<std::vector<WireEntry>> ParseEntries(const Request& request,
                                              const JobShards& shards) const;

  // Waits until the closures are applied that the request's step needs.
  //   kUnavailable: they are not, in time; says which. The peer is gone.
  Status AwaitStep(const Request& request, const JobTable::Served& served, Entries entries);
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

  // The entry's values in the arena.
  template <class Use>
  Status WithValues(const WireEntry& entry, const Use& use);
  void Refuse(const Status& error);
  TimePoint TransferDeadline(std::uint64_t bytes = 0) const;

  ServerContext& context_;
  // The channel's.
  net::Socket& socket_;
  net::Channel channel_;
  RequestMemory memory_;
  // The id of the model job whose connection it is: its requests are for that one alone.
  std::string model_;
  // What a program's connection asks; it asks for nothing else.
  std::optional<ProgramRequests> program_;
  std::atomic<bool> done_{false};
  std::atomic<bool> handshaking_{true};
  // The current request's answers per entry, and whether its answer has been sent.
  std::vector<std::uint64_t> results_;
  bool answered_ = false;
};

}  // namespace muster::ps
