// xxh3-64 of each 4 MiB of a file, as lower-case hex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::storage {

// Each piece of a file that has a hash of its own.
inline constexpr std::uint64_t kChunkBytes = 4 << 20;

std::string HashHex(std::span<const std::byte> bytes);
std::string HashHex(std::string_view text);

// Threading: one thread at a time.
class ChunkHasher {
 public:
  ChunkHasher();
  ~ChunkHasher();
  ChunkHasher(const ChunkHasher&) = delete;
  ChunkHasher& operator=(const ChunkHasher&) = delete;

  // Bytes until the current chunk is full; never 0.
  std::uint64_t LeftInChunk() const;
  void Update(std::span<const std::byte> bytes);
  // The hashes of all chunks, the last of them perhaps a short one.
  std::vector<std::string> Finish();
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::uint64_t bytes_ = 0;
  std::vector<std::string> done_;
};

}  // namespace muster::storage
