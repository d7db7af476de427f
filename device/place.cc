#include "device/place.h"

#include <fmt/format.h>

namespace muster::device {

std::string Place::ToString() const {
  return fmt::format("{}:{}", type == Type::kCpu ? "CPU" : "GPU", index);
}

std::string Place::Canonical() const {
  return fmt::format("/job:localhost/replica:0/task:0/device:{}", ToString());
}

}  // namespace muster::device
