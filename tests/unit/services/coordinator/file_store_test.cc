#include "services/coordinator/file_store.h"

#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/services/coordinator/abc.h"

namespace muster::coordinator {
namespace {

TEST_CASE("A file with the announced hash is there once it is committed", "[services][unit]") {
  const muster::testing::TempFolder dir;
  const FileStore files(dir / "files");
  auto writer = files.Begin(kAbc);
  REQUIRE(writer.ok());
  REQUIRE((*writer)->Append("ab").ok());
  REQUIRE((*writer)->Append("c").ok());
  CHECK_FALSE(files.Has(kAbc));
  CHECK(*(*writer)->Commit() == 3);
  CHECK(files.Has(kAbc));
}

TEST_CASE("A file with another hash leaves nothing behind", "[services][unit]") {
  const muster::testing::TempFolder dir;
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

TEST_CASE("What was broken off and what no job needs is collected once it is old",
          "[services][unit]") {
  const muster::testing::TempFolder dir;
  const FileStore files(dir.path());
  const std::string used(64, 'a'), unused(64, 'b'), wanted(64, 'c'), young(64, 'd');
  const std::string broken = used + ".x7Kp2q";
  for (const std::string& name : {used, unused, wanted, young, broken}) {
    std::ofstream(dir / name) << "x";
    if (name == young) continue;
    std::filesystem::last_write_time(
        dir / name, std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
  }
  files.Touch(wanted);

  CHECK(files.Collect({used}, std::chrono::hours(24)) == 2);

  CHECK(files.Has(used));
  CHECK(files.Has(wanted));
  CHECK(files.Has(young));
  CHECK_FALSE(files.Has(unused));
  CHECK_FALSE(std::filesystem::exists(dir / broken));
  CHECK(FileStore(dir / "none").Collect({}, std::chrono::hours(24)) == 0);
}

}  // namespace
}  // namespace muster::coordinator
