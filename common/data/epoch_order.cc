#include "common/data/epoch_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/split_mix.h"

namespace muster::data {
namespace {

// Two epochs meet where one ends; prefetching and evaluation may look at a few windows in turn.
constexpr std::size_t kRecentBlocks = 2;
constexpr std::size_t kRecentWindows = 4;

enum class Level : std::uint64_t { kBlocks = 1, kRecords = 2 };

SplitMix64 Generator(std::uint64_t seed, std::uint64_t epoch, Level level, std::uint64_t number) {
  return SplitMix64(Mix(Mix(Mix(seed) ^ epoch) ^ static_cast<std::uint64_t>(level)) ^ Mix(number));
}

template <class T>
void Shuffle(std::vector<T>& values, SplitMix64 random) {
  for (std::size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[random.Below(i)]);
  }
}

// Puts `item` first and drops what is too old.
template <class T>
void Remember(std::vector<std::shared_ptr<const T>>& recent, std::shared_ptr<const T> item,
              std::size_t limit) {
  recent.insert(recent.begin(), std::move(item));
  if (recent.size() > limit) recent.resize(limit);
}

}  // namespace

EpochOrder::EpochOrder(std::uint64_t records, std::uint64_t seed, bool shuffle)
    : records_(records),
      blocks_((records + kBlockRecords - 1) / kBlockRecords),
      seed_(seed),
      shuffle_(shuffle) {}

void EpochOrder::Fill(std::uint64_t epoch, std::uint64_t begin, std::span<std::uint64_t> out) {
  if (!shuffle_) {
    std::iota(out.begin(), out.end(), begin);
    return;
  }
  while (!out.empty()) {
    const auto window = WindowAt(epoch, begin);
    const std::uint64_t from = begin - window->begin;
    const std::uint64_t count = std::min<std::uint64_t>(out.size(), window->records.size() - from);
    std::copy_n(window->records.begin() + static_cast<std::ptrdiff_t>(from), count, out.begin());
    out = out.subspan(count);
    begin += count;
  }
}

// Windows are made under the lock, so that threads which want the same one make it once.
std::shared_ptr<const EpochOrder::Window> EpochOrder::WindowAt(std::uint64_t epoch,
                                                               std::uint64_t position) {
  const MutexLock lock(mutex_);
  const auto holds = [&](const std::shared_ptr<const Window>& window) {
    return window->epoch == epoch && position >= window->begin &&
           position - window->begin < window->records.size();
  };
  if (const auto it = std::find_if(recent_windows_.begin(), recent_windows_.end(), holds);
      it != recent_windows_.end()) {
    std::rotate(recent_windows_.begin(), it, it + 1);
    return recent_windows_.front();
  }
  const auto blocks = BlocksOf(epoch);
  // A short block in an earlier window moves the later ones forward by less than one block.
  std::uint64_t number = position / (kWindowBlocks * kBlockRecords);
  const std::uint64_t next = (number + 1) * kWindowBlocks;
  if (next < blocks_ && PositionOf(*blocks, next) <= position) ++number;
  Remember(recent_windows_, MakeWindow(*blocks, number), kRecentWindows);
  return recent_windows_.front();
}

std::shared_ptr<const EpochOrder::Blocks> EpochOrder::BlocksOf(std::uint64_t epoch) {
  for (const auto& blocks : recent_blocks_) {
    if (blocks->epoch == epoch) return blocks;
  }
  auto blocks = std::make_shared<Blocks>();
  blocks->epoch = epoch;
  blocks->order.resize(blocks_);
  std::iota(blocks->order.begin(), blocks->order.end(), 0U);
  Shuffle(blocks->order, Generator(seed_, epoch, Level::kBlocks, 0));
  const auto last = std::find(blocks->order.begin(), blocks->order.end(), blocks_ - 1);
  blocks->short_at = static_cast<std::uint64_t>(last - blocks->order.begin());
  Remember<Blocks>(recent_blocks_, blocks, kRecentBlocks);
  return blocks;
}

std::uint64_t EpochOrder::PositionOf(const Blocks& blocks, std::uint64_t place) const {
  const std::uint64_t missing = blocks_ * kBlockRecords - records_;
  return place * kBlockRecords - (place > blocks.short_at ? missing : 0);
}

std::shared_ptr<const EpochOrder::Window> EpochOrder::MakeWindow(const Blocks& blocks,
                                                                 std::uint64_t number) const {
  auto window = std::make_shared<Window>();
  window->epoch = blocks.epoch;
  window->number = number;
  const std::uint64_t first = number * kWindowBlocks;
  const std::uint64_t last = std::min(first + kWindowBlocks, blocks_);
  window->begin = PositionOf(blocks, first);
  window->records.reserve((last - first) * kBlockRecords);
  for (std::uint64_t place = first; place < last; ++place) {
    const std::uint64_t begin = blocks.order[place] * kBlockRecords;
    const std::uint64_t end = std::min(begin + kBlockRecords, records_);
    for (std::uint64_t record = begin; record < end; ++record) window->records.push_back(record);
  }
  Shuffle(window->records, Generator(seed_, blocks.epoch, Level::kRecords, number));
  return window;
}

}  // namespace muster::data
