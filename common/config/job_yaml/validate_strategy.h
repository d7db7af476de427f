// What makes a model job's strategy wrong before anything runs; part of ValidateJob().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/config/job_yaml/problem.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::config {

// Looks at spec.strategy of a job that trains a model.
void ValidateStrategy(const v1::JobSpec& spec, Problems& problems);

// `workers` and `max_workers`, of any job: `most` at most, and max_workers not below workers.
// False: `problems` says what is wrong.
bool ValidateWorkers(const v1::StrategySpec& strategy, std::uint32_t most, Problems& problems);

// As job files say it: "mirrored". Unspecified is parameter_server; "number 99" is one that this
// version does not know.
std::string NameOf(v1::StrategyKind kind);

// How many cores "2x2x1x2" has; nothing: it is no topology, or has more than kMostTpuCores.
std::optional<std::uint32_t> CoresOf(std::string_view topology);

}  // namespace muster::config
