// Bytes that pass through many hands, with who keeps them: what is long is held on its way, not
// copied from hand to hand.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace muster {

// What is shorter is copied: it would hold the memory of all that came with it.
inline constexpr std::size_t kLongBytes = std::size_t{512} << 10;

// So many bytes, not zeroed. What is long lies in huge pages where the kernel has some, and up to
// 64 MiB of such memory are kept for who asks next: fresh pages cost as much as a copy. Throws
// std::bad_alloc.  Threading: any thread.
std::shared_ptr<std::byte[]> NewBytes(std::size_t bytes);

// Without a keeper: valid during the call that they are given to. With one: for ever, and never
// changed.  Threading: a value.
class KeptBytes {
 public:
  using Keeper = std::shared_ptr<const std::byte[]>;

  KeptBytes() = default;
  KeptBytes(std::span<const std::byte> bytes, Keeper keeper)
      : bytes_(bytes), keeper_(std::move(keeper)) {}
  template <class Range>
    requires(!std::same_as<Range, KeptBytes> &&
             std::convertible_to<const Range&, std::span<const std::byte>>)
  KeptBytes(const Range& bytes) : bytes_(bytes) {}  // NOLINT(google-explicit-constructor): a view
  static KeptBytes CopyOf(std::span<const std::byte> bytes);
  static KeptBytes Of(std::vector<std::byte> bytes);

  std::span<const std::byte> view() const { return bytes_; }
  const std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  auto begin() const { return bytes_.begin(); }
  auto end() const { return bytes_.end(); }

  // These, or a copy of them that is kept.
  KeptBytes Kept() const { return keeper_ == nullptr ? CopyOf(bytes_) : *this; }
  // To be held instead of copied.
  bool worth_holding() const { return keeper_ != nullptr && bytes_.size() >= kLongBytes; }
  // Points to the first of these bytes; null without a keeper.
  Keeper Hold() const { return keeper_ == nullptr ? nullptr : Keeper(keeper_, bytes_.data()); }
  // Some of them, kept by the same.
  KeptBytes Part(std::span<const std::byte> inside) const { return {inside, keeper_}; }

 private:
  std::span<const std::byte> bytes_;
  Keeper keeper_;
};

}  // namespace muster
