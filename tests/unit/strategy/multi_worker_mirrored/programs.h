// Programs of several workers, each a process of this test's.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "strategy/testing/multi_process.h"

namespace muster::testing {

// `count` workers of one thread, which have 200 s.
inline MultiProcessOptions workers_of(int count, std::vector<std::string> command) {
  return {.command = std::move(command),
          .cluster = {{"worker", count}},
          .environment = {{"OMP_NUM_THREADS", "1"}},
          .limit = std::chrono::seconds(200),
          .print = false};
}

}  // namespace muster::testing
