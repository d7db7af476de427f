// The devices that a strategy's user has named.
#pragma once

#include <string>
#include <vector>

#include "device/place.h"

namespace muster::internal {

// As this process itself names them. None named: all GPUs of this machine, else CPU:0.
// INVALID_ARGUMENT: a device of another task than this process is.
std::vector<std::string> NamesOrAll(const std::vector<std::string>& names);
// INVALID_ARGUMENT: not a device's name, a GPU that this machine does not have, or a device of
// another task than this process is.
device::Place PlaceOf(const std::string& name);
// INVALID_ARGUMENT: as above, or a device named twice.
std::vector<device::Place> PlacesOf(const std::vector<std::string>& names);

}  // namespace muster::internal
