#include "worker/engine/device/arena.h"

#include <ATen/ATen.h>
#undef CHECK

#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "worker/engine/device/cpu_allocator.h"

namespace muster::device {
namespace {

TEST_CASE("a block of an arena is found by its address, other memory is CPU:0's",
          "[device][unit]") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{65},
                                  std::size_t{1} << 20, std::size_t{100} << 20}) {
    void* const block = Arena::Of(3).Allocate(bytes);
    REQUIRE(block != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(block) % 64 == 0);
    std::memset(block, 0x5a, bytes);
    CHECK(Arena::IndexOf(block) == 3);
    Arena::Of(3).Free(block);
  }
  int local = 0;
  CHECK(Arena::IndexOf(&local) == 0);
  // What a replica on CPU:0 allocates.
  void* const block = Arena::Of(0).Allocate(100);
  CHECK(Arena::IndexOf(block) == 0);
  Arena::Of(0).Free(block);
}

TEST_CASE("blocks of one arena never overlap, also when they are reused", "[device][unit]") {
  Arena& arena = Arena::Of(4);
  std::vector<std::pair<unsigned char*, std::size_t>> blocks;
  unsigned state = 1;
  for (int round = 0; round < 2000; ++round) {
    state = state * 1664525 + 1013904223;
    if (state % 3 == 0 && !blocks.empty()) {
      const auto [block, bytes] = blocks.back();
      for (std::size_t i = 0; i < bytes; ++i) REQUIRE(block[i] == (bytes & 0xff));
      arena.Free(block);
      blocks.pop_back();
      continue;
    }
    const std::size_t bytes = state % 5000;
    auto* const block = static_cast<unsigned char*>(arena.Allocate(bytes));
    std::memset(block, static_cast<int>(bytes & 0xff), bytes);
    blocks.emplace_back(block, bytes);
  }
  for (const auto& [block, bytes] : blocks) {
    for (std::size_t i = 0; i < bytes; ++i) REQUIRE(block[i] == (bytes & 0xff));
    arena.Free(block);
  }
  CHECK(arena.used() == 0);
}

TEST_CASE("libtorch's factories allocate from the arena of the thread's device", "[device][unit]") {
  InstallCpuAllocator();
  at::Tensor kept;
  std::thread([&] {
    const ArenaScope scope(2);
    kept = at::ones({16, 16}) * 2;
    const ArenaScope inner(0);
    CHECK(Arena::IndexOf(at::ones({4}).data_ptr()) == 0);
  }).join();

  CHECK(Arena::IndexOf(kept.data_ptr()) == 2);
  CHECK(kept.sum().item<float>() == 512);
  CHECK(Arena::IndexOf(at::ones({4}).data_ptr()) == 0);
  CHECK(ArenaScope::Current() == 0);
}

}  // namespace
}  // namespace muster::device
