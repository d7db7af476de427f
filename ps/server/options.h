// What a parameter server is told at its start, and what it counts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/net/spin.h"
#include "common/tls/key_context.h"

namespace muster::ps {

class ApplyPool;

struct ServerOptions {
  // host:port; port 0 takes a free one. An IPv4 or IPv6 ("[::1]:0") address, no name.
  std::string tcp_address = "127.0.0.1:0";
  // What endpoint() says instead of the bound host, for 0.0.0.0. Empty: the bound one.
  std::string advertised_host{};
  // Where the Unix socket is made; empty: no local links. Made with mode 0700, or there already
  // and nobody else's to change.
  std::string unix_directory{};
  std::string token{};
  // For connections over TCP; null: they are in the clear.
  std::shared_ptr<tls::KeyContext> tls = nullptr;
  // net::HostId() of this process.
  std::string host_id{};
  std::uint64_t stage_budget_bytes = 256ULL << 20;
  net::SpinMode spin = net::SpinMode::kAdaptive;
  Millis handshake_timeout{5'000};
  // For the rest of a frame once it has begun and for an answer's sending; more for many bytes.
  Millis transfer_timeout{30'000};
  // Silence inside a frame: its peer is stopped or cut off, and holds stage memory.
  Millis quiet_limit{4'000};
  // For a call's wait for stage memory, whatever the number of its requests, and more for many
  // bytes; less by what it has waited for closures. Below the clients' timeout, so that they hear
  // why.
  Millis stage_timeout{7'000};
  // The same for a wait for closures of an earlier step (JobShards::Missing).
  Millis step_timeout{7'000};
  // Helps with large updates of programs' variables, and outlives the server. Null: none helps.
  ApplyPool* apply_pool = nullptr;
  std::uint32_t max_connections = 1024;
  std::uint32_t max_handshakes = 64;
  // One line for an operator, from any thread: who sent what, and what was done.
  std::function<void(const std::string& line)> on_warning{};
};

// Since the start of the server, or of the job's first view.
struct ServerCounters {
  std::uint64_t pulls = 0;
  std::uint64_t pushes = 0;
  // Pushes that a shard had applied before.
  std::uint64_t duplicates = 0;
  // Pulls and pushes that waited for closures of an earlier step.
  std::uint64_t step_waits = 0;
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
  // Wrong key, garbage, too slow, too many half open.
  std::uint64_t handshakes_refused = 0;
  std::uint64_t bad_frames = 0;
  // All that passed through Unix sockets: handshakes, and wakes (headers, where a client has no
  // rings).
  std::uint64_t unix_socket_bytes = 0;
};

// A program's variables here.
struct ProgramUse {
  std::string job_id;
  Epoch epoch{};
  // Values, optimizer slots, and what waits for the end of a step.
  std::uint64_t bytes = 0;
  // Two of these.
  std::uint64_t slot_bytes = 0;
  std::uint64_t staged_bytes = 0;
};

}  // namespace muster::ps
