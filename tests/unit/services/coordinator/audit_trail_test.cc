#include "services/coordinator/audit_trail.h"

#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/support/small_files.h"
#include "tests/support/temp_folder.h"

namespace muster::coordinator {
namespace {

// A disk that does nothing until it is told to.
struct SlowDisk : LaneOffload {
  void Run(const std::string&, Function work, Function) override {
    waiting.push_back(std::move(work));
  }
  void WorkOff() {
    while (!waiting.empty()) {
      waiting.front()();
      waiting.pop_front();
    }
  }
  std::deque<Function> waiting;
};

struct Trail {
  std::vector<nlohmann::json> Lines(const std::string& name = "audit.log") {
    disk.WorkOff();
    std::vector<nlohmann::json> lines;
    std::ifstream file(dir / name);
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  muster::testing::TempFolder dir;
  SlowDisk disk;
  FakeScheduler clock;
  AuditTrail trail{dir / "audit.log", 0, disk, clock};
};

TEST_CASE_METHOD(Trail, "who looks again and again is written once in a while, and how often",
                 "[services][audit][unit]") {
  for (int i = 0; i < 500; ++i) trail.Look("viewer bob", "logs", "words-1", Ok());
  trail.Look("viewer bob", "logs", "other-2", Ok());
  trail.Look("viewer eve", "logs", "words-1", Ok());
  CHECK(Lines().size() == 3);

  clock.Advance(AuditTrail::kPause);
  trail.Look("viewer bob", "logs", "words-1", Ok());

  const auto lines = Lines();
  REQUIRE(lines.size() == 4);
  CHECK(lines[0]["what"] == "words-1");
  CHECK_FALSE(lines[0].contains("again"));
  CHECK(lines[3]["again"] == 499);
}

TEST_CASE_METHOD(Trail, "who looks at more jobs than are remembered fills no disk either",
                 "[services][audit][unit]") {
  const int jobs = static_cast<int>(AuditTrail::kMostRemembered) + 500;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < jobs; ++i) {
      trail.Look("viewer bob", "describe", "words-" + std::to_string(i), Ok());
      if (i % 500 == 0) disk.WorkOff();
    }
    clock.Advance(Millis(1'000));
  }
  CHECK(Lines().size() == AuditTrail::kMostRemembered + 1);
  // Others are told of all the same.
  trail.Look("viewer eve", "describe", "words-1", Ok());
  CHECK(Lines().back()["who"] == "viewer eve");

  clock.Advance(AuditTrail::kPause);
  trail.Look("viewer bob", "describe", "words-new", Ok());
  CHECK(Lines().back()["what"] == "words-new");
}

TEST_CASE_METHOD(Trail, "who ends waits for what is not written yet, and not for ever",
                 "[services][audit][unit]") {
  CHECK(trail.Flush(Millis(0)));
  for (int i = 0; i < 3; ++i) trail.Change("submitter ana", "stop", "words-1", Ok());
  CHECK_FALSE(trail.Flush(Millis(1)));
  std::jthread later([&] { disk.WorkOff(); });
  CHECK(trail.Flush(Millis(60'000)));
  later.join();
  CHECK(Lines().size() == 3);
}

TEST_CASE_METHOD(Trail, "names of jobs that are not there make no lines of their own",
                 "[services][audit][unit]") {
  for (int i = 0; i < 500; ++i) {
    trail.Look("viewer bob", "describe", std::to_string(i), NotFound("no job {}", i));
  }

  const auto lines = Lines();
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["refused"] == "no job 0");
}

TEST_CASE_METHOD(Trail, "each change is written, with what became of it",
                 "[services][audit][unit]") {
  for (int i = 0; i < 3; ++i) trail.Change("submitter ana", "stop", "words-1", Ok());
  trail.Change("submitter ana", "submit", std::string(1'000'000, '\xff'),
               InvalidArgument("the job has no model"));

  const auto lines = Lines();
  REQUIRE(lines.size() == 4);
  CHECK_FALSE(lines[2].contains("refused"));
  CHECK(lines[3]["refused"] == "the job has no model");
  CHECK(lines[3].dump().size() < 2'000);
}

TEST_CASE_METHOD(Trail, "an audit log that has its size is kept until the next one has it",
                 "[services][audit][unit]") {
  constexpr std::uint64_t kSize = 1'000;
  AuditTrail bounded(dir / "audit.log", kSize, disk, clock);
  int told = 0;
  const auto tell = [&] { bounded.Change("submitter ana", "stop", std::to_string(told++), Ok()); };
  const auto size = [&](const std::string& name) { return std::filesystem::file_size(dir / name); };

  for (int i = 0; i < 100 && Lines("audit.log.old").empty(); ++i) tell();
  REQUIRE(std::filesystem::exists(dir / "audit.log.old"));
  CHECK(size("audit.log.old") <= kSize);
  CHECK(Lines().size() == 1);
  for (int i = 0; i < 100; ++i) tell();

  // Nothing is missing at the seam, and the newest are there.
  const auto old = Lines("audit.log.old");
  const auto now = Lines();
  CHECK(size("audit.log.old") <= kSize);
  CHECK(size("audit.log") <= kSize);
  REQUIRE(old.size() > 1);
  REQUIRE_FALSE(now.empty());
  CHECK(std::stoi(old.back()["what"].get<std::string>()) + 1 ==
        std::stoi(now.front()["what"].get<std::string>()));
  CHECK(now.back()["what"] == std::to_string(told - 1));
}

TEST_CASE_METHOD(Trail, "an audit log that cannot be renamed grows on", "[services][audit][unit]") {
  AuditTrail bounded(dir / "audit.log", 1, disk, clock);
  std::filesystem::create_directories(dir / "audit.log.old/in the way");

  for (int i = 0; i < 3; ++i) bounded.Change("submitter ana", "stop", "words-1", Ok());

  CHECK(Lines().size() == 3);
}

TEST_CASE_METHOD(Trail, "a line that does not fit on the disk leaves no half of it",
                 "[services][audit][unit]") {
  const auto tell = [&](const std::string& job) {
    trail.Change("submitter ana", "stop", job, Ok());
    disk.WorkOff();
  };
  tell("words-1");
  {
    const testing::SmallFiles full(std::filesystem::file_size(dir / "audit.log") + 10);
    tell("words-2");
  }
  tell("words-3");

  const auto lines = Lines();
  REQUIRE(lines.size() == 2);
  CHECK(lines[1]["what"] == "words-3");
}

TEST_CASE_METHOD(Trail, "a disk that stands still costs lines, not memory, and it is told how many",
                 "[services][audit][unit]") {
  for (int i = 0; i < 5'000; ++i) trail.Change("submitter ana", "stop", std::to_string(i), Ok());
  CHECK(disk.waiting.size() == AuditTrail::kMostWaiting);

  const auto lines = Lines();

  REQUIRE(lines.size() == AuditTrail::kMostWaiting + 1);
  CHECK(lines[0]["did"] == "lose");
  CHECK(lines[0]["what"] ==
        "4000 lines: the disk did not keep up, or there was no thread to write on");
}

// While no thread can be had, only what goes to the strand is run.
struct CrowdedHost : LaneOffload {
  void Run(const std::string& lane, Function work, Function then) override {
    if (crowded) return then();
    disk.Run(lane, std::move(work), std::move(then));
  }
  explicit CrowdedHost(SlowDisk& with) : disk(with) {}
  SlowDisk& disk;
  bool crowded = true;
};

TEST_CASE_METHOD(Trail, "a host without a free thread loses the lines of that time, and tells it",
                 "[services][audit][unit]") {
  constexpr std::size_t kUnwritten = 2 * AuditTrail::kMostWaiting;
  CrowdedHost host(disk);
  AuditTrail audit(dir / "audit.log", 0, host, clock);

  for (std::size_t i = 0; i < kUnwritten; ++i) audit.Change("submitter ana", "stop", "early", Ok());
  host.crowded = false;
  for (int i = 0; i < 3; ++i) audit.Change("submitter ana", "stop", "later", Ok());

  const auto lines = Lines();
  REQUIRE(lines.size() == 4);
  CHECK(lines[0]["did"] == "lose");
  CHECK(lines[0]["what"].get<std::string>().starts_with("2000 lines: "));
  for (int i = 1; i < 4; ++i) CHECK(lines[i]["what"] == "later");
}

}  // namespace
}  // namespace muster::coordinator
