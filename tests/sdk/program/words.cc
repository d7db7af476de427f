// Adds up on workers, by an object that each of them has.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <muster/muster.h>

struct Model {
  torch::Tensor weight;
};
Model make_model() { return {.weight = torch::full({3}, 2.0)}; }
double weighted(Model& model, const torch::Tensor& batch) {
  return (model.weight * batch).sum().item<double>();
}

MUSTER_PROGRAM(make_model);
MUSTER_FUNCTION(weighted);

int main(int argc, char** argv) {
  muster::init(argc, argv);
  muster::ClusterCoordinator coordinator;
  std::vector<muster::RemoteValue<double>> values;
  const int n = argc > 1 ? std::atoi(argv[1]) : 1;
  for (int i = 0; i < n; ++i) values.push_back(coordinator.schedule<weighted>(torch::ones(3)));
  double sum = 0;
  for (const double value : coordinator.fetch(values)) sum += value;
  std::printf("sum %.0f\n", sum);
}
