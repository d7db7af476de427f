// An optimizer that runs on the parameter servers: closures send gradients, the servers hold its
// slots (momentum and the like) beside the variables and make the updates.
//
//   struct Model {
//     muster::ParameterServerStrategy strategy;
//     muster::Variable w;
//     muster::ServerOptimizer optimizer;
//     Model() {
//       const auto scope = strategy.scope();
//       w = muster::Variable::create("w", torch::zeros({3, 1}));
//       optimizer = muster::ServerOptimizer(torch::optim::AdamOptions(1e-3), {w});
//     }
//   };
//
//   loss.backward();                                                 // in a closure
//   model.optimizer.apply_gradients({{w.value().grad(), w}});
//
// Updates are torch::optim's. Each shard of a variable counts its own updates (Adam's t); of a
// gradient of rows only these rows and their slots change, and shards without such a row make no
// update.
//
// A Checkpoint that tracks it saves slots and counts of updates, one tensor for each, and restores
// them however variables are cut then. Of a variable whose shards have made different numbers of
// updates (gradients of rows) it has the largest.
//
// Made where the variables are made, with the same options in every process of the program. A
// variable has one optimizer, for as long as it lives.
//
// Threading: any thread. Lifetime: a handle; copies are the same optimizer.
#pragma once

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "strategy/base/torch.h"
#include "strategy/values/indexed_slices.h"
#include "strategy/variables/variable.h"

namespace muster {
namespace internal {
class AttachedOptimizer;
class SavedState;
}  // namespace internal

// A gradient, and whose it is. One that is undefined, or of no rows, changes nothing: as backward()
// and embedding_gradient() leave it where nothing was found.
struct VariableGradient {
  std::variant<torch::Tensor, IndexedSlices> gradient;
  Variable variable;
};

class ServerOptimizer {
 public:
  // No optimizer yet.
  ServerOptimizer() = default;
  // `options`: torch::optim's SGDOptions, AdamOptions, AdamWOptions or AdagradOptions; their
  // learning rate is what apply_gradients() takes when it is given none. Nothing is attached after
  // an error.
  //   INVALID_ARGUMENT: no variables, or one that is not on parameter servers or not float32 or
  //   float64; options out of range.  FAILED_PRECONDITION: one has an optimizer already, or has no
  //   value yet.  UNIMPLEMENTED: other options; dampening, amsgrad and lr_decay.
  //   PsUnavailable.  RESOURCE_EXHAUSTED: a server has no memory for the slots.
  ServerOptimizer(const torch::optim::OptimizerOptions& options, std::vector<Variable> variables);

  bool valid() const { return state_ != nullptr; }
  const std::vector<Variable>& variables() const;

  // One update of each variable by its gradient, at this rate; all are checked before the first. In
  // a closure they are sent with what else it writes, and count exactly once; in the driver they
  // are made at once. Each replica of run() that calls it makes updates of its own.
  //   INVALID_ARGUMENT: a gradient does not fit its variable, the variable is not this optimizer's,
  //   the rate is below 0, no number or more than a float32 can say, or (when it is sent) a
  //   gradient is not finite.
  //   FAILED_PRECONDITION: no optimizer, or the driver's has other options.  PsUnavailable.
  void apply_gradients(const std::vector<VariableGradient>& gradients,
                       std::optional<double> learning_rate = std::nullopt) const;

  // For the code of strategy/.
  std::shared_ptr<const internal::SavedState> saved_state() const;

 private:
  internal::AttachedOptimizer& state() const;

  std::shared_ptr<internal::AttachedOptimizer> state_;
};

}  // namespace muster
