#include <filesystem>
#include <fstream>
#include <optional>

#include "common/base/scheduler.h"
#include "coordinator/checkpoints.h"
#include "tests/support/catch.h"
#include "tests/unit/coordinator/temp_dir.h"

namespace muster::coordinator {
namespace {

struct CheckpointFolder {
  Result<Checkpoints::Found> Find(const std::string& root) {
    std::optional<Result<Checkpoints::Found>> answer;
    checkpoints.FindNewest(
        root, [](const auto& manifest) { return manifest.spec_hash() == "hash"; }, {},
        [&](Result<Checkpoints::Found> found) { answer = std::move(found); });
    strand.RunReady();
    return answer.value();
  }
  std::string SetAside(const std::string& root) {
    std::string aside = "no answer";
    checkpoints.SetAside(root, [&](Result<std::string> answer) { aside = answer.value(); });
    strand.RunReady();
    return aside;
  }

  muster::testing::TempDir folder;
  FakeScheduler strand;
  InlineOffload offload{strand};
  DiskCheckpoints checkpoints{offload};
};

TEST_CASE_METHOD(CheckpointFolder,
                 "a checkpoint folder that cannot be made is an error before training",
                 "[coordinator][unit]") {
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "not a folder";

  const Result<Checkpoints::Found> found = Find(file + "/checkpoints");

  REQUIRE(found.status().code() == StatusCode::kFailedPrecondition);
  CHECK(Message(found.status()).find(file + "/checkpoints cannot be written on host ") !=
        std::string::npos);
}

TEST_CASE_METHOD(CheckpointFolder, "a checkpoint folder is made when it is missing",
                 "[coordinator][unit]") {
  const std::string root = folder.path() + "/a/b";

  const Result<Checkpoints::Found> found = Find(root);

  REQUIRE(found.ok());
  CHECK(found->directory.empty());
  CHECK(std::filesystem::is_directory(root));
}

TEST_CASE_METHOD(CheckpointFolder,
                 "buffers are files of a checkpoint, verified, exported and found again",
                 "[coordinator][unit]") {
  const std::string root = folder.path();
  const std::string directory = root + "/step-000000000004";
  v1::ModelValues values;
  v1::TensorValue& mean = *values.mutable_buffers()->add_tensors();
  mean.set_name("bn.running_mean");
  mean.set_dtype(v1::DTYPE_FLOAT32);
  mean.add_shape(2);
  mean.set_data("12345678");
  v1::TensorValue& count = *values.mutable_buffers()->add_tensors();
  count.set_name("bn.num_batches_tracked");
  count.set_dtype(v1::DTYPE_INT64);
  count.set_data("abcdefgh");
  v1::TensorValue& scale = *values.mutable_frozen()->add_tensors();
  scale = mean;
  scale.set_name("scale");

  std::vector<v1::SaveReport> reports;
  checkpoints.WriteValues(directory, values, [&](auto written) { reports = written.value(); });
  strand.RunReady();
  REQUIRE(reports.size() == 2);
  v1::CheckpointManifest manifest;
  manifest.set_step(4);
  manifest.set_spec_hash("hash");
  for (const v1::SaveReport& report : reports) {
    *manifest.add_files() = report.file();
    for (const v1::TensorSlice& slice : report.slices()) *manifest.add_slices() = slice;
  }
  Status committed = Unknown("no answer");
  checkpoints.Commit(root, directory, manifest, 3, [&](auto done) { committed = done.status(); });
  strand.RunReady();
  REQUIRE(Message(committed) == "");

  const Result<Checkpoints::Found> found = Find(root);
  REQUIRE(found.ok());
  CHECK(found->buffers.SerializeAsString() == values.buffers().SerializeAsString());

  CHECK(SetAside(root) == root + "/set-aside-1");
  CHECK(Find(root)->directory.empty());
  CHECK(SetAside(root).empty());
  std::filesystem::rename(root + "/set-aside-1/step-000000000004", directory);
  CHECK(SetAside(root) == root + "/set-aside-2");
  std::filesystem::rename(root + "/set-aside-2/step-000000000004", directory);
  REQUIRE(Find(root)->directory == directory);

  std::fstream(directory + "/buffers.safetensors", std::ios::in | std::ios::out).put('X');
  const Result<Checkpoints::Found> damaged = Find(root);
  REQUIRE(damaged.ok());
  CHECK(damaged->directory.empty());
  REQUIRE(damaged->refused.size() == 1);
  CHECK(damaged->refused[0].why.find("buffers.safetensors") != std::string::npos);
}

}  // namespace
}  // namespace muster::coordinator
