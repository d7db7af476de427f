// Workers that come and go while the chief writes a checkpoint: its disk hangs there until the test
// lets it go on (tests/cluster/failing_disk.cc). No half checkpoint is ever listed, the run goes
// on, and another one goes on from what it has left.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <signal.h>

#include "common/storage/checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/multi_worker_mirrored/elastic_runs.h"

namespace muster::testing {
namespace {

using std::chrono::seconds;

class SavingRun {
 public:
  // What is looked at is the first checkpoint.
  explicit SavingRun(std::uint64_t steps, std::uint64_t every, const Lines& more = {})
      : steps_(std::to_string(steps)), saves_((steps - 1) / every), first_(every) {
    options_ = elastic_workers(
        3, {steps_, "adam", "slow", "save=" + folder(), "every=" + std::to_string(every)});
    options_.command.insert(options_.command.end(), more.begin(), more.end());
    options_.environment["LD_PRELOAD"] = MUSTER_FAILING_DISK_LIBRARY;
    options_.environment["MUSTER_FAILING_DISK"] = home_ / "faults";
    std::filesystem::create_directory(folder());
    hang("");
    run_ = std::make_unique<MultiProcessRun>(options_);
  }

  MultiProcessRun& operator*() const { return *run_; }
  MultiProcessRun* operator->() const { return run_.get(); }
  std::string folder() const { return home_ / "checkpoints"; }
  std::string file(const std::string& name) const { return first() + "/" + name; }
  // Lines of failing_disk.cc. The file is replaced whole: nobody reads half of it.
  void hang(const std::string& lines) const {
    const std::string path = home_ / "faults";
    std::ofstream(path + ".new") << lines;
    REQUIRE(std::rename((path + ".new").c_str(), path.c_str()) == 0);
  }
  // One process's disk, before that file is in its place.
  std::string line(const std::string& task, const std::string& name) const {
    return line(task, "change", file(name));
  }
  std::string line(const std::string& task, const std::string& call,
                   const std::string& path) const {
    return std::to_string(run_->pid(task)) + " " + call + " hang " + path + "\n";
  }
  // The folder of what is looked at.
  std::string first() const { return storage::CheckpointDirectory(folder(), first_); }
  // How many have written the file, and not given it its name.
  int staged(const std::string& name) const {
    int count = 0;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(first(), none)) {
      const std::string there = entry.path().filename().string();
      if (there.starts_with(name + ".") && there.ends_with(".tmp")) ++count;
    }
    return count;
  }
  void wait_for_staged(const std::string& name, int count = 1) const {
    eventually("so many files " + name, kPatience, [&] { return staged(name) == count; });
  }
  void check_checkpoints() const {
    const auto listed = storage::ListCheckpoints(folder());
    REQUIRE(listed.ok());
    for (const std::string& one : *listed) {
      const Status whole = storage::Verify(one);
      CAPTURE(one, ToString(whole));
      CHECK(whole.ok());
    }
  }
  // All end well, and a run that begins with the last checkpoint ends as they have.
  void check_results(const Lines& all) const {
    for (const std::string task : {"worker:0", "worker:1", "worker:2"}) {
      const ProcessExit exit = run_->wait(task, kPatience);
      const std::string output = run_->output(task);
      CAPTURE(task, without_results(output));
      CHECK(exit.ok());
      check_parts(all, results(output));
    }
    check_checkpoints();
    const auto listed = storage::ListCheckpoints(folder());
    REQUIRE(listed.ok());
    CHECK(listed->size() == saves_);
    MultiProcessRun again(elastic_workers(1, {steps_, "adam", "save=" + folder()}));
    const std::string output = again.join().output.at("worker:0");
    CAPTURE(output);
    CHECK(output.find("restored") != std::string::npos);
    CHECK(output.find("step 1 ") == std::string::npos);
    check_parts(all, results(output));
  }

 private:
  const TempFolder home_;
  const std::string steps_;
  const std::size_t saves_;
  const std::uint64_t first_;
  MultiProcessOptions options_;
  std::unique_ptr<MultiProcessRun> run_;
};

// Three workers train, and the first one comes to that point of writing a checkpoint.
void begin_to_write(const SavingRun& run, const std::string& name) {
  run.hang(run.line("worker:0", name));
  run.wait_for_staged(name);
}

TEST_CASE(
    "a chief that is killed or stopped while it writes a checkpoint leaves no half of one, and "
    "the next chief writes it",
    "[strategy][unit][elastic][faults]") {
  const Lines alone = without_faults({"300", "adam"});
  const int signal = GENERATE(SIGKILL, SIGSTOP);
  const std::string name = GENERATE("variables.safetensors", "MANIFEST.json");
  CAPTURE(signal, name);
  const SavingRun run(300, 20);
  begin_to_write(run, name);

  run->kill("worker:0", signal, true);

  makes_steps_of(*run, "worker:1", 2, kPatience);
  run.check_checkpoints();
  run.hang("");
  if (signal == SIGSTOP) run->kill("worker:0", SIGCONT);
  if (signal == SIGKILL) run->start("worker:0");
  makes_steps_of(*run, "worker:1", 3, kPatience);
  run.check_results(alone);
}

TEST_CASE("a worker that is lost, or comes, while the chief writes a checkpoint costs neither",
          "[strategy][unit][elastic][faults]") {
  const Lines alone = without_faults({"300", "adam"});
  const int signal = GENERATE(SIGKILL, SIGSTOP);
  CAPTURE(signal);
  const SavingRun run(300, 20);
  begin_to_write(run, "variables.safetensors");

  run->kill("worker:2", signal, true);
  if (signal == SIGKILL) {
    CHECK(run->wait("worker:2", kPatience).signal == SIGKILL);
    run->start("worker:2");
  }
  run.check_checkpoints();
  run.hang("");

  if (signal == SIGSTOP) {
    makes_steps_of(*run, "worker:0", 2, kPatience);
    run->kill("worker:2", SIGCONT);
  }
  makes_steps_of(*run, "worker:0", 3, kPatience);
  run.check_results(alone);
}

TEST_CASE(
    "a chief that stood still while it wrote takes nothing from the one that writes in its place",
    "[strategy][unit][elastic][faults]") {
  const Lines alone = without_faults({"300", "adam"});
  const SavingRun run(300, 20);
  const std::string both =
      run.line("worker:0", "variables.safetensors") + run.line("worker:1", "variables.safetensors");
  run.hang(both);
  run.wait_for_staged("variables.safetensors");
  run->kill("worker:0", SIGSTOP);
  run.wait_for_staged("variables.safetensors", 2);

  // The first one writes all that it has to, then the second one goes on.
  run.hang(run.line("worker:1", "variables.safetensors"));
  run->kill("worker:0", SIGCONT);
  eventually("the first one's checkpoint", kPatience,
             [&] { return std::filesystem::exists(run.file("MANIFEST.json")); });
  run.check_checkpoints();
  run.hang("");

  makes_steps_of(*run, "worker:1", 3, kPatience);
  run.check_results(alone);
}

TEST_CASE("a chief that stood still and commits does not end the one that is about to",
          "[strategy][unit][elastic][faults]") {
  const Lines alone = without_faults({"300", "adam"});
  const SavingRun run(300, 20);
  const std::string second = run.line("worker:1", "opendir", run.first());
  run.hang(run.line("worker:0", "MANIFEST.json") + second);
  run.wait_for_staged("MANIFEST.json");
  run->kill("worker:0", SIGSTOP);
  eventually("the second one's values", kPatience,
             [&] { return std::filesystem::exists(run.file("variables-2.safetensors")); });

  run.hang(second);
  run->kill("worker:0", SIGCONT);
  eventually("the first one's checkpoint alone", kPatience, [&] {
    return std::filesystem::exists(run.file("MANIFEST.json")) &&
           !std::filesystem::exists(run.file("variables-2.safetensors"));
  });
  run.hang("");

  makes_steps_of(*run, "worker:1", 3, kPatience);
  run.check_results(alone);
}

TEST_CASE("workers join while a checkpoint is written beside the steps",
          "[strategy][unit][elastic][faults]") {
  const Lines alone = without_faults({"420", "adam"});
  const SavingRun run(420, 200, {"meanwhile"});
  run.hang(run.line("worker:0", "variables.safetensors"));
  makes_steps_of(*run, "worker:0", 3, kPatience);
  run->kill("worker:2", SIGSTOP);
  makes_steps_of(*run, "worker:0", 2, kPatience);
  run.wait_for_staged("variables.safetensors");

  run->kill("worker:2", SIGCONT);

  makes_steps_of(*run, "worker:0", 3, kPatience);
  CHECK(run.staged("variables.safetensors") == 1);
  run.check_checkpoints();
  run.hang("");
  run.check_results(alone);
}

}  // namespace
}  // namespace muster::testing
