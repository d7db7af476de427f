// What runs, as others read it.
#include "dispatch/running_table.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::dispatch {
namespace {

TEST_CASE("what a process ran when it was killed, and had ended, is in its file, once",
          "[dispatch][unit]") {
  const testing::TempFolder folder;
  const std::string file = folder / "table";
  const pid_t child = ::fork();
  if (child == 0) {
    RunningTable table(3, file);
    table.Begin(0, ClosureId(6), Attempt(60));
    table.End(0);
    table.Begin(0, ClosureId(7), Attempt(70));
    table.Begin(2, ClosureId(8), Attempt(80));
    table.End(2);
    table.Begin(2, ClosureId(9), Attempt(90));
    (void)::kill(::getpid(), SIGKILL);
  }
  REQUIRE(child > 0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);

  const auto left = RunningTable::TakeFrom(file);
  REQUIRE(left);
  CHECK(left->ended == 2);
  REQUIRE(left->running.size() == 2);
  CHECK(left->running[0].closure == ClosureId(7));
  CHECK(left->running[0].attempt == Attempt(70));
  CHECK(left->running[1].closure == ClosureId(9));
  CHECK_FALSE(RunningTable::TakeFrom(file));

  // Where there can be no file the table is in memory.
  RunningTable table(1, folder / "no/such/folder/table");
  table.Begin(0, ClosureId(1), Attempt(1));
  CHECK(table.Now().size() == 1);
}

TEST_CASE("the file of what runs has its room on the disk before a closure begins",
          "[dispatch][unit]") {
  const testing::TempFolder folder;
  const std::string file = folder / "table";
  const RunningTable table(3, file);
  struct stat made{};
  REQUIRE(::stat(file.c_str(), &made) == 0);
  CHECK(made.st_size > 0);
  CHECK(made.st_blocks * 512 >= made.st_size);
}

TEST_CASE("a table in memory leaves no file that would say that nothing ran", "[dispatch][unit]") {
  const testing::TempFolder folder;
  const std::string file = folder / "table";
  // Such a file opens and takes no length, as one on a full disk.
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);

  RunningTable table(1, file);
  table.Begin(0, ClosureId(1), Attempt(1));

  CHECK(table.Now().size() == 1);
  CHECK_FALSE(RunningTable::TakeFrom(file));
}

TEST_CASE("a pipe in the place of what ran is not waited for", "[dispatch][unit]") {
  const testing::TempFolder folder;
  const std::string file = folder / "table";
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  const auto left = RunningTable::TakeFrom(file);
  REQUIRE(left);
  CHECK(left->running.empty());
}

}  // namespace
}  // namespace muster::dispatch
