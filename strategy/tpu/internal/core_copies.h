// A component of a variable under SPMD partitioning: an equal copy on each core of a replica.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strategy/variables/internal/component.h"

namespace muster::internal {

// Written on all cores before any of them is read again; read from the first.
// Threading: as Component.
class CoreCopies final : public Component {
 public:
  CoreCopies(const std::string& name, const std::vector<device::Place>& cores);

  torch::Tensor Snapshot() const override { return copies_[0]->Snapshot(); }
  torch::Tensor Leaf(int slot, bool trainable) override {
    return copies_[0]->Leaf(slot, trainable);
  }
  void Assign(const torch::Tensor& value, torch::ScalarType type) override;
  bool Apply(WriteKind kind, const std::string& variable, const WriteArgument& argument) override;

  // By logical device.
  std::vector<torch::Tensor> Snapshots() const;

 private:
  std::vector<std::unique_ptr<OwnComponent>> copies_;
};

}  // namespace muster::internal
