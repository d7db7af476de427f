#include "ps/closure_window.h"

#include <set>

#include "tests/support/catch.h"
#include "tests/unit/ps/support.h"

namespace muster::ps {
namespace {

TEST_CASE("the watermark follows when the gap below closes", "[ps][unit]") {
  ClosureWindow window;
  for (const std::uint64_t closure : {2, 3, 5}) {
    REQUIRE(window.Admit(Update(closure, 1)).value() == ApplyOutcome::kApplied);
    window.Mark(ClosureId(closure));
  }
  CHECK(window.watermark() == 0);
  CHECK(window.applied_above() == 3);

  REQUIRE(window.Admit(Update(1, 1)).ok());
  window.Mark(ClosureId(1));

  CHECK(window.watermark() == 3);
  CHECK(window.applied_above() == 1);
  for (const std::uint64_t closure : {1, 2, 3, 5}) {
    CHECK(window.Admit(Update(closure, 9)).value() == ApplyOutcome::kDuplicate);
  }
  CHECK(window.Admit(Update(4, 1)).value() == ApplyOutcome::kApplied);
}

TEST_CASE("an older attempt is refused once a later one was seen", "[ps][unit]") {
  ClosureWindow window;
  REQUIRE(window.Admit(Update(1, 7)).ok());

  CHECK(window.Admit(Update(1, 6)).status().code() == StatusCode::kAborted);
  CHECK(window.Admit(Update(1, 7)).value() == ApplyOutcome::kApplied);
  CHECK(window.Admit(Update(1, 8)).value() == ApplyOutcome::kApplied);
  CHECK(window.Admit(Update(2, 1)).value() == ApplyOutcome::kApplied);
}

TEST_CASE("closure 0 and closures beyond the window are refused", "[ps][unit]") {
  ClosureWindow window(10);

  CHECK(window.Admit(Update(0, 1)).status().code() == StatusCode::kInvalidArgument);
  CHECK(window.Admit(Update(10, 1)).value() == ApplyOutcome::kDuplicate);
  CHECK(window.Admit(Update(10 + ClosureWindow::kWindow, 1)).ok());
  CHECK(window.Admit(Update(11 + ClosureWindow::kWindow, 1)).status().code() ==
        StatusCode::kUnavailable);
}

}  // namespace
}  // namespace muster::ps
