// Making a group of processes: each finds all others, both prove the key, and they agree on who is
// who.
//
//   1. Every member listens at its address of the spec; rank r connects to all lower ranks, first
//      for the watch's link, then for data (on one host by a Unix socket).
//   2. READY from each to all lower ranks when it has all its links; GO from each to all higher
//      ones, with the host's shared memory from the lowest rank of a host.
//
// docs/formats/group.md shows what is said.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/group.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/socket.h"
#include "common/net/spin.h"

namespace muster::collectives {

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
  std::uint64_t generation = 1;
  int rank = 0;
  // In rank order; the same on all members.
  std::vector<GroupMember> members;
  // What all members prove to each other; not empty.
  std::string key;
  // All have to be there until then.
  Millis form_within{60'000};
  // Waits of operations look for what they wait for before they sleep.
  net::SpinMode spin = net::SpinMode::kAdaptive;
  // The same on all members.
  Transport transport = Transport::kBest;
};

// Blocks until all members are there. `listener` listens at the own address, or behind it.
//   kDeadlineExceeded: names the members that have not come. kInvalidArgument: the spec is not
//   sound, or a member has another list of members. kAlreadyExists: two processes say that they are
//   the same member. kAborted: a member has a newer generation. kUnauthenticated: another key.
//   kUnavailable: a member was lost meanwhile.
Result<std::unique_ptr<Group>> FormGroup(const GroupSpec& spec, const net::Listener& listener);

}  // namespace muster::collectives
