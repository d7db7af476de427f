// What a run's steps change: kept as it is after each step that counts, put back when a step does
// not, given to workers that join.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "collectives/group.h"
#include "strategy/train/internal/saved_state.h"

namespace muster::internal {

// Threading: one thread, outside run(). Lifetime: the variables and optimizers outlive it.
class ElasticState {
 public:
  // INVALID_ARGUMENT: nothing is tracked. UNIMPLEMENTED: a variable whose components differ
  // (ON_READ), or one that is not this process's.
  explicit ElasticState(TrackedValues tracked);

  // A hash of names, types and shapes.
  std::uint64_t signature() const;

  // Remembers the values as they are now.
  void Keep();
  // Puts back what Keep() remembered.
  void Undo();
  // All members of the group make the call: those with `takes` get the values of member `donor`.
  void Stream(collectives::Group& group, int donor, bool takes);

 private:
  using Values = std::map<std::string, torch::Tensor>;

  TrackedValues tracked_;
  // By variable, then by component; by optimizer.
  std::vector<std::vector<torch::Tensor>> kept_;
  std::vector<Values> kept_states_;
};

}  // namespace muster::internal
