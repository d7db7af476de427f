#include "ps/closure_window.h"

#include <set>

#include "tests/support/catch.h"

namespace muster::ps {
namespace {

TEST_CASE("the watermark follows when the gap below closes", "[ps][unit]") {
  ClosureWindow window;
  for (const std::uint64_t closure : {2, 3, 5}) {
    REQUIRE(window.Admit({closure, 1}).value() == ApplyOutcome::kApplied);
    window.Mark(closure);
  }
  CHECK(window.watermark() == 0);
  CHECK(window.applied_above() == 3);

  REQUIRE(window.Admit({1, 1}).ok());
  window.Mark(1);

  CHECK(window.watermark() == 3);
  CHECK(window.applied_above() == 1);
  for (const std::uint64_t closure : {1, 2, 3, 5}) {
    CHECK(window.Admit({closure, 9}).value() == ApplyOutcome::kDuplicate);
  }
  CHECK(window.Admit({4, 1}).value() == ApplyOutcome::kApplied);
}

TEST_CASE("an older attempt is refused once a later one was seen", "[ps][unit]") {
  ClosureWindow window;
  REQUIRE(window.Admit({1, 7}).ok());

  CHECK(window.Admit({1, 6}).status().code() == StatusCode::kAborted);
  CHECK(window.Admit({1, 7}).value() == ApplyOutcome::kApplied);
  CHECK(window.Admit({1, 8}).value() == ApplyOutcome::kApplied);
  CHECK(window.Admit({2, 1}).value() == ApplyOutcome::kApplied);
}

TEST_CASE("closure 0 and closures beyond the window are refused", "[ps][unit]") {
  ClosureWindow window(10);

  CHECK(window.Admit({0, 1}).status().code() == StatusCode::kInvalidArgument);
  CHECK(window.Admit({10, 1}).value() == ApplyOutcome::kDuplicate);
  CHECK(window.Admit({10 + ClosureWindow::kWindow, 1}).ok());
  CHECK(window.Admit({11 + ClosureWindow::kWindow, 1}).status().code() == StatusCode::kUnavailable);
}

}  // namespace
}  // namespace muster::ps
