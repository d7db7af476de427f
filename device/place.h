// A logical device as a number: CPU:i is place i, GPU:i is place kFirstGpu + i. And what follows
// from it: libtorch's device, the place of a tensor, the place that a thread computes for.
#pragma once

#include <memory>
#include <string_view>

#include <c10/core/Device.h>

#include "common/base/status.h"
#include "device/arena.h"
#include "device/device.h"

namespace at {
class Tensor;
}

namespace muster::device {

inline constexpr int kFirstGpu = 1 << 10;
static_assert(kFirstGpu >= Arena::kMaxDevices);

constexpr bool IsGpu(int place) { return place >= kFirstGpu; }
constexpr int PlaceOf(const Device& device) {
  return device.type == Device::Type::kGpu ? kFirstGpu + device.index : device.index;
}
constexpr Device DeviceAt(int place) {
  return IsGpu(place) ? Device{Device::Type::kGpu, place - kFirstGpu}
                      : Device{Device::Type::kCpu, place};
}

// INVALID_ARGUMENT: no device's name (as ParseDevice()), or a GPU that this machine does not have.
Result<int> FindPlace(std::string_view name);

// The CPU, or the card of a logical GPU. `place` exists.
c10::Device CardOf(int place);
inline c10::Device TorchDevice(int place) {
  return IsGpu(place) ? CardOf(place) : c10::Device(c10::DeviceType::CPU);
}
inline bool SameDevice(c10::Device a, c10::Device b) {
  return a == b || (a.is_cpu() && b.is_cpu());
}

// The arena that the storage lies in, or the logical GPU: that which Placed() said last, else the
// card's first. Of a sparse tensor: where its values lie. An undefined tensor is at CPU:0.
int PlaceOf(const at::Tensor& tensor);
// `tensor`, whose memory is nobody else's and lies on the card of `place`: says which of the card's
// logical GPUs it belongs to. Nothing to do on CPUs, and on a card with one logical GPU.
const at::Tensor& Placed(const at::Tensor& tensor, int place);

// While it lives, this thread computes for `place`: CPU memory that libtorch allocates comes from
// its arena (a GPU's replica has that of CPU:0), and the current card is the GPU's.
class PlaceScope {
 public:
  explicit PlaceScope(int place);
  ~PlaceScope();
  PlaceScope(const PlaceScope&) = delete;
  PlaceScope& operator=(const PlaceScope&) = delete;

  // CPU:0 outside any scope.
  static int Current();

 private:
  struct Card;

  const ArenaScope arena_;
  const int outer_;
  std::unique_ptr<Card> card_;
};

}  // namespace muster::device
