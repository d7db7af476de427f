#include "coordinator/log_store.h"

#include <filesystem>
#include <fstream>
#include <optional>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::coordinator {
namespace {

google::protobuf::RepeatedPtrField<v1::LogLine> Lines(int from, int to) {
  v1::LogLines lines;
  for (int i = from; i <= to; ++i) {
    v1::LogLine& line = *lines.add_lines();
    line.set_time_us(i * 1'000);
    line.set_text("line " + std::to_string(i));
  }
  return lines.lines();
}

TEST_CASE("Lines are read by task, from a cursor on", "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  LogStore logs({.directory = dir.path()});
  REQUIRE(logs.Append("job", "worker:0", Lines(1, 3)).ok());
  REQUIRE(logs.Append("job", "worker:1", Lines(4, 5)).ok());

  const auto all = logs.Read("job", {});
  REQUIRE(all.ok());
  REQUIRE(all->records.size() == 5);
  CHECK(all->cursor == 5);
  CHECK(all->records[3].task() == "worker:1");
  const auto rest = logs.Read("job", {.task = "worker:0", .cursor = 1});
  REQUIRE(rest->records.size() == 2);
  CHECK(rest->records[0].line().text() == "line 2");
  CHECK(rest->cursor == 5);
  CHECK(logs.Read("job", {.tail = 2})->records[0].line().text() == "line 4");
  CHECK(logs.Read("job", {.since_us = 3'000})->records.size() == 3);
  CHECK(logs.Read("other", {})->records.empty());
}

TEST_CASE("Lines of a host whose clock is off count by when they came", "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  constexpr std::int64_t kHour = 3'600'000'000;
  const auto at = [](std::int64_t time_us) {
    v1::LogLines lines;
    lines.add_lines()->set_time_us(time_us);
    return lines.lines();
  };
  const std::int64_t now = 1'000 * kHour;
  {
    LogStore logs({.directory = dir.path()});
    REQUIRE(logs.Append("job", "worker:0", at(now - 2 * kHour), now).ok());  // two hours behind
    REQUIRE(logs.Append("job", "worker:1", at(now + 2 * kHour), now - kHour).ok());  // ahead
    REQUIRE(logs.Append("job", "worker:2", at(now - 30'000'000), now).ok());
    REQUIRE(logs.Append("job", "worker:3", at(now - 2 * kHour)).ok());
  }
  // Another coordinator, too.
  LogStore logs({.directory = dir.path()});
  const auto page = logs.Read("job", {.since_us = now - 10'000'000});
  REQUIRE(page->records.size() == 1);
  CHECK(page->records[0].task() == "worker:0");
  CHECK(page->records[0].line().time_us() == now - 2 * kHour);
  CHECK(logs.Read("job", {.since_us = now - 60'000'000})->records.size() == 2);
  const auto all = logs.Read("job", {});
  REQUIRE(all->records.size() == 4);
  CHECK(all->records[1].line().time_us() == now + 2 * kHour);
}

TEST_CASE("What is read is UTF-8, also of lines that are cut within a character",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  LogStore logs({.directory = dir.path(), .line_bytes = 4});
  v1::LogLines lines;
  lines.add_lines()->set_text("abc\xE2\x82\xAC");
  lines.add_lines()->set_text("\xFF");
  REQUIRE(logs.Append("job", "trainer", lines.lines()).ok());

  const auto page = logs.Read("job", {});

  REQUIRE(page->records.size() == 2);
  CHECK(page->records[0].line().text() == "abc\\xe2 [cut: 6 bytes]");
  CHECK(page->records[1].line().text() == "\\xff");
  CHECK(logs.Newest("job").at("trainer").back() == "\\xff");
}

TEST_CASE("A long log is read page by page without gaps", "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  LogStore logs({.directory = dir.path(), .segment_bytes = 4'000});
  REQUIRE(logs.Append("job", "trainer", Lines(1, 1'000)).ok());

  std::uint64_t cursor = 0;
  int next = 1;
  for (bool end = false; !end;) {
    const auto page = logs.Read("job", {.cursor = cursor, .limit = 64});
    REQUIRE(page.ok());
    for (const auto& record : page->records) {
      REQUIRE(record.cursor() == static_cast<std::uint64_t>(next));
      REQUIRE(record.line().text() == "line " + std::to_string(next++));
    }
    cursor = page->cursor;
    end = page->end;
  }
  CHECK(next == 1'001);
}

TEST_CASE("Cursors go on after a restart, and the newest lines are known again",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  {
    LogStore logs({.directory = dir.path()});
    REQUIRE(logs.Append("job", "worker:0", Lines(1, 30)).ok());
  }
  LogStore logs({.directory = dir.path()});
  CHECK(logs.Newest("job").at("worker:0").size() == 20);
  CHECK(logs.Newest("job").at("worker:0").back() == "line 30");
  REQUIRE(logs.Append("job", "worker:0", Lines(31, 31)).ok());
  const auto page = logs.Read("job", {.cursor = 30});
  REQUIRE(page->records.size() == 1);
  CHECK(page->records[0].cursor() == 31);
}

TEST_CASE("The oldest files go when there are too many", "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  LogStore logs({.directory = dir.path(), .segment_bytes = 1'000, .segments_per_job = 3});
  REQUIRE(logs.Append("job", "worker:0", Lines(1, 1'000)).ok());

  const auto page = logs.Read("job", {});
  CHECK(page->records.size() < 200);
  CHECK(page->records.back().line().text() == "line 1000");
  CHECK(page->records.back().cursor() == 1'000);
  CHECK(std::distance(std::filesystem::directory_iterator(dir / "job"), {}) == 3);
}

TEST_CASE("A line that is too long is cut, and says so", "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  LogStore logs({.directory = dir.path(), .line_bytes = 10});
  v1::LogLines lines;
  lines.add_lines()->set_text(std::string(50, 'a'));
  REQUIRE(logs.Append("job", "worker:0", lines.lines()).ok());
  CHECK(logs.Newest("job").at("worker:0")[0] == "aaaaaaaaaa [cut: 50 bytes]");
}

TEST_CASE("Only so many jobs' logs are open, the others are read again, a forgotten one is gone",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  LogStore logs({.directory = dir.path(), .open_jobs = 2});
  const auto append = [&](const std::string& job, const std::string& text) {
    v1::LogLines lines;
    lines.add_lines()->set_text(text);
    REQUIRE(logs.Append(job, "worker:0", lines.lines()).ok());
  };
  for (const char* job : {"a", "b", "c"}) append(job, "first");
  append("a", "second");

  const auto page = logs.Read("a", {});
  REQUIRE(page.ok());
  REQUIRE(page->records.size() == 2);
  CHECK(page->records[1].line().text() == "second");
  CHECK(page->records[1].cursor() == 2);
  CHECK(logs.Newest("b").at("worker:0") == std::deque<std::string>{"first"});

  logs.Forget("a");
  CHECK(logs.Read("a", {})->records.empty());
  CHECK_FALSE(std::filesystem::exists(dir / "a"));
}

std::string LogFile(int first) { return fmt::format("job/{:020}.log", first); }

TEST_CASE("A file that got no line before the coordinator ended is read over, and gone on with",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  {
    LogStore logs({.directory = dir.path()});
    REQUIRE(logs.Append("job", "worker:0", Lines(1, 3)).ok());
  }
  std::ofstream(dir / LogFile(4)).close();
  LogStore logs({.directory = dir.path()});

  const auto page = logs.Read("job", {});
  REQUIRE(page.ok());
  CHECK(page->records.size() == 3);
  CHECK(logs.Read("job", {.cursor = 1})->records.size() == 2);
  REQUIRE(logs.Append("job", "worker:0", Lines(4, 4)).ok());
  const auto rest = logs.Read("job", {.cursor = 2});
  REQUIRE(rest->records.size() == 2);
  CHECK(rest->records[1].cursor() == 4);
  CHECK(rest->records[1].line().text() == "line 4");
}

TEST_CASE("Neither restarts nor other jobs' readers cost a log its earlier lines",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  const LogStore::Options options{.directory = dir.path(), .segments_per_job = 2, .open_jobs = 2};
  std::optional<LogStore> logs;
  const bool restarts = GENERATE(true, false);
  for (int i = 1; i <= 10; ++i) {
    if (restarts || !logs) logs.emplace(options);
    REQUIRE(logs->Append("job", "worker:0", Lines(i, i)).ok());
    for (const char* other : {"a", "b", "c"}) REQUIRE(logs->Read(other, {}).ok());
  }

  const auto page = logs->Read("job", {});
  REQUIRE(page->records.size() == 10);
  CHECK(page->records[9].cursor() == 10);
  CHECK(page->records[9].line().text() == "line 10");
  CHECK(std::distance(std::filesystem::directory_iterator(dir / "job"), {}) == 1);
}

TEST_CASE("A line that a crash has cut short stays as it is, and the next one is another line",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  std::filesystem::create_directories(dir / "job");
  std::ofstream(dir / LogFile(1)) << "1000\tworker:0\tline 1\n2000\tworker:0\tli";
  for (int i = 3; i <= 4; ++i) {
    LogStore logs({.directory = dir.path()});
    CHECK(logs.Read("job", {.cursor = 1})->records.front().line().text() == "li");
    REQUIRE(logs.Append("job", "worker:0", Lines(i, i)).ok());
    const auto page = logs.Read("job", {});
    REQUIRE(page->records.size() == static_cast<std::size_t>(i));
    CHECK(page->records[1].line().text() == "li");
    CHECK(page->records.back().cursor() == static_cast<std::uint64_t>(i));
    CHECK(page->records.back().line().text() == fmt::format("line {}", i));
  }
}

TEST_CASE("All lines that could not be written are counted, whoever reads other logs meanwhile",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  LogStore logs({.directory = dir.path(), .segment_bytes = 50, .open_jobs = 2});
  REQUIRE(logs.Append("job", "worker:0", Lines(1, 1)).ok());
  // Where its next file would be.
  std::filesystem::create_directory(dir / LogFile(4));
  REQUIRE_FALSE(logs.Append("job", "worker:0", Lines(2, 10)).ok());
  CHECK(logs.Newest("job").at("worker:0").back() == "line 10");
  for (const char* other : {"a", "b", "c"}) REQUIRE(logs.Read(other, {}).ok());
  std::filesystem::remove(dir / LogFile(4));

  REQUIRE(logs.Append("job", "worker:0", Lines(11, 11)).ok());

  const auto page = logs.Read("job", {.cursor = 3});
  REQUIRE(page->records.size() == 1);
  CHECK(page->records[0].cursor() == 4);
  CHECK(page->records[0].line().text() == "line 11 [7 lines before this one were lost]");
}

TEST_CASE("A log that cannot be read now is no empty one and is gone on with when it can",
          "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  {
    LogStore logs({.directory = dir.path()});
    REQUIRE(logs.Append("job", "worker:0", Lines(1, 3)).ok());
  }
  std::filesystem::rename(dir / "job", dir / "kept");
  std::filesystem::create_symlink("job", dir / "job");
  LogStore logs({.directory = dir.path(), .reread_after = std::chrono::milliseconds(0)});
  CHECK(Message(logs.Read("job", {}).status()).find("list " + dir / "job") != std::string::npos);
  CHECK_FALSE(logs.Append("job", "worker:0", Lines(4, 4)).ok());
  std::filesystem::remove(dir / "job");
  std::filesystem::rename(dir / "kept", dir / "job");

  REQUIRE(logs.Append("job", "worker:0", Lines(5, 5)).ok());

  const auto page = logs.Read("job", {});
  REQUIRE(page.ok());
  REQUIRE(page->records.size() == 4);
  CHECK(page->records[0].line().text() == "line 1");
  CHECK(page->records[3].cursor() == 4);
  CHECK(page->records[3].line().text() == "line 5 [1 line before this one was lost]");
  CHECK(logs.Newest("job").at("worker:0") ==
        std::deque<std::string>{"line 1", "line 2", "line 3", "line 4", "line 5"});
}

TEST_CASE("A file of a log that cannot be read now is an error and no gap", "[coordinator][unit]") {
  const muster::testing::TempFolder dir;
  LogStore logs({.directory = dir.path(), .segment_bytes = 50});
  REQUIRE(logs.Append("job", "worker:0", Lines(1, 9)).ok());
  REQUIRE(std::filesystem::exists(dir / LogFile(4)));
  std::filesystem::rename(dir / LogFile(4), dir / "kept");
  std::filesystem::create_symlink(dir / LogFile(4), dir / LogFile(4));

  CHECK_FALSE(logs.Read("job", {}).ok());
  CHECK(logs.Read("job", {.cursor = 6})->records.size() == 3);

  std::filesystem::rename(dir / "kept", dir / LogFile(4));
  CHECK(logs.Read("job", {})->records.size() == 9);
}
}  // namespace
}  // namespace muster::coordinator
