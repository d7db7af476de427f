// Where the members of a group that are threads of one process meet.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "collectives/group.h"

namespace muster::collectives {

// Where members meet. What it throws (a member that will never come) passes through the calls of
// the group.
class MeetingPlace {
 public:
  // With everybody's arguments, in rank order.
  using Joint = std::function<void(std::vector<void*>&)>;

  virtual ~MeetingPlace() = default;
  // Returns on all members when all have come with the same `call` and the last to come has run
  // its `joint`.
  virtual void Meet(int member, std::string call, void* arguments, const Joint& joint,
                    Timeout timeout) = 0;
};

}  // namespace muster::collectives
