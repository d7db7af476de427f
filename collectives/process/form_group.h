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

#include <cstddef>
#include <memory>

#include "collectives/group.h"
#include "collectives/process/group_spec.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "common/net/socket.h"

namespace muster::collectives {

// Blocks until all members are there. `listener` listens at the own address, or behind it.
//   kDeadlineExceeded: names the members that have not come, as far as this one has looked for
//   them; when all have, the one that still waits for others. kInvalidArgument: the spec is not
//   sound, or a member has another list of members. kAlreadyExists: two processes say that they are
//   the same member. kAborted: a member has a newer generation. kUnauthenticated: another key.
//   kUnavailable: a member was lost meanwhile. kResourceExhausted: no descriptor or thread for it.
Result<std::unique_ptr<Group>> FormGroup(const GroupSpec& spec, const net::Listener& listener);

}  // namespace muster::collectives
