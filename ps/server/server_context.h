// What the connections of one server share. Threading: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "common/base/rate_limit.h"
#include "common/net/handshake.h"
#include "common/net/spin.h"
#include "common/net/stage_pool.h"
#include "ps/apply_pool.h"
#include "ps/server/job_table.h"
#include "ps/server/options.h"
#include "ps/server/program_table.h"
#include "ps/server/reclaimer.h"

namespace muster::ps {

struct ServerContext {
  static constexpr Millis kWarnEvery{5'000};

  explicit ServerContext(ServerOptions given, int cores)
      : options(std::move(given)),
        identity{.token = options.token, .host_id = options.host_id, .tls = options.tls},
        stage(options.stage_budget_bytes / 2),
        spin(cores) {}

  const ServerOptions options;
  const net::Identity identity;
  // Where no other one is given.
  ApplyPool own_pool{0};
  JobTable jobs;
  ProgramTable programs;
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

  ApplyPool& pool() { return options.apply_pool != nullptr ? *options.apply_pool : own_pool; }

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

}  // namespace muster::ps
