// What follows from a place: its name, libtorch's device for it, the place of a tensor, the place
// that a thread computes for.
//
// Threading: any thread. A PlaceScope ends on the thread that opened it, in the order of blocks.
#pragma once

#include <memory>
#include <string_view>

#include <c10/core/Device.h>

#include "common/base/status.h"
#include "device/arena.h"
#include "device/place.h"

namespace at {
class Tensor;
}

namespace muster::device {

// "CPU:1", "cpu:1", "/gpu:0", "TPU:3", "/job:localhost/replica:0/task:0/device:CPU:1", also without
// its first parts: "/task:0/device:TPU:3" is what a topology calls a core.
// INVALID_ARGUMENT: another form, an index out of range, or a device of another task.
Result<Place> ParsePlace(std::string_view name);
// The same; INVALID_ARGUMENT, too: a GPU that this machine does not have, or a TPU core that is not
// up (tpu.h).
Result<Place> FindPlace(std::string_view name);

// The arena of what lies at `place`: a CPU's or an emulated TPU core's own; of a GPU, which has its
// own memory, that of CPU:0, for its replica's host tensors.
inline int ArenaOf(Place place) {
  if (IsGpu(place)) return 0;
  return place.type == Place::Type::kTpu ? Arena::kMaxDevices + place.index : place.index;
}
// The CPU or TPU core that has this arena.
inline Place PlaceOfArena(int arena) {
  return arena < Arena::kMaxDevices ? Place::Cpu(arena) : Place::Tpu(arena - Arena::kMaxDevices);
}

// The CPU, or the card of a logical GPU. `place` exists.
c10::Device CardOf(Place place);
inline c10::Device TorchDevice(Place place) {
  return IsGpu(place) ? CardOf(place) : c10::Device(c10::DeviceType::CPU);
}
inline bool SameDevice(c10::Device a, c10::Device b) {
  return a == b || (a.is_cpu() && b.is_cpu());
}

// The arena that the storage lies in, or the logical GPU: that which Placed() said last, else the
// card's first. Of a sparse tensor: where its values lie. An undefined tensor is at CPU:0.
Place PlaceOf(const at::Tensor& tensor);
// `tensor`, whose memory is nobody else's and lies on the card of `place`: says which of the card's
// logical GPUs it belongs to. Nothing to do on CPUs, and on a card with one logical GPU.
at::Tensor Placed(at::Tensor tensor, Place place);

// While it lives, this thread computes for `place`: CPU memory that libtorch allocates comes from
// its arena (a GPU's replica has that of CPU:0), and the current card is the GPU's.
class PlaceScope {
 public:
  explicit PlaceScope(Place place);
  ~PlaceScope();
  PlaceScope(const PlaceScope&) = delete;
  PlaceScope& operator=(const PlaceScope&) = delete;

  // CPU:0 outside any scope.
  static Place Current();

 private:
  struct Card;

  const ArenaScope arena_;
  const int outer_;
  std::unique_ptr<Card> card_;
};

}  // namespace muster::device
