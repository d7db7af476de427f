#include <filesystem>
#include <fstream>
#include <optional>

#include "common/base/scheduler.h"
#include "common/storage/checkpoint.h"
#include "common/storage/owner.h"
#include "coordinator/checkpoints.h"
#include "coordinator/journal.h"
#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/coordinator/inline_offload.h"

namespace muster::coordinator {
namespace {

struct CheckpointFolder {
  Result<Checkpoints::Found> Find(const std::string& root,
                                  const std::vector<std::string>& known = {}) {
    std::optional<Result<Checkpoints::Found>> answer;
    checkpoints.FindNewest({root,
                            [](const auto& manifest) { return manifest.spec_hash() == "hash"; },
                            {},
                            known,
                            claimant},
                           [&](Result<Checkpoints::Found> found) { answer = std::move(found); });
    strand.RunReady();
    return answer.value();
  }
  Result<Checkpoints::Aside> TrySetAside(const std::string& root) {
    std::optional<Result<Checkpoints::Aside>> aside;
    checkpoints.SetAside(root, claimant, [&](auto answer) { aside = std::move(answer); });
    strand.RunReady();
    return aside.value();
  }
  std::string SetAside(const std::string& root) { return TrySetAside(root).value().directory; }

  Result<std::string> Prepare(const std::string& root, std::uint64_t step) {
    std::optional<Result<std::string>> answer;
    checkpoints.Prepare(root, step, claimant,
                        [&](Result<std::string> made) { answer = std::move(made); });
    strand.RunReady();
    return answer.value();
  }
  std::vector<Checkpoints::Swept> Collect(const Checkpoints::Sweep& sweep) {
    std::optional<Result<std::vector<Checkpoints::Swept>>> answer;
    checkpoints.Collect(sweep, [&](auto swept) { answer = std::move(swept); });
    strand.RunReady();
    REQUIRE(Message(answer.value().status()) == "");
    return **answer;
  }
  Status Look(const std::string& root) {
    std::optional<Status> answer;
    checkpoints.Look(root, claimant, [&](const Status& looked) { answer = looked; });
    strand.RunReady();
    return answer.value();
  }
  // A committed checkpoint without tensors; its directory.
  std::string Write(const std::string& root, std::uint64_t step,
                    const std::set<std::string>& damaged = {}) {
    const std::string directory = Prepare(root, step).value();
    v1::CheckpointManifest manifest;
    manifest.set_step(step);
    manifest.set_spec_hash("hash");
    std::optional<Status> answer;
    checkpoints.Commit(root, directory, manifest, 3, damaged,
                       [&](auto done) { answer = done.status(); });
    strand.RunReady();
    REQUIRE(Message(answer.value()) == "");
    return directory;
  }
  // As another job, of this cluster or of another.
  void Become(const std::string& cluster, const std::string& job,
              const std::string& state = "/no/such/state") {
    claimant.mark.set_cluster_id(cluster);
    claimant.mark.set_job_id(job);
    claimant.mark.set_state_directory(state);
  }

  Checkpoints::Claimant claimant = [] {
    Checkpoints::Claimant one;
    one.mark.set_cluster_id("cluster-1");
    one.mark.set_job_id("job-1");
    one.mark.set_job_name("job");
    one.mark.set_state_directory("/no/such/state");
    return one;
  }();
  muster::testing::TempFolder folder;
  FakeScheduler strand;
  InlineOffload offload{strand};
  DiskCheckpoints checkpoints{offload};
};

TEST_CASE_METHOD(CheckpointFolder,
                 "a checkpoint folder that cannot be made is an error before training",
                 "[coordinator][unit]") {
  const std::string file = folder / "file";
  std::ofstream(file) << "not a folder";

  const Result<Checkpoints::Found> found = Find(file + "/checkpoints");

  REQUIRE(found.status().code() == StatusCode::kFailedPrecondition);
  CHECK(Message(found.status()).find(file + "/checkpoints cannot be written on host ") !=
        std::string::npos);
}

TEST_CASE_METHOD(CheckpointFolder, "a checkpoint folder is made when it is missing",
                 "[coordinator][unit]") {
  const std::string root = folder / "a/b";

  const Result<Checkpoints::Found> found = Find(root);

  REQUIRE(found.ok());
  CHECK(found->directory.empty());
  CHECK(std::filesystem::is_directory(root));
}

TEST_CASE_METHOD(CheckpointFolder, "what cannot be read is not damaged, and not passed over",
                 "[coordinator][unit]") {
  const std::string root = folder.path();
  Write(root, 4);
  const std::string newest = Write(root, 8);
  // A loop is no missing file and no wrong byte, for root too.
  std::filesystem::rename(newest + "/MANIFEST.json", root + "/kept");
  std::filesystem::create_symlink("MANIFEST.json", newest + "/MANIFEST.json");

  const Result<Checkpoints::Found> unreadable = Find(root);
  CHECK(unreadable.status().code() == StatusCode::kUnknown);
  CHECK(Message(unreadable.status()).find("MANIFEST.json") != std::string::npos);

  std::filesystem::rename(root + "/kept", newest + "/MANIFEST.json");
  const Result<Checkpoints::Found> again = Find(root);
  REQUIRE(again.ok());
  CHECK(again->step == 8);
  CHECK(again->refused.empty());
}

TEST_CASE_METHOD(CheckpointFolder,
                 "a damaged checkpoint is refused for the one before it, and stays",
                 "[coordinator][unit]") {
  const std::string root = folder.path();
  Write(root, 4);
  const std::string newest = Write(root, 8);
  const std::string manifest = newest + "/MANIFEST.json";
  std::fstream file(manifest, std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(manifest)) / 2);
  file.put('~');
  file.close();

  const Result<Checkpoints::Found> found = Find(root);

  REQUIRE(found.ok());
  CHECK(found->step == 4);
  REQUIRE(found->refused.size() == 1);
  CHECK(found->refused[0].directory == newest);
  CHECK(found->refused[0].step == 8);
  CHECK(found->refused[0].why.find("MANIFEST.json") != std::string::npos);
  CHECK(std::filesystem::exists(manifest));
}

TEST_CASE_METHOD(CheckpointFolder, "a folder's mark is judged by job, cluster, host and state",
                 "[coordinator][unit]") {
  const std::string root = folder / "checkpoints";
  const std::string state = folder / "state";
  const auto living = OpenSqliteJournal(state).value();
  Become("cluster-1", "job-1", state);
  REQUIRE(Find(root).ok());

  SECTION("its own, though the job counts as one that has not ended") {
    claimant.live = {"job-1"};
    CHECK(Look(root).ok());
    CHECK(Prepare(root, 8).ok());
  }
  SECTION("a cluster whose database was replaced in its place does not come back") {
    Become("cluster-2", "job-9", state);
    CHECK(Find(root)->taken_over.find("taken over from job job-1") != std::string::npos);
  }
  SECTION("from another host nobody sees whether that coordinator lives") {
    v1::CheckpointOwner far = **storage::ReadOwner(root);
    far.set_place("another-host mnt:[1]");
    far.set_hostname("another-host");
    far.set_state_directory("/no/such/state");
    REQUIRE(storage::TakeOverFolder(root, far).ok());
    Become("cluster-2", "job-9", "/elsewhere");
    const Status refused = Look(root);
    CHECK(refused.code() == StatusCode::kFailedPrecondition);
    CHECK(Message(refused).find("host another-host") != std::string::npos);
  }
  SECTION("a mark that cannot be read is another's, until somebody removes it") {
    std::ofstream(root + "/OWNER.json") << "{ no mark";
    CHECK(Look(root).code() == StatusCode::kFailedPrecondition);
    CHECK(Prepare(root, 8).status().code() == StatusCode::kFailedPrecondition);
  }
}

TEST_CASE_METHOD(CheckpointFolder, "a folder without what the journal lists is no beginning",
                 "[coordinator][unit]") {
  const std::string root = folder / "mount";
  const std::string known = root + "/step-000000000004";

  const Result<Checkpoints::Found> missing = Find(root, {known});
  CHECK(missing.status().code() == StatusCode::kNotFound);
  CHECK(Message(missing.status()).find("is it mounted?") != std::string::npos);
  // Nothing is made in the place of a mount.
  CHECK_FALSE(std::filesystem::exists(root));
  std::filesystem::create_directory(root);
  CHECK(Find(root, {known}).status().code() == StatusCode::kNotFound);

  Write(root, 4);
  CHECK(Find(root, {known})->step == 4);
}

TEST_CASE_METHOD(CheckpointFolder, "a job whose folder is another than before is told where it was",
                 "[coordinator][unit]") {
  const std::string root = folder / "new";
  const std::string before = folder / "old";
  const Status moved = Find(root, {before + "/step-000000000004"}).status();
  CHECK(moved.code() == StatusCode::kNotFound);
  CHECK(Message(moved).find("was the coordinator's checkpoint-dir changed?") != std::string::npos);
  CHECK(Message(moved).find("or move " + before + " there") != std::string::npos);
  // The same folder, as somebody else writes its name.
  const Status missing = Find(root + "/", {root + "/step-000000000004"}).status();
  CHECK(Message(missing).find("is it mounted?") != std::string::npos);
}

TEST_CASE_METHOD(CheckpointFolder, "a folder belongs to one job until that has ended",
                 "[coordinator][unit]") {
  const std::string root = folder.path();
  Write(root, 4);
  Become("cluster-1", "job-2");
  claimant.live = {"job-1"};

  for (const Status& refused : {Look(root), Find(root).status(), Prepare(root, 8).status()}) {
    CHECK(refused.code() == StatusCode::kFailedPrecondition);
    CHECK(Message(refused).find("belongs to job job-1 of this cluster") != std::string::npos);
  }

  claimant.live.clear();
  CHECK(Look(root).ok());
  REQUIRE(Find(root).ok());
  CHECK(Find(root)->step == 4);
  Become("cluster-1", "job-1");
  claimant.live = {"job-2"};
  CHECK(Message(Prepare(root, 8).status()).find("belongs to job job-2") != std::string::npos);
}

TEST_CASE_METHOD(CheckpointFolder,
                 "a folder of another cluster is refused while that lives, and taken over when it "
                 "is gone",
                 "[coordinator][unit]") {
  const std::string root = folder / "checkpoints";
  const std::string state = folder / "state";
  auto living = OpenSqliteJournal(state).value();
  Become("cluster-1", "job-1", state);
  REQUIRE(Find(root).ok());
  Become("cluster-2", "job-9", "/elsewhere");

  const Status refused = Look(root);
  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(refused).find("belongs to job job-1 of another cluster") != std::string::npos);
  CHECK(Message(refused).find(state) != std::string::npos);
  CHECK(Message(refused).find("remove " + root + "/OWNER.json") != std::string::npos);
  CHECK(Find(root).status().code() == StatusCode::kFailedPrecondition);

  living.reset();
  const Result<Checkpoints::Found> taken = Find(root);
  REQUIRE(taken.ok());
  CHECK(taken->taken_over.find("taken over from job job-1") != std::string::npos);
  CHECK(taken->taken_over.find(state) != std::string::npos);
  CHECK(Find(root)->taken_over.empty());
}

TEST_CASE_METHOD(CheckpointFolder, "an ended job leaves its folder free, and only its own",
                 "[coordinator][unit]") {
  const std::string root = folder.path();
  REQUIRE(Find(root).ok());
  v1::CheckpointOwner other = claimant.mark;
  other.set_job_id("job-2");
  checkpoints.Release(root, other);
  strand.RunReady();
  CHECK(std::filesystem::exists(root + "/OWNER.json"));

  checkpoints.Release(root, claimant.mark);
  strand.RunReady();

  CHECK_FALSE(std::filesystem::exists(root + "/OWNER.json"));
}

TEST_CASE_METHOD(CheckpointFolder, "looking says whether a folder could be written, and makes none",
                 "[coordinator][unit]") {
  const std::string file = folder / "file";
  std::ofstream(file) << "not a folder";

  CHECK(Look(folder / "a/b").ok());
  CHECK_FALSE(std::filesystem::exists(folder / "a"));
  CHECK(Look(folder.path()).ok());
  const Status refused = Look(file + "/checkpoints");
  CHECK(refused.code() == StatusCode::kFailedPrecondition);
  CHECK(Message(refused).find("cannot be written on host ") != std::string::npos);
}

TEST_CASE_METHOD(CheckpointFolder, "a save that was given up is discarded, unless it ended well",
                 "[coordinator][unit]") {
  const std::string late = Write(folder.path(), 4);
  const std::string half = Prepare(folder.path(), 5).value();

  checkpoints.Discard(late);
  checkpoints.Discard(half);
  strand.RunReady();

  CHECK(std::filesystem::exists(late + "/MANIFEST.json"));
  CHECK_FALSE(std::filesystem::exists(half));
}

TEST_CASE_METHOD(CheckpointFolder, "a committed checkpoint stays whatever becomes of old ones",
                 "[coordinator][unit]") {
  const std::string root = folder.path();
  const std::string directory = Prepare(root, 4).value();
  // Retention and listing meet a name that can be neither looked at nor removed.
  const std::string strange = root + "/step-000000000001";
  std::filesystem::create_directory(strange);
  std::filesystem::create_symlink("MANIFEST.json", strange + "/MANIFEST.json");
  v1::CheckpointManifest manifest;
  manifest.set_step(4);

  std::optional<Result<Checkpoints::Committed>> answer;
  checkpoints.Commit(root, directory, manifest, 1, {},
                     [&](auto done) { answer = std::move(done); });
  strand.RunReady();

  REQUIRE(answer.value().ok());
  CHECK_FALSE((*answer)->kept.has_value());
  CHECK((*answer)->retention.code() == StatusCode::kUnknown);
  CHECK(std::filesystem::exists(directory + "/MANIFEST.json"));
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
  manifest.set_job_id("job-1");
  manifest.set_spec_hash("hash");
  for (const v1::SaveReport& report : reports) {
    *manifest.add_files() = report.file();
    for (const v1::TensorSlice& slice : report.slices()) *manifest.add_slices() = slice;
  }
  Result<Checkpoints::Committed> committed = Unknown("no answer");
  checkpoints.Commit(root, directory, manifest, 3, {},
                     [&](auto done) { committed = std::move(done); });
  strand.RunReady();
  REQUIRE(Message(committed.status()) == "");

  const Result<Checkpoints::Found> found = Find(root);
  REQUIRE(found.ok());
  CHECK(found->job_id == "job-1");
  CHECK(found->bytes > 0);
  CHECK(found->bytes == committed->bytes);
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

TEST_CASE_METHOD(CheckpointFolder,
                 "of the checkpoints that restarts have set aside the newest three folders stay",
                 "[coordinator][unit]") {
  const std::string root = folder / "checkpoints";
  std::vector<std::string> removed;
  for (int restart = 1; restart <= 11; ++restart) {
    (void)Write(root, 4);
    const Result<Checkpoints::Aside> aside = TrySetAside(root);
    REQUIRE(aside.ok());
    CHECK(aside->directory == fmt::format("{}/set-aside-{}", root, restart));
    CHECK(aside->retention.ok());
    removed.insert(removed.end(), aside->removed.begin(), aside->removed.end());
  }

  // By their numbers, not by their names' letters.
  REQUIRE(removed.size() == 8);
  CHECK(removed.front() == root + "/set-aside-1");
  CHECK(removed.back() == root + "/set-aside-8");
  for (const int kept : {9, 10, 11}) {
    CHECK(std::filesystem::exists(
        fmt::format("{}/set-aside-{}/step-000000000004/MANIFEST.json", root, kept)));
  }
  CHECK(Find(root)->directory.empty());
}

TEST_CASE_METHOD(CheckpointFolder,
                 "tries to set checkpoints aside that fail leave no empty folders",
                 "[coordinator][unit]") {
  // So long that a name fits beneath it, and below a folder aside none does.
  std::string root = folder / "checkpoints";
  while (root.size() + 250 < 4'063) root += "/" + std::string(200, 'd');
  root += "/" + std::string(4'063 - root.size() - 1, 'e');
  REQUIRE(root.size() == 4'063);
  const std::string saved = storage::CheckpointDirectory(root, 4);
  std::filesystem::create_directories(saved);
  std::ofstream(saved + "/MANIFEST.json") << "any";
  std::filesystem::create_directory(root + "/set-aside-1000");
  const auto folders = [&] {
    return std::distance(std::filesystem::directory_iterator(root),
                         std::filesystem::directory_iterator());
  };
  for (int i = 0; i < 3; ++i) {
    const Status failed = TrySetAside(root).status();
    CHECK(Message(failed).find("move " + saved) != std::string::npos);
    // The checkpoint, the folder that was there, and the owner's mark.
    CHECK(folders() == 3);
  }
}

TEST_CASE_METHOD(CheckpointFolder, "only the folder's owner sets its checkpoints aside",
                 "[coordinator][unit]") {
  const std::string root = folder / "checkpoints";
  const std::string directory = Write(root, 4);

  Become("cluster-1", "job-2");
  claimant.live = {"job-1"};
  CHECK(TrySetAside(root).status().code() == StatusCode::kFailedPrecondition);
  CHECK(std::filesystem::exists(directory));
  CHECK_FALSE(std::filesystem::exists(root + "/set-aside-1"));

  Become("cluster-1", "job-1");
  CHECK(SetAside(root) == root + "/set-aside-1");
  // It is its owner's still, begins anew there and saves there.
  CHECK(std::filesystem::exists(root + "/OWNER.json"));
  (void)Write(root, 2);
  Become("cluster-1", "job-2");
  CHECK(Prepare(root, 3).status().code() == StatusCode::kFailedPrecondition);
}

std::vector<std::string> Names(const std::vector<Checkpoints::Swept>& swept) {
  std::vector<std::string> names;
  for (const auto& one : swept) names.push_back(std::filesystem::path(one.directory).filename());
  return names;
}

TEST_CASE_METHOD(CheckpointFolder,
                 "collecting leaves the newest that is whole, and says what others take",
                 "[coordinator][unit]") {
  const std::string root = folder / "job";
  for (const std::uint64_t step : {10, 20, 30}) Write(root, step);
  const std::string damaged = Write(root, 40);
  // Retention has left 20, 30 and 40.
  std::ofstream(damaged + "/MANIFEST.json") << "{}";
  const std::string interrupted = Prepare(root, 50).value();
  std::ofstream(interrupted + "/ps-0.safetensors") << std::string(1'000, 'x');
  Checkpoints::Sweep sweep{.root = root,
                           .cluster_id = "c",
                           .keep = 1,
                           .verify = true,
                           .why = "its job has ended",
                           .dry_run = true};
  sweep.cluster_id = claimant.mark.cluster_id();

  const auto would = Collect(sweep);
  CHECK(Names(would) == std::vector<std::string>{"step-000000000050", "step-000000000020"});
  CHECK(would[0].bytes == 1'000);
  CHECK(would[0].why == "a save that was interrupted");
  CHECK(would[1].why == "its job has ended");
  CHECK(std::filesystem::exists(interrupted));

  sweep.dry_run = false;
  CHECK(Names(Collect(sweep)) == Names(would));
  CHECK_FALSE(std::filesystem::exists(interrupted));
  CHECK(std::filesystem::exists(root + "/step-000000000030/MANIFEST.json"));
  CHECK(std::filesystem::exists(damaged));
  CHECK(Collect(sweep).empty());

  sweep.keep = 0;
  CHECK(Collect(sweep).size() == 2);
}

TEST_CASE_METHOD(CheckpointFolder, "damaged checkpoints take the place of none that is kept",
                 "[coordinator][unit]") {
  const std::string root = folder / "job";
  const auto there = [&](std::uint64_t step) {
    return std::filesystem::exists(storage::CheckpointDirectory(root, step) + "/MANIFEST.json");
  };
  for (const std::uint64_t step : {10, 20}) Write(root, step);
  const std::string damaged = Write(root, 30);

  Write(root, 40, {damaged});
  CHECK(there(10));
  CHECK(there(30));

  // Three that are whole; the damaged one is among these, and goes when it is older.
  Write(root, 50, {damaged});
  CHECK_FALSE(there(10));
  CHECK(there(20));
  CHECK(there(30));
  Write(root, 60, {damaged});
  CHECK_FALSE(there(20));
  CHECK_FALSE(there(30));

  // The step of a damaged one is saved anew.
  Write(root, 60, {storage::CheckpointDirectory(root, 60)});
  CHECK(there(40));
  Write(root, 70);
  CHECK_FALSE(there(40));
}

TEST_CASE_METHOD(CheckpointFolder,
                 "collecting leaves alone what is being saved, and what is another cluster's",
                 "[coordinator][unit]") {
  const std::string root = folder / "job";
  Write(root, 10);
  const std::string saving = Prepare(root, 20).value();
  Checkpoints::Sweep sweep{.root = root, .cluster_id = claimant.mark.cluster_id(), .keep = 1};
  sweep.saving = 20;
  CHECK(Collect(sweep).empty());
  sweep.saving.reset();
  // Reached by another path, it is taken for that of a job that is forgotten.
  sweep.live = {claimant.mark.job_id()};
  CHECK(Collect(sweep).empty());
  sweep.live.clear();
  sweep.cluster_id = "another";
  CHECK(Collect(sweep).empty());
  CHECK(std::filesystem::exists(saving));
  sweep.root = folder / "nothing";
  CHECK(Collect(sweep).empty());
}

}  // namespace
}  // namespace muster::coordinator
