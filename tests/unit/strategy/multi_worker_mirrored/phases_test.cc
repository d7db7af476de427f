// Workers as processes that are lost, or do wrong, in the midst of each thing that a step is made
// of: no other waits for ever, and all are told in what, for whom, how long.
#include <algorithm>
#include <chrono>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <signal.h>

#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/multi_worker_mirrored/programs.h"

namespace muster::testing {
namespace {

const std::string kProgram = MUSTER_PHASES_PROGRAM;
const std::vector<std::string> kTasks{"worker:0", "worker:1", "worker:2"};
constexpr std::chrono::seconds kPatience{100};
// A stopped member is noticed in 4 s; the rest is the machine's, which may be busy.
constexpr std::chrono::seconds kNoticed{20};

std::string last_line(const std::string& text) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);) last = line;
  return last;
}

// The calls of which a phase is made, as errors name them.
std::vector<std::string> calls_of(const std::string& phase) {
  if (phase == "compute" || phase == "reduce" || phase == "started") {
    return {"all_reduce SUM of float32["};
  }
  // The step first asks which of the 8 parameters have gradients on any worker.
  if (phase == "backward") return {"all_reduce SUM of float32[", "all_reduce MAX of uint8[8]"};
  if (phase == "gather") return {"all_gather: exchange of shapes", "all_gather of 1 tensors"};
  if (phase == "broadcast") return {"initial value of variable w", "broadcast of"};
  if (phase == "input") return {"all_reduce SUM of int64[3]"};
  if (phase == "metric") return {"exchange of shapes", "all_gather of 1 tensors"};
  return {"checkpoint"};
}

bool names_any(const std::string& error, const std::vector<std::string>& calls) {
  return std::any_of(calls.begin(), calls.end(), [&](const std::string& call) {
    return error.find(call) != std::string::npos;
  });
}

const std::vector<std::string> kPhases{"compute", "reduce",    "started", "backward",  "gather",
                                       "input",   "broadcast", "metric",  "checkpoint"};

TEST_CASE("whoever is killed or stopped, and in whatever, all others are told who and in what",
          "[strategy][unit][faults][MWM-15]") {
  const std::string phase = GENERATE(from_range(kPhases));
  for (const int signal : {SIGKILL, SIGSTOP}) {
    // One run for each victim, side by side: waiting is most of it.
    std::vector<std::unique_ptr<TempFolder>> folders;
    std::vector<std::unique_ptr<MultiProcessRun>> runs;
    for (std::size_t victim = 0; victim < kTasks.size(); ++victim) {
      folders.push_back(std::make_unique<TempFolder>());
      runs.push_back(std::make_unique<MultiProcessRun>(
          workers_of(3, {kProgram, folders.back()->path(), "60000", phase})));
    }
    for (const auto& run : runs) {
      for (const std::string& task : kTasks) {
        REQUIRE(run->wait_for_output(task, "within " + phase, kPatience));
      }
    }
    const auto lost = std::chrono::steady_clock::now();
    for (std::size_t victim = 0; victim < kTasks.size(); ++victim) {
      runs[victim]->kill(kTasks[victim], signal, true);
    }
    for (std::size_t victim = 0; victim < kTasks.size(); ++victim) {
      for (const std::string& task : kTasks) {
        if (task == kTasks[victim]) continue;
        CHECK(runs[victim]->wait(task, kPatience).code == 3);
        const std::string error = last_line(runs[victim]->output(task));
        CAPTURE(phase, signal, kTasks[victim], task, error);
        CHECK(std::chrono::steady_clock::now() - lost < kNoticed);
        CHECK(error.find("error UNAVAILABLE") == 0);
        CHECK(error.find(kTasks[victim] + " was lost") != std::string::npos);
        CHECK(names_any(error, calls_of(phase)));
      }
      if (signal != SIGSTOP) continue;
      // Who wakes up finds the others gone, and is told so.
      runs[victim]->kill(kTasks[victim], SIGCONT);
      CHECK(runs[victim]->wait(kTasks[victim], kPatience).code == 3);
      const std::string error = last_line(runs[victim]->output(kTasks[victim]));
      CAPTURE(phase, kTasks[victim], error);
      CHECK(error.find("error UNAVAILABLE") == 0);
      CHECK(names_any(error, calls_of(phase)));
    }
  }
}

// Ends when all but worker:1 have ended, with what each of them says.
std::vector<std::string> errors_of_others(MultiProcessRun& run) {
  std::vector<std::string> errors;
  for (const std::string task : {"worker:0", "worker:2"}) {
    CHECK(run.wait(task, kPatience).code == 3);
    errors.push_back(last_line(run.output(task)));
  }
  return errors;
}

TEST_CASE("a process that never comes is named to all who waited, with the call and the time",
          "[strategy][unit][faults]") {
  const TempFolder folder;
  const std::string phase = GENERATE("reduce", "input", "broadcast");
  MultiProcessRun run(
      workers_of(3, {kProgram, folder.path(), "2000", phase, "absent", "worker:1"}));
  for (const std::string& error : errors_of_others(run)) {
    CAPTURE(phase, error);
    CHECK(error.find("error DEADLINE_EXCEEDED") == 0);
    CHECK(error.find("waited 2000 ms for worker:1") != std::string::npos);
    CHECK(names_any(error, calls_of(phase)));
  }
}

TEST_CASE("a process that ends well in mid-epoch is named to all who wait for it, in whatever",
          "[strategy][unit][faults]") {
  // Side by side: waiting is most of it.
  std::vector<std::unique_ptr<TempFolder>> folders;
  std::vector<std::unique_ptr<MultiProcessRun>> runs;
  for (const std::string& phase : kPhases) {
    folders.push_back(std::make_unique<TempFolder>());
    runs.push_back(std::make_unique<MultiProcessRun>(
        workers_of(3, {kProgram, folders.back()->path(), "60000", phase, "leave", "worker:1"})));
  }
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    CHECK(runs[i]->wait("worker:1", kPatience).ok());
    const auto left = std::chrono::steady_clock::now();
    for (const std::string& error : errors_of_others(*runs[i])) {
      CAPTURE(kPhases[i], error);
      CHECK(std::chrono::steady_clock::now() - left < kNoticed);
      CHECK(error.find("error UNAVAILABLE") == 0);
      CHECK(error.find("worker:1") != std::string::npos);
      CHECK(names_any(error, calls_of(kPhases[i])));
    }
  }
}

TEST_CASE("a process that runs another program is named to all, and all end",
          "[strategy][unit][faults]") {
  const TempFolder folder;
  // Not what the others do from the first call on; and another executable.
  const bool executable = GENERATE(false, true);
  const std::vector<std::string> mine{kProgram, folder.path(), "60000", "reduce"};
  std::vector<std::string> command = mine;
  if (executable) {
    command = {"sh", "-c",
               R"(case "$TF_CONFIG" in *'"index":1'*) exec "$0" 1000;; *) exec "$@";; esac)",
               MUSTER_MULTI_WORKER_PROGRAM};
    command.insert(command.end(), mine.begin(), mine.end());
  } else {
    command.insert(command.end(), {"metric", "worker:1"});
  }
  MultiProcessRun run(workers_of(3, command));
  for (const std::string& error : errors_of_others(run)) {
    CAPTURE(executable, error);
    CHECK(error.find("error INVALID_ARGUMENT") == 0);
    CHECK(error.find("worker:1") != std::string::npos);
  }
  CHECK(run.wait("worker:1", kPatience).code == 3);
}

TEST_CASE("of a cluster of two chiefs every process says that there may be one",
          "[strategy][unit]") {
  const TempFolder folder;
  MultiProcessOptions two = workers_of(3, {kProgram, folder.path(), "60000", "reduce"});
  two.cluster = {{"chief", 2}, {"worker", 1}};
  MultiProcessRun run(two);
  for (const std::string task : {"chief:0", "chief:1", "worker:0"}) {
    CHECK(run.wait(task, kPatience).code == 3);
    const std::string error = last_line(run.output(task));
    CAPTURE(task, error);
    CHECK(error.find("error INVALID_ARGUMENT") == 0);
    CHECK(error.find("chief") != std::string::npos);
  }
}

}  // namespace
}  // namespace muster::testing
