#include "strategy/base/logical_devices.h"

#include <fmt/format.h>

#include "device/gpu.h"
#include "device/placing.h"
#include "device/tpu.h"
#include "strategy/base/internal/raise.h"

namespace muster {
namespace {

// Whether `one` is asked for. INVALID_ARGUMENT: no type of devices.
bool Wanted(std::string_view type, std::string_view one) {
  if (!type.empty() && type != "CPU" && type != "GPU" && type != "TPU") {
    raise(InvalidArgument("device type \"{}\" is not one of: CPU, GPU, TPU", type));
  }
  return type.empty() || type == one;
}

}  // namespace

std::vector<std::string> list_physical_devices(std::string_view type) {
  std::vector<std::string> devices;
  if (Wanted(type, "CPU")) devices.emplace_back("/physical_device:CPU:0");
  if (!Wanted(type, "GPU")) return devices;
  const int cards = device::LogicalGpus::OfProcess().card_count();
  for (int card = 0; card < cards; ++card) {
    devices.push_back(fmt::format("/physical_device:GPU:{}", card));
  }
  return devices;
}

std::vector<std::string> list_logical_devices(std::string_view type) {
  std::vector<std::string> devices;
  if (Wanted(type, "CPU")) devices.push_back(device::Place{}.Canonical());
  if (Wanted(type, "GPU")) {
    const auto gpus = static_cast<int>(device::LogicalGpus::OfProcess().Cards().size());
    for (int gpu = 0; gpu < gpus; ++gpu) devices.push_back(device::Place::Gpu(gpu).Canonical());
  }
  if (Wanted(type, "TPU")) {
    const int cores = device::TpuCores::OfProcess().count();
    for (int core = 0; core < cores; ++core) {
      devices.push_back(device::Place::Tpu(core).Canonical());
    }
  }
  return devices;
}

void set_logical_device_configuration(int card, int logical_devices) {
  raise_unless_ok(device::LogicalGpus::OfProcess().Configure(card, logical_devices));
}

}  // namespace muster
