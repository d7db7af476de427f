#include "services/coordinator/file_store.h"

#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/unit/coordinator/temp_dir.h"
#include "tests/unit/coordinator_service/abc.h"

namespace muster::coordinator {
namespace {

TEST_CASE("A file with the announced hash is there once it is committed", "[services][unit]") {
  const muster::testing::TempDir dir;
  const FileStore files(dir.path() + "/files");
  auto writer = files.Begin(kAbc);
  REQUIRE(writer.ok());
  REQUIRE((*writer)->Append("ab").ok());
  REQUIRE((*writer)->Append("c").ok());
  CHECK_FALSE(files.Has(kAbc));
  CHECK(*(*writer)->Commit() == 3);
  CHECK(files.Has(kAbc));
}

TEST_CASE("A file with another hash leaves nothing behind", "[services][unit]") {
  const muster::testing::TempDir dir;
  const FileStore files(dir.path());
  {
    auto writer = files.Begin(kAbc);
    REQUIRE((*writer)->Append("abd").ok());
    CHECK((*writer)->Commit().status().code() == StatusCode::kDataLoss);
  }
  CHECK(std::filesystem::is_empty(dir.path()));
}

TEST_CASE("A name that is no hash never becomes a path", "[services][unit]") {
  const FileStore files("/nowhere");
  CHECK(files.Begin("../../etc/passwd").status().code() == StatusCode::kInvalidArgument);
  CHECK_FALSE(files.Has("../../etc/passwd"));
}

}  // namespace
}  // namespace muster::coordinator
