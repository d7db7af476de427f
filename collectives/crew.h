// Threads that share the work of one caller.
#pragma once

#include <functional>

namespace muster::collectives {

// `run(body)` calls body(part) for each part in [0, size), at the same time where it can, and
// returns when all have returned. The default: the caller alone.
struct Crew {
  int size = 1;
  std::function<void(const std::function<void(int)>&)> run =
      [](const std::function<void(int)>& body) { body(0); };
};

}  // namespace muster::collectives
