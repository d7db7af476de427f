// Sums by NCCL, in builds that have it (docs/strategies/README.md). Its headers stay behind this.
#pragma once

#include <vector>

#include "collectives/group.h"
#include "device/place.h"
#include "strategy/base/options.h"
#include "strategy/base/torch.h"

namespace muster::internal {

// Whether NCCL is in this build.
bool nccl_in_build();

// results[d]: the sum or mean of `values`, each dense and on a card of its own, on the d-th card.
// False, and nothing done, where NCCL cannot: not in this build, shapes or types that differ, types
// that it does not add, means of integers.
//   UNAVAILABLE: NCCL failed; the text is its own.
bool nccl_all_reduce(ReduceOp op, const std::vector<torch::Tensor>& values,
                     std::vector<torch::Tensor>& results);

// Makes NCCL's communicator between the processes of `group` (Group::communicator()); all of them
// call it, each with a card of its own. Where there can be none, the group stays without, and the
// log says why.
//   The group's errors, thrown.
void join_nccl(collectives::Group& group, device::Place card, collectives::Timeout call_within);

// sum_between() (strategy/core/internal/between.h) of values on `card`. Where the group has a
// communicator, types that NCCL adds go by it, and their sums lie on the card.
std::vector<torch::Tensor> sum_between_cards(collectives::Group& group, device::Place card,
                                             const std::vector<torch::Tensor>& values,
                                             collectives::Timeout timeout);

}  // namespace muster::internal
