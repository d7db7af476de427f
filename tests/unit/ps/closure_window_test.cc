#include "ps/closure_window.h"

#include <set>

#include "muster/v1/cluster.pb.h"
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

TEST_CASE("attempts of a coordinator that was replaced change nothing any more", "[ps][unit]") {
  ClosureWindow window;
  for (const std::uint64_t closure : {1, 2, 4, 5, 7}) {
    REQUIRE(window.Admit(Update(closure, 1ull << 32 | 9)).ok());
    window.Mark(ClosureId(closure));
  }
  v1::ClosureMarks before;
  window.Report(before);

  window.RefuseBelow(Attempt(2ull << 32));

  CHECK(window.Admit(Update(3, 1ull << 32 | 10)).status().code() == StatusCode::kAborted);
  CHECK(window.Admit(Update(2, 1ull << 32 | 11)).value() == ApplyOutcome::kDuplicate);
  v1::ClosureMarks after;
  window.Report(after);
  CHECK(after.SerializeAsString() == before.SerializeAsString());
  CHECK(after.watermark() == 2);
  REQUIRE(after.above_size() == 2);
  CHECK(after.above(0).first() == 4);
  CHECK(after.above(0).last() == 5);
  CHECK(after.above(1).first() == 7);
  CHECK(window.Admit(Update(3, 2ull << 32 | 1)).value() == ApplyOutcome::kApplied);
  window.RefuseBelow(Attempt(1ull << 32));  // a late one, of the past
  CHECK(window.Admit(Update(6, 1ull << 32 | 12)).status().code() == StatusCode::kAborted);
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
