// One suite that the real file system and the fake both pass.
#include "common/storage/file_system.h"

#include <algorithm>
#include <filesystem>
#include <string>

#include "common/storage/checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/fake_file_system.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/common/storage/support.h"

namespace muster::storage {
namespace {

void Conform(FileSystem& files, const std::string& root) {
  const std::string folder = root + "/a/b";
  REQUIRE(files.MakeFolders(folder).ok());
  REQUIRE(files.MakeFolders(folder).ok());
  CHECK(files.Exists(folder).value());
  CHECK(files.Open(folder + "/none").status().code() == StatusCode::kNotFound);
  CHECK(files.List(root + "/none").status().code() == StatusCode::kNotFound);
  CHECK(files.Create(root + "/none/file").status().code() == StatusCode::kNotFound);
  {
    const auto file = files.Create(folder + "/file").value();
    REQUIRE(file->Reserve(5).ok());
    REQUIRE(file->Append(Bytes("hel")).ok());
    REQUIRE(file->Append(Bytes("lo")).ok());
    REQUIRE(file->Sync().ok());
    REQUIRE(file->Close().ok());
  }
  REQUIRE(files.Rename(folder + "/file", folder + "/other").ok());
  REQUIRE(files.SyncFolder(folder).ok());
  REQUIRE(files.Create(folder + "/new").ok());
  CHECK(files.RenameNew(folder + "/new", folder + "/other").code() == StatusCode::kAlreadyExists);
  REQUIRE(files.RenameNew(folder + "/new", folder + "/newer").ok());
  CHECK_FALSE(files.Exists(folder + "/new").value());
  REQUIRE(files.Remove(folder + "/newer").ok());
  CHECK_FALSE(files.Exists(folder + "/file").value());
  CHECK(files.List(folder).value() == std::vector<std::string>{"other"});
  const auto opened = files.Open(folder + "/other").value();
  CHECK(opened->size() == 5);
  std::string text(3, ' ');
  REQUIRE(opened->Read(1, std::as_writable_bytes(std::span(text))).ok());
  CHECK(text == "ell");
  CHECK(opened->Read(3, std::as_writable_bytes(std::span(text))).code() == StatusCode::kDataLoss);
  REQUIRE(files.Remove(folder + "/other").ok());
  REQUIRE(files.Remove(folder + "/other").ok());
  REQUIRE(files.Create(folder + "/x").ok());
  REQUIRE(files.RemoveTree(root + "/a").ok());
  CHECK_FALSE(files.Exists(folder).value());
}

TEST_CASE("the real file system keeps the contract", "[storage][unit]") {
  testing::TempFolder folder;
  Conform(RealFileSystem(), folder.path());
}

TEST_CASE("the fake file system keeps the contract", "[storage][unit]") {
  FakeFileSystem files;
  REQUIRE(files.MakeFolders("root").ok());
  Conform(files, "root");
}

TEST_CASE("a folder is as durable as its file system makes it", "[storage][unit]") {
  testing::TempFolder folder;
  CHECK(RealFileSystem().SyncFolder(folder.path()).ok());
  // It cannot sync folders, like SMB's before Linux 6.9.
  CHECK(RealFileSystem().SyncFolder("/proc").ok());
  CHECK(RealFileSystem().SyncFolder(folder / "none").code() == StatusCode::kNotFound);
}

TEST_CASE("a checkpoint lives on a real disk", "[storage][unit]") {
  testing::TempFolder folder;
  REQUIRE(WriteSample(folder.path(), 7, RealFileSystem()).ok());
  const std::string directory = ListCheckpoints(folder.path()).value().at(0);

  CHECK(Verify(directory).ok());
  CHECK(Export(directory, folder / "model.safetensors").ok());
  std::filesystem::resize_file(directory + "/ps-0-of-2.safetensors", 100);
  CHECK(Verify(directory).code() == StatusCode::kDataLoss);
  CHECK(Collect(folder.path(), 0, "").ok());
  CHECK(ListCheckpoints(folder.path()).value().empty());
}

TEST_CASE("a checkpoint that was moved and left a link stays whole when its turn to go comes",
          "[storage][unit]") {
  testing::TempFolder folder, elsewhere;
  REQUIRE(WriteSample(folder.path(), 7, RealFileSystem()).ok());
  const std::string name = CheckpointDirectory(folder.path(), 7);
  const std::string moved = elsewhere / "kept";
  std::filesystem::rename(name, moved);
  std::filesystem::create_directory_symlink(moved, name);
  REQUIRE(Verify(name).ok());

  CHECK(Collect(folder.path(), 0, "").ok());

  CHECK(ListCheckpoints(folder.path()).value().empty());
  CHECK_FALSE(std::filesystem::is_symlink(name));
  CHECK(Verify(moved).ok());
}

TEST_CASE("paths join and part", "[storage][unit]") {
  CHECK(JoinPath("a", "b") == "a/b");
  CHECK(JoinPath("a/", "b") == "a/b");
  CHECK(ParentOf("a/b") == "a");
  CHECK(ParentOf("a/b/") == "a");
  CHECK(ParentOf("a") == ".");
  CHECK(ParentOf("/a") == "/");
  CHECK(ParentOf("/") == "/");
}

}  // namespace
}  // namespace muster::storage
