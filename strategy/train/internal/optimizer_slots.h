// What libtorch's optimizers remember of each parameter, by the names that checkpoints use.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "strategy/base/torch.h"

namespace muster::internal {

// One parameter's state. A count of steps, or a tensor of the parameter's shape.
struct Slot {
  std::string name;
  std::int64_t* step = nullptr;
  torch::Tensor* tensor = nullptr;
  // Once there is a state, this belongs to it.
  bool required = true;
};

// Pointers into `state`. UNIMPLEMENTED: the state of an optimizer that is not known here.
std::vector<Slot> SlotsOf(torch::optim::OptimizerParamState& state);
// What a state of `optimizer` looks like before its first step.
std::unique_ptr<torch::optim::OptimizerParamState> NewState(
    const torch::optim::Optimizer& optimizer, const torch::Tensor& parameter);

// Null: none yet.
torch::optim::OptimizerParamState* FindState(torch::optim::Optimizer& optimizer,
                                             const torch::Tensor& parameter);
void SetState(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter,
              std::unique_ptr<torch::optim::OptimizerParamState> state);

// All that ReadSlots() may return. UNIMPLEMENTED as above.
std::vector<std::string> SlotNames(const torch::optim::Optimizer& optimizer,
                                   const std::vector<torch::Tensor>& parameters,
                                   const std::vector<std::string>& names);
// The states of `parameters`, as "<name>/slot/<slot>".
std::map<std::string, torch::Tensor> ReadSlots(torch::optim::Optimizer& optimizer,
                                               const std::vector<torch::Tensor>& parameters,
                                               const std::vector<std::string>& names);
// The same in place of `slots`, which were read of this optimizer before: their memory is used
// again.
void ReadSlotsInto(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                   const std::vector<std::string>& names,
                   std::map<std::string, torch::Tensor>& slots);
// INVALID_ARGUMENT: `value` is not what slot `name` may have: a dense tensor of these sizes, or, as
// a count of steps, one whole number from 0 on.
void CheckSlot(const std::string& name, const torch::Tensor& value, at::IntArrayRef sizes,
               bool count);
// INVALID_ARGUMENT: `slots` are not what ReadSlots() of such an optimizer may have returned.
void CheckSlots(const torch::optim::Optimizer& optimizer,
                const std::vector<torch::Tensor>& parameters, const std::vector<std::string>& names,
                const std::map<std::string, torch::Tensor>& slots);
// Replaces the states; `slots` are checked.
void WriteSlots(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& parameters,
                const std::vector<std::string>& names,
                const std::map<std::string, torch::Tensor>& slots);

}  // namespace muster::internal
