// What a run's steps change: kept as it is after each step that counts, put back when a step does
// not, given to workers that join.
//
// ON_READ variables have a value for each replica, which would be lost with it. So they are settled
// at the end of each step: all replicas go on from the value that all of them come to, a SUM as the
// first one's, and every worker knows it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/group.h"
#include "strategy/base/torch.h"
#include "strategy/train/internal/saved_state.h"

namespace muster::internal {

class VariableState;

// Threading: one thread, outside run(). Lifetime: the variables and optimizers outlive it.
class ElasticState {
 public:
  // INVALID_ARGUMENT: nothing is tracked. UNIMPLEMENTED: a variable of no one value (ON_READ
  // without an aggregation, or not initialised), or one that is not this process's.
  explicit ElasticState(TrackedValues tracked);

  // A hash of names, types and shapes.
  std::uint64_t signature() const;

  // All workers make the call at the end of a step.
  void Settle();
  // This worker has another place now.
  void Spread();
  // Remembers the values as they are now.
  void Keep();
  // Puts back what Keep() remembered.
  void Undo();
  // All members of the group make the call: those with `takes` get the values of member `donor`.
  void Stream(collectives::Group& group, int donor, bool takes);

  // While a step is computed in logical shards these are the replicas of ON_READ variables: each
  // begins with the values that there were before the first, a SUM with nothing.
  class Shards {
   public:
    explicit Shards(ElasticState& state);
    void Begin();
    // What a shard adds, one value for each variable: their sums over all shards go to Take().
    std::vector<torch::Tensor> End(int shard) const;
    void Take(std::span<const torch::Tensor> sums, int shards);

   private:
    ElasticState& state_;
    std::vector<torch::Tensor> before_;
  };

 private:
  using Values = std::map<std::string, torch::Tensor>;

  // An ON_READ variable, and its value over all replicas when it was last settled.
  struct Settled {
    VariableState* variable;
    torch::Tensor value;
  };
  void Assign(const Settled& one) const;

  TrackedValues tracked_;
  std::map<std::string, Settled> settled_;
  // By variable, then by component; by optimizer.
  std::vector<std::vector<torch::Tensor>> kept_;
  std::vector<Values> kept_states_;
};

}  // namespace muster::internal
