#include "common/base/private_directory.h"

#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster {
namespace {

std::string MakeIn(const testing::TempFolder& folder, const std::string& name, mode_t mode) {
  std::string path = folder / name;
  REQUIRE(::mkdir(path.c_str(), 0700) == 0);
  REQUIRE(::chmod(path.c_str(), mode) == 0);
  return path;
}

TEST_CASE("a folder that others may enter is not private", "[base][unit]") {
  const testing::TempFolder folder;
  CHECK(MakePrivateDirectory(MakeIn(folder, "open", 0755)).code() == StatusCode::kPermissionDenied);
  REQUIRE(::symlink(folder.path().c_str(), (folder / "link").c_str()) == 0);
  CHECK(Message(MakePrivateDirectory(folder / "link")) ==
        folder / "link" + " is a link: give the path of the folder itself");
  CHECK(MakePrivateDirectory(folder / "new").ok());
  CHECK(MakePrivateDirectory(folder / "new").ok());
}

TEST_CASE("a folder that others may write to is not ours, a sticky or a readable one may be",
          "[base][unit]") {
  const testing::TempFolder folder;
  CHECK(RequireOwnDirectory(MakeIn(folder, "readable", 0755)).ok());
  CHECK(RequireOwnDirectory("/tmp").ok());
  CHECK(RequireOwnDirectory(MakeIn(folder, "group", 0775)).code() == StatusCode::kPermissionDenied);
  CHECK(RequireOwnDirectory(MakeIn(folder, "all", 0777)).code() == StatusCode::kPermissionDenied);
  REQUIRE(::symlink("readable", (folder / "link").c_str()) == 0);
  CHECK(RequireOwnDirectory(folder / "link").code() == StatusCode::kFailedPrecondition);
  CHECK_FALSE(RequireOwnDirectory(folder / "none").ok());
  if (::geteuid() == 0) {  // only root can make another user's
    const std::string theirs = MakeIn(folder, "theirs", 0700);
    REQUIRE(::chown(theirs.c_str(), 12'345, 12'345) == 0);
    CHECK(RequireOwnDirectory(theirs).code() == StatusCode::kPermissionDenied);
  }
}

}  // namespace
}  // namespace muster
