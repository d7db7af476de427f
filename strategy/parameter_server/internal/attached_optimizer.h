// An optimizer that is attached to variables on parameter servers, as the servers and checkpoints
// know it. Calls and their errors: ServerOptimizer.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "muster/v1/job_spec.pb.h"
#include "strategy/parameter_server/internal/connection.h"
#include "strategy/parameter_server/internal/remote_component.h"
#include "strategy/parameter_server/server_optimizer.h"
#include "strategy/train/internal/saved_state.h"

namespace muster::internal {

// What it remembers of each variable is there as one tensor, however the variable is cut: its
// slots, and the count of its updates, which is the largest of its shards' counts.
//
// Threading: any thread; what is saved or restored, the driver's, while no closure updates it.
class AttachedOptimizer final : public SavedState {
 public:
  AttachedOptimizer(const torch::optim::OptimizerOptions& options, std::vector<Variable> variables);

  double learning_rate() const { return learning_rate_; }
  const std::vector<Variable>& variables() const { return variables_; }
  void Apply(const std::vector<VariableGradient>& gradients, double learning_rate);
  // Its variables may have another optimizer: one of the same options, where the servers have this
  // one. Nobody uses it any more.
  void Release() const;

  std::vector<std::string> Names() const override;
  std::map<std::string, torch::Tensor> Values() const override;
  void Check(const std::map<std::string, torch::Tensor>& values) const override;
  void Restore(const std::map<std::string, torch::Tensor>& values) const override;

 private:
  // In the driver it gives the variables their optimizer; elsewhere it finds out whether the
  // driver's is the same. Once for each connection.
  void Attach() const;
  RemoteComponent& ComponentOf(const Variable& variable) const;
  // The name in files of a slot of variable i.
  std::string SlotOf(std::size_t i, std::string_view slot) const;
  // FAILED_PRECONDITION: not in the driver, outside closures.
  PsConnection& RequireDriver(std::string_view call) const;

  const v1::OptimizerSpec spec_;
  const double learning_rate_;
  const std::vector<Variable> variables_;
  std::vector<RemoteComponent*> components_;    // of `variables_`, which keep them
  std::unordered_set<std::string_view> names_;  // theirs

  mutable Mutex mutex_;
  // Whose servers have it, as far as this process knows.
  mutable std::weak_ptr<PsConnection> attached_ MUSTER_GUARDED_BY(mutex_);
};

// What a server needs to know of these options.
//   UNIMPLEMENTED: servers do not have it.  INVALID_ARGUMENT: out of range.
v1::OptimizerSpec OptimizerSpecOf(const torch::optim::OptimizerOptions& options);

}  // namespace muster::internal
