// Which logical device a tensor lies on.
#pragma once

#include <string>

#include "strategy/base/torch.h"

namespace muster {

// The canonical name of the device whose arena the tensor's storage lies in; memory of no arena is
// CPU:0's, so is an undefined tensor's; a sparse tensor lies where its values do. A tensor on a
// card is on its logical GPU; where a card has several, on the one that Muster put it on
// (variables, copies, results of collective calls), else on the first of them. Threading: any
// thread. An object, so that a call finds this one alone: libtorch's at::device_of() is not asked.
struct DeviceOf {
  std::string operator()(const torch::Tensor& tensor) const;
};
inline constexpr DeviceOf device_of;

}  // namespace muster
