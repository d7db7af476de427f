// What a program's client is opened with: which servers there are, and whose variables they have.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/net/spin.h"
#include "ps/client/server_session.h"
#include "ps/program_wire.h"

namespace muster::ps {

struct ProgramServer {
  ServerSession::Target target;
  // As ProgramClient::spaces() of the driver says it; 0: any. A server that has another one was
  // restarted.
  SpaceId space{};
};

struct ProgramClientOptions {
  std::string job_id;
  // net::JobKey of the job and epoch.
  std::string key;
  // See ServerSession::Options.
  std::shared_ptr<tls::KeyContext> tls = nullptr;
  Epoch epoch{};
  // The driver whose variables they are.
  Incarnation incarnation{};
  LinkMode link = LinkMode::kAuto;
  std::string host_id{};
  // For one call, and more for many bytes; the first connection to each server retries until then.
  Millis timeout{10'000};
  Millis ping_after{1'000};
  Millis ping_limit{4'000};
  net::SpinMode spin = net::SpinMode::kAdaptive;
  // How often the servers hear how far closures have settled, while that moves.
  Millis settle_every{100};
};

// What one server was asked to read: frames, and the shards that they name, each whole or some of
// its rows.
struct ReadCounts {
  std::uint64_t requests = 0;
  std::uint64_t parts = 0;
};

}  // namespace muster::ps
