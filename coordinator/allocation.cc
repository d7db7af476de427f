#include "coordinator/allocation.h"

#include <algorithm>
#include <utility>

namespace muster::coordinator {

std::size_t MostWorkers(const v1::StrategySpec& strategy) {
  return std::max(strategy.workers(), strategy.max_workers());
}

// How many jobs a worker has is a look at all jobs, so each is asked for that once.
std::vector<const Member*> FreeWorkers(const World& world, const Fitness& fitness,
                                       const std::set<TaskId>& taken) {
  std::vector<std::pair<std::size_t, const Member*>> free;
  for (const Member* worker : world.members.Up("worker")) {
    const TaskId& task = worker->task;
    if (taken.contains(task) || fitness.IsPausing(task, world.scheduler.Now())) continue;
    free.emplace_back(world.jobs_on(task), worker);
  }
  std::ranges::stable_sort(free, {}, [](const auto& one) { return one.first; });
  std::vector<const Member*> workers;
  for (const auto& [jobs, worker] : free) workers.push_back(worker);
  return workers;
}

}  // namespace muster::coordinator
