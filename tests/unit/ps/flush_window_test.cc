#include "ps/flush_window.h"

#include <random>
#include <set>

#include "tests/support/catch.h"

namespace muster::ps {
namespace {

bool Applies(FlushWindow& window, const FlushId& id, std::uint64_t settled = 0) {
  const Result<bool> admitted = window.Admit(id, settled);
  REQUIRE(admitted.ok());
  if (*admitted) window.Mark(id);
  return *admitted;
}

TEST_CASE("each flush of a closure is applied once, in any order", "[ps][unit]") {
  std::mt19937_64 random(1);
  FlushWindow window;
  std::set<std::pair<std::uint64_t, std::uint64_t>> applied;

  for (int i = 0; i < 20'000; ++i) {
    const FlushId id{.closure = 1 + random() % 20, .attempt = 5, .flush = 1 + random() % 60};
    CHECK(Applies(window, id) == applied.emplace(id.closure, id.flush).second);
  }
}

TEST_CASE("a later attempt's flushes count on, an earlier attempt is refused", "[ps][unit]") {
  FlushWindow window;
  CHECK(Applies(window, {.closure = 3, .attempt = 1, .flush = 1}));

  CHECK_FALSE(Applies(window, {.closure = 3, .attempt = 2, .flush = 1}));
  CHECK(Applies(window, {.closure = 3, .attempt = 2, .flush = 2}));
  CHECK(window.Admit({.closure = 3, .attempt = 1, .flush = 3}, 0).status().code() ==
        StatusCode::kAborted);
}

TEST_CASE("a closure that has ended writes nothing more, and its marks are forgotten",
          "[ps][unit]") {
  FlushWindow window;
  for (std::uint64_t closure = 1; closure <= 100; ++closure) {
    CHECK(Applies(window, {.closure = closure, .attempt = 1, .flush = 1}));
  }

  CHECK(window.Admit({.closure = 90, .attempt = 2, .flush = 2}, 90).status().code() ==
        StatusCode::kAborted);
  CHECK(Applies(window, {.closure = 91, .attempt = 2, .flush = 2}, 90));
  CHECK(window.size() == 10);
}

TEST_CASE("what is too far ahead waits for the watermark", "[ps][unit]") {
  FlushWindow window;
  const FlushId far{.closure = FlushWindow::kWindow + 1, .attempt = 1, .flush = 1};

  CHECK(window.Admit(far, 0).status().code() == StatusCode::kResourceExhausted);
  CHECK(Applies(window, far, 1));
}

TEST_CASE("marks of a million closures that settle take no more room than those of a window",
          "[ps][unit]") {
  FlushWindow window;
  std::size_t most = 0;
  for (std::uint64_t closure = 1; closure <= 1'000'000; ++closure) {
    const std::uint64_t settled = closure > 1'000 ? closure - 1'000 : 0;
    CHECK(Applies(window, {.closure = closure, .attempt = 1, .flush = 1}, settled));
    most = std::max(most, window.size());
  }
  CHECK(most <= 1'001);
}

TEST_CASE("a writer of no closure is heard once for each of its writes, in order", "[ps][unit]") {
  FlushWindow window;
  CHECK(Applies(window, {.closure = 0, .attempt = 7, .flush = 1}));
  CHECK_FALSE(Applies(window, {.closure = 0, .attempt = 7, .flush = 1}));
  CHECK(Applies(window, {.closure = 0, .attempt = 7, .flush = 4}));
  CHECK_FALSE(Applies(window, {.closure = 0, .attempt = 7, .flush = 2}));
  CHECK(Applies(window, {.closure = 0, .attempt = 8, .flush = 2}));
  CHECK(window.Admit({.closure = 0, .attempt = 7, .flush = 0}, 0).status().code() ==
        StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::ps
