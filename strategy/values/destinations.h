// Devices that a reduction goes to.
//
// Threading: a plain value.
#pragma once

#include <concepts>
#include <string>
#include <vector>

#include "device/place.h"
#include "strategy/base/torch.h"
#include "strategy/values/distributed_values.h"

namespace muster {

// Names of devices, or wherever the components of a value or of a variable are.
class Destinations {
 public:
  // NOLINTBEGIN(google-explicit-constructor): reduce_to(op, value, v), reduce_to(op, value,
  // "CPU:1").
  Destinations(const char* device) : Destinations(std::vector<std::string>{device}) {}
  Destinations(const std::string& device) : Destinations(std::vector<std::string>{device}) {}
  // INVALID_ARGUMENT: empty ("destinations can not be empty"), not a device's name ("must be one
  // of"), or a GPU that this machine does not have. A device that is named twice counts once.
  Destinations(const std::vector<std::string>& devices);
  Destinations(const torch::Tensor& tensor) : Destinations(devices_of({tensor})) {}
  Destinations(const PerReplica<torch::Tensor>& value) : Destinations(devices_of(value.values())) {}
  Destinations(const Mirrored<torch::Tensor>& value) : Destinations(devices_of(value.values())) {}
  // A variable.
  template <class T>
    requires requires(const T& variable) {
      { variable.devices() } -> std::same_as<std::vector<std::string>>;
    }
  Destinations(const T& variable) : Destinations(variable.devices()) {}
  // NOLINTEND(google-explicit-constructor)

  // Canonical names.
  const std::vector<std::string>& devices() const { return devices_; }
  // The same as values, in the same order.
  const std::vector<device::Place>& places() const { return places_; }

 private:
  static std::vector<std::string> devices_of(const std::vector<torch::Tensor>& tensors);

  std::vector<std::string> devices_;
  std::vector<device::Place> places_;
};

}  // namespace muster
