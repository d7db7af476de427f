// One step of a job, the same under every strategy: where values come from and where gradients go
// is up to a ParameterSource.
//
// Threading: a thread of its own for each model and its source.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/data/element.h"
#include "worker/engine/model.h"

namespace muster::engine {

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  // Puts the current values where the model's parameters are bound, gives every lookup its rows
  // and, when it trains, room for its row_gradients.
  virtual Status Fetch(bool train, std::span<Lookup> lookups) = 0;
  // Takes the gradients where the model has written them; `metrics` are what the part has scored.
  virtual Status Give(std::uint64_t step, std::span<const Lookup> lookups,
                      const v1::MetricSums& metrics) = 0;
};

// Where the time went, in microseconds; each call adds.
struct StepTimes {
  std::uint64_t fetch_us = 0;
  std::uint64_t compute_us = 0;
  std::uint64_t give_us = 0;
};

// `batch` is the part's. Errors are those of the model and of the source.
Result<v1::MetricSums> Train(Model& model, ParameterSource& source, std::uint64_t step,
                             const Part& part, const data::Element& batch, StepTimes& times);
Result<v1::MetricSums> Evaluate(Model& model, ParameterSource& source, const std::string& label,
                                const data::Element& batch, StepTimes& times);

}  // namespace muster::engine
