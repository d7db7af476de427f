#include "cli/up/state_folder.h"

#include <filesystem>
#include <fstream>

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/exit_code.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

TEST_CASE("a state folder that is named with a slash at its end is its user's alone",
          "[cli][unit]") {
  const muster::testing::TempFolder folder;
  for (const char* asked : {"/new/", "/around/it/new//", "/plain"}) {
    const auto made = MakeStateFolder(folder.path() + asked, "/nowhere");
    CAPTURE(asked, ToString(made.status()));
    REQUIRE(made.ok());
    CHECK_FALSE(made->ends_with('/'));
    struct stat info{};
    REQUIRE(::stat(made->c_str(), &info) == 0);
    CHECK((info.st_mode & 07777U) == 0700);
    // And taken up again.
    CHECK(MakeStateFolder(folder.path() + asked, "/nowhere").value() == *made);
  }
}

TEST_CASE("a state folder whose path is not UTF-8 is refused, and not made", "[cli][unit]") {
  const muster::testing::TempFolder folder;
  CHECK(MakeStateFolder(folder / "odd-\xFF", "/nowhere").status().code() ==
        StatusCode::kInvalidArgument);
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a state folder that cannot be made there is no question of the token", "[cli][unit]") {
  // Nobody may make folders there, root neither.
  const Status named = MakeStateFolder("/sys/muster-state", "/nowhere").status();
  CAPTURE(ToString(named));
  CHECK(CodeOf(named) == ExitCode::kRefused);
  const Status unnamed = MakeStateFolder("", "/sys").status();
  CAPTURE(ToString(unnamed));
  CHECK(CodeOf(unnamed) == ExitCode::kRefused);
}

TEST_CASE("a state folder that nobody named is a new one, though an earlier cluster had this pid",
          "[cli][unit]") {
  const muster::testing::TempFolder runtime;
  const std::string first = MakeStateFolder("", runtime.path()).value();
  CHECK(first == runtime / fmt::format("state-{}", ::getpid()));
  std::ofstream(first + "/token") << "of then";

  const std::string second = MakeStateFolder("", runtime.path()).value();

  CHECK(second == first + "-1");
  CHECK(fs::is_empty(second));
  CHECK(MakeStateFolder("", runtime.path()).value() == first + "-2");
}

}  // namespace
}  // namespace muster::cli
