#include "device/arena.h"

#include <ATen/ATen.h>
#undef CHECK

#include <cstring>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/cpu_allocator.h"
#include "tests/support/catch.h"

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

TEST_CASE("libtorch's raw interface allocates in the arena, and frees wherever a block is from",
          "[device][unit]") {
  at::Allocator* const plain = at::getCPUAllocator();
  void* const early = plain->raw_allocate(100);  // perhaps before the arenas were there
  InstallCpuAllocator();
  at::Allocator* const allocator = at::getCPUAllocator();
  void* const outside = allocator->raw_allocate(1000);
  const std::size_t before = Arena::Of(7).used();
  {
    const ArenaScope scope(7);
    void* const inside = allocator->raw_allocate(1000);
    CHECK(Arena::Holding(inside) == &Arena::Of(7));
    CHECK(Arena::Holding(outside) == nullptr);

    allocator->raw_deallocate(outside);
    allocator->raw_deallocate(early);
    const ArenaScope other(8);
    allocator->raw_deallocate(inside);
  }

  CHECK(Arena::Of(7).used() == before);
  CHECK(allocator->raw_deleter() == allocator->raw_deleter());
}

// `body` in a child that may have `bytes` of addresses; its exit status.
int InChildWithAddresses(std::size_t bytes, const std::function<bool()>& body) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
    _exit(setrlimit(RLIMIT_AS, &limit) == 0 && body() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

std::size_t AddressesInUse() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// ThreadSanitizer and AddressSanitizer need more addresses than any limit leaves.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("an arena takes pieces where the process may not have its whole range",
          "[device][unit]") {
  const std::size_t limit = AddressesInUse() + (std::size_t{1} << 30);

  const int status = InChildWithAddresses(limit, [] {
    Arena& arena = Arena::Of(20);
    Arena& other = Arena::Of(21);
    // Within one piece, more than a piece, and again once that is free.
    std::vector<void*> blocks;
    for (int i = 0; i < 40; ++i) {
      blocks.push_back((i % 2 == 0 ? arena : other).Allocate(std::size_t{1} << 20));
      if (blocks.back() == nullptr) return false;
      std::memset(blocks.back(), i, std::size_t{1} << 20);
      if (Arena::IndexOf(blocks.back()) != 20 + i % 2) return false;
    }
    for (int i = 0; i < 20; ++i) {
      void* const large = arena.Allocate(std::size_t{400} << 20);
      if (large == nullptr || Arena::Holding(large) != &arena) return false;
      static_cast<char*>(large)[(std::size_t{400} << 20) - 1] = 1;
      arena.Free(large);
      if (Arena::Holding(large) != nullptr) return false;
    }
    // More than there is.
    if (arena.Allocate(std::size_t{2} << 30) != nullptr) return false;
    for (int i = 0; i < 40; ++i) {
      if (static_cast<char*>(blocks[static_cast<std::size_t>(i)])[1000] != i) return false;
      (i % 2 == 0 ? arena : other).Free(blocks[static_cast<std::size_t>(i)]);
    }
    return arena.used() == 0 && other.used() == 0;
  });

  CHECK(status == 0);
}
#endif

}  // namespace
}  // namespace muster::device
