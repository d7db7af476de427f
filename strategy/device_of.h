// Which logical device a tensor lies on.
#pragma once

#include <string>

#include "strategy/torch.h"

namespace muster {

// The canonical name of the device whose arena the tensor's storage lies in; memory of no arena is
// CPU:0's, so is an undefined tensor's; a sparse tensor lies where its values do. A tensor on a
// card is on its logical GPU; where a card has several, on the one that Muster put it on
// (variables, copies, results of collective calls), else on the first of them. Threading: any
// thread. Write muster::device_of also inside the namespace: libtorch has a device_of of its own.
std::string device_of(const torch::Tensor& tensor);

}  // namespace muster
