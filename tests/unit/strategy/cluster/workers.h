// Clusters for tests of the coordinator: real executors on threads of the test, or in processes of
// their own, which can be killed and stopped.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <signal.h>

#include "common/process/child.h"
#include "strategy/cluster/internal/cluster_link.h"
#include "strategy/muster.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/dispatch/cluster.h"
#include "tests/unit/strategy/errors.h"

namespace muster::testing {

using namespace std::chrono_literals;

inline TimePoint soon() { return std::chrono::steady_clock::now() + 60s; }

// Waits for a condition that another thread or process brings about.
template <class Met>
void eventually(const std::string& what, const Met& met) {
  const TimePoint end = soon();
  while (!met()) {
    if (std::chrono::steady_clock::now() > end) FAIL("never happened: " << what);
    std::this_thread::sleep_for(1ms);
  }
}

// Executors on threads: what functions do to globals, the test sees.
class ThreadWorkers final : public internal::ClusterLink {
 public:
  explicit ThreadWorkers(
      int workers, std::uint32_t slots = 1,
      dispatch::Driver::Options options = dispatch::DriverOptions(dispatch::ProgramFunctions()))
      : driver_(std::make_unique<dispatch::Driver>(std::move(options))), slots_(slots) {
    for (int i = 0; i < workers; ++i) add(i);
  }
  ~ThreadWorkers() override { driver_.reset(); }

  dispatch::Driver& driver() override { return *driver_; }
  std::vector<std::string> workers() const override {
    std::vector<std::string> tasks;
    for (const auto& [task, executor] : executors_) tasks.push_back(task);
    return tasks;
  }
  std::vector<std::pair<std::string, bool>> tasks() const override {
    std::vector<std::pair<std::string, bool>> tasks;
    for (const std::string& task : workers()) tasks.emplace_back(task, true);
    return tasks;
  }
  Status await_workers(std::optional<TimePoint>) override { return Ok(); }

  void add(int index) {
    const std::string task = "worker:" + std::to_string(index);
    dispatch::Executor::Options options;
    options.worker_index = static_cast<std::uint32_t>(index);
    executors_[task] = std::make_unique<dispatch::RunningExecutor>(
        dispatch::ProgramFunctions(), net::LinkKind::kUnix, slots_, "key", std::move(options));
    const Status connected = dispatch::ConnectTo(*driver_, task, *executors_[task]);
    INFO(ToString(connected));
    REQUIRE(connected.ok());
  }
  // Its executor ends, and another one takes its place.
  void replace(int index) {
    const std::string task = "worker:" + std::to_string(index);
    driver_->Disconnect(task, Unavailable("{} is replaced", task));
    executors_[task].reset();
    add(index);
  }
  void lose(int index) {
    driver_->Disconnect("worker:" + std::to_string(index), Unavailable("it was unplugged"));
  }

 private:
  // Before the executors: a driver that is gone cancels what they run.
  std::map<std::string, std::unique_ptr<dispatch::RunningExecutor>> executors_;
  std::unique_ptr<dispatch::Driver> driver_;
  const std::uint32_t slots_;
};

// Executors in processes: this test program, run again with a hidden case that serves.
class ProcessWorkers final : public internal::ClusterLink {
 public:
  // Who has said nothing for `silence` is lost.
  explicit ProcessWorkers(int workers, std::chrono::milliseconds silence = 60s) {
    dispatch::Driver::Options options = dispatch::DriverOptions(dispatch::ProgramFunctions());
    options.link.ping_every = 200ms;
    options.link.silence = silence;
    driver_ = std::make_unique<dispatch::Driver>(std::move(options));
    for (int i = 0; i < workers; ++i) start(i);
  }
  ~ProcessWorkers() override {
    driver_.reset();
    children_.clear();
  }

  dispatch::Driver& driver() override { return *driver_; }
  std::vector<std::string> workers() const override {
    std::vector<std::string> tasks;
    for (const auto& [index, child] : children_) tasks.push_back(task(index));
    return tasks;
  }
  std::vector<std::pair<std::string, bool>> tasks() const override {
    std::vector<std::pair<std::string, bool>> tasks;
    for (const std::string& task : workers()) tasks.emplace_back(task, true);
    return tasks;
  }
  Status await_workers(std::optional<TimePoint>) override { return Ok(); }

  // A process for this worker, connected.
  void start(int index) {
    const std::string socket = fmt::format("{}/{}-{}", folder_.path(), index, ++incarnation_);
    auto child =
        process::Child::Start({.argv = {"/proc/self/exe", "serves closures to its parent"},
                               .environment = {{"MUSTER_TEST_SOCKET", socket},
                                               {"MUSTER_TEST_INDEX", std::to_string(index)}}});
    REQUIRE(child.ok());
    children_[index] = *std::move(child);
    Status connected;
    eventually(task(index) + " serves", [&] {
      if (!std::filesystem::exists(socket)) return false;
      connected = driver_->Connect(task(index), Incarnation(incarnation_), net::LinkKind::kUnix,
                                   socket, soon());
      return connected.ok();
    });
  }
  void kill(int index) {
    REQUIRE(children_.at(index)->Signal(SIGKILL).ok());
    REQUIRE(children_.at(index)->Wait(60s).ok());
  }
  void signal(int index, int number) { REQUIRE(children_.at(index)->Signal(number).ok()); }
  // As the daemon's verdict about a process that was killed.
  void tell_killed(int index) {
    driver_->Crashed(task(index), "signal SIGKILL", dispatch::Suspects::Cause::kOutside);
  }
  static std::string task(int index) { return "worker:" + std::to_string(index); }

 private:
  const TempFolder folder_;
  std::uint64_t incarnation_ = 0;
  std::map<int, std::unique_ptr<process::Child>> children_;
  std::unique_ptr<dispatch::Driver> driver_;
};

}  // namespace muster::testing
