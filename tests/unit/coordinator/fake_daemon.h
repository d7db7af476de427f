// A daemon's process in a test's cluster, and what it holds of a job.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/coordinator.h"
#include "tests/unit/coordinator/fake_driver.h"

namespace muster::coordinator::testing {

class Cluster;

// What a daemon's process holds of one view of a job, and a new coordinator finds there.
struct Memory {
  struct Mark {
    std::uint64_t attempt = 0;
    bool applied = false;
  };

  // As a shard does it: once for each closure, whatever the attempt.
  void Push(std::uint64_t closure, std::uint64_t attempt) {
    if (closure <= start || attempt < least_attempt) return;
    Mark& mark = marks[closure];
    if (attempt < mark.attempt) return;
    mark = {attempt, true};
  }
  // Closures 1..step are applied and no other.
  bool StandsAt(std::uint64_t step) const {
    return step == start + Applied() && (marks.empty() || marks.rbegin()->first <= step);
  }
  std::uint64_t Applied() const {
    return static_cast<std::uint64_t>(
        std::ranges::count_if(marks, [](const auto& one) { return one.second.applied; }));
  }
  void Report(v1::AdoptReport& report) const;

  std::uint64_t view = 0;
  std::uint64_t start = 0;
  std::uint64_t least_attempt = 0;
  std::map<std::uint64_t, Mark> marks;
};

// One daemon process. Answers commands as a healthy one would, unless a test says otherwise.
class FakeDaemon : public DaemonLink, public std::enable_shared_from_this<FakeDaemon> {
 public:
  FakeDaemon(Cluster& cluster, TaskId task, std::string boot_id)
      : cluster_(cluster), task_(std::move(task)), boot_id_(std::move(boot_id)) {}

  void Send(const v1::CoordinatorMessage& message) override;
  void End(const Status& status) override { ended = status; }

  void Beat();
  // The files have come that commands of `needs_files` wait for.
  void FilesCome();
  void Say(const v1::DaemonMessage& message);
  void Finish(const Given& closure, const Status& status = Ok());
  // What an executor does before it has finished: its gradient gets to these servers of the view.
  void Push(const Given& closure, const std::set<int>& servers);
  // Finishes everything it has been given.
  void Work();
  void ExecutorExits(const std::string& how, bool from_outside = false);
  // What becomes of the executor that it was asked for last.
  void Executor(v1::ExecutorEvent::Kind kind, const std::string& how = "",
                bool from_outside = false);
  // The same, to be changed and said: its `executor`.
  v1::DaemonMessage ExecutorMessage(v1::ExecutorEvent::Kind kind, const std::string& how) const;
  // Prints a line for the job.
  void Print(const std::string& job_id, const std::string& text);
  // What becomes of a process of the launch that was started last.
  void LaunchedProcess(std::uint32_t rank, v1::LaunchEvent::Kind kind, std::uint32_t code = 0,
                       std::uint32_t signal = 0, bool asked = false, std::int64_t time_us = 1);

  SessionId session;
  bool silent = false;
  bool released = false;
  std::string drain_reason;
  std::optional<Status> ended;
  std::deque<Given> given;
  std::vector<v1::Command> commands;
  // Answers to commands of a kind, by the name of the oneof's field; OK without.
  std::map<v1::Command::BodyCase, Status> refuse;
  // Commands of these kinds wait for files; while some come, heartbeats name them.
  std::set<v1::Command::BodyCase> needs_files;
  bool files_come = true;
  v1::CheckReport check;
  std::uint64_t examples = 1'000;
  v1::DataFiles data;
  v1::JobPlan plan;
  v1::ModelValues values;
  v1::StartExecutor start;
  v1::PrepareLaunch prepared;
  v1::StartLaunch launched;
  // What its processes wait for.
  std::vector<v1::CollectiveWait> waits;
  // The last group that it was asked into, and whether its executor had the variables.
  v1::JoinGroup joined;
  bool has_variables = true;
  // Does not answer that.
  bool silent_groups = false;
  // Members that it does not find.
  std::set<TaskId> cut_from;
  // A program's executors do not get ready by themselves.
  bool slow_executors = false;
  // Evaluations are not answered.
  bool slow_evaluations = false;
  // Saves of a parameter server that did not stand exactly at the step.
  int torn_saves = 0;

  const std::string& boot_id() const { return boot_id_; }

 private:
  void Obey(const v1::Command& command);
  void ObeyAboutView(const v1::Command& command, v1::CommandResult& result);
  void ObeyStart(std::uint64_t number, bool goes_on, const v1::Command& command,
                 v1::DaemonMessage& message);
  Memory& MemoryOf(const std::string& job_id);
  Cluster& cluster_;
  const TaskId task_;
  std::vector<v1::Command> waiting_;
  const std::string boot_id_;
  std::uint64_t beats_ = 0;
};

}  // namespace muster::coordinator::testing
