// A part of ps/server, whose tests live beside its client's.
#include "ps/server/reclaimer.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/catch.h"

namespace muster::ps {
namespace {

constexpr std::size_t kPages = 64;

// Memory that two mappings share, as an arena's is.
class Shared {
 public:
  Shared() {
    const int file = memfd_create("reclaimer-test", MFD_CLOEXEC);
    REQUIRE(file >= 0);
    REQUIRE(ftruncate(file, static_cast<off_t>(bytes_)) == 0);
    void* const at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    REQUIRE(at != MAP_FAILED);
    data_ = static_cast<std::byte*>(at);
  }
  ~Shared() { munmap(data_, bytes_); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  std::span<std::byte> all() const { return {data_, bytes_}; }
  void Touch() const { std::memset(data_, 7, bytes_); }
  bool Holds7() const {
    for (const std::byte byte : all()) {
      if (byte != std::byte{7}) return false;
    }
    return true;
  }
  // Pages that this process's page table maps.
  std::size_t Mapped() const {
    const int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    REQUIRE(map >= 0);
    std::vector<std::uint64_t> entries(kPages);
    const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    const auto offset = reinterpret_cast<std::uintptr_t>(data_) / page * sizeof(std::uint64_t);
    const auto size = static_cast<ssize_t>(kPages * sizeof(std::uint64_t));
    const bool read = pread(map, entries.data(), static_cast<std::size_t>(size),
                            static_cast<off_t>(offset)) == size;
    close(map);
    REQUIRE(read);
    std::size_t mapped = 0;
    for (const std::uint64_t entry : entries) mapped += entry >> 63;
    return mapped;
  }

 private:
  const std::size_t bytes_ = kPages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::byte* data_ = nullptr;
};

// Asks until it is true; false after five seconds.
template <class Condition>
bool Soon(Condition condition) {
  const auto begin = std::chrono::steady_clock::now();
  while (!condition()) {
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(5)) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_CASE("what is watched is released again and again, and its data stays", "[ps][unit]") {
  const Shared memory;
  Reclaimer reclaimer;
  memory.Touch();
  REQUIRE(memory.Mapped() == kPages);

  {
    const Reclaimer::Guard guard = reclaimer.Watch(memory.all());
    CHECK(Soon([&] { return memory.Mapped() == 0; }));
    CHECK(memory.Holds7());  // which maps it once more
    CHECK(Soon([&] { return memory.Mapped() == 0; }));
    memory.Touch();
  }
  // The end of the guard releases a last time; after it the memory is left alone.
  CHECK(memory.Mapped() == 0);
  CHECK(memory.Holds7());
  CHECK(memory.Mapped() == kPages);
}

TEST_CASE("only whole pages inside the range are released", "[ps][unit]") {
  const Shared memory;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  Reclaimer reclaimer;
  memory.Touch();

  // From the middle of a page to the middle of another, four pages further: three lie inside.
  {
    const auto guard = reclaimer.Watch(memory.all().subspan(page / 2, 4 * page));
  }
  CHECK(memory.Mapped() == kPages - 3);

  // Less than a page: none.
  memory.Touch();
  {
    const auto guard = reclaimer.Watch(memory.all().subspan(1, page - 2));
  }
  CHECK(memory.Mapped() == kPages);
}

TEST_CASE("several ranges are watched at a time, by several threads", "[ps][unit]") {
  const Shared one, other;
  Reclaimer reclaimer;
  const auto first = reclaimer.Watch(one.all());
  one.Touch();
  std::thread thread([&] {
    for (int i = 0; i < 100; ++i) {
      const auto second = reclaimer.Watch(other.all());
      other.Touch();
    }
  });
  thread.join();

  CHECK(other.Mapped() == 0);
  CHECK(other.Holds7());
  CHECK(Soon([&] { return one.Mapped() == 0; }));
  CHECK(one.Holds7());
}

}  // namespace
}  // namespace muster::ps
