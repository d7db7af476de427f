// Shorthands of the tests about input. Include before tests/support/catch.h.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "strategy/input/distributed_dataset.h"
#include "strategy/kinds/central_storage_strategy.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "strategy/values/device_of.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/replicas.h"

namespace muster::testing {

inline constexpr auto kInvalid = ErrorCode::kInvalidArgument;

using Numbers = std::vector<std::int64_t>;
using Step = std::vector<Numbers>;  // by replica
using Steps = std::vector<Step>;

inline Numbers numbers(const torch::Tensor& tensor) {
  const torch::Tensor flat = tensor.to(torch::kLong).reshape({-1}).contiguous();
  const auto* const data = flat.data_ptr<std::int64_t>();
  return {data, data + flat.numel()};
}
inline Step step_of(const PerReplica<torch::Tensor>& values) {
  Step step;
  for (const torch::Tensor& value : values.values()) step.push_back(numbers(value));
  return step;
}
inline Steps rest_of(DistributedIterator<torch::Tensor>& iterator, std::size_t limit = 1000) {
  Steps steps;
  while (steps.size() < limit) {
    const auto next = iterator.next();
    if (!next) break;
    steps.push_back(step_of(*next));
  }
  return steps;
}
inline Steps steps_of(const DistributedDataset<torch::Tensor>& dataset) {
  auto iterator = dataset.iterator();
  return rest_of(iterator);
}
// What one replica got, step by step.
inline std::vector<Numbers> of_replica(const Steps& steps, std::size_t replica) {
  std::vector<Numbers> values;
  for (const Step& step : steps) values.push_back(step.at(replica));
  return values;
}

// Every element of a dataset.
template <class T>
std::vector<T> all(const Dataset<T>& dataset) {
  std::vector<T> elements;
  for (const T& element : dataset) elements.push_back(element);
  return elements;
}

inline Numbers sequence(std::int64_t begin, std::int64_t end) {
  Numbers list;
  for (std::int64_t n = begin; n < end; ++n) list.push_back(n);
  return list;
}

// Runs `worker` on a thread for each of `count` workers with `replicas` replicas each, and rethrows
// what the lowest one threw.
template <class R>
std::vector<R> on_workers(int count, int replicas,
                          const std::function<R(Strategy&, const InputWorkers&)>& worker,
                          std::shared_ptr<InputLink> link = nullptr) {
  if (link == nullptr) link = InputLink::in_memory(count);
  std::vector<R> results(static_cast<std::size_t>(count));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int index = 0; index < count; ++index) {
    threads.emplace_back([&, index] {
      const auto i = static_cast<std::size_t>(index);
      try {
        MirroredStrategy strategy(cpus(replicas));
        InputWorkers workers;
        workers.count = count;
        workers.replicas = count * replicas;
        workers.index = index;
        workers.link = link;
        workers.patience = std::chrono::seconds(60);
        results[i] = worker(strategy, workers);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return results;
}

// The steps of each worker over one dataset.
inline std::vector<Steps> steps_on_workers(int count, int replicas, const Dataset<>& dataset,
                                           bool split = true) {
  return on_workers<Steps>(count, replicas, [&](Strategy& strategy, const InputWorkers& workers) {
    return steps_of(experimental_distribute_dataset(strategy, dataset, {}, workers, split));
  });
}

}  // namespace muster::testing
