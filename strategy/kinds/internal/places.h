// The devices that a strategy's user has named.
#pragma once

#include <string>
#include <vector>

#include "device/place.h"

namespace muster::internal {

// None named: all GPUs of this machine, else CPU:0.
std::vector<std::string> NamesOrAll(const std::vector<std::string>& names);
// INVALID_ARGUMENT: not a device's name, a GPU that this machine does not have, or a device named
// twice.
std::vector<device::Place> PlacesOf(const std::vector<std::string>& names);

}  // namespace muster::internal
