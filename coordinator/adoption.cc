#include "coordinator/adoption.h"

#include <algorithm>
#include <utility>

#include "muster/v1/cluster.pb.h"

namespace muster::coordinator {
namespace {

void Append(ClosureRun run, ClosureRuns& runs) {
  if (run.first > run.last) return;
  if (!runs.empty() && runs.back().last + 1 == run.first) {
    runs.back().last = run.last;
  } else {
    runs.push_back(run);
  }
}

ClosureRuns RunsOf(const v1::ClosureMarks& marks) {
  ClosureRuns runs;
  Append({1, marks.watermark()}, runs);
  for (const v1::ClosureRun& run : marks.above()) Append({run.first(), run.last()}, runs);
  return runs;
}

ClosureRuns InBoth(const ClosureRuns& a, const ClosureRuns& b) {
  ClosureRuns both;
  for (auto one = a.begin(), other = b.begin(); one != a.end() && other != b.end();) {
    Append({std::max(one->first, other->first), std::min(one->last, other->last)}, both);
    if (one->last < other->last) {
      ++one;
    } else {
      ++other;
    }
  }
  return both;
}

}  // namespace

std::optional<AppliedClosures> AppliedIn(std::span<const v1::AdoptReport> reports) {
  std::optional<AppliedClosures> applied;
  for (const v1::AdoptReport& report : reports) {
    for (const v1::ClosureMarks& marks : report.shards()) {
      ClosureRuns runs = RunsOf(marks);
      const std::uint64_t highest = runs.empty() ? 0 : runs.back().last;
      if (!applied) {
        applied = AppliedClosures{std::move(runs), highest};
      } else {
        applied->everywhere = InBoth(applied->everywhere, runs);
        applied->highest = std::max(applied->highest, highest);
      }
    }
  }
  return applied;
}

}  // namespace muster::coordinator
