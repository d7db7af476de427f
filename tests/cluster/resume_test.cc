// Checkpoints and what is made of them: after the whole cluster, on another number of parameter
// servers, when the newest is damaged, when there is no room for one.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>

#include <sys/mount.h>
#include <sys/resource.h>

#include "common/base/whole_file.h"
#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

void CheckResult(const Cluster& cluster, const TempFolder& folder, const std::string& id,
                 const SumJob& sums) {
  REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
  CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
}

const v1::Event* LastEvent(const v1::Job& job, const std::string& reason) {
  const v1::Event* last = nullptr;
  for (const v1::Event& event : job.events()) {
    if (event.reason() == reason) last = &event;
  }
  return last;
}

// The newest of those that were not refused.
v1::CheckpointInfo Newest(const v1::Job& job) {
  v1::CheckpointInfo newest;
  for (const v1::CheckpointInfo& info : job.checkpoints()) {
    if (info.refused().empty() && info.step() >= newest.step()) newest = info;
  }
  return newest;
}

void StopAfter(const Cluster& cluster, const std::string& id, std::uint64_t step) {
  REQUIRE(cluster.WaitForStep(id, step, seconds(60)));
  REQUIRE(cluster.Muster({"stop", id}).code == 0);
  REQUIRE(cluster.Wait(id, seconds(60)) == 8);
}

TEST_CASE("a job outlives its whole cluster, on fewer servers and on more", "[cluster]") {
  const TempFolder folder;
  const SumJob sums(folder, 1000, 10, 10, 800, "checkpoint: {every_steps: 100}\n");
  ReplaceInFile(sums.file, "{kind: fixed, num_shards: 2}", "{kind: min_size, min_shard_bytes: 4}");
  const std::string state = folder / "state";
  std::string id;
  {
    Cluster first({.ps = 2, .workers = 2, .state = state});
    id = first.Submit(sums.file);
    REQUIRE(first.WaitForStep(id, 300, seconds(60)));
    first.KillUp();
    REQUIRE(Eventually(seconds(10), [&] { return ProcessesOf(state).empty(); }));
  }
  std::uint64_t stopped = 0;
  {
    // One server fewer: nobody resubmits anything.
    Cluster second(
        {.ps = 1, .workers = 2, .state = state, .environment = {{"MUSTER_PS_WAIT", "1s"}}});
    REQUIRE(Eventually(seconds(30),
                       [&] { return second.Describe(id).state() == v1::JOB_STATE_RUNNING; }));
    const v1::Job job = second.Describe(id);
    CAPTURE(Story(job));
    REQUIRE(FindEvent(job, "COORDINATOR_RESTARTED") != nullptr);
    CHECK(Field(*FindEvent(job, "COORDINATOR_RESTARTED"), "gap_ms") > 0);
    CHECK(FindEvent(job, "PS_REPLACED") != nullptr);
    const v1::Event* restored = LastEvent(job, "JOB_RESTORED");
    REQUIRE(restored != nullptr);
    CHECK(Field(*restored, "ps") == 1);
    CHECK(Field(*restored, "step") >= 200);
    CHECK(Field(*restored, "step") % 100 == 0);
    StopAfter(second, id, static_cast<std::uint64_t>(Field(*restored, "step")) + 100);
    stopped = Newest(second.Describe(id)).step();
    CHECK(second.Drain() == 0);
  }
  Cluster third({.ps = 3, .workers = 2, .state = state});
  CHECK(third.Submit(sums.file) == id);
  sums.Hurry();
  const int code = third.Wait(id, seconds(90));
  const v1::Job job = third.Describe(id);
  CAPTURE(Story(job));
  REQUIRE(code == 0);
  CHECK(FindEvent(job, "JOB_RESUMED") != nullptr);
  const v1::Event* restored = LastEvent(job, "JOB_RESTORED");
  REQUIRE(restored != nullptr);
  CHECK(Field(*restored, "ps") == 3);
  CHECK(Field(*restored, "step") == static_cast<std::int64_t>(stopped));
  CHECK(Field(*restored, "steps_lost") == 0);
  REQUIRE(job.variables_size() == 1);
  CHECK(job.variables(0).shards_size() == 3);
  CheckResult(third, folder, id, sums);
}

TEST_CASE("a damaged checkpoint is refused, told, and the one before it is used", "[cluster]") {
  const TempFolder folder;
  const SumJob sums(folder, 700, 10, 10, 1200, "checkpoint: {every_steps: 100, keep: 5}\n");
  Cluster cluster({.ps = 2, .workers = 2});
  std::string id = cluster.Submit(sums.file);

  const auto damage = [&](const std::string& how, const auto& with) {
    CAPTURE(how);
    const v1::Job before = cluster.Describe(id);
    const v1::CheckpointInfo newest = Newest(before);
    with(newest.directory() + "/ps-1-of-2.safetensors");
    CHECK(cluster.Muster({"checkpoints", "verify", id}).code == 1);
    REQUIRE(cluster.Submit(sums.file) == id);
    REQUIRE(Eventually(seconds(30), [&] {
      return CountEvents(cluster.Describe(id), "JOB_RUNNING") > CountEvents(before, "JOB_RUNNING");
    }));
    const v1::Job job = cluster.Describe(id);
    CAPTURE(Story(job));
    const v1::Event* refused = LastEvent(job, "CHECKPOINT_REFUSED");
    REQUIRE(refused != nullptr);
    CHECK(refused->fields().at("directory") == newest.directory());
    CHECK(refused->fields().at("why").find("ps-1-of-2.safetensors") != std::string::npos);
    CHECK(refused->message().find("the one before it is tried") != std::string::npos);
    const v1::Event* restored = LastEvent(job, "JOB_RESTORED");
    REQUIRE(restored != nullptr);
    CHECK(Field(*restored, "step") < static_cast<std::int64_t>(newest.step()));
    CHECK(Field(*restored, "step") % 100 == 0);
    CHECK(Field(*restored, "step") > 0);
    return static_cast<std::uint64_t>(Field(*restored, "step"));
  };

  StopAfter(cluster, id, 150);
  const std::uint64_t step = damage("a byte is changed", [](const std::string& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-1, std::ios::end);
    const char last = static_cast<char>(stream.get() ^ 1);
    stream.seekp(-1, std::ios::end);
    stream.put(last);
  });
  StopAfter(cluster, id, step + 150);
  damage("the file is cut",
         [](const std::string& file) { fs::resize_file(file, fs::file_size(file) / 2); });
  sums.Hurry();
  REQUIRE(cluster.Wait(id, seconds(60)) == 0);
  CHECK(CountEvents(cluster.Describe(id), "CHECKPOINT_REFUSED") == 2);
  CheckResult(cluster, folder, id, sums);
}

TEST_CASE("a cluster that is asked to end saves its jobs, and no step is lost", "[cluster]") {
  const TempFolder folder;
  const SumJob sums(folder, 2000, 10, 10, 500);  // no periodic checkpoints
  const std::string state = folder / "state";
  std::string id;
  {
    Cluster first({.ps = 2, .workers = 2, .state = state});
    id = first.Submit(sums.file);
    REQUIRE(first.WaitForStep(id, 200, seconds(60)));
    CHECK(first.Drain() == 0);
    CAPTURE(first.up_log());
    CHECK(ProcessesOf(state).empty());
  }
  sums.Hurry();
  Cluster second({.ps = 2, .workers = 2, .state = state});
  const int code = second.Wait(id, seconds(120));
  const v1::Job job = second.Describe(id);
  CAPTURE(Story(job));
  REQUIRE(code == 0);
  CHECK(FindEvent(job, "CLUSTER_DRAINING") != nullptr);
  CHECK(FindEvent(job, "DRAIN_UNSAVED") == nullptr);
  const v1::Event* restored = FindEvent(job, "JOB_RESTORED");
  REQUIRE(restored != nullptr);
  CHECK(Field(*restored, "step") >= 200);
  CHECK(Field(*restored, "steps_lost") == 0);
  CheckResult(second, folder, id, sums);
}

TEST_CASE("daemons that are asked to end one by one, or all at once, lose no step", "[cluster]") {
  const TempFolder folder;
  const SumJob sums(folder, 2000, 10, 20, 200);
  const std::string state = folder / "state";
  Cluster cluster({.ps = 2, .workers = 2, .state = state});
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(cluster.WaitForStep(id, 200, seconds(60)));

  // Asks until the coordinator, which may just be on its way, answers.
  const auto eventually = [&](const std::function<bool()>& condition) {
    return Eventually(seconds(60), [&] {
      try {
        return condition();
      } catch (const std::runtime_error&) {
        return false;
      }
    });
  };
  // `up` starts them again.
  const auto end = [&](const std::vector<std::string>& tasks) {
    std::vector<int> pids;
    for (const std::string& task : tasks) {
      REQUIRE(eventually([&] { return cluster.PidOf(task) > 1; }));
      pids.push_back(cluster.PidOf(task));
    }
    const auto went_on = [](const v1::Job& job) {
      return CountEvents(job, "JOB_RESTORED") + CountEvents(job, "VIEW_ADOPTED");
    };
    const int before = went_on(cluster.Describe(id));
    for (const int pid : pids) REQUIRE(::kill(pid, SIGTERM) == 0);
    std::string story;
    const bool goes_on = eventually([&] {
      const v1::Job job = cluster.Describe(id);
      story = Story(job);
      return went_on(job) > before || job.ended_ms() != 0;
    });
    CAPTURE(tasks, story, cluster.up_log());
    if (!goes_on) UNSCOPED_INFO(ReadWholeFile(state + "/logs/coordinator.log").value_or(""));
    REQUIRE(goes_on);
  };
  end({"ps:0"});
  end({"worker:0", "worker:1", "ps:0", "ps:1", "coordinator"});
  end({"coordinator"});
  sums.Hurry();

  const int code = cluster.Wait(id, seconds(120));
  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job), cluster.up_log());
  REQUIRE(code == 0);
  for (const v1::Event& event : job.events()) {
    if (event.reason() != "JOB_RESTORED" && event.reason() != "VIEW_ADOPTED") continue;
    CHECK(Field(event, "steps_lost") == 0);
    CHECK(Field(event, "step") >= 200);
  }
  CheckResult(cluster, folder, id, sums);
}

TEST_CASE("a failed job goes on when it is submitted again, and so does one of another name",
          "[cluster]") {
  const TempFolder folder;
  const SumJob sums(folder, 1500, 10, 10, 600,
                    "checkpoint: {every_steps: 100, directory: " + (folder / "saved") + "}\n");
  Cluster cluster({.ps = 2, .workers = 2});
  const std::string id = cluster.Submit(sums.file);
  REQUIRE(Eventually(
      seconds(60), [&] { return FindEvent(cluster.Describe(id), "CHECKPOINT_SAVED") != nullptr; }));
  rlimit old{};
  const rlimit tiny{.rlim_cur = 16, .rlim_max = RLIM_INFINITY};
  REQUIRE(::prlimit(cluster.PidOf("ps:1"), RLIMIT_FSIZE, &tiny, &old) == 0);
  REQUIRE(cluster.Wait(id, seconds(120)) == 1);
  REQUIRE(::prlimit(cluster.PidOf("ps:1"), RLIMIT_FSIZE, &old, nullptr) == 0);
  const v1::Job failed = cluster.Describe(id);
  CAPTURE(Story(failed));
  CHECK(failed.message().find("submit the same job again") != std::string::npos);
  sums.Hurry();

  SECTION("the same job") {
    REQUIRE(cluster.Submit(sums.file) == id);
    REQUIRE(cluster.Wait(id, seconds(60)) == 0);
    const v1::Job job = cluster.Describe(id);
    CAPTURE(Story(job));
    CHECK(FindEvent(job, "JOB_RESUMED") != nullptr);
    CHECK(Field(*LastEvent(job, "JOB_RESTORED"), "step") ==
          static_cast<std::int64_t>(Newest(failed).step()));
    CheckResult(cluster, folder, id, sums);
  }
  SECTION("another name") {
    const std::string other = cluster.Submit(sums.file, "other");
    REQUIRE(other != id);
    REQUIRE(cluster.Wait(other, seconds(60)) == 0);
    CHECK(FindEvent(cluster.Describe(other), "CHECKPOINT_FOUND") != nullptr);
    CheckResult(cluster, folder, other, sums);
  }
  SECTION("from the beginning") {
    const RunResult again = cluster.Muster({"submit", "-f", sums.file, "--restart"});
    REQUIRE(again.code == 0);
    REQUIRE(cluster.Wait(id, seconds(60)) == 0);
    const v1::Job job = cluster.Describe(id);
    CAPTURE(Story(job));
    const v1::Event* aside = FindEvent(job, "CHECKPOINTS_SET_ASIDE");
    REQUIRE(aside != nullptr);
    CHECK(fs::exists(aside->fields().at("directory")));
    CHECK(Field(*LastEvent(job, "JOB_RUNNING"), "step") == 0);
    CheckResult(cluster, folder, id, sums);
  }
}

// A small disk, where this user may mount one.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& path) : path_(path) {
    fs::create_directories(path);
    mounted_ = ::mount("muster-test", path.c_str(), "tmpfs", 0, "size=256k") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  void Fill() const {
    std::ofstream stream(path_ + "/filler", std::ios::binary);
    const std::string piece(4096, 'x');
    while (stream.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush()) {
    }
  }
  void Free() const { fs::remove(path_ + "/filler"); }

 private:
  std::string path_;
  bool mounted_ = false;
};

TEST_CASE("a job goes on when there is no room for a checkpoint", "[cluster]") {
  const TempFolder folder;
  const SmallDisk disk(folder / "disk");
  const SumJob sums(folder, 1200, 10, 10, 600,
                    "checkpoint: {every_steps: 100, directory: " + (folder / "disk") + "}\n");
  Cluster cluster({.ps = 2, .workers = 2});
  const int ps = cluster.PidOf("ps:1");
  rlimit old{};
  const rlimit tiny{.rlim_cur = 16, .rlim_max = RLIM_INFINITY};
  REQUIRE(::prlimit(ps, RLIMIT_FSIZE, &tiny, &old) == 0);

  const std::string id = cluster.Submit(sums.file);
  const auto wait_for = [&](const std::string& reason, int count) {
    const bool came = Eventually(seconds(30), [&] {
      const v1::Job job = cluster.Describe(id);
      return CountEvents(job, reason) >= count || job.ended_ms() != 0;
    });
    const v1::Job job = cluster.Describe(id);
    CAPTURE(Story(job));
    REQUIRE(came);
    REQUIRE(job.ended_ms() == 0);
  };
  wait_for("CHECKPOINT_FAILED", 1);
  REQUIRE(::prlimit(ps, RLIMIT_FSIZE, &old, nullptr) == 0);
  wait_for("CHECKPOINT_SAVED", 1);
  const v1::Job between = cluster.Describe(id);
  if (disk.mounted()) {
    disk.Fill();
    wait_for("CHECKPOINT_FAILED", CountEvents(between, "CHECKPOINT_FAILED") + 1);
    disk.Free();
  } else {
    WARN("no right to mount a small disk: only a limit of file size was tried");
  }
  sums.Hurry();
  REQUIRE(cluster.Wait(id, seconds(60)) == 0);

  const v1::Job job = cluster.Describe(id);
  CAPTURE(Story(job));
  const v1::Event* failed = FindEvent(job, "CHECKPOINT_FAILED");
  REQUIRE(failed != nullptr);
  CHECK(failed->message().find("File too large") != std::string::npos);
  CHECK(failed->message().find("the job goes on") != std::string::npos);
  if (disk.mounted()) {
    CHECK(LastEvent(job, "CHECKPOINT_FAILED")->message().find("No space left") !=
          std::string::npos);
  }
  CHECK(job.view() == 1);
  CHECK(cluster.PidOf("ps:1") == ps);
  CheckResult(cluster, folder, id, sums);
}

}  // namespace
}  // namespace muster::testing
