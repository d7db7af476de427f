#include "common/base/private_directory.h"

#include <cstdlib>
#include <filesystem>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/catch.h"

namespace muster {
namespace {

struct Folder {
  Folder() { REQUIRE(::mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string Make(const std::string& name, mode_t mode) const {
    REQUIRE(::mkdir((path + "/" + name).c_str(), 0700) == 0);
    REQUIRE(::chmod((path + "/" + name).c_str(), mode) == 0);
    return path + "/" + name;
  }
  std::string path = "/tmp/muster-base-XXXXXX";
};

TEST_CASE("a folder that others may enter is not private", "[base][unit]") {
  const Folder folder;
  CHECK(MakePrivateDirectory(folder.Make("open", 0755)).code() == StatusCode::kPermissionDenied);
  REQUIRE(::symlink(folder.path.c_str(), (folder.path + "/link").c_str()) == 0);
  CHECK_FALSE(MakePrivateDirectory(folder.path + "/link").ok());
  CHECK(MakePrivateDirectory(folder.path + "/new").ok());
  CHECK(MakePrivateDirectory(folder.path + "/new").ok());
}

TEST_CASE("a folder that others may write to is not ours, a sticky or a readable one may be",
          "[base][unit]") {
  const Folder folder;
  CHECK(RequireOwnDirectory(folder.Make("readable", 0755)).ok());
  CHECK(RequireOwnDirectory("/tmp").ok());
  CHECK(RequireOwnDirectory(folder.Make("group", 0775)).code() == StatusCode::kPermissionDenied);
  CHECK(RequireOwnDirectory(folder.Make("all", 0777)).code() == StatusCode::kPermissionDenied);
  REQUIRE(::symlink("readable", (folder.path + "/link").c_str()) == 0);
  CHECK(RequireOwnDirectory(folder.path + "/link").code() == StatusCode::kFailedPrecondition);
  CHECK_FALSE(RequireOwnDirectory(folder.path + "/none").ok());
  if (::geteuid() == 0) {  // only root can make another user's
    const std::string theirs = folder.Make("theirs", 0700);
    REQUIRE(::chown(theirs.c_str(), 12'345, 12'345) == 0);
    CHECK(RequireOwnDirectory(theirs).code() == StatusCode::kPermissionDenied);
  }
}

}  // namespace
}  // namespace muster
