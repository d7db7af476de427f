// Bytes that are mostly few: up to `kInline` of them need no allocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

namespace muster::dispatch {

template <std::size_t kInline>
class SmallBytes {
 public:
  std::span<const std::byte> view() const {
    return {large_ != nullptr ? large_.get() : small_.data(), size_};
  }
  std::size_t size() const { return size_; }

  // `bytes` may be at most 4 GiB; they are copied.
  void Assign(std::span<const std::byte> bytes) {
    std::byte* into = small_.data();
    if (bytes.size() > kInline) {
      large_ = std::make_unique_for_overwrite<std::byte[]>(bytes.size());
      into = large_.get();
    } else {
      large_.reset();
    }
    if (!bytes.empty()) std::memcpy(into, bytes.data(), bytes.size());
    size_ = static_cast<std::uint32_t>(bytes.size());
  }
  void Clear() {
    large_.reset();
    size_ = 0;
  }

 private:
  std::unique_ptr<std::byte[]> large_;
  std::uint32_t size_ = 0;
  std::array<std::byte, kInline> small_;  // the first size_ bytes, where large_ is null
};

}  // namespace muster::dispatch
