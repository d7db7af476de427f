// The devices of this process, and how its GPUs are cut into logical ones.
//
//   set_logical_device_configuration(/*card=*/0, /*logical_devices=*/2);
//   MirroredStrategy strategy({"GPU:0", "GPU:1"});  // both on card 0
//
// CPU:0, CPU:1, ... need no declaration. Without one each card is one logical GPU. Threading: any
// thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster {

// "/physical_device:CPU:0", then "/physical_device:GPU:<card>" for each card that libtorch finds.
// `type`: "CPU", "GPU" or "TPU" alone; empty: all. INVALID_ARGUMENT: another type. Emulated TPU
// cores are no physical devices.
std::vector<std::string> list_physical_devices(std::string_view type = {});

// Canonical names: CPU:0, all logical GPUs, which are in use from here on, then the TPU cores that
// are up (strategy/tpu/tpu_system.h). INVALID_ARGUMENT as above.
std::vector<std::string> list_logical_devices(std::string_view type = {});

// Makes so many logical GPUs of a card, counted from 0.
//   INVALID_ARGUMENT: a card that this machine does not have, or less than 1.
//   FAILED_PRECONDITION: logical GPUs are in use: one was named, or asked for, before.
void set_logical_device_configuration(int card, int logical_devices);

}  // namespace muster
