#include "coordinator/allocation.h"

#include <algorithm>

namespace muster::coordinator {

std::size_t MostWorkers(const v1::StrategySpec& strategy) {
  return std::max(strategy.workers(), strategy.max_workers());
}

std::vector<const Member*> FreeWorkers(const World& world, const Fitness& fitness) {
  std::vector<const Member*> workers = world.members.Up("worker");
  std::erase_if(workers, [&](const Member* worker) {
    return fitness.IsPausing(worker->task, world.scheduler.Now());
  });
  std::ranges::stable_sort(workers, {},
                           [&](const Member* worker) { return world.jobs_on(worker->task); });
  return workers;
}

}  // namespace muster::coordinator
