#include "common/base/kept_bytes.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <new>
#include <thread>
#include <vector>

#include <sys/mman.h>

#include "tests/support/catch.h"

namespace muster {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Whether the kernel still has this memory for us.
bool IsMapped(const std::byte* page) {
  unsigned char resident = 0;
  return ::mincore(const_cast<std::byte*>(page), 1, &resident) == 0 || errno != ENOMEM;
}

}  // namespace

TEST_CASE("bytes without a keeper are a view, and kept they are a copy", "[base][unit]") {
  std::vector<std::byte> mine(kLongBytes, std::byte{1});
  const KeptBytes view = mine;
  CHECK(view.data() == mine.data());
  CHECK(view.Hold() == nullptr);
  CHECK_FALSE(view.worth_holding());

  const KeptBytes kept = view.Kept();
  CHECK(kept.data() != mine.data());
  CHECK(kept.worth_holding());
  std::ranges::fill(mine, std::byte{2});
  CHECK(std::ranges::all_of(kept, [](std::byte byte) { return byte == std::byte{1}; }));
  CHECK(kept.Kept().data() == kept.data());
}

TEST_CASE("a part of kept bytes keeps them, and points to its own first one", "[base][unit]") {
  std::vector<std::byte> moved(3 * kLongBytes, std::byte{1});
  moved.back() = std::byte{9};
  const std::byte* const where = moved.data();
  KeptBytes::Keeper held;
  {
    const KeptBytes all = KeptBytes::Of(std::move(moved));
    CHECK(all.data() == where);
    const KeptBytes tail = all.Part(all.view().last(2 * kLongBytes));
    CHECK(tail.worth_holding());
    CHECK_FALSE(all.Part(all.view().first(kLongBytes - 1)).worth_holding());
    held = tail.Hold();
  }
  CHECK(held.get() == where + kLongBytes);
  CHECK(held[2 * kLongBytes - 1] == std::byte{9});
}

TEST_CASE("no bytes are kept bytes, too", "[base][unit]") {
  CHECK(KeptBytes().Kept().empty());
  CHECK(KeptBytes::CopyOf({}).empty());
  CHECK(KeptBytes::Of({}).empty());
}

TEST_CASE("long memory goes to who asks next for as much, and is the kernel's beyond 64 MiB",
          "[base][unit]") {
  // Whatever other tests have left is taken here first.
  constexpr std::size_t kBlock = 10 * kMiB;
  constexpr std::size_t kBlocks = 8;
  std::array<std::shared_ptr<std::byte[]>, kBlocks> blocks;
  std::array<std::byte*, kBlocks> places{};
  for (std::size_t i = 0; i < kBlocks; ++i) {
    blocks[i] = NewBytes(kBlock);
    places[i] = blocks[i].get();
    places[i][0] = places[i][kBlock - 1] = std::byte{1};
  }
  const auto mapped = [&] { return std::ranges::count_if(places, IsMapped); };
  REQUIRE(mapped() == kBlocks);

  for (auto& block : blocks) block.reset();
  CHECK(mapped() > 0);
  CHECK(mapped() <= 6);
  // A much shorter one does not take a long one's place.
  const auto small = NewBytes(kLongBytes);
  CHECK(std::ranges::find(places, small.get()) == places.end());
  const auto again = NewBytes(kBlock);
  CHECK(std::ranges::find(places, again.get()) != places.end());
}

TEST_CASE("more memory than there can be is refused, not rounded to none", "[base][unit]") {
  for (const std::size_t less : {0, 1, 100}) {
    CHECK_THROWS_AS(NewBytes(SIZE_MAX - less), std::bad_alloc);
  }
  CHECK_THROWS_AS(NewBytes(SIZE_MAX / 2), std::bad_alloc);
}

TEST_CASE("threads that take long memory and give it back never have the same", "[base][unit]") {
  std::array<bool, 4> whole{};
  std::array<std::thread, 4> threads;
  for (std::size_t t = 0; t < threads.size(); ++t) {
    threads[t] = std::thread([t, &whole] {
      bool mine = true;
      const auto mark = static_cast<std::byte>(t + 1);
      for (int i = 0; i < 50; ++i) {
        const auto block = NewBytes(2 * kLongBytes);
        std::ranges::fill(std::span(block.get(), 2 * kLongBytes), mark);
        std::this_thread::yield();
        mine = mine && block[0] == mark && block[2 * kLongBytes - 1] == mark;
      }
      whole[t] = mine;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::ranges::all_of(whole, [](bool one) { return one; }));
}

}  // namespace muster
