// Bytes that are mostly few: up to `kInline` of them need no allocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "common/base/kept_bytes.h"

namespace muster::dispatch {

template <std::size_t kInline>
class SmallBytes {
 public:
  std::span<const std::byte> view() const {
    return {large_ != nullptr ? large_.get() : small_.data(), size_};
  }
  std::size_t size() const { return size_; }
  // Kept where they are large.
  KeptBytes kept() const { return {view(), large_}; }

  // `bytes` may be at most 4 GiB; they are held or copied.
  void Assign(const KeptBytes& bytes) {
    if (bytes.size() <= kInline) {
      large_.reset();
      if (!bytes.empty()) std::memcpy(small_.data(), bytes.data(), bytes.size());
    } else {
      large_ = bytes.worth_holding() ? bytes.Hold() : KeptBytes::CopyOf(bytes).Hold();
    }
    size_ = static_cast<std::uint32_t>(bytes.size());
  }
  void Clear() {
    large_.reset();
    size_ = 0;
  }

 private:
  KeptBytes::Keeper large_;
  std::uint32_t size_ = 0;
  std::array<std::byte, kInline> small_;  // the first size_ bytes, where large_ is null
};

}  // namespace muster::dispatch
