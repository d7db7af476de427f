#include "common/data/epoch_order.h"

#include <algorithm>
#include <numeric>

#include "common/base/split_mix.h"
#include "tests/support/catch.h"

namespace muster::data {
namespace {

std::vector<std::uint64_t> Epoch(EpochOrder& order, std::uint64_t epoch, std::uint64_t records,
                                 std::uint64_t stride) {
  std::vector<std::uint64_t> all(records);
  for (std::uint64_t begin = 0; begin < records; begin += stride) {
    const std::uint64_t count = std::min(stride, records - begin);
    order.Fill(epoch, begin, std::span(all).subspan(begin, count));
  }
  return all;
}

bool IsPermutation(std::vector<std::uint64_t> values) {
  std::sort(values.begin(), values.end());
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    if (values[i] != i) return false;
  }
  return true;
}

TEST_CASE("every epoch visits each record once, whatever the size", "[data][unit]") {
  const std::uint64_t window = EpochOrder::kBlockRecords * EpochOrder::kWindowBlocks;
  const std::uint64_t records = GENERATE_COPY(
      std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{1024}, std::uint64_t{1025}, window - 1,
      window, window + 1, 2 * window + 3 * EpochOrder::kBlockRecords + 77);
  EpochOrder order(records, 42, true);

  for (std::uint64_t epoch = 0; epoch < 6; ++epoch) {
    CHECK(IsPermutation(Epoch(order, epoch, records, 997)));
  }
}

TEST_CASE("epochs and seeds have orders of their own", "[data][unit]") {
  EpochOrder first(5000, 1, true);
  EpochOrder second(5000, 2, true);

  CHECK(Epoch(first, 0, 5000, 128) != Epoch(first, 1, 5000, 128));
  CHECK(Epoch(first, 0, 5000, 128) != Epoch(second, 0, 5000, 128));
}

TEST_CASE("the order is the same for any way of asking", "[data][unit]") {
  const std::uint64_t records = 700'001;
  EpochOrder sequential(records, 9, true);
  EpochOrder jumping(records, 9, true);
  const std::vector<std::uint64_t> expected = Epoch(sequential, 3, records, 4096);

  SplitMix64 random(5);
  bool same = true;
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t begin = random.Below(records - 300);
    std::vector<std::uint64_t> got(300);
    jumping.Fill(3, begin, got);
    same = same && std::equal(got.begin(), got.end(),
                              expected.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  CHECK(same);
}

TEST_CASE("the order is the one that earlier versions had", "[data][unit]") {
  // A job resumed by a newer Muster must go on with the same examples: these may never change.
  EpochOrder order(300'000, 7, true);
  std::vector<std::uint64_t> head(4);
  std::vector<std::uint64_t> tail(3);

  order.Fill(0, 0, head);
  order.Fill(2, 299'997, tail);

  CHECK(head == std::vector<std::uint64_t>{241551, 274000, 137883, 101102});
  CHECK(tail == std::vector<std::uint64_t>{207640, 15378, 52712});
}

TEST_CASE("random numbers are SplitMix64's", "[data][unit]") {
  SplitMix64 random(0);

  CHECK(random.Next() == 0xe220a8397b1dcdaf);
  CHECK(random.Next() == 0x6e789e6aa1b965f4);
  CHECK(random.Below(1) == 0);
}

TEST_CASE("without shuffling the records come in their own order", "[data][unit]") {
  EpochOrder order(3000, 1, false);
  std::vector<std::uint64_t> expected(3000);
  std::iota(expected.begin(), expected.end(), 0U);

  CHECK(Epoch(order, 0, 3000, 100) == expected);
  CHECK(Epoch(order, 4, 3000, 100) == expected);
}

TEST_CASE("shuffling spreads neighbours over a whole small dataset", "[data][unit]") {
  const std::uint64_t records = 60'000;
  EpochOrder order(records, 3, true);
  const std::vector<std::uint64_t> epoch = Epoch(order, 0, records, 128);

  double distance = 0;
  for (std::uint64_t i = 1; i < records; ++i) {
    distance += std::abs(static_cast<double>(epoch[i]) - static_cast<double>(epoch[i - 1]));
  }
  // Two independent draws from [0, n) are n / 3 apart on average.
  CHECK(distance / static_cast<double>(records) == Approx(20'000).epsilon(0.02));
}

}  // namespace
}  // namespace muster::data
