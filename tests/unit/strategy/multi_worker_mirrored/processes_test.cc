// Workers as processes of their own, told of each other by TF_CONFIG alone.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <sstream>

#include <fmt/format.h>
#include <signal.h>

#include "tests/support/catch.h"
#include "tests/unit/strategy/multi_worker_mirrored/programs.h"

namespace muster::testing {
namespace {

using Lines = std::vector<std::string>;

const std::string kProgram = MUSTER_MULTI_WORKER_PROGRAM;
const Lines kWorkers{"worker:0", "worker:1", "worker:2", "worker:3"};
constexpr std::chrono::seconds kPatience{100};

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// What each worker printed of a run of `steps` steps.
std::vector<Lines> train(int count, int steps, const Lines& how = {}) {
  Lines command{kProgram, std::to_string(steps)};
  command.insert(command.end(), how.begin(), how.end());
  MultiProcessRun run(workers_of(count, command));
  const MultiProcessResult result = run.join();
  std::vector<Lines> printed;
  for (int i = 0; i < count; ++i) {
    printed.push_back(lines_of(result.output.at(kWorkers[static_cast<std::size_t>(i)])));
  }
  return printed;
}

std::vector<double> losses(const Lines& lines) {
  std::vector<double> values;
  for (const std::string& line : lines) {
    if (line.rfind("loss ", 0) == 0) values.push_back(std::strtod(line.c_str() + 5, nullptr));
  }
  return values;
}

TEST_CASE("one, two and four processes train alike, and twice the same bit for bit",
          "[strategy][unit]") {
  const std::vector<double> one = losses(train(1, 200)[0]);
  REQUIRE(one.size() == 200);
  CHECK(one.back() < one.front() / 2);

  for (const int count : {2, 4}) {
    const auto printed = train(count, 200);
    const std::vector<double> chiefs = losses(printed[0]);
    REQUIRE(chiefs.size() == one.size());
    double most = 0;
    for (std::size_t i = 0; i < one.size(); ++i) {
      most = std::max(most, std::abs(chiefs[i] - one[i]));
    }
    CAPTURE(count, most);
    CHECK(most <= 1e-9);
    for (const Lines& other : printed) CHECK(losses(other) == chiefs);
    CHECK(losses(train(count, 200)[0]) == chiefs);
  }
}

TEST_CASE("one, two and four processes have the losses of one libtorch loop on Fashion-MNIST",
          "[strategy][unit]") {
  const std::vector<double> plain = losses(train(1, 200, {"plain"})[0]);
  REQUIRE(plain.size() == 200);
  // Batches of 16 differ: ten of them on each side.
  const double begin = std::accumulate(plain.begin(), plain.begin() + 10, 0.0);
  CHECK(std::accumulate(plain.rbegin(), plain.rbegin() + 10, 0.0) < 0.7 * begin);

  for (const int count : {1, 2, 4}) {
    for (const Lines& printed : train(count, 200, {"fashion"})) {
      const std::vector<double> theirs = losses(printed);
      REQUIRE(theirs.size() == plain.size());
      double most = 0;
      for (std::size_t i = 0; i < plain.size(); ++i) {
        most = std::max(most, std::abs(theirs[i] - plain[i]));
      }
      CAPTURE(count, most);
      CHECK(most <= 1e-9);
    }
  }
}

// Worker 1 of three has done something: what the others end with.
void check_others(MultiProcessRun& run, const std::string& code) {
  for (const std::string worker : {"worker:0", "worker:2"}) {
    CHECK(run.wait(worker, kPatience).code == 3);
    const Lines lines = lines_of(run.output(worker));
    const std::string error = lines.empty() ? "" : lines.back();
    CAPTURE(worker, error);
    CHECK(error.find("error " + code) == 0);
    CHECK(error.find("worker:1") != std::string::npos);
  }
}

TEST_CASE("a process that is killed or stopped ends the others with an error that names it",
          "[strategy][unit][MWM-15]") {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    MultiProcessRun run(workers_of(3, {kProgram, "1000000"}));
    for (const std::string worker : {"worker:0", "worker:1", "worker:2"}) {
      REQUIRE(run.wait_for_output(worker, "loss", kPatience));
    }

    run.kill("worker:1", signal);

    CAPTURE(signal);
    check_others(run, "UNAVAILABLE");
  }
}

TEST_CASE(
    "a MirroredStrategy that names no devices has the replicas of all workers of the cluster, "
    "which "
    "train as MultiWorkerMirroredStrategy's do",
    "[spec][MIR-01]") {
  const auto by_workers = train(3, 30);
  REQUIRE(losses(by_workers[0]).size() == 30);

  const auto mirrored = train(3, 30, {"mirrored"});

  for (std::size_t worker = 0; worker < 3; ++worker) {
    const Lines& printed = mirrored[worker];
    CAPTURE(worker, printed);
    CHECK(std::count(printed.begin(), printed.end(), fmt::format("joined {} of 3", worker)) == 1);
    CHECK(losses(printed) == losses(by_workers[0]));
  }
}

TEST_CASE("a worker of a MirroredStrategy that is killed is an error of the others, who name it",
          "[spec][MIR-01][faults]") {
  MultiProcessRun run(workers_of(3, {kProgram, "1000000", "mirrored"}));
  for (const std::string worker : {"worker:0", "worker:1", "worker:2"}) {
    REQUIRE(run.wait_for_output(worker, "loss", kPatience));
  }

  run.kill("worker:1", SIGKILL);

  check_others(run, "UNAVAILABLE");
}

TEST_CASE("sums in flight from step to step change nothing of the training between them",
          "[strategy][unit]") {
  const auto plain = train(3, 30);
  const auto started = train(3, 30, {"started"});
  REQUIRE(losses(plain[0]).size() == 30);
  for (const Lines& worker : started) CHECK(losses(worker) == losses(plain[0]));
}

TEST_CASE("a process that is killed ends the others, who have sums in flight",
          "[strategy][unit][faults]") {
  MultiProcessRun run(workers_of(3, {kProgram, "1000000", "started"}));
  for (const std::string worker : {"worker:0", "worker:1", "worker:2"}) {
    REQUIRE(run.wait_for_output(worker, "loss", kPatience));
  }

  run.kill("worker:1", SIGKILL);

  check_others(run, "UNAVAILABLE");
}

TEST_CASE("a process that leaves, calls once more or brings another shape is every other's error",
          "[strategy][unit]") {
  for (const std::string how : {"leave", "extra", "shape"}) {
    MultiProcessRun run(workers_of(3, {kProgram, "1000000", how, "worker:1", "7"}));
    CAPTURE(how);
    check_others(run, how == "leave" ? "UNAVAILABLE" : "INVALID_ARGUMENT");
    CHECK(run.wait("worker:1", kPatience).code == (how == "leave" ? 0 : 3));
  }
}

TEST_CASE("the page's program prints on two workers what the page says", "[strategy][unit]") {
  Lines wanted;
  std::ifstream page(MUSTER_DOC_TEXT);
  for (std::string line; std::getline(page, line);) wanted.push_back(line);
  REQUIRE(wanted.size() == 5);

  MultiProcessRun run(workers_of(2, {MUSTER_DOC_PROGRAM}));
  const MultiProcessResult result = run.join();

  // Its last lines: the log's come before.
  const Lines all = lines_of(result.output.at("worker:0"));
  REQUIRE(all.size() >= wanted.size());
  CHECK(Lines(all.end() - static_cast<std::ptrdiff_t>(wanted.size()), all.end()) == wanted);
}

}  // namespace
}  // namespace muster::testing
