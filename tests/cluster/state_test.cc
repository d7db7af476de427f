// The coordinator's state directory: its disk fills up, is lost, and comes back from a backup.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>

#include <fmt/core.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "tests/cluster/daemon.h"
#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A small disk that this thread and the processes which it starts see, where it may mount one.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& path) : path_(path) {
    fs::create_directories(path);
    const bool own = ::unshare(CLONE_NEWNS) == 0 &&
                     ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
    mounted_ = own && ::mount("muster-test", path.c_str(), "tmpfs", 0, "size=4m,mode=700") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  void Fill() const {
    std::ofstream stream(path_ + "/filler", std::ios::binary);
    const std::string piece(512, 'x');
    while (stream.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush()) {
    }
  }
  void Free() const { fs::remove(path_ + "/filler"); }

 private:
  std::string path_;
  bool mounted_ = false;
};

TEST_CASE("a full disk under the coordinator's state is said by status until there is room",
          "[cluster]") {
  const TempFolder folder;
  const TempFolder state;
  const SmallDisk disk(state / "coordinator");
  if (!disk.mounted()) {
    WARN("skipped: no right to mount a small disk");
    return;
  }
  const SumJob sums(
      folder, 2500, 10, 20, 300,
      "checkpoint: {every_steps: 100, directory: " + (folder / "checkpoints") + "}\n");
  Cluster cluster({.ps = 1, .workers = 2, .state = state.path()});
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 50, seconds(60)));
  REQUIRE_FALSE(cluster.Status().has_disk());

  disk.Fill();
  // Rows are written as the job changes: one of them finds no room.
  const bool said = Eventually(seconds(60), [&] { return cluster.Status().has_disk(); });
  CAPTURE(cluster.up_log(), Story(cluster.Describe(id)));
  REQUIRE(said);
  const v1::DiskTrouble trouble = cluster.Status().disk();
  CHECK(trouble.directory() == state / "coordinator");
  CHECK(trouble.error() != "");
  CHECK(trouble.rows() > 0);
  const RunResult status = cluster.Muster({"status"});
  CHECK(Has(status.out, "disk        " + (state / "coordinator") + " cannot be written ("));
  CHECK(Has(status.out, id));
  // The job goes on all the while.
  const std::uint64_t step = cluster.Describe(id).progress().step();
  REQUIRE(cluster.WaitForStep(id, step + 50, seconds(60)));

  disk.Free();
  CHECK(Eventually(seconds(30), [&] { return !cluster.Status().has_disk(); }));
  CHECK_FALSE(Has(cluster.Muster({"status"}).out, "cannot be written"));
  // What was waiting is on it now: rows of the job, events and checkpoints.
  const v1::Job before = cluster.Describe(id);
  REQUIRE(FindEvent(before, "CHECKPOINT_SAVED") != nullptr);
  REQUIRE(cluster.Kill("coordinator", SIGKILL));
  CHECK(Eventually(seconds(60), [&] {
    return cluster.Muster({"status"}).code == 0 &&
           FindEvent(cluster.Describe(id), "VIEW_ADOPTED") != nullptr;
  }));
  const v1::Job after = cluster.Describe(id);
  CAPTURE(Story(before), Story(after));
  REQUIRE(after.events_size() > before.events_size());
  for (int i = 0; i < before.events_size(); ++i) {
    CHECK(after.events(i).sequence() == before.events(i).sequence());
    CHECK(after.events(i).reason() == before.events(i).reason());
  }
  CHECK(std::ranges::any_of(after.checkpoints(), [&](const v1::CheckpointInfo& saved) {
    return saved.step() >= before.checkpoints(before.checkpoints_size() - 1).step();
  }));
  sums.Hurry();
  const int code = cluster.Wait(id, seconds(240));
  CAPTURE(Story(cluster.Describe(id)));
  REQUIRE(code == 0);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
  CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
}

// Daemons without `up`, which would start a coordinator on an empty folder before a restore.
struct Daemons {
  Daemons() {
    ::chmod(folder.Write("token", std::string(32, 't') + "\n").c_str(), 0600);
    Start();
    for (const std::string name : {"ps-0", "worker-0"}) {
      const std::string role = name.substr(0, name.find('-'));
      others.push_back(std::make_unique<Daemon>(
          folder, role, name,
          std::vector<std::string>{"--task", role + ":0", "--coordinator", address}));
    }
    REQUIRE(Muster({"status", "--wait", "ready"}).code == 0);
    REQUIRE(Eventually(seconds(60), [&] {
      return StatusFrom(Muster({"status", "-o", "json"})).tasks_size() == 2;
    }));
  }
  // At the address that it had.
  void Start() {
    Daemon::Place place;
    std::vector<std::string> flags;
    if (!address.empty()) {
      place.host = "";
      flags = {"--listen", address};
    }
    coordinator = std::make_unique<Daemon>(folder, "coordinator", "coordinator", flags, place);
    address = coordinator->Address();
  }
  RunResult Muster(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(),
                     {"--coordinator", address, "--token-file", folder / "token"});
    return RunProgram("muster", arguments);
  }
  RunResult Restore(const std::string& from) const {
    return RunProgram("muster-coordinator",
                      {"--listen", "127.0.0.1:0", "--token-file", folder / "token", "--state-dir",
                       folder / "coordinator", "--restore", from});
  }

  TempFolder folder;
  std::string address;
  std::unique_ptr<Daemon> coordinator;
  std::vector<std::unique_ptr<Daemon>> others;
};

TEST_CASE("a coordinator that has lost its folder comes back from a backup under a running job",
          "[cluster]") {
  Daemons cluster;
  const TempFolder& folder = cluster.folder;
  const SumJob sums(
      folder, 2500, 10, 20, 300,
      "checkpoint: {every_steps: 200, directory: " + (folder / "checkpoints") + "}\n");
  const std::string id = IdIn(cluster.Muster({"submit", "-f", sums.file}));
  const auto describe = [&] {
    return DescribeFrom(cluster.Muster({"describe", id, "-o", "json"}));
  };
  REQUIRE(Eventually(seconds(60), [&] { return describe().progress().step() >= 50; }));

  const RunResult backup = cluster.Muster({"backup", folder / "copy"});
  CAPTURE(backup.err, cluster.coordinator->Log());
  REQUIRE(backup.code == 0);
  const RunResult over = cluster.Restore(folder / "copy");
  CHECK(over.code == 1);
  CHECK(Has(over.err, "is in use by another coordinator (pid"));
  const std::uint64_t step = describe().progress().step();
  REQUIRE(Eventually(seconds(60), [&] { return describe().progress().step() > step + 50; }));

  cluster.coordinator->Kill();
  (void)cluster.coordinator->Drain();
  fs::remove_all(folder / "coordinator");
  fs::remove(folder / "coordinator.port");
  const RunResult restored = cluster.Restore(folder / "copy");
  CAPTURE(restored.err, restored.out);
  REQUIRE(restored.code == 0);
  CHECK(Has(restored.err + restored.out, "restored 1 job"));
  cluster.Start();
  CHECK(Eventually(seconds(60), [&] { return FindEvent(describe(), "VIEW_ADOPTED") != nullptr; }));
  sums.Hurry();

  const RunResult ended = cluster.Muster({"wait", id, "--timeout", "240s"});
  const v1::Job job = describe();
  CAPTURE(ended.err, Story(job), cluster.coordinator->Log());
  REQUIRE(ended.code == 0);
  // It was taken up where it stood.
  CHECK(job.view() == 1);
  CHECK(FindEvent(job, "COORDINATOR_RESTARTED") != nullptr);
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
  CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
}

TEST_CASE("checkpoints gc frees what no job goes on from, and what runs goes on", "[cluster]") {
  const TempFolder folder;
  const SumJob sums(folder, 2500, 10, 4, 50, "checkpoint: {every_steps: 100}\n");
  Cluster cluster({.ps = 1, .workers = 2});
  const std::string ended = cluster.Submit(sums.file);
  REQUIRE(cluster.Wait(ended, seconds(120)) == 0);
  const std::string root = cluster.state() + "/coordinator/checkpoints/" + ended;
  const auto committed = [&] {
    int count = 0;
    for (const auto& at : fs::directory_iterator(root))
      count += fs::exists(at.path() / "MANIFEST.json");
    return count;
  };
  REQUIRE(committed() == 3);
  // As a save leaves it whose coordinator is killed.
  fs::create_directories(root + "/step-000000099999");
  std::ofstream(root + "/step-000000099999/ps-0.safetensors") << std::string(5'000, 'x');
  const std::string running = cluster.Submit(sums.file, "second");

  const RunResult dry = cluster.Muster({"checkpoints", "gc", "--dry-run"});
  CAPTURE(dry.out, dry.err);
  CHECK(dry.code == 0);
  CHECK(Has(dry.out, "step-000000099999"));
  CHECK(Has(dry.out, "its job has ended"));
  CHECK(Has(dry.err, "would free"));
  CHECK(committed() == 3);

  const RunResult done = cluster.Muster({"checkpoints", "gc"});
  CHECK(Has(done.err, "freed"));
  CHECK(committed() == 1);
  CHECK_FALSE(fs::exists(root + "/step-000000099999"));
  CHECK(cluster.Muster({"checkpoints", "verify", ended}).code == 0);
  CHECK(cluster.Wait(running, seconds(120)) == 0);
  CHECK(cluster.Muster({"checkpoints", "gc", ended, "--finished"}).code == 0);
  CHECK(committed() == 0);
  CHECK(cluster.Muster({"checkpoints", "verify", running}).code == 0);
}

}  // namespace
}  // namespace muster::testing
