#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <sys/stat.h>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/cli/fake_job_api.h"

namespace muster::cli {
namespace {

using testing::Fixture;

TEST_CASE_METHOD(Fixture, "a backup is in its place whole, or what was there stays",
                 "[cli][unit]") {
  const muster::testing::TempFolder folder;
  const std::string file = folder / "backup";
  api.backup = {"one, ", "two"};
  CHECK(Run({"backup", file}) == ExitCode::kDone);
  CHECK(Said("wrote 8 B to " + file));
  const auto text = [&] {
    std::ifstream in(file);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  CHECK(text() == "one, two");

  std::filesystem::create_symlink(file, folder / "link");
  api.backup = {"anew"};
  CHECK(Run({"backup", folder / "link"}) == ExitCode::kDone);
  CHECK(text() == "anew");
  std::filesystem::remove(folder / "link");
  api.backup = {"one, ", "two"};
  out.str("");
  CHECK(Run({"backup", "-"}) == ExitCode::kDone);
  CHECK(out.str() == "one, two");
  CHECK(Said("wrote 8 B to standard output"));
  CHECK(Run({"backup", file}) == ExitCode::kDone);

  api.backup = {"half"};
  api.backup_end = ResourceExhausted("backup: database or disk is full");
  CHECK(Run({"backup", file}) == ExitCode::kRefused);
  CHECK(Said("backup: database or disk is full"));
  CHECK(text() == "one, two");

  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(Run({"backup", pipe}) == ExitCode::kUsage);
  CHECK(Said("write " + pipe + ": a device, a pipe or a socket is there"));
  CHECK(std::filesystem::is_fifo(pipe));
  CHECK(Run({"backup", folder.path()}) == ExitCode::kUsage);
  CHECK(Said("write " + folder.path() + ": a folder is there"));
  const std::string nowhere = folder / "none/backup";
  CHECK(Run({"backup", nowhere}) == ExitCode::kUsage);
  CHECK(Said("write " + nowhere + ": there is no folder " + folder / "none"));
  std::filesystem::remove(pipe);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()),
                      std::filesystem::directory_iterator()) == 1);
}

TEST_CASE_METHOD(Fixture, "a folder that refuses a backup is no question of the token",
                 "[cli][unit]") {
  // Nobody may write there, root neither.
  CHECK(Run({"backup", "/sys/muster-backup"}) == ExitCode::kRefused);
  CHECK(Said("create /sys/muster-backup."));
  const muster::testing::TempFolder folder;
  api.backup_end = PermissionDenied("viewer bob may not do this");
  CHECK(Run({"backup", folder / "file"}) == ExitCode::kForbidden);
}

}  // namespace
}  // namespace muster::cli
