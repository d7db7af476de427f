// What is settled when a dataset is distributed: which pipelines this worker reads, and how.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/data/pipeline/pipeline.h"
#include "device/place.h"
#include "strategy/core/internal/strategy_ref.h"
#include "strategy/input/input_options.h"
#include "strategy/input/internal/pipelines.h"
#include "strategy/input/step_reader.h"

namespace muster::internal {

struct InputPlan {
  // One, or with PER_REPLICA one for each replica.
  std::vector<data::Pipeline> pipelines;
  int replicas = 1;  // of this worker
  InputWorkers workers;
  InputOptions options;
  // Devices by replica, where elements are fetched to; none: they
  // stay where they are.
  std::vector<device::Place> devices;
  // The data may end within a step: replicas then get empty batches.
  bool partial = false;
  // Workers with finite data meet at each step.
  bool agrees = false;
  // The columns of an element of one replica.
  data::ElementSpec spec;
  // Each was logged once, when the plan was made.
  std::vector<std::string> warnings;
  // Whose it is; it may be gone.
  StrategyRef strategy = {};
  // What was distributed, or the shard of it; absent from a function.
  std::optional<data::Pipeline> original;
};

// A copy of `element` on a logical device; itself when it lies there.
Result<data::Element> on_device(data::Element element, device::Place device);

}  // namespace muster::internal
