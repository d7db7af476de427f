#include "common/storage/hash.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>
#include <xxhash.h>

namespace muster::storage {

struct ChunkHasher::State {
  State() : hash(XXH3_createState()) { XXH3_64bits_reset(hash); }
  ~State() { XXH3_freeState(hash); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  std::string Take() {
    std::string hex = fmt::format("{:016x}", XXH3_64bits_digest(hash));
    XXH3_64bits_reset(hash);
    return hex;
  }
  XXH3_state_t* hash;
};

std::string HashHex(std::span<const std::byte> bytes) {
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

std::string HashHex(std::string_view text) {
  return HashHex(std::as_bytes(std::span(text.data(), text.size())));
}

ChunkHasher::ChunkHasher() : state_(std::make_unique<State>()) {}
ChunkHasher::~ChunkHasher() = default;

std::uint64_t ChunkHasher::LeftInChunk() const { return kChunkBytes - bytes_ % kChunkBytes; }

void ChunkHasher::Update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min<std::size_t>(bytes.size(), LeftInChunk()));
    XXH3_64bits_update(state_->hash, piece.data(), piece.size());
    bytes_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (bytes_ % kChunkBytes == 0) done_.push_back(state_->Take());
  }
}

std::vector<std::string> ChunkHasher::Finish() {
  if (bytes_ % kChunkBytes != 0) done_.push_back(state_->Take());
  return std::exchange(done_, {});
}

}  // namespace muster::storage
