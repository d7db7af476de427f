// A value that every worker has one of and changes by itself: counters, statistics.
//
//   void count(muster::WorkerVariable& seen) { seen.assign_add(1); }
//   MUSTER_FUNCTION(count);
//   ...
//   const muster::PerWorkerVariable seen(coordinator, torch::zeros({}));
//   for (int i = 0; i < 10; ++i) coordinator.schedule<count>(seen);
//   coordinator.join();
//   for (const torch::Tensor& value : seen.read_all(coordinator)) ...
//
// Nothing keeps the workers' values equal, and a worker that comes back begins with the first value
// anew. What must last is a variable on the parameter servers.
//
// Threading: any thread. Lifetime: a handle; the values end with the last one.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "strategy/base/torch.h"
#include "strategy/cluster/cluster_coordinator.h"
#include "strategy/cluster/per_worker_values.h"

namespace muster {

// A worker's own. A handle: copies are the same value.
class WorkerVariable {
 public:
  explicit WorkerVariable(const torch::Tensor& initial);

  // A tensor that later writes do not change.
  torch::Tensor value() const;
  // INVALID_ARGUMENT: another shape, where it is no number; a type that the variable's cannot hold
  // (fractions in an integer, numbers in a bool).
  void assign(const torch::Tensor& value);
  void assign_add(const torch::Tensor& value);
  void assign_sub(const torch::Tensor& value);
  template <class Number>
    requires std::is_arithmetic_v<Number>
  void assign_add(Number number) {
    assign_add(number_of(number));
  }
  template <class Number>
    requires std::is_arithmetic_v<Number>
  void assign_sub(Number number) {
    assign_sub(number_of(number));
  }

 private:
  struct State;

  // What is no fraction stays none.
  template <class Number>
  static torch::Tensor number_of(Number number) {
    if constexpr (std::is_same_v<Number, bool>) {
      return torch::scalar_tensor(number, torch::kBool);
    } else if constexpr (std::is_integral_v<Number>) {
      return torch::scalar_tensor(static_cast<std::int64_t>(number), torch::kLong);
    } else {
      return torch::scalar_tensor(static_cast<double>(number), torch::kDouble);
    }
  }

  std::shared_ptr<State> state_;
};

// Given to a function that takes WorkerVariable&.
class PerWorkerVariable : public PerWorkerValues<WorkerVariable> {
 public:
  // Each worker's begins with this value, in memory of its own.
  PerWorkerVariable(ClusterCoordinator& coordinator, const torch::Tensor& initial);

  // By worker, in the order of tasks; what closures that have not ended do is in it or not.
  // Errors: PerWorkerValues::fetch().
  std::vector<torch::Tensor> read_all(ClusterCoordinator& coordinator) const;
};

}  // namespace muster
