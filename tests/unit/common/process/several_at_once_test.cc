#include "common/process/several_at_once.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <thread>

#include "tests/support/catch.h"

namespace muster::process {
namespace {

TEST_CASE("each number has its turn once", "[process][several_at_once]") {
  std::array<std::atomic<int>, 100> turns{};

  SeveralAtOnce(turns.size(), 4, [&](std::size_t i) { ++turns[i]; });

  CHECK(std::ranges::all_of(turns, [](const auto& one) { return one == 1; }));
}

TEST_CASE("as many as are asked for are at it at a time", "[process][several_at_once]") {
  // Nobody passes it before four are there.
  std::barrier all(4);
  std::atomic<int> now{0};
  std::atomic<int> most{0};

  SeveralAtOnce(8, 4, [&](std::size_t) {
    const int here = ++now;
    for (int known = most; known < here && !most.compare_exchange_weak(known, here);) {
    }
    all.arrive_and_wait();
    --now;
  });

  CHECK(most == 4);
}

TEST_CASE("no number takes no turn and one takes the own thread", "[process][several_at_once]") {
  int turns = 0;
  std::thread::id by;

  SeveralAtOnce(0, 4, [&](std::size_t) { ++turns; });
  SeveralAtOnce(1, 4, [&](std::size_t) {
    ++turns;
    by = std::this_thread::get_id();
  });

  CHECK(turns == 1);
  CHECK(by == std::this_thread::get_id());
}

}  // namespace
}  // namespace muster::process
