// In which order an epoch visits the records.
//
// Shuffled: blocks of 1024 neighbouring records are permuted, then the records within windows of
// 256 blocks. A dataset of up to 262,144 records is thus shuffled as a whole; of a larger one, only
// the window that is being read touches the disk at random. The order depends on (records, seed,
// epoch) alone; the two sizes are part of that promise.
//
// Invariant: in each epoch every record stands at exactly one position.
// Threading: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/mutex.h"

namespace muster::data {

class EpochOrder {
 public:
  static constexpr std::uint64_t kBlockRecords = 1024;
  static constexpr std::uint64_t kWindowBlocks = 256;

  EpochOrder(std::uint64_t records, std::uint64_t seed, bool shuffle);

  // Writes the records at positions begin, begin + 1, ... of `epoch`; all must be below records.
  void Fill(std::uint64_t epoch, std::uint64_t begin, std::span<std::uint64_t> out);

 private:
  // The permuted blocks of one epoch.
  struct Blocks {
    std::uint64_t epoch = 0;
    std::vector<std::uint32_t> order;
    // Where the last block, which may be short, stands.
    std::uint64_t short_at = 0;
  };
  struct Window {
    std::uint64_t epoch = 0;
    std::uint64_t number = 0;
    std::uint64_t begin = 0;  // position of its first record
    std::vector<std::uint64_t> records;
  };

  std::shared_ptr<const Window> WindowAt(std::uint64_t epoch, std::uint64_t position);
  std::shared_ptr<const Blocks> BlocksOf(std::uint64_t epoch) MUSTER_REQUIRES(mutex_);
  std::shared_ptr<const Window> MakeWindow(const Blocks& blocks, std::uint64_t number) const;
  // Position of the first record of the block that stands at `place` in the permutation.
  std::uint64_t PositionOf(const Blocks& blocks, std::uint64_t place) const;

  const std::uint64_t records_;
  const std::uint64_t blocks_;
  const std::uint64_t seed_;
  const bool shuffle_;

  Mutex mutex_;
  // Most recently used first, bounded.
  std::vector<std::shared_ptr<const Blocks>> recent_blocks_ MUSTER_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const Window>> recent_windows_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::data
