// The workers of a MultiWorkerMirroredStrategy as threads of this process, each with a strategy of
// its own.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "strategy/multi_worker_mirrored/multi_worker_mirrored_strategy.h"
#include "tests/support/catch.h"
#include "tests/support/reserved_ports.h"
#include "tests/unit/strategy/errors.h"

namespace muster::testing {

// Addresses for a cluster of `workers`, the first of them a chief if asked for.
class Cluster {
 public:
  explicit Cluster(int workers, bool chief = false) : ports_(workers) {
    std::map<std::string, std::vector<std::string>> jobs;
    for (int i = 0; i < workers; ++i) {
      const std::string job = chief && i == 0 ? "chief" : "worker";
      tasks_.push_back({.task_type = job, .task_id = static_cast<int>(jobs[job].size())});
      jobs[job].push_back(ports_.addresses()[static_cast<std::size_t>(i)]);
    }
    spec_ = ClusterSpec::dense(jobs);
  }

  int size() const { return static_cast<int>(tasks_.size()); }
  const ClusterSpec& spec() const { return spec_; }
  // What worker `id` is told; `devices` logical CPUs.
  MultiWorkerMirroredOptions options(int id, int devices = 1) const {
    return {.cluster_resolver = std::make_shared<SimpleClusterResolver>(
                spec_, SimpleClusterResolver::Options{.task = tasks_[static_cast<std::size_t>(id)],
                                                      .num_accelerators = {{"CPU", devices}}}),
            .join_within = std::chrono::seconds(60)};
  }

 private:
  ReservedPorts ports_;
  std::vector<ClusterTask> tasks_;
  ClusterSpec spec_;
};

// body(worker) for all workers at once, each on a thread; their results. Throws what the first
// worker that failed by itself threw.
template <class R>
std::vector<R> in_threads(int workers, const std::function<R(int)>& body) {
  std::vector<std::optional<R>> results(static_cast<std::size_t>(workers));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(workers));
  std::vector<std::thread> threads;
  for (int id = 0; id < workers; ++id) {
    threads.emplace_back([&, i = static_cast<std::size_t>(id)] {
      try {
        results[i] = body(static_cast<int>(i));
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // That another worker is away is not why it is away.
  std::exception_ptr first;
  for (const std::exception_ptr& error : errors) {
    if (error == nullptr) continue;
    if (first == nullptr) first = error;
    try {
      std::rethrow_exception(error);
    } catch (const Error& thrown) {
      if (thrown.code() != ErrorCode::kUnavailable) throw;
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
  std::vector<R> all;
  for (std::optional<R>& result : results) all.push_back(*std::move(result));
  return all;
}

// body(strategy) on each of `workers` workers of `devices` devices, which joined before.
template <class R>
std::vector<R> on_cluster(int workers, int devices,
                          const std::function<R(MultiWorkerMirroredStrategy&)>& body) {
  const Cluster cluster(workers);
  return in_threads<R>(workers, [&](int id) {
    MultiWorkerMirroredStrategy strategy(cluster.options(id, devices));
    return body(strategy);
  });
}

}  // namespace muster::testing
