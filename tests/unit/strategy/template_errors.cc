// Three mistakes in a program. Not built: template_errors.cmake reads what the compiler says of it.
#include "strategy/core/strategy.h"
#include "strategy/input/dataset.h"

struct Loss {
  torch::Tensor sum;
  double weight;
};

auto reduces_a_struct(muster::Strategy& strategy, const muster::PerReplica<Loss>& losses) {
  return strategy.reduce(muster::ReduceOp::kSum, losses);
}

void merges_without_a_strategy() {
  muster::replica_context().merge_call([](const muster::PerReplica<int>&) {}, 3);
}

auto makes_elements_of_a_struct() { return muster::dataset::from_elements(std::vector<Loss>{}); }
