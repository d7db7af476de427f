// What replicas of one process do together, at the place where they meet.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/group.h"
#include "collectives/meeting_place.h"
#include "common/base/arrivals.h"
#include "common/base/status.h"

namespace muster::collectives {

// What members brought, to be kept after the meeting.
template <class T>
std::vector<T*> AddressesOf(const std::vector<void*>& arguments) {
  std::vector<T*> all;
  all.reserve(arguments.size());
  for (T& one : Arrivals<T>(arguments)) all.push_back(&one);
  return all;
}

// For another thread: copies of a status share a count that ThreadSanitizer cannot see.
inline Status Own(const Status& status) { return MakeStatus(status.code(), Message(status)); }

// Meets with what this member brings; the last to come does `work` for all, in rank order, and its
// status is everybody's. A Call has a `status`.
template <class Call, class Work>
Status Together(MeetingPlace& place, int member, std::string name, Call& mine, Timeout timeout,
                const Work& work) {
  mine.status = Ok();
  place.Meet(
      member, std::move(name), &mine,
      [&](std::vector<void*>& arguments) {
        const std::vector<Call*> all = AddressesOf<Call>(arguments);
        const Status status = work(all);
        for (Call* one : all) one->status = Own(status);
      },
      timeout);
  return mine.status;
}

// Whether all members bring buffers of the same shapes and types, which can be reduced.
Status CheckSame(std::span<const std::span<const ReduceBuffer>> brought);
// Whether they say the same lengths of `members` blocks.
Status CheckSame(std::span<const std::span<const GatherBuffer>> brought, int members);
// Whether what members `first` and on of `members` send each other in an all_to_all has room there.
template <class Call>
Status CheckParts(std::span<Call* const> here, std::size_t first, std::size_t members) {
  for (const Call* one : here) {
    if (one->sends.size() == members && one->receives.size() == members) continue;
    return InvalidArgument("all_to_all: {} parts to send and {} to receive for {} members",
                           one->sends.size(), one->receives.size(), members);
  }
  for (std::size_t from = 0; from < here.size(); ++from) {
    for (std::size_t to = 0; to < here.size(); ++to) {
      if (here[from]->sends[first + to].size() == here[to]->receives[first + from].size()) continue;
      return InvalidArgument("Shape mismatch in all_to_all from replica {} to {}", first + from,
                             first + to);
    }
  }
  return Ok();
}
// Whether there is such a member to broadcast.
Status CheckRoot(int root, int members);

}  // namespace muster::collectives
