// Which workers a job gets: those that are there and can, the least busy first.
#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "coordinator/fitness.h"
#include "coordinator/world.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::coordinator {

// How many a job has at most; 0: all that are there.
std::size_t MostWorkers(const v1::StrategySpec& strategy);

// Workers that may be asked now, those with the fewest jobs first, by index among equals; without
// those of `taken`.
std::vector<const Member*> FreeWorkers(const World& world, const Fitness& fitness,
                                       const std::set<TaskId>& taken = {});

}  // namespace muster::coordinator
