#include "common/base/folder_lock.h"

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"

namespace muster {
namespace {

using How = FolderLock::How;

TEST_CASE("a folder is had by one alone, or by several that look", "[base][unit]") {
  const testing::TempFolder folder;
  const auto take = [&](How how) { return FolderLock::Take(folder.path(), how, Millis(20)); };
  std::optional<FolderLock> alone = take(How::kAlone).value();
  CHECK(take(How::kAlone).status().code() == StatusCode::kDeadlineExceeded);
  CHECK(take(How::kShared).status().code() == StatusCode::kDeadlineExceeded);
  alone.reset();
  const FolderLock one = take(How::kShared).value();
  CHECK(take(How::kShared).ok());
  CHECK(take(How::kAlone).status().code() == StatusCode::kDeadlineExceeded);
}

TEST_CASE("a folder's lock goes where it is moved, and leaves nothing behind", "[base][unit]") {
  const testing::TempFolder folder;
  {
    FolderLock first = FolderLock::Take(folder.path(), How::kAlone, Millis(0)).value();
    const FolderLock second = std::move(first);
    CHECK_FALSE(FolderLock::Take(folder.path(), How::kAlone, Millis(0)).ok());
  }
  CHECK(FolderLock::Take(folder.path(), How::kAlone, Millis(0)).ok());
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("the lock of a folder that is not there says which", "[base][unit]") {
  const Status none = FolderLock::Take("/nowhere/at/all", How::kAlone, Millis(0)).status();
  CHECK(none.code() == StatusCode::kNotFound);
  CHECK(std::string(none.message()).find("/nowhere/at/all") != std::string::npos);
}

}  // namespace
}  // namespace muster
