#include "strategy/base/communication_options.h"

#include <cctype>
#include <string>

#include "strategy/base/internal/raise.h"

namespace muster {

CommunicationImplementation::CommunicationImplementation(std::string_view name) {
  std::string upper;
  for (const char c : name) {
    upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  if (upper == "AUTO") {
    value_ = kAuto;
  } else if (upper == "RING") {
    value_ = kRing;
  } else if (upper == "NCCL") {
    value_ = kNccl;
  } else {
    raise(InvalidArgument("communication implementation \"{}\" is not one of: AUTO, RING, NCCL",
                          name));
  }
}

std::string_view CommunicationImplementation::name() const {
  return value_ == kAuto ? "AUTO" : value_ == kRing ? "RING" : "NCCL";
}

BytesPerPack::BytesPerPack(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
  if (bytes < 0) raise(InvalidArgument("bytes_per_pack must be >= 0, not {}", bytes));
}

CommunicationOptions CommunicationOptions::merge(const CommunicationOptions& other) const {
  CommunicationOptions merged = *this;
  if (other.bytes_per_pack != 0) merged.bytes_per_pack = other.bytes_per_pack;
  if (other.timeout.has_value()) merged.timeout = other.timeout;
  if (other.implementation != CommunicationImplementation::kAuto) {
    merged.implementation = other.implementation;
  }
  return merged;
}

}  // namespace muster
