// Serves the shards of jobs, and the variables of programs, to workers over the data plane: TCP,
// and on one host a Unix socket whose peers hand over an arena that this process maps (never the
// other way round).
//
// One thread accepts, one thread serves each connection from its first byte to its last: a request
// finishes on the thread that received it (docs/decisions/0001-data-plane-threads.md). What a peer
// sends is bounded before it sizes anything, and never ends the server.
//
// Memory beyond the shards is bounded by `stage_budget_bytes`: pushes over TCP are received whole
// into it and pulls copied through it (half of it; senders wait), and it bounds how much of the
// workers' arenas stays resident here. One shard larger than its half goes alone.
//
// Threading: any thread. Lifetime: shards published here live until they are replaced or dropped
// and their last request has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/spin.h"

namespace muster::v1 {
class DataEndpoint;
}

namespace muster::ps {

class ApplyPool;
class JobShards;

// Since the start of the server, or of the job's first view.
struct ServerCounters {
  std::uint64_t pulls = 0;
  std::uint64_t pushes = 0;
  // Pushes that a shard had applied before.
  std::uint64_t duplicates = 0;
  // Tensor bytes and row ids, by kind of link.
  std::uint64_t tcp_bytes_in = 0;
  std::uint64_t tcp_bytes_out = 0;
  std::uint64_t local_bytes_in = 0;
  std::uint64_t local_bytes_out = 0;
};

// What the server itself has seen, all jobs together.
struct LinkCounters {
  std::uint64_t connections_now = 0;
  std::uint64_t connections_accepted = 0;
  // Wrong token, garbage, too slow, too many half open.
  std::uint64_t handshakes_refused = 0;
  std::uint64_t bad_frames = 0;
  // All that passed through Unix sockets, headers included: stays small, tensors do not.
  std::uint64_t unix_socket_bytes = 0;
};

// A program's variables here.
struct ProgramUse {
  std::string job_id;
  std::uint64_t epoch = 0;
  // Values and optimizer slots.
  std::uint64_t bytes = 0;
};

class PsServer {
 public:
  struct Options {
    // host:port; port 0 takes a free one. An IPv4 or IPv6 ("[::1]:0") address, no name.
    std::string tcp_address = "127.0.0.1:0";
    // What endpoint() says instead of the bound host, for 0.0.0.0. Empty: the bound one.
    std::string advertised_host{};
    // Where the Unix socket is made; empty: no local links. Made with mode 0700, or there already
    // and nobody else's to change.
    std::string unix_directory{};
    std::string token{};
    // net::HostId() of this process.
    std::string host_id{};
    std::uint64_t stage_budget_bytes = 256ULL << 20;
    net::SpinMode spin = net::SpinMode::kAdaptive;
    Millis handshake_timeout{5'000};
    // For the rest of a frame once it has begun and for an answer's sending; more for many bytes.
    Millis transfer_timeout{30'000};
    // Silence inside a frame: its peer is stopped or cut off, and holds stage memory.
    Millis quiet_limit{4'000};
    // For a wait for stage memory, and more for many bytes. Below the clients' timeout, so that
    // they hear why.
    Millis stage_timeout{7'000};
    // Helps with large updates of programs' variables, and outlives the server. Null: none helps.
    ApplyPool* apply_pool = nullptr;
    std::uint32_t max_connections = 1024;
    std::uint32_t max_handshakes = 64;
    // One line for an operator, from any thread: who sent what, and what was done.
    std::function<void(const std::string& line)> on_warning{};
  };

  // kInvalidArgument: an address that is none.  kUnavailable: the address is in use (named).
  // kPermissionDenied, kFailedPrecondition: others may change `unix_directory`, or it is a link.
  static Result<std::unique_ptr<PsServer>> Start(Options options);
  // Stops.
  virtual ~PsServer() = default;

  // Where this server listens; host_id included.
  virtual v1::DataEndpoint endpoint() const = 0;

  // Serves this view of the job from now on. Requests of an older view get kAborted, those of a
  // newer one kUnavailable. An older view than the one that is served is not published.
  virtual void Publish(std::uint64_t job_number, std::shared_ptr<JobShards> shards) = 0;
  // Forgets the job's shards; its requests get kAborted.
  virtual void Drop(std::uint64_t job_number) = 0;

  // A program's variables begin with its first connection (docs/formats/frame.md), which proves the
  // job's key. Frees them; its requests get kAborted.
  virtual void DropProgram(const std::string& job_id) = 0;
  // The same for all programs of earlier epochs of the coordinator: none comes back.
  virtual void BeginEpoch(std::uint64_t epoch) = 0;
  virtual std::vector<ProgramUse> programs() const = 0;

  // Zeros for a job that was never published.
  virtual ServerCounters counters(std::uint64_t job_number) const = 0;
  virtual LinkCounters links() const = 0;

  // Closes every connection and waits for the running requests; idempotent.
  virtual void Stop() = 0;
};

}  // namespace muster::ps
