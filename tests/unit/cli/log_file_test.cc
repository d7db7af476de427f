#include "cli/up/log_file.h"

#include <filesystem>
#include <iterator>

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/support/temp_folder.h"

namespace muster::cli {
namespace {

struct LogFixture {
  std::string Read(const std::string& name) const {
    std::ifstream stream(folder / name);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  FakeScheduler clock;
  const muster::testing::TempFolder folder;
};

TEST_CASE_METHOD(LogFixture, "a daemon's log is put aside when it is large, and goes on",
                 "[cli][unit]") {
  LogFile log(folder / "ps-0.log", clock, {.bytes = 20});
  REQUIRE(log.Open().ok());
  for (const char* line : {"first line", "second", "third line", "fourth"}) log.Write(line);

  CHECK(Read("ps-0.log.1") == "first line\nsecond\n");
  CHECK(Read("ps-0.log") == "third line\nfourth\n");
  log.Write("fifth line of many");
  CHECK(Read("ps-0.log.1") == "third line\nfourth\n");
  CHECK(Read("ps-0.log") == "fifth line of many\n");
  LogFile again(folder / "ps-0.log", clock, {.bytes = 20});
  REQUIRE(again.Open().ok());
  again.Write("of another up");
  CHECK(Read("ps-0.log") == "of another up\n");
}

TEST_CASE_METHOD(LogFixture, "a daemon that prints without end is held back, and that is said",
                 "[cli][unit]") {
  LogFile log(folder / "log", clock, {.lines_per_second = 3});
  REQUIRE(log.Open().ok());
  for (int i = 0; i < 10; ++i) log.Write("x");
  CHECK(Read("log") == "x\nx\nx\n");

  clock.Advance(Millis(1'000));
  log.Write("y");

  CHECK(Read("log") == "x\nx\nx\n[7 lines are missing here: more than 3 came in a second]\ny\n");
}

TEST_CASE_METHOD(LogFixture, "a log that could not be begun anew goes on when it can",
                 "[cli][unit]") {
  std::filesystem::create_directory(folder / "logs");
  LogFile log(folder / "logs/log", clock, {.bytes = 10});
  REQUIRE(log.Open().ok());
  log.Write("12345678");
  std::filesystem::rename(folder / "logs", folder / "away");

  log.Write("lost");
  std::filesystem::rename(folder / "away", folder / "logs");
  log.Write("kept");

  CHECK(Read("logs/log").ends_with("kept\n"));
}

TEST_CASE_METHOD(LogFixture, "lines that a full disk does not take put no log aside",
                 "[cli][unit]") {
  std::ofstream(folder / "log.1") << "of before\n";
  std::filesystem::create_symlink("/dev/full", folder / "log");
  LogFile log(folder / "log", clock, {.bytes = 20});
  REQUIRE(log.Open().ok());

  for (int i = 0; i < 10; ++i) log.Write("never on the disk");

  CHECK(Read("log.1") == "of before\n");
  CHECK(std::filesystem::is_symlink(folder / "log"));
}

}  // namespace
}  // namespace muster::cli
