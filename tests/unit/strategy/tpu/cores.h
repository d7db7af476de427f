// TPU cores for a test.
#pragma once

#include <string>

#include "strategy/tpu/tpu_system.h"

namespace muster::testing {

// Emulated cores of a mesh such as "2x2x1x2", up while it lives.
class Cores {
 public:
  explicit Cores(const std::string& mesh) : topology(initialize_tpu_system({.topology = mesh})) {}
  ~Cores() { shutdown_tpu_system(); }
  Cores(const Cores&) = delete;
  Cores& operator=(const Cores&) = delete;

  const Topology topology;
};

}  // namespace muster::testing
