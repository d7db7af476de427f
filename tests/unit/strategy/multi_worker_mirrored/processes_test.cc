// Workers as processes of their own, told of each other by TF_CONFIG alone.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include <signal.h>

#include "tests/support/worker_processes.h"

namespace muster::testing {
namespace {

using Lines = std::vector<std::string>;

const std::string kProgram = MUSTER_MULTI_WORKER_PROGRAM;

std::vector<Lines> same(int workers, const Lines& argv) {
  return std::vector<Lines>(static_cast<std::size_t>(workers), argv);
}

// What each worker printed of a run of `steps` steps.
std::vector<Lines> train(int workers, int steps) {
  WorkerProcesses processes(same(workers, {kProgram, std::to_string(steps)}));
  std::vector<Lines> printed;
  for (int i = 0; i < workers; ++i) {
    const auto ended = processes.end_of(static_cast<std::size_t>(i));
    CAPTURE(ended.lines);
    CHECK(ended.exit.ok());
    printed.push_back(ended.lines);
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

  for (const int workers : {2, 4}) {
    const auto printed = train(workers, 200);
    const std::vector<double> chiefs = losses(printed[0]);
    REQUIRE(chiefs.size() == one.size());
    double most = 0;
    for (std::size_t i = 0; i < one.size(); ++i) {
      most = std::max(most, std::abs(chiefs[i] - one[i]));
    }
    CAPTURE(workers, most);
    CHECK(most <= 1e-9);
    for (const Lines& other : printed) CHECK(losses(other) == chiefs);
    CHECK(losses(train(workers, 200)[0]) == chiefs);
  }
}

// Worker 1 of three does something; what the others end with.
Lines errors_of_others(WorkerProcesses& processes) {
  Lines errors;
  for (const std::size_t worker : {0U, 2U}) {
    const auto ended = processes.end_of(worker);
    CAPTURE(ended.lines);
    CHECK(ended.exit.code == 3);
    errors.push_back(ended.lines.empty() ? "" : ended.lines.back());
  }
  return errors;
}

TEST_CASE("a process that is killed or stopped ends the others with an error that names it",
          "[strategy][unit][MWM-15]") {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    WorkerProcesses processes(same(3, {kProgram, "1000000"}));
    for (const std::size_t worker : {0U, 1U, 2U}) processes.await_lines(worker, 5);

    CHECK(processes.child(1).Signal(signal).ok());

    for (const std::string& error : errors_of_others(processes)) {
      CAPTURE(signal, error);
      CHECK(error.find("error UNAVAILABLE") == 0);
      CHECK(error.find("worker:1") != std::string::npos);
    }
  }
}

TEST_CASE("a process that leaves, calls once more or brings another shape is every other's error",
          "[strategy][unit]") {
  for (const std::string how : {"leave", "extra", "shape"}) {
    std::vector<Lines> argv = same(3, {kProgram, "1000000"});
    argv[1].insert(argv[1].end(), {how, "7"});
    WorkerProcesses processes(argv);

    for (const std::string& error : errors_of_others(processes)) {
      CAPTURE(how, error);
      CHECK(error.find(how == "leave" ? "error UNAVAILABLE" : "error INVALID_ARGUMENT") == 0);
      CHECK(error.find("worker:1") != std::string::npos);
    }
    const auto ended = processes.end_of(1);
    CHECK(ended.exit.code == (how == "leave" ? 0 : 3));
  }
}

TEST_CASE("the page's program prints on two workers what the page says", "[strategy][unit]") {
  Lines wanted;
  std::ifstream page(MUSTER_DOC_TEXT);
  for (std::string line; std::getline(page, line);) wanted.push_back(line);
  REQUIRE(wanted.size() == 4);

  WorkerProcesses processes(same(2, {MUSTER_DOC_PROGRAM}));

  // Its last lines: the log's come before.
  const Lines all = processes.end_of(0).lines;
  REQUIRE(all.size() >= wanted.size());
  const Lines printed(all.end() - static_cast<std::ptrdiff_t>(wanted.size()), all.end());
  CHECK(printed == wanted);
  CHECK(processes.end_of(1).exit.ok());
}

}  // namespace
}  // namespace muster::testing
