// The mode in which values of variables are made.
#pragma once

#include <c10/core/InferenceMode.h>

#include "device/placing.h"
#include "strategy/base/torch.h"

namespace muster::internal {

// While it lives, this thread makes ordinary tensors without a history at `place`, whatever mode
// its caller is in.
struct Ordinary {
  explicit Ordinary(device::Place place) : here(place) {}
  const c10::InferenceMode inference{false};  // first: it turns gradients on
  const torch::NoGradGuard no_grad;
  const device::PlaceScope here;
};

}  // namespace muster::internal
