#include "ps/flush_window.h"

#include <random>
#include <set>

#include "tests/support/catch.h"

namespace muster::ps {
namespace {

bool Applies(FlushWindow& window, const FlushId& id, std::uint64_t settled = 0) {
  const Result<bool> admitted = window.Admit(id, ClosureId(settled));
  REQUIRE(admitted.ok());
  if (*admitted) window.Mark(id);
  return *admitted;
}

TEST_CASE("each flush of a closure is applied once, in any order", "[ps][unit]") {
  std::mt19937_64 random(1);
  FlushWindow window;
  std::set<std::pair<std::uint64_t, std::uint64_t>> applied;

  for (int i = 0; i < 20'000; ++i) {
    const FlushId id{
        .closure = ClosureId(1 + random() % 20), .attempt = Attempt(5), .flush = 1 + random() % 60};
    CHECK(Applies(window, id) == applied.emplace(id.closure.value(), id.flush).second);
  }
}

TEST_CASE("a later attempt's flushes count on, an earlier attempt is refused", "[ps][unit]") {
  FlushWindow window;
  CHECK(Applies(window, {.closure = ClosureId(3), .attempt = Attempt(1), .flush = 1}));

  CHECK_FALSE(Applies(window, {.closure = ClosureId(3), .attempt = Attempt(2), .flush = 1}));
  CHECK(Applies(window, {.closure = ClosureId(3), .attempt = Attempt(2), .flush = 2}));
  CHECK(window.Admit({.closure = ClosureId(3), .attempt = Attempt(1), .flush = 3}, ClosureId(0))
            .status()
            .code() == StatusCode::kAborted);
}

TEST_CASE("a closure that has ended writes nothing more, and its marks are forgotten",
          "[ps][unit]") {
  FlushWindow window;
  for (std::uint64_t closure = 1; closure <= 100; ++closure) {
    CHECK(Applies(window, {.closure = ClosureId(closure), .attempt = Attempt(1), .flush = 1}));
  }

  CHECK(window.Admit({.closure = ClosureId(90), .attempt = Attempt(2), .flush = 2}, ClosureId(90))
            .status()
            .code() == StatusCode::kAborted);
  CHECK(Applies(window, {.closure = ClosureId(91), .attempt = Attempt(2), .flush = 2}, 90));
  CHECK(window.size() == 10);
}

TEST_CASE("who looked at the watermark before it moved writes nothing twice", "[ps][unit]") {
  FlushWindow window;
  CHECK(Applies(window, {.closure = ClosureId(7), .attempt = Attempt(2), .flush = 1}));
  SECTION("it was moved by another write") {
    CHECK(Applies(window, {.closure = ClosureId(11), .attempt = Attempt(1), .flush = 1}, 10));
  }
  SECTION("it was moved by itself") { window.Trim(ClosureId(10)); }

  for (const std::uint64_t attempt : {1, 2, 3}) {
    const FlushId late{.closure = ClosureId(7), .attempt = Attempt(attempt), .flush = 1};
    CHECK(window.Admit(late, ClosureId(5)).status().code() == StatusCode::kAborted);
  }
  CHECK(Applies(window, {.closure = ClosureId(12), .attempt = Attempt(1), .flush = 1}, 5));
}

TEST_CASE("what is too far ahead waits for the watermark", "[ps][unit]") {
  FlushWindow window;
  const FlushId far{
      .closure = ClosureId(FlushWindow::kWindow + 1), .attempt = Attempt(1), .flush = 1};

  CHECK(window.Admit(far, ClosureId()).status().code() == StatusCode::kResourceExhausted);
  CHECK(Applies(window, far, 1));
}

TEST_CASE("marks of a million closures that settle take no more room than those of a window",
          "[ps][unit]") {
  FlushWindow window;
  std::size_t most = 0;
  for (std::uint64_t closure = 1; closure <= 1'000'000; ++closure) {
    const std::uint64_t settled = closure > 1'000 ? closure - 1'000 : 0;
    CHECK(Applies(window, {.closure = ClosureId(closure), .attempt = Attempt(1), .flush = 1},
                  settled));
    most = std::max(most, window.size());
  }
  CHECK(most <= 1'001);
}

TEST_CASE("a writer of no closure is heard once for each of its writes, in order", "[ps][unit]") {
  FlushWindow window;
  CHECK(Applies(window, {.closure = ClosureId(0), .attempt = Attempt(7), .flush = 1}));
  CHECK_FALSE(Applies(window, {.closure = ClosureId(0), .attempt = Attempt(7), .flush = 1}));
  CHECK(Applies(window, {.closure = ClosureId(0), .attempt = Attempt(7), .flush = 4}));
  CHECK_FALSE(Applies(window, {.closure = ClosureId(0), .attempt = Attempt(7), .flush = 2}));
  CHECK(Applies(window, {.closure = ClosureId(0), .attempt = Attempt(8), .flush = 2}));
  CHECK(window.Admit({.closure = ClosureId(0), .attempt = Attempt(7), .flush = 0}, ClosureId(0))
            .status()
            .code() == StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::ps
