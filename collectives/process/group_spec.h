// Who forms a group of processes, and how: what form_group.h is given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/cost_model.h"
#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/net/spin.h"
#include "common/tls/key_context.h"

namespace muster::collectives {

inline constexpr std::size_t kMostMembers = 1'024;

struct GroupMember {
  std::string task;     // "worker:1", for messages
  std::string address;  // host:port at which it listens for the others
};

// What data may go through, the quickest last; kTcp and kSockets (Unix ones within a host) are for
// measurements and tests.
enum class Transport { kTcp, kSockets, kBest };

struct GroupSpec {
  // Whose group; for messages, and in the signature of operations.
  std::string job;
  // Grows with each group of that job: members of different generations do not find together.
  Generation generation{1};
  int rank = 0;
  // In rank order; the same on all members.
  std::vector<GroupMember> members;
  // What all members prove to each other; not empty.
  std::string key;
  // Links over TCP are encrypted by that key (tls::KeyContext::Make()); null: they are in the
  // clear. The same on all members.
  std::shared_ptr<tls::KeyContext> tls = nullptr;
  // All have to be there until then.
  Millis form_within{60'000};
  // Waits of operations look for what they wait for before they sleep.
  net::SpinMode spin = net::SpinMode::kAdaptive;
  // The same on all members.
  Transport transport = Transport::kBest;
  // What links cost, for the choice of algorithms (CostsFrom() of costs_file.h). Rank 0's count on
  // all members; none: the defaults.
  std::optional<LinkCosts> costs = std::nullopt;
  // The path of a process::WaitPage where operations that last are shown; empty: nowhere.
  std::string wait_page = {};
};

}  // namespace muster::collectives
