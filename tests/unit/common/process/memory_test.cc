#include "common/process/memory.h"

#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"

namespace muster::process {
namespace {

constexpr std::size_t kHeld = std::size_t{64} << 20;
// The kernel's counters lag, and a process that was forked writes to pages of its own.
constexpr std::size_t kSlack = std::size_t{16} << 20;

// `kind` is MAP_PRIVATE or MAP_SHARED. The kernel touches the pages: sanitizers would note each
// write in memory of theirs.
void Hold(int kind) {
  if (::mmap(nullptr, kHeld, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) ==
      MAP_FAILED) {
    ::_exit(1);
  }
}

// Processes that a test has forked, which say a byte each time they are ready, and wait for one.
// All end with it.
struct Forked {
  std::array<int, 2> ready{};
  std::array<int, 2> go{};

  Forked() {
    REQUIRE(::pipe(ready.data()) == 0);
    REQUIRE(::pipe(go.data()) == 0);
  }
  ~Forked() {
    for (const int end : {ready[0], ready[1], go[0], go[1]}) {
      if (end >= 0) ::close(end);
    }
  }
  void Say() const {
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
  }
  // In a process that was forked: the test's end of what it waits at is its alone.
  void ForgetTest() const { ::close(go[1]); }
  // Until the test says a byte; false: it has ended.
  bool Await() const {
    char byte = 0;
    return ::read(go[0], &byte, 1) == 1;
  }
  void AwaitReady(int count) const {
    char byte = 0;
    for (int i = 0; i < count; ++i) REQUIRE(::read(ready[0], &byte, 1) == 1);
  }
  // Waits for the process.
  void End(pid_t child) {
    ::close(std::exchange(go[1], -1));
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
};

TEST_CASE("a process's memory is its own and that of all that it has started, from any thread",
          "[process][unit]") {
  Forked forked;
  const std::uint64_t before = OwnMemory(::getpid());
  CHECK(before > 0);
  // Holds memory of its own, its child holds shared memory.
  const auto parent_and_child = [&] {
    forked.ForgetTest();
    const pid_t grandchild = ::fork();
    Hold(grandchild == 0 ? MAP_SHARED : MAP_PRIVATE);
    forked.Say();
    (void)forked.Await();
    if (grandchild > 0) (void)::waitpid(grandchild, nullptr, 0);
    ::_exit(grandchild < 0 ? 1 : 0);
  };
  pid_t child = -1;
  std::thread([&] {
    child = ::fork();
    if (child == 0) parent_and_child();
  }).join();
  REQUIRE(child > 0);
  forked.AwaitReady(2);

  const std::uint64_t held = OwnMemory(child);
  const std::uint64_t all = OwnMemory(::getpid());
  CAPTURE(before, held, all);
  CHECK(held >= 2 * kHeld);
  // What was forked has the pages of this process, too.
  CHECK(held < 2 * kHeld + 2 * before + kSlack);
  CHECK(all >= before + 2 * kHeld - kSlack);

  forked.End(child);
  CHECK(OwnMemory(child) == 0);
  CHECK(OwnMemory(::getpid()) < before + kSlack);
}

TEST_CASE("a gauge reads again when a second has passed", "[process][unit]") {
  Forked forked;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    forked.ForgetTest();
    forked.Say();
    while (forked.Await()) {
      Hold(MAP_PRIVATE);
      forked.Say();
    }
    ::_exit(0);
  }
  forked.AwaitReady(1);
  const TimePoint begin{std::chrono::hours(1)};
  MemoryGauge gauge(child);
  const std::uint64_t before = gauge.Get(begin);
  CHECK(before > 0);
  REQUIRE(::write(forked.go[1], "x", 1) == 1);
  forked.AwaitReady(1);

  CHECK(gauge.Get(begin + std::chrono::milliseconds(999)) == before);
  // Long after, whatever the reading before has cost.
  const std::uint64_t after = gauge.Get(begin + std::chrono::hours(1));
  CAPTURE(before, after);
  CHECK(after >= before + kHeld - kSlack);
  CHECK(after < before + kHeld + kSlack);

  forked.End(child);
  CHECK(gauge.Get(begin + std::chrono::hours(2)) == 0);
}

}  // namespace
}  // namespace muster::process
