#include "strategy/parameter_server/server_optimizer.h"

#include <utility>

#include "strategy/base/internal/raise.h"
#include "strategy/parameter_server/internal/attached_optimizer.h"

namespace muster {

ServerOptimizer::ServerOptimizer(const torch::optim::OptimizerOptions& options,
                                 std::vector<Variable> variables)
    : state_(std::make_shared<internal::AttachedOptimizer>(options, std::move(variables))) {}

internal::AttachedOptimizer& ServerOptimizer::state() const {
  if (state_ != nullptr) return *state_;
  raise(
      FailedPrecondition("a ServerOptimizer that was made without options and variables: "
                         "ServerOptimizer(options, variables) has some"));
}

const std::vector<Variable>& ServerOptimizer::variables() const { return state().variables(); }

void ServerOptimizer::apply_gradients(const std::vector<VariableGradient>& gradients,
                                      std::optional<double> learning_rate) const {
  state().Apply(gradients, learning_rate.value_or(state().learning_rate()));
}

std::shared_ptr<const internal::SavedState> ServerOptimizer::saved_state() const {
  (void)state();
  return state_;
}

}  // namespace muster
