// The commit under every failure: at each call in turn the disk fails, fills up, or the machine
// stops.
#include <string>
#include <vector>

#include "common/storage/checkpoint.h"
#include "common/storage/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/fake_file_system.h"
#include "tests/unit/common/storage/support.h"

namespace muster::storage {
namespace {

std::uint64_t CallsOfOneCheckpoint() {
  FakeFileSystem files;
  REQUIRE(WriteSample("root", 1, files).ok());
  return files.calls();
}

bool AnyTemporary(const FakeFileSystem& files) {
  for (const std::string& path : files.Files()) {
    if (path.ends_with(".tmp")) return true;
  }
  return false;
}

TEST_CASE("a crash at any call leaves whole checkpoints only", "[storage][unit]") {
  const std::uint64_t calls = CallsOfOneCheckpoint();
  REQUIRE(calls > 15);
  for (const auto names :
       {FakeFileSystem::UnsyncedNames::kLost, FakeFileSystem::UnsyncedNames::kKept}) {
    for (std::uint64_t call = 0; call <= calls; ++call) {
      FakeFileSystem files;
      REQUIRE(WriteSample("root", 1, files).ok());
      files.FailFrom(call);
      const Status second = WriteSample("root", 2, files, 100);
      REQUIRE(second.ok() == (call == calls));

      files.Crash(names);

      const auto found = ListCheckpoints("root", files).value();
      INFO("call " << call << ", " << found.size() << " checkpoints");
      for (const std::string& directory : found) REQUIRE(Verify(directory, files).ok());
      REQUIRE(found.back() == CheckpointDirectory("root", 1));
      if (second.ok()) REQUIRE(found.size() == 2);
      // And the next attempt at the same step works.
      REQUIRE(WriteSample("root", 2, files, 100).ok());
      REQUIRE(Verify(CheckpointDirectory("root", 2), files).ok());
    }
  }
}

TEST_CASE("an error at any call is reported and leaves no temporary file", "[storage][unit]") {
  const std::uint64_t calls = CallsOfOneCheckpoint();
  for (std::uint64_t call = 0; call < calls; ++call) {
    FakeFileSystem files;
    REQUIRE(WriteSample("root", 1, files).ok());
    files.FailAt(call);

    const Status status = WriteSample("root", 2, files);

    INFO("call " << call);
    REQUIRE(status.code() == StatusCode::kUnknown);
    REQUIRE_FALSE(AnyTemporary(files));
    REQUIRE(ListCheckpoints("root", files).value().size() == 1);
    REQUIRE(Verify(CheckpointDirectory("root", 1), files).ok());
  }
}

TEST_CASE("an error at any call over a checkpoint leaves the old one or the new one there",
          "[storage][unit]") {
  const auto write = [](FileSystem& files, const std::string& file, float value) {
    v1::CheckpointManifest manifest;
    manifest.set_step(1);
    MUSTER_TRY(WritePieces("root/one", file, {{"w", {1}, 0, {value}}}, manifest, files));
    return Commit("root/one", std::move(manifest), files);
  };
  FakeFileSystem measured;
  REQUIRE(write(measured, "a.safetensors", 1).ok());
  const std::uint64_t calls = measured.calls();
  for (std::uint64_t call = 0; call < calls; ++call) {
    FakeFileSystem files;
    REQUIRE(write(files, "a.safetensors", 1).ok());
    files.FailAt(call);

    REQUIRE(write(files, "b.safetensors", 2).code() == StatusCode::kUnknown);

    INFO("call " << call);
    REQUIRE(Verify("root/one", files).ok());
  }
}

TEST_CASE("an error at any call of an export leaves the file that was there or the new one",
          "[storage][unit]") {
  const auto prepare = [](FakeFileSystem& files) {
    REQUIRE(WriteSample("root", 1, files).ok());
    REQUIRE(files.MakeFolders("out").ok());
  };
  const auto run = [](FileSystem& files) {
    return Export(CheckpointDirectory("root", 1), "out/model", files);
  };
  FakeFileSystem measured;
  prepare(measured);
  const std::uint64_t before = measured.calls();
  REQUIRE(run(measured).ok());
  const std::uint64_t calls = measured.calls() - before;
  REQUIRE(calls > 5);
  for (const bool replaces : {false, true}) {
    for (std::uint64_t call = 0; call < calls; ++call) {
      FakeFileSystem files;
      prepare(files);
      if (replaces) REQUIRE(run(files).ok());
      files.FailAt(call);

      REQUIRE(run(files).code() == StatusCode::kUnknown);

      INFO("call " << call);
      REQUIRE_FALSE(AnyTemporary(files));
      const auto left = files.Open("out/model");
      REQUIRE(left.ok() == replaces);
      if (replaces) REQUIRE(ReadHeader(**left).ok());
    }
  }
}

TEST_CASE("a full disk is named, leaves nothing behind, and the old checkpoint readable",
          "[storage][unit]") {
  FakeFileSystem files;
  REQUIRE(WriteSample("root", 1, files).ok());
  std::uint64_t used = 0;
  for (const std::string& path : files.Files()) used += files.Find(path)->size();
  for (std::uint64_t room = 0; room < used; room += 64) {
    files.SetCapacity(used + room);

    const Status status = WriteSample("root", 2, files);

    INFO("room " << room);
    REQUIRE(status.code() == StatusCode::kResourceExhausted);
    REQUIRE_FALSE(AnyTemporary(files));
    REQUIRE(Verify(CheckpointDirectory("root", 1), files).ok());
    REQUIRE(Collect("root", 3, "", files).ok());
    REQUIRE(files.Files().size() == 3);
  }
  files.SetCapacity(2 * used);
  CHECK(WriteSample("root", 2, files).ok());
}

TEST_CASE("what cannot be looked at is not deleted as if it had no manifest", "[storage][unit]") {
  FakeFileSystem files;
  REQUIRE(WriteSample("root", 1, files).ok());
  files.SetUnreadable(true);

  CHECK(Collect("root", 3, "", files).code() == StatusCode::kUnknown);
  CHECK(ListCheckpoints("root", files).status().code() == StatusCode::kUnknown);
  CHECK(RemoveCheckpoint(CheckpointDirectory("root", 1), files).code() == StatusCode::kUnknown);

  files.SetUnreadable(false);
  CHECK(Verify(CheckpointDirectory("root", 1), files).ok());
}

TEST_CASE("a writer that wakes up late has a file of its own, and finds it gone after the commit",
          "[storage][unit]") {
  FakeFileSystem files;
  const std::string directory = CheckpointDirectory("root", 1);
  const std::string path = directory + "/ps-0-of-2.safetensors";
  REQUIRE(files.MakeFolders(directory).ok());
  const std::vector<TensorDeclaration> tensors{{"w", DType::kFloat32, {3}}};
  auto zombie = SafetensorsWriter::Create(files, path, tensors).value();
  REQUIRE(WriteSample("root", 1, files).ok());

  REQUIRE(zombie->Append(Bytes("not the same")).ok());
  CHECK_FALSE(zombie->Finish().ok());
  zombie.reset();

  CHECK(Verify(directory, files).ok());
  CHECK_FALSE(AnyTemporary(files));
}

TEST_CASE("a crash while removing a checkpoint leaves a whole one or none", "[storage][unit]") {
  for (std::uint64_t call = 0; call < 4; ++call) {
    FakeFileSystem files;
    REQUIRE(WriteSample("root", 1, files).ok());
    files.FailFrom(call);
    (void)RemoveCheckpoint(CheckpointDirectory("root", 1), files);

    files.Crash(FakeFileSystem::UnsyncedNames::kKept);

    const auto found = ListCheckpoints("root", files).value();
    for (const std::string& directory : found) {
      REQUIRE(Verify(directory, files).ok());
    }
  }
}

TEST_CASE("a crash while collecting leaves no checkpoint with holes", "[storage][unit]") {
  for (std::uint64_t call = 0; call < 12; ++call) {
    FakeFileSystem files;
    for (const std::uint64_t step : {1, 2, 3}) REQUIRE(WriteSample("root", step, files).ok());
    files.FailFrom(call);
    (void)Collect("root", 1, "", files);

    files.Crash(FakeFileSystem::UnsyncedNames::kKept);

    const auto found = ListCheckpoints("root", files).value();
    for (const std::string& directory : found) {
      REQUIRE(Verify(directory, files).ok());
    }
    REQUIRE(Verify(CheckpointDirectory("root", 3), files).ok());
  }
}

}  // namespace
}  // namespace muster::storage
