// Workers that are asked to end agree on a step, save, and go on from there when they are back.
#include "strategy/train/preemption.h"

#include <filesystem>

#include <signal.h>

#include "strategy/kinds/one_device_strategy.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/multi_worker_mirrored/programs.h"
#include "tests/unit/strategy/multi_worker_mirrored/workers.h"

namespace muster::testing {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

const std::string kProgram = MUSTER_PREEMPTION_PROGRAM;
constexpr std::chrono::seconds kPatience{100};

MultiProcessOptions workers(int count, const Lines& arguments) {
  Lines command{kProgram};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return workers_of(count, command);
}

// The number behind the last `word` at the beginning of a line; -1: there is none.
long last(const std::string& output, const std::string& word) {
  const std::size_t at = output.rfind("\n" + word + " ");
  if (at != std::string::npos) return std::stol(output.substr(at + word.size() + 2));
  return output.starts_with(word + " ") ? std::stol(output.substr(word.size() + 1)) : -1;
}

// Below `folder`, with a manifest.
Lines checkpoints(const std::string& folder) {
  Lines found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.is_directory()) found.push_back(entry.path().filename());
  }
  return found;
}

TEST_CASE("all workers save and end at one step when one gets SIGTERM, and go on there",
          "[strategy][spec][PRE-01]") {
  const TempFolder folder;
  const int victim = GENERATE(0, 2);
  const Lines arguments{folder.path() + std::to_string(victim), "120", "slow=5"};
  long stopped = 0;
  {
    MultiProcessRun run(workers(4, arguments));
    const std::string asked = "worker:" + std::to_string(victim);
    REQUIRE(run.wait_for_output(asked, "call 20\n", kPatience));
    run.kill(asked, SIGTERM);
    for (int id = 0; id < 4; ++id) {
      const std::string worker = "worker:" + std::to_string(id);
      const ProcessExit exit = run.wait(worker, kPatience);
      CAPTURE(worker, run.output(worker));
      CHECK(exit.code == kPreemptedExitCode);
      CHECK(exit.signal == 0);
      if (id == 0) stopped = last(run.output(worker), "call");
      CHECK(last(run.output(worker), "call") == stopped);
    }
    CHECK(stopped >= 20);
    CHECK(stopped < 120);
  }

  MultiProcessRun again(workers(4, arguments));
  const MultiProcessResult result = again.join();
  for (const auto& [worker, output] : result.output) {
    CAPTURE(worker, output);
    CHECK(last(output, "begins after") == stopped);
    CHECK(last(output, "count") == 4 * 120);
  }
}

TEST_CASE("where exit returns all workers save at one step, train to the end, and are asked once",
          "[strategy][spec][PRE-01]") {
  const TempFolder folder;
  MultiProcessRun run(workers(3, {folder.path(), "400", "slow=5", "stay"}));
  REQUIRE(run.wait_for_output("worker:1", "call 20\n", kPatience));
  run.kill("worker:1", SIGTERM);
  REQUIRE(run.wait_for_output("worker:0", "stays at ", kPatience));
  run.kill("worker:2", SIGTERM);

  const MultiProcessResult result = run.join();
  const long saved = last(result.output.at("worker:0"), "stays at");
  CHECK(saved >= 20);
  for (const auto& [worker, output] : result.output) {
    CAPTURE(worker, output);
    CHECK(last(output, "stays at") == saved);
    CHECK(output.find("stays at") == output.rfind("stays at"));
    CHECK(last(output, "count") == 3 * 400);
  }

  MultiProcessRun again(workers(3, {folder.path(), "400"}));
  CHECK(last(again.join().output.at("worker:2"), "begins after") == saved);
}

TEST_CASE("with a grace period workers save at the notice, train on, and save again at its end",
          "[strategy][spec][PRE-02]") {
  const TempFolder folder;
  MultiProcessRun run(workers(2, {folder / "c", "100000", "slow=5", "grace=1500"}));
  REQUIRE(run.wait_for_output("worker:1", "call 10\n", kPatience));
  run.kill("worker:1", SIGTERM);
  Lines first;
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (first.empty() && std::chrono::steady_clock::now() < until) {
    first = checkpoints(folder / "c");
  }
  REQUIRE(first.size() == 1);
  for (const std::string worker : {"worker:0", "worker:1"}) {
    CHECK(run.wait(worker, kPatience).code == kPreemptedExitCode);
    CAPTURE(run.output(worker));
    std::size_t saves = 0;
    const std::string output = run.output(worker);
    for (std::size_t at = output.find("saved after "); at != std::string::npos;
         at = output.find("saved after ", at + 1)) {
      ++saves;
    }
    CHECK(saves == 2);
  }
  // The second one, in the place of the first.
  const Lines second = checkpoints(folder / "c");
  CHECK(second.size() == 1);
  CHECK(second != first);
}

TEST_CASE("a save function of the user's takes the place of the handler's checkpoint",
          "[strategy][spec][PRE-03]") {
  const TempFolder folder;
  MultiProcessRun run(workers(2, {folder.path(), "100000", "slow=5", "save"}));
  REQUIRE(run.wait_for_output("worker:0", "call 5\n", kPatience));
  run.kill("worker:0", SIGTERM);
  for (const std::string worker : {"worker:0", "worker:1"}) {
    CHECK(run.wait(worker, kPatience).code == kPreemptedExitCode);
  }
  CHECK(fs::exists(folder / "mine-0"));
  CHECK(fs::exists(folder / "mine-1"));
  CHECK(checkpoints(folder.path()).empty());
}

TEST_CASE("what a step throws on one worker is thrown on all of them, with its text",
          "[strategy][spec][PRE-04]") {
  const TempFolder folder;
  MultiProcessOptions options = workers(3, {folder / "c", "100000", "slow=5", "fail=12"});
  // The third of the group.
  options.cluster = {{"chief", 1}, {"worker", 2}};
  MultiProcessRun run(options);
  for (const std::string worker : {"chief:0", "worker:0", "worker:1"}) {
    CHECK(run.wait(worker, kPatience).code == 3);
    CAPTURE(run.output(worker));
    CHECK(run.output(worker).find("the data has a hole") != std::string::npos);
    CHECK(last(run.output(worker), "call") == 11);
  }
  for (const std::string other : {"chief:0", "worker:0"}) {
    CHECK(run.output(other).find("worker:1 failed in call 12 of run()") != std::string::npos);
  }
}

TEST_CASE("what a save function or a watcher throws on one worker is thrown on all of them",
          "[strategy][spec][PRE-03][PRE-04]") {
  const bool saves = GENERATE(true, false);
  const TempFolder folder;
  const std::string why = saves ? "the disk is full" : "the scheduler does not answer";
  const auto errors =
      on_cluster<std::string>(2, 1, [&](MultiWorkerMirroredStrategy& strategy) -> std::string {
        const auto scope = strategy.scope();
        const auto fail = [&](bool here) {
          if (here && !strategy.is_chief()) throw std::runtime_error(why);
        };
        TerminationConfig config;
        config.termination_watcher = [&] {
          fail(!saves);
          return true;
        };
        config.exit = [] {};
        config.save = [&] { fail(saves); };
        try {
          PreemptionCheckpointHandler handler(strategy, Checkpoint(), folder.path(), config);
          while (true) handler.run([&] { (void)strategy.reduce(ReduceOp::kSum, 1.0); });
        } catch (const std::exception& error) {
          return error.what();
        }
      });
  CAPTURE(errors[0]);
  CHECK(errors[0].find("worker:1 failed in " + std::string(saves ? "save" : "termination_watcher") +
                       ": " + why) != std::string::npos);
  CHECK(errors[1] == why);
}

TEST_CASE("workers other than the chief leave nothing in folders of their own",
          "[strategy][spec][PRE-05]") {
  const TempFolder folder;
  MultiProcessRun run(workers(2, {folder.path(), "100000", "slow=5", "own"}));
  REQUIRE(run.wait_for_output("worker:0", "call 5\n", kPatience));
  run.kill("worker:1", SIGTERM);
  for (const std::string worker : {"worker:0", "worker:1"}) {
    CHECK(run.wait(worker, kPatience).code == kPreemptedExitCode);
  }
  CHECK(checkpoints(folder / "0").size() == 1);
  CHECK_FALSE(fs::exists(folder / "1"));
}

TEST_CASE("a handler needs a folder, and a grace period that can be", "[strategy][spec][PRE-06]") {
  OneDeviceStrategy strategy("CPU:0");
  const auto made = [&](const std::string& folder, std::chrono::milliseconds grace) {
    PreemptionCheckpointHandler handler(strategy, Checkpoint(), folder, {.grace_period = grace});
  };
  CHECK(throws(ErrorCode::kInvalidArgument, "directory is empty",
               [&] { made("", std::chrono::milliseconds(0)); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "grace_period is -1 ms",
               [&] { made("/tmp/x", std::chrono::milliseconds(-1)); }));
}

TEST_CASE("one process alone is asked by its own watcher, and goes on when its exit returns",
          "[strategy][unit]") {
  const TempFolder folder;
  OneDeviceStrategy strategy("CPU:0");
  const auto scope = strategy.scope();
  const Variable count = Variable::create("count", torch::zeros({}, torch::kFloat64));
  Checkpoint checkpoint({{"count", count}});
  bool asked = false;
  int exits = 0;
  PreemptionCheckpointHandler handler(
      strategy, checkpoint, folder / "c",
      {.termination_watcher = [&] { return asked; }, .exit = [&] { ++exits; }});

  for (int call = 0; call < 5; ++call) {
    asked = call >= 3;
    CHECK(handler.run([&] { return call; }) == call);
  }

  CHECK(exits == 1);
  CHECK(handler.total_run_calls() == 5);
  PreemptionCheckpointHandler next(strategy, checkpoint, folder / "c");
  CHECK(next.total_run_calls() == 3);
}

TEST_CASE("the longest grace period that there is does not end", "[strategy][spec][PRE-02]") {
  const TempFolder folder;
  OneDeviceStrategy strategy("CPU:0");
  const auto scope = strategy.scope();
  Checkpoint checkpoint({{"count", Variable::create("count", torch::zeros({}, torch::kFloat64))}});
  int exits = 0;
  PreemptionCheckpointHandler handler(strategy, checkpoint, folder / "c",
                                      {.termination_watcher = [] { return true; },
                                       .exit = [&] { ++exits; },
                                       .grace_period = std::chrono::milliseconds::max()});

  for (int call = 0; call < 5; ++call) (void)handler.run([] { return 0; });

  CHECK(exits == 0);
  CHECK(checkpoints(folder / "c").size() == 1);
}

TEST_CASE("a notice that is given once outlives a save that fails", "[strategy][spec][PRE-02]") {
  const TempFolder folder;
  OneDeviceStrategy strategy("CPU:0");
  const auto scope = strategy.scope();
  const auto grace = std::chrono::milliseconds(GENERATE(0, 3'600'000));
  bool asked = true;
  bool full = true;
  int saves = 0;
  int exits = 0;
  PreemptionCheckpointHandler handler(
      strategy, Checkpoint(), folder / "c",
      {.termination_watcher = [&] { return std::exchange(asked, false); },
       .exit = [&] { ++exits; },
       .grace_period = grace,
       .save =
           [&] {
             if (std::exchange(full, false)) throw std::runtime_error("the disk is full");
             ++saves;
           }});
  CHECK_THROWS(handler.run([] {}));
  CHECK(handler.total_run_calls() == 0);

  for (int call = 0; call < 3; ++call) handler.run([] {});

  CHECK(saves == 1);
  CHECK(exits == (grace.count() == 0 ? 1 : 0));
  CHECK(handler.total_run_calls() == 3);
}

TEST_CASE("a notice that is given once is kept until the grace period has ended",
          "[strategy][spec][PRE-02]") {
  const TempFolder folder;
  OneDeviceStrategy strategy("CPU:0");
  const auto scope = strategy.scope();
  Checkpoint checkpoint({{"count", Variable::create("count", torch::zeros({}, torch::kFloat64))}});
  bool asked = false;
  int exits = 0;
  PreemptionCheckpointHandler handler(
      strategy, checkpoint, folder / "c",
      {.termination_watcher = [&] { return std::exchange(asked, false); },
       .exit = [&] { ++exits; },
       .grace_period = std::chrono::milliseconds(20)});
  (void)handler.run([] { return 0; });
  asked = true;

  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (exits == 0 && std::chrono::steady_clock::now() < until) {
    (void)handler.run([] { return 0; });
  }

  CHECK(exits == 1);
}

}  // namespace
}  // namespace muster::testing
