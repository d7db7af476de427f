// What the processes of tests/programs/elastic.cc print, compared with a run of one worker to which
// nothing happens.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/unit/strategy/multi_worker_mirrored/programs.h"

namespace muster::testing {

using Lines = std::vector<std::string>;

constexpr std::chrono::seconds kPatience{100};

inline MultiProcessOptions elastic_workers(int count, const Lines& arguments) {
  Lines command{MUSTER_ELASTIC_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return workers_of(count, command);
}

// Steps with their losses, and the parameters at the end; without the number of workers.
inline Lines results(const std::string& output) {
  Lines lines;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("step ")) lines.push_back(line.substr(0, line.find(" of ")));
    if (line.starts_with("parameter ")) lines.push_back(line);
  }
  return lines;
}

// What else it says: the log, errors.
inline std::string without_results(const std::string& output) {
  std::string rest;
  std::istringstream stream(output);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with("step ") && !line.starts_with("parameter ")) rest += line + "\n";
  }
  return rest;
}

inline Lines without_faults(const Lines& arguments) {
  MultiProcessRun run(elastic_workers(1, arguments));
  return results(run.join().output.at("worker:0"));
}

// The end of `all` that a worker sees that has joined late.
inline void check_end(const Lines& all, const Lines& end) {
  REQUIRE(!end.empty());
  REQUIRE(end.size() <= all.size());
  CHECK(Lines(all.end() - static_cast<std::ptrdiff_t>(end.size()), all.end()) == end);
}

// Some of `all`, the last step and the parameters among them: what a worker prints that has been
// away.
inline void check_parts(const Lines& all, const Lines& parts) {
  REQUIRE(parts.size() >= 5);
  check_end(all, Lines(parts.end() - 5, parts.end()));
  for (const std::string& line : parts) {
    if (std::find(all.begin(), all.end(), line) == all.end()) FAIL_CHECK("not without: " + line);
  }
}

// Throws where that does not become true: no thread but a test's own may check.
inline void eventually(const std::string& what, std::chrono::seconds limit,
                       const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) {
      throw std::runtime_error("not within " + std::to_string(limit.count()) + " s: " + what);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// From now on. Throws where it does not.
inline void makes_steps_of(const MultiProcessRun& run, const std::string& task, int workers,
                           std::chrono::seconds limit) {
  const std::size_t before = run.output(task).size();
  const std::string wanted = " of " + std::to_string(workers) + "\n";
  try {
    eventually(task + " makes a step of " + std::to_string(workers), limit,
               [&] { return run.output(task).find(wanted, before) != std::string::npos; });
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(error.what() + ("\n" + without_results(run.output(task))));
  }
}

}  // namespace muster::testing
