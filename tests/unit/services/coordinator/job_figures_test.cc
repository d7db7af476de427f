#include "services/coordinator/job_figures.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <tuple>

#include <fmt/core.h>

#include "common/telemetry/event_file.h"
#include "tests/support/catch.h"
#include "tests/support/event_reader.h"
#include "tests/support/fake_scheduler.h"
#include "tests/support/small_files.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/coordinator/inline_offload.h"

namespace muster::coordinator {
namespace {

using Points = std::vector<std::pair<std::int64_t, float>>;

// The curve of `tag` as a reader of event files sees it that knows of session marks.
Points ReadCurve(const std::string& folder, const std::string& tag) {
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(folder)) files.push_back(file.path());
  std::sort(files.begin(), files.end());
  Points points;
  for (const std::string& file : files) {
    for (const testing::Event& event : testing::ReadEvents(file)) {
      if (event.session_start) {
        std::erase_if(points, [&](const auto& point) { return point.first >= event.step; });
      }
      if (event.tag == tag) points.emplace_back(event.step, event.value);
    }
  }
  return points;
}

// The same by TensorBoard's own reader; without TensorBoard nothing.
std::optional<Points> TensorBoardsCurve(const std::string& folder, const std::string& tag) {
  const std::string tools = MUSTER_PYTHON_TOOLS "/bin/python3";
  const std::string python = std::filesystem::exists(tools) ? tools : "python3";
  if (std::system((python + " -c 'import tensorboard' 2>/dev/null").c_str()) != 0) {
    WARN("skipped: " << python << " has no TensorBoard to read what was written");
    return std::nullopt;
  }
  const std::string script =
      "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator as E\n"
      "import sys\n"
      "e = E(sys.argv[1]); e.Reload()\n"
      "for s in e.Scalars(sys.argv[2]): print(s.step, s.value)\n";
  std::ofstream(folder + "-reader.py") << script;
  const std::string command = fmt::format("{} '{}-reader.py' '{}' '{}' > '{}.out' 2>'{}.err'",
                                          python, folder, folder, tag, folder, folder);
  CHECK(std::system(command.c_str()) == 0);
  Points points;
  std::ifstream out(folder + ".out");
  for (std::pair<std::int64_t, float> point; out >> point.first >> point.second;) {
    points.push_back(point);
  }
  return points;
}

struct Keeper {
  void Report(std::uint64_t step, double loss) {
    v1::JobProgress progress;
    progress.set_step(step);
    progress.set_loss(loss);
    figures.Add("j-1", folder, FiguresOf(progress));
    strand.RunReady();
  }
  muster::testing::TempFolder dir;
  const std::string folder = dir / "tensorboard";
  FakeScheduler strand;
  InlineOffload disks{strand};
  JobFigures figures{disks, strand};
};

TEST_CASE_METHOD(Keeper,
                 "after a return to a checkpoint no step is there twice, and none that was undone",
                 "[coordinator][figures]") {
  figures.GoOn("j-1", folder, 0);
  for (const std::uint64_t step : {1, 4, 7, 10}) Report(step, 1.0);
  figures.GoOn("j-1", folder, 5);
  for (const std::uint64_t step : {8, 11}) Report(step, 2.0);
  Report(11, 3.0);  // said again
  figures.End("j-1");
  strand.RunReady();

  const Points expected{{1, 1.0F}, {4, 1.0F}, {8, 2.0F}, {11, 2.0F}};
  CHECK(ReadCurve(folder, "loss") == expected);
  const JobFigures::Curves* const curves = figures.Find("j-1");
  REQUIRE(curves != nullptr);
  CHECK(curves->at("loss").points() == std::vector<Curve::Point>{{1, 1}, {4, 1}, {8, 2}, {11, 2}});
  if (const auto theirs = TensorBoardsCurve(folder, "loss")) CHECK(*theirs == expected);
}

TEST_CASE_METHOD(Keeper, "what an evaluator finds out late stands at its own step",
                 "[coordinator][figures]") {
  figures.GoOn("j-1", folder, 0);
  Report(500, 1.0);
  v1::EvaluationResult result;
  result.set_step(100);
  result.set_loss(0.5);
  result.set_accuracy(0.9);
  figures.Add("j-1", folder, FiguresOf(result));
  figures.Add("j-1", folder, FiguresOf(result));
  strand.RunReady();

  CHECK(ReadCurve(folder, "evaluation/loss") == Points{{100, 0.5F}});
  CHECK(ReadCurve(folder, "evaluation/accuracy") == Points{{100, 0.9F}});
  if (const auto theirs = TensorBoardsCurve(folder, "evaluation/loss")) {
    CHECK(*theirs == Points{{100, 0.5F}});
  }
}

TEST_CASE_METHOD(Keeper, "a folder that cannot be written costs points, and nothing else",
                 "[coordinator][figures]") {
  std::ofstream(folder) << "no folder";
  figures.GoOn("j-1", folder, 0);
  Report(1, 1.0);
  CHECK(figures.Find("j-1")->at("loss").points().size() == 1);

  std::filesystem::remove(folder);
  Report(2, 2.0);
  CHECK(ReadCurve(folder, "loss") == Points{{2, 2.0F}});
}

TEST_CASE_METHOD(Keeper, "a disk that is full at a return to a checkpoint brings no step back",
                 "[coordinator][figures]") {
  figures.GoOn("j-1", folder, 0);
  for (const std::uint64_t step : {1, 4, 7, 10}) Report(step, 1.0);
  const std::string probe = dir / "probe";
  REQUIRE(telemetry::EventFile::Create(probe).ok());
  const auto begun = std::filesystem::file_size(testing::OnlyFile(probe));
  figures.GoOn("j-1", folder, 5);
  {
    const testing::SmallFiles full(begun);  // room to begin a file, and for nothing behind it
    Report(6, 9.0);
  }
  Report(8, 2.0);

  const Points expected{{1, 1.0F}, {4, 1.0F}, {8, 2.0F}};
  CHECK(ReadCurve(folder, "loss") == expected);
  if (const auto theirs = TensorBoardsCurve(folder, "loss")) CHECK(*theirs == expected);
}

TEST_CASE_METHOD(Keeper, "a disk that does not answer is not given more and more to do",
                 "[coordinator][figures]") {
  for (int step = 1; step <= 1'000; ++step) {
    v1::JobProgress progress;
    progress.set_step(static_cast<std::uint64_t>(step));
    figures.Add("j-1", folder, FiguresOf(progress));
  }
  strand.RunReady();

  CHECK(ReadCurve(folder, "loss").size() == JobFigures::kMostWaiting);
  Report(2'000, 0);
  CHECK(ReadCurve(folder, "loss").back().first == 2'000);
}

TEST_CASE_METHOD(Keeper, "a job that runs keeps its curves however many others come and end",
                 "[coordinator][figures]") {
  figures.GoOn("j-1", folder, 0);
  Report(1, 1.0);
  for (std::size_t other = 0; other < 2 * JobFigures::kMostJobs; ++other) {
    const std::string id = fmt::format("other-{}", other);
    figures.GoOn(id, dir / id, 0);
    figures.End(id);
    strand.RunReady();
  }
  Report(2, 1.0);

  REQUIRE(figures.Find("j-1") != nullptr);
  CHECK(figures.Find("j-1")->at("loss").points().size() == 2);
  CHECK(figures.Find("other-0") == nullptr);
  CHECK(figures.Find("other-127") != nullptr);

  // After a time of many jobs, no more are kept than before.
  const auto many = [](std::size_t i) { return fmt::format("many-{}", i); };
  for (std::size_t i = 0; i < 2 * JobFigures::kMostJobs; ++i) figures.GoOn(many(i), dir / "m", 0);
  for (std::size_t i = 0; i < 2 * JobFigures::kMostJobs; ++i) figures.End(many(i));
  figures.GoOn("last", dir / "last", 0);
  strand.RunReady();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < 2 * JobFigures::kMostJobs; ++i) {
    if (figures.Find(many(i)) != nullptr) ++kept;
  }
  CHECK(kept < JobFigures::kMostJobs);
}

TEST_CASE("a rate that is not known yet is no point of its curve", "[coordinator][figures]") {
  v1::JobProgress progress;
  progress.set_step(1);
  const auto rates = [&] {
    return std::ranges::count(FiguresOf(progress), "rate/examples_per_second", &Figure::tag);
  };
  CHECK(rates() == 0);
  progress.set_examples_per_second(2);
  CHECK(rates() == 1);
}

TEST_CASE("a curve has a bound, its first and its newest point, and no gap",
          "[coordinator][figures]") {
  Curve curve;
  for (std::uint64_t step = 1; step <= 100'000; ++step) {
    curve.Add(step, static_cast<double>(step));
    REQUIRE(curve.points().size() <= Curve::kMost);
    REQUIRE(curve.points().back().first == step);
  }

  CHECK(curve.points().front().first <= 512);
  std::uint64_t widest = 0;
  for (std::size_t i = 1; i < curve.points().size(); ++i) {
    widest = std::max(widest, curve.points()[i].first - curve.points()[i - 1].first);
  }
  CHECK(widest <= 100'000 / (Curve::kMost / 4));
  CHECK(curve.points().size() >= Curve::kMost / 4);

  curve.CutAfter(50'000);
  CHECK(curve.points().back().first <= 50'000);
  curve.Add(50'001, 0);
  CHECK(curve.points().back().first == 50'001);
}

}  // namespace
}  // namespace muster::coordinator
