#include "device/device.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "device/arena.h"

namespace muster::device {
namespace {

constexpr std::string_view kHere = "/job:localhost/replica:0/task:0";

}  // namespace

std::string Device::ToString() const {
  return fmt::format("{}:{}", type == Type::kCpu ? "CPU" : "GPU", index);
}

std::string Device::Canonical() const { return fmt::format("{}/device:{}", kHere, ToString()); }

Result<Device> ParseDevice(std::string_view name) {
  std::string_view rest = name;
  if (rest.starts_with(kHere)) rest.remove_prefix(kHere.size());
  if (rest.starts_with("/device:")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("/")) {
    rest.remove_prefix(1);
  }
  const std::size_t colon = rest.find(':');
  std::string type(rest.substr(0, colon));
  std::transform(type.begin(), type.end(), type.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  int index = -1;
  if (colon != std::string_view::npos) {
    const char* const end = rest.data() + rest.size();
    const auto parsed = std::from_chars(rest.data() + colon + 1, end, index);
    if (parsed.ec != std::errc() || parsed.ptr != end) index = -1;
  }
  if ((type != "CPU" && type != "GPU") || index < 0 || index >= Arena::kMaxDevices) {
    return InvalidArgument("device \"{}\" is not CPU:<n> or GPU:<n> with n in [0, {}) on this task",
                           name, Arena::kMaxDevices);
  }
  return Device{type == "CPU" ? Device::Type::kCpu : Device::Type::kGpu, index};
}

}  // namespace muster::device
