// Processes of one program that are told of each other by TF_CONFIG, on ports of loopback.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/process/child.h"
#include "tests/support/catch.h"
#include "tests/support/reserved_ports.h"

namespace muster::testing {

// {"cluster": {"worker": [...]}, "task": {"type": "worker", "index": 1}}
inline std::string tf_config(const std::vector<std::string>& workers, int index) {
  std::vector<std::string> quoted;
  for (const std::string& address : workers) quoted.push_back('"' + address + '"');
  return fmt::format(
      R"({{"cluster": {{"worker": [{}]}}, "task": {{"type": "worker", "index": {}}}}})",
      fmt::join(quoted, ", "), index);
}

// Each ends with the object at the latest.
class WorkerProcesses {
 public:
  // argv[i] starts worker i.
  explicit WorkerProcesses(const std::vector<std::vector<std::string>>& argv)
      : ports_(static_cast<int>(argv.size())), said_(argv.size()) {
    for (std::size_t i = 0; i < argv.size(); ++i) {
      auto child = process::Child::Start(
          {.argv = argv[i],
           .environment = {{"TF_CONFIG", tf_config(ports_.addresses(), static_cast<int>(i))},
                           {"OMP_NUM_THREADS", "1"}},
           .on_line = [this, i](auto, std::string line) {
             const std::lock_guard lock(mutex_);
             said_[i].push_back(std::move(line));
             more_.notify_all();
           }});
      REQUIRE(child.ok());
      children_.push_back(*std::move(child));
    }
  }

  // All lines of worker i, when it has ended.
  struct Ended {
    process::Exit exit;
    std::vector<std::string> lines;
  };
  Ended end_of(std::size_t worker) {
    const auto exit = children_[worker]->Wait(std::chrono::seconds(100));
    REQUIRE(exit.ok());
    const std::lock_guard lock(mutex_);
    return {*exit, said_[worker]};
  }
  // Waits until worker i has said that many lines.
  void await_lines(std::size_t worker, std::size_t count) {
    std::unique_lock lock(mutex_);
    const bool there = more_.wait_for(lock, std::chrono::seconds(100),
                                      [&] { return said_[worker].size() >= count; });
    REQUIRE(there);
  }
  process::Child& child(std::size_t worker) { return *children_[worker]; }

 private:
  ReservedPorts ports_;
  std::mutex mutex_;
  std::condition_variable more_;
  std::vector<std::vector<std::string>> said_;
  std::vector<std::unique_ptr<process::Child>> children_;  // the first to go: they call back
};

}  // namespace muster::testing
