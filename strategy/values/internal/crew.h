// The threads that large cross-replica reductions on this thread may use besides it.
#pragma once

#include "collectives/crew.h"

namespace muster::internal {

// While it lives, reductions that this thread makes are cut into `crew.size` parts.
class CrewScope {
 public:
  explicit CrewScope(const collectives::Crew& crew);
  ~CrewScope();
  CrewScope(const CrewScope&) = delete;
  CrewScope& operator=(const CrewScope&) = delete;

 private:
  const collectives::Crew* const outer_;
};

// This thread's, or itself alone.
const collectives::Crew& current_crew();

}  // namespace muster::internal
