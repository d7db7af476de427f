// The processes of a strategy agree over its group whether to go on reading.
#pragma once

#include <memory>

#include "strategy/input/input_link.h"

namespace muster {
class Strategy;
}

namespace muster::internal {

// For a strategy of several processes; each joins as itself alone. agree() is one small sum, and at
// most once in a pass, or when somebody's input fails, an exchange of more: a call that all
// processes make at the same place of their programs.
//   Errors of agree(): the group's, which name the worker that is not there.
//   FAILED_PRECONDITION: the strategy has been destroyed, or has more or fewer processes now.
std::shared_ptr<InputLink> process_link(Strategy& strategy);

}  // namespace muster::internal
