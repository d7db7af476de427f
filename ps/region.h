// Zeroed floats in page-aligned memory of their own, on 2 MiB pages where they are that large.
//
// Pages are only taken when first written. Threading: a value, as std::vector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/status.h"

namespace muster::ps {

class Region {
 public:
  Region() = default;
  // kResourceExhausted: the kernel has no address space for it.
  static Result<Region> Create(std::size_t floats);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;

  std::span<float> floats() { return {begin_, size_}; }
  std::span<const float> floats() const { return {begin_, size_}; }
  std::size_t bytes() const { return size_ * sizeof(float); }

 private:
  float* begin_ = nullptr;
  std::size_t size_ = 0;
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
};

}  // namespace muster::ps
