// What the processes of a strategy (Strategy::collectives()) bring together, as tensors.
//
// All processes make each call, in the same order, on one thread at a time. Values may lie
// anywhere; results are in host memory and have no history, but for a process's own values, which
// come back as they are. Errors: the group's, thrown.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/group.h"
#include "strategy/base/torch.h"
#include "strategy/values/indexed_slices.h"

namespace muster::internal {

// In a catch block: the group ends by what was caught.
void end_by_current_error(collectives::Group& group);
// `work`, which makes what this process brings to the group's next call. The others wait for that:
// where it throws, the group ends, and they get the same error. Null: nobody waits.
template <class Work>
auto brought_by(collectives::Group* group, const Work& work) {
  try {
    return work();
  } catch (...) {
    if (group != nullptr) end_by_current_error(*group);
    throw;
  }
}

// A timeout is that of the whole call, however many it makes of the group.
//
// Everybody's `mine`, in the order of processes; of any types and shapes. `call` names what for,
// and is the same on all. UNIMPLEMENTED, on all: one is sparse.
std::vector<torch::Tensor> gather_between(collectives::Group& group, std::string_view call,
                                          const torch::Tensor& mine,
                                          collectives::Timeout timeout = {});
// The values of all replicas, in their order: `mine` are those of this process's, as many as
// elsewhere.
std::vector<torch::Tensor> values_of_all(collectives::Group& group, std::string_view call,
                                         const std::vector<torch::Tensor>& mine,
                                         collectives::Timeout timeout = {});
// The same; each with its own dense shape.
std::vector<IndexedSlices> slices_of_all(collectives::Group& group, std::string_view call,
                                         const std::vector<IndexedSlices>& mine,
                                         collectives::Timeout timeout = {});
// The sum of each value over processes, in its type; dense, equally many and of equal shapes and
// types on all (INVALID_ARGUMENT).
std::vector<torch::Tensor> sum_between(collectives::Group& group,
                                       const std::vector<torch::Tensor>& values,
                                       collectives::Timeout timeout = {});
// The first process's `mine`, on the device of the own. INVALID_ARGUMENT, on all: another process's
// has another shape or type.
torch::Tensor value_of_first(collectives::Group& group, std::string_view call,
                             const torch::Tensor& mine);

// The first process's `text`.
std::string text_of_first(collectives::Group& group, std::string_view call,
                          const std::string& text);
// Each does its own work, and all wait for all. What the first of those throws that fail, all
// throw.
void done_by_each(collectives::Group& group, std::string_view call,
                  const std::function<void()>& work);
// done_by_each() of what only reads, so that all change something then, or nobody; its errors say
// whose they are. Null: this process is alone.
void ready_on_all(collectives::Group* group, std::string_view call,
                  const std::function<void()>& work);
// The first process does the work, the others wait for it. What it throws, all throw.
void done_by_first(collectives::Group& group, std::string_view call,
                   const std::function<void()>& work);

}  // namespace muster::internal
