// A logical device as a value: where a tensor or a component lies, what a thread computes for.
#pragma once

#include <compare>
#include <string>

namespace muster::device {

// Threading: a plain value.
struct Place {
  enum class Type { kCpu, kGpu, kTpu };
  Type type = Type::kCpu;
  int index = 0;
  auto operator<=>(const Place&) const = default;

  static constexpr Place Cpu(int index) { return {Type::kCpu, index}; }
  static constexpr Place Gpu(int index) { return {Type::kGpu, index}; }
  static constexpr Place Tpu(int index) { return {Type::kTpu, index}; }

  // "CPU:1"
  std::string ToString() const;
  // "/job:localhost/replica:0/task:0/device:CPU:1"
  std::string Canonical() const;
};

constexpr bool IsGpu(Place place) { return place.type == Place::Type::kGpu; }

}  // namespace muster::device
