// Disks that fail under a running job, by a shim around one daemon's calls (failing_disk.cc): each
// failure is said, costs a checkpoint or a wait, and the job ends as if there had been none.
#include <cerrno>
#include <csignal>
#include <filesystem>

#include <fmt/core.h>

#include "tests/cluster/harness.h"
#include "tests/cluster/jobs.h"
#include "tests/support/catch.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

// A cluster whose daemons' disks fail when told.
struct DiskFixture {
  DiskFixture() { SetFaults(""); }

  // Lines of failing_disk.cc. The file is replaced whole: no daemon reads half of it.
  void SetFaults(const std::string& lines) const {
    const std::string staged = folder.Write("faults.new", lines);
    REQUIRE(std::rename(staged.c_str(), (folder / "faults").c_str()) == 0);
  }
  std::string Fault(const std::string& who, const std::string& call, int error) const {
    return fmt::format("{} {} {} {}\n", who, call, error, checkpoints);
  }

  v1::Job WaitFor(const std::string& id, const std::string& reason, int count) const {
    v1::Job job;
    const bool came = Eventually(seconds(60), [&] {
      job = cluster.Describe(id);
      return CountEvents(job, reason) >= count || job.ended_ms() != 0;
    });
    CAPTURE(Story(job), reason);
    REQUIRE(came);
    REQUIRE(job.ended_ms() == 0);
    return job;
  }

  void CheckEnd(const std::string& id) const {
    sums.Hurry();
    const int code = cluster.Wait(id, seconds(120));
    CAPTURE(cluster.up_log(), Story(cluster.Describe(id)));
    REQUIRE(code == 0);
    REQUIRE(cluster.Muster({"checkpoints", "verify", id}).code == 0);
    REQUIRE(cluster.Muster({"checkpoints", "export", id, "-o", folder / "w"}).code == 0);
    CHECK(ReadSafetensors(folder / "w").at("w") == sums.expected);
  }

  TempFolder folder;
  std::string checkpoints = folder / "checkpoints";
  SumJob sums{
      folder, 2500,
      10,     10,
      300,    "checkpoint: {every_steps: 100, directory: " + (folder / "checkpoints") + "}\n"};
  Cluster cluster{{.ps = 2,
                   .workers = 2,
                   .environment = {{"LD_PRELOAD", MUSTER_FAILING_DISK_LIBRARY},
                                   {"MUSTER_FAILING_DISK", folder / "faults"},
                                   // A sanitizer would rather be the first library.
                                   {"ASAN_OPTIONS", "verify_asan_link_order=0"}}}};
};

TEST_CASE_METHOD(DiskFixture, "a ps whose disk fails costs checkpoints and not the job",
                 "[cluster]") {
  const int ps = cluster.PidOf("ps:1");
  const std::string id = cluster.Submit(sums.file);
  WaitFor(id, "CHECKPOINT_SAVED", 1);

  SetFaults(Fault(std::to_string(ps), "fdatasync", EIO));
  const v1::Job failing = WaitFor(id, "CHECKPOINT_FAILED", 2);
  const v1::Event* failed = FindEvent(failing, "CHECKPOINT_FAILED");
  CHECK(failed->message().find("ps:1: fdatasync " + checkpoints) != std::string::npos);
  CHECK(failed->message().find("Input/output error") != std::string::npos);
  CHECK(failed->fields().at("code") == "UNKNOWN");
  SetFaults(Fault(std::to_string(ps), "fdatasync", ESTALE));
  WaitFor(id, "CHECKPOINT_FAILED", CountEvents(failing, "CHECKPOINT_FAILED") + 2);
  SetFaults("");
  WaitFor(id, "CHECKPOINT_SAVED", CountEvents(cluster.Describe(id), "CHECKPOINT_SAVED") + 1);
  CheckEnd(id);

  const v1::Job job = cluster.Describe(id);
  CHECK(job.view() == 1);
  CHECK(cluster.PidOf("ps:1") == ps);
}

TEST_CASE_METHOD(DiskFixture, "a folder that becomes read-only costs checkpoints and not the job",
                 "[cluster]") {
  const std::string id = cluster.Submit(sums.file);
  WaitFor(id, "CHECKPOINT_SAVED", 1);

  SetFaults(Fault("*", "change", EROFS));
  WaitFor(id, "CHECKPOINT_FAILED", 1);
  // It can still be read: a view begins from what is there.
  REQUIRE(cluster.Kill("ps:0", SIGKILL));
  const v1::Job restored = WaitFor(id, "JOB_RESTORED", 1);
  CHECK(Field(*FindEvent(restored, "JOB_RESTORED"), "step") >= 100);
  WaitFor(id, "CHECKPOINT_FAILED", CountEvents(restored, "CHECKPOINT_FAILED") + 1);
  SetFaults("");
  CheckEnd(id);
  // A driver that ended because of it would be started again, and the job would go on all the same.
  CHECK(FindEvent(cluster.Describe(id), "DRIVER_LOST") == nullptr);
}

TEST_CASE_METHOD(DiskFixture,
                 "checkpoints that cannot be read are waited for, and found again afterwards",
                 "[cluster]") {
  const std::string id = cluster.Submit(sums.file);
  WaitFor(id, "CHECKPOINT_SAVED", 2);
  int restored = 0;
  for (const auto& [call, error] : {std::pair("opendir", EIO), std::pair("pread", ESTALE)}) {
    for (const std::string who : {"muster-coordinator", "muster-ps"}) {
      // Parameter servers list no folder.
      if (who == "muster-ps" && call == std::string("opendir")) continue;
      CAPTURE(call, who);
      const int before = CountEvents(cluster.Describe(id), "CHECKPOINTS_UNREADABLE");
      SetFaults(Fault(who, call, error));
      REQUIRE(cluster.Kill("ps:0", SIGKILL));
      const v1::Job waiting = WaitFor(id, "CHECKPOINTS_UNREADABLE", before + 1);
      CHECK(waiting.state() == v1::JOB_STATE_RESTORING);
      SetFaults("");
      const v1::Job job = WaitFor(id, "JOB_RUNNING", 2 + restored);
      ++restored;
      CAPTURE(Story(job));
      CHECK(FindEvent(job, "CHECKPOINT_REFUSED") == nullptr);
      CHECK(Field(*FindEvent(job, "JOB_RESTORED"), "step") >= 100);
    }
  }
  CheckEnd(id);
}

TEST_CASE_METHOD(DiskFixture, "a folder that hangs stops one job's checkpoints, not all",
                 "[cluster]") {
  const std::string id = cluster.Submit(sums.file);
  WaitFor(id, "CHECKPOINT_SAVED", 1);
  SetFaults(fmt::format("* change hang {0}\n* opendir hang {0}\n", checkpoints));

  ReplaceInFile(sums.file, checkpoints, folder / "others");
  const std::string other = cluster.Submit(sums.file, "other");
  WaitFor(other, "CHECKPOINT_SAVED", 2);
  CHECK(cluster.Describe(id).ended_ms() == 0);

  SetFaults("");
  CheckEnd(id);
  CheckEnd(other);
}

TEST_CASE_METHOD(DiskFixture,
                 "a coordinator whose state is on a network file system does without a log of "
                 "writes, and says so",
                 "[cluster]") {
  const std::string state = cluster.state() + "/coordinator";
  const std::string log = state + "/coordinator.db-wal";
  REQUIRE(std::filesystem::exists(log));
  constexpr int kNfs = 0x6969;
  SetFaults(fmt::format("muster-coordinator statfs {} {}\n", kNfs, state));

  REQUIRE(cluster.Kill("coordinator", SIGKILL));
  REQUIRE(cluster.Muster({"status", "--wait", "ready", "--timeout", "60s"}).code == 0);
  const std::string id = cluster.Submit(sums.file);
  WaitFor(id, "CHECKPOINT_SAVED", 1);

  CHECK_FALSE(std::filesystem::exists(log));
  CHECK(ReadAll(cluster.state() + "/logs/coordinator.log")
            .find(state + " is on a network file system (NFS)") != std::string::npos);
  CHECK(cluster.Muster({"backup", folder / "backup"}).code == 0);
  CheckEnd(id);
}

TEST_CASE_METHOD(DiskFixture, "two jobs never have one checkpoint folder, in one cluster or two",
                 "[cluster]") {
  const std::string id = cluster.Submit(sums.file);
  WaitFor(id, "CHECKPOINT_SAVED", 1);

  const RunResult second = cluster.Muster({"submit", "-f", sums.file, "--name", "second"});
  CHECK(second.code == 4);
  CHECK(second.err.find(checkpoints + " belongs to job " + id) != std::string::npos);
  const RunResult dry =
      cluster.Muster({"submit", "-f", sums.file, "--name", "second", "--dry-run"});
  CHECK(dry.code == 2);
  CHECK(dry.err.find(checkpoints + " belongs to job " + id) != std::string::npos);
  Cluster stranger({.ps = 2, .workers = 1});
  const RunResult third = stranger.Muster({"submit", "-f", sums.file});
  CHECK(third.code == 4);
  CHECK(third.err.find("belongs to job " + id + " of another cluster") != std::string::npos);
  CHECK(third.err.find(cluster.state()) != std::string::npos);

  CheckEnd(id);
  // Whoever comes after its end goes on from its last checkpoint, or says whose they are.
  const RunResult after = stranger.Muster({"submit", "-f", sums.file, "--wait"});
  CAPTURE(after.err);
  CHECK(after.code == 0);
}

}  // namespace
}  // namespace muster::testing
