#include "device/place.h"

#include <array>
#include <string_view>

#include <fmt/format.h>

namespace muster::device {

std::string Place::ToString() const {
  constexpr std::array<std::string_view, 3> kTypes = {"CPU", "GPU", "TPU"};
  return fmt::format("{}:{}", kTypes[static_cast<std::size_t>(type)], index);
}

std::string Place::Canonical() const {
  return fmt::format("/job:localhost/replica:0/task:0/device:{}", ToString());
}

}  // namespace muster::device
