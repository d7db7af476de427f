// Workers that come and go, as processes of their own: what they print is compared, bit for bit,
// with a run of one worker to which nothing happens.
#include <chrono>
#include <fstream>
#include <iterator>

#include <signal.h>

#include "tests/support/catch.h"
#include "tests/support/lateness.h"
#include "tests/unit/strategy/multi_worker_mirrored/elastic_runs.h"

namespace muster::testing {
namespace {

using Clock = std::chrono::steady_clock;

TEST_CASE("losses and parameters are the same bits with one, two and three workers",
          "[strategy][unit][elastic]") {
  const std::string optimizer = GENERATE("sgd", "adam");
  const Lines alone = without_faults({"20", optimizer});
  REQUIRE(alone.size() == 24);

  for (const int count : {2, 3}) {
    MultiProcessRun run(elastic_workers(count, {"20", optimizer}));
    const MultiProcessResult result = run.join();
    for (const auto& [worker, output] : result.output) {
      CAPTURE(worker, count);
      CHECK(results(output) == alone);
    }
  }
}

TEST_CASE("a worker that was given other steps is told so, and the others go on",
          "[strategy][unit][elastic]") {
  // Worker 1 never begins alone, and worker 0 has steps left whenever worker 1 comes.
  MultiProcessRun run(
      workers_of(2, {"sh", "-c",
                     R"(case "$TF_CONFIG" in *'"index":1'*) exec "$0" 1000001 slow;; esac
                        exec "$0" 1000000 slow alone=500)",
                     MUSTER_ELASTIC_PROGRAM}));

  CHECK(run.wait("worker:1", kPatience).code == 3);
  CHECK(run.output("worker:1").find("error INVALID_ARGUMENT") != std::string::npos);
  CHECK(run.output("worker:1").find("other steps, seed or logical_shards") != std::string::npos);
  makes_steps_of(run, "worker:0", 1, kPatience);
}

// What one that is killed says last, until another one makes a step without it.
void check_goes_on(const MultiProcessRun& run, const std::string& victim,
                   std::chrono::milliseconds limit) {
  const std::string other = victim == "worker:0" ? "worker:1" : "worker:0";
  const Lateness lateness;
  REQUIRE(run.wait_for_output(victim, "signal", kPatience));
  const Clock::time_point lost = Clock::now();
  REQUIRE(run.wait_for_output(other, " of 2", kPatience));
  const auto took = std::chrono::ceil<std::chrono::milliseconds>(Clock::now() - lost);
  CAPTURE(lateness.worst_ms());
  CHECK(took.count() - lateness.worst_ms() <= limit.count());
}

TEST_CASE("a group that ends by a checksum that fails costs no step, and no worker",
          "[strategy][unit][elastic]") {
  const Lines alone = without_faults({"20", "adam"});
  for (const std::string phase : {"shard", "summed", "committed"}) {
    MultiProcessRun run(elastic_workers(3, {"20", "worker:1", "7", "-1", phase, "adam"}));
    for (const auto& [worker, output] : run.join().output) {
      CAPTURE(phase, worker, output);
      CHECK(results(output) == alone);
    }
  }
}

TEST_CASE("a worker whose own values are refused leaves, and the others go on without it",
          "[strategy][unit][elastic]") {
  const Lines alone = without_faults({"20"});
  for (const std::string victim : {"worker:0", "worker:1"}) {
    MultiProcessRun run(elastic_workers(3, {"20", victim, "7", "-2", "summed"}));
    for (const std::string worker : {"worker:0", "worker:1", "worker:2"}) {
      const ProcessExit exit = run.wait(worker, kPatience);
      CAPTURE(worker, run.output(worker));
      if (worker == victim) {
        CHECK(exit.code == 3);
        CHECK(run.output(worker).find("error INVALID_ARGUMENT") != std::string::npos);
        continue;
      }
      CHECK(exit.ok());
      CHECK(results(run.output(worker)) == alone);
    }
  }
}

TEST_CASE("a worker killed anywhere in a step costs no step, and changes no bit",
          "[strategy][unit][elastic]") {
  const Lines alone = without_faults({"20", "adam"});
  for (const std::string victim : {"worker:0", "worker:1"}) {
    for (const std::string phase : {"begin", "shard", "summed", "applied", "committed"}) {
      MultiProcessRun run(
          elastic_workers(3, {"20", victim, "7", std::to_string(SIGKILL), phase, "adam"}));
      CAPTURE(victim, phase);
      check_goes_on(run, victim, std::chrono::seconds(5));
      for (const std::string worker : {"worker:0", "worker:1", "worker:2"}) {
        const ProcessExit exit = run.wait(worker, kPatience);
        if (worker == victim) {
          CHECK(exit.signal == SIGKILL);
          continue;
        }
        CAPTURE(worker, run.output(worker));
        CHECK(exit.ok());
        CHECK(results(run.output(worker)) == alone);
      }
    }
  }
}

TEST_CASE("the last worker that is left finishes alone", "[strategy][unit][elastic]") {
  const Lines alone = without_faults({"20"});
  MultiProcessRun run(
      elastic_workers(2, {"20", "worker:0", "7", std::to_string(SIGKILL), "summed"}));

  CHECK(run.wait("worker:1", kPatience).ok());

  CHECK(results(run.output("worker:1")) == alone);
}

TEST_CASE("a stopped worker is left behind, and comes back when it wakes",
          "[strategy][unit][elastic]") {
  const Lines alone = without_faults({"150"});
  for (const std::string phase : {"begin", "shard", "summed", "applied", "committed"}) {
    MultiProcessRun run(
        elastic_workers(3, {"150", "worker:1", "7", std::to_string(SIGSTOP), phase, "slow"}));
    CAPTURE(phase);
    // 4 s until the others know.
    check_goes_on(run, "worker:1", std::chrono::seconds(4 + 5));
    run.kill("worker:1", SIGCONT);

    const MultiProcessResult result = run.join();
    check_end(alone, results(result.output.at("worker:0")));
    CHECK(results(result.output.at("worker:0")) == alone);
    CHECK(results(result.output.at("worker:2")) == alone);
    CAPTURE(result.output.at("worker:1"));
    CHECK(result.output.at("worker:1").find("step 150 ") != std::string::npos);
    const Lines last = results(result.output.at("worker:1"));
    check_end(alone, Lines(last.end() - 5, last.end()));
  }
}

TEST_CASE("a worker that is killed and started again joins with another worker's state",
          "[strategy][unit][elastic]") {
  const Lines alone = without_faults({"600", "adam"});
  MultiProcessOptions options = elastic_workers(
      3, {"600", "worker:0", "7", std::to_string(SIGKILL), "applied", "slow", "adam"});
  options.restart = true;
  MultiProcessRun run(options);

  REQUIRE(run.wait_for_output("worker:1", " of 2", kPatience));
  REQUIRE(run.wait_for_output("worker:1", "step 600 ", kPatience));
  const MultiProcessResult result = run.join();

  CHECK(results(result.output.at("worker:1")) == alone);
  CHECK(results(result.output.at("worker:2")) == alone);
  const Lines back = results(result.output.at("worker:0"));
  CAPTURE(result.output.at("worker:0"));
  check_end(alone, Lines(back.end() - 5, back.end()));
}

TEST_CASE(
    "what replicas keep for themselves does not depend on who computes, and is lost with nobody",
    "[strategy][unit][elastic]") {
  const Lines alone = without_faults({"20", "adam", "own"});
  const auto has = [&](const std::string& line) {
    return std::any_of(alone.begin(), alone.end(),
                       [&](const std::string& one) { return one.starts_with(line); });
  };
  // 20 steps of 8 shards, of which shard s counts 16 + s; and one a step.
  CHECK(has("parameter rows 0x1.86p+11 "));
  CHECK(has("parameter steps 0x1.4p+4 "));
  CHECK(has("parameter norm.running_mean "));
  for (const int count : {2, 3}) {
    MultiProcessRun run(elastic_workers(count, {"20", "adam", "own"}));
    for (const auto& [worker, output] : run.join().output) {
      CAPTURE(worker, count);
      CHECK(results(output) == alone);
    }
  }
  for (const std::string victim : {"worker:0", "worker:1"}) {
    for (const std::string phase : {"shard", "summed", "committed"}) {
      MultiProcessRun run(
          elastic_workers(3, {"20", victim, "7", std::to_string(SIGKILL), phase, "adam", "own"}));
      CAPTURE(victim, phase);
      for (const std::string worker : {"worker:0", "worker:1", "worker:2"}) {
        const ProcessExit exit = run.wait(worker, kPatience);
        if (worker == victim) continue;
        CAPTURE(worker, run.output(worker));
        CHECK(exit.ok());
        CHECK(results(run.output(worker)) == alone);
      }
    }
  }
}

TEST_CASE("a worker that joins is given what replicas keep for themselves, and adds to it",
          "[strategy][unit][elastic]") {
  const Lines alone = without_faults({"400", "adam", "own"});
  MultiProcessOptions options = elastic_workers(
      3, {"400", "worker:0", "7", std::to_string(SIGKILL), "applied", "slow", "adam", "own"});
  options.restart = true;
  MultiProcessRun run(options);

  const MultiProcessResult result = run.join();

  CHECK(results(result.output.at("worker:1")) == alone);
  CHECK(results(result.output.at("worker:2")) == alone);
  CAPTURE(result.output.at("worker:0"));
  check_parts(alone, results(result.output.at("worker:0")));
}

TEST_CASE("the page's program prints on two workers what the page says",
          "[strategy][unit][elastic]") {
  std::ifstream page(MUSTER_DOC_TEXT);
  const std::string wanted((std::istreambuf_iterator<char>(page)), {});
  REQUIRE(!wanted.empty());
  MultiProcessOptions options = elastic_workers(2, {});
  options.command = {MUSTER_DOC_PROGRAM};

  const MultiProcessResult result = MultiProcessRun(options).join();

  for (const auto& [worker, output] : result.output) {
    CAPTURE(worker, output);
    CHECK(output.find(wanted) != std::string::npos);
  }
}

}  // namespace
}  // namespace muster::testing
