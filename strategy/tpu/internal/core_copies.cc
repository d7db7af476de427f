#include "strategy/tpu/internal/core_copies.h"

namespace muster::internal {

CoreCopies::CoreCopies(const std::string& name, const std::vector<device::Place>& cores)
    : Component(name, cores[0]) {
  for (const device::Place core : cores) {
    copies_.push_back(std::make_unique<OwnComponent>(name, core));
  }
}

void CoreCopies::Assign(const torch::Tensor& value, torch::ScalarType type) {
  for (const auto& copy : copies_) copy->Assign(value, type);
}

// What does not fit does not fit the first, and nothing is done.
bool CoreCopies::Apply(WriteKind kind, const std::string& variable, const WriteArgument& argument) {
  for (const auto& copy : copies_) {
    if (!copy->Apply(kind, variable, argument)) return false;
  }
  return true;
}

std::vector<torch::Tensor> CoreCopies::Snapshots() const {
  std::vector<torch::Tensor> values;
  for (const auto& copy : copies_) values.push_back(copy->Snapshot());
  return values;
}

}  // namespace muster::internal
