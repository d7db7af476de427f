// A cluster with programs, and what their drivers are told and say.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator::testing {

inline bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline v1::JobSpec ProgramSpec(const std::string& name = "words") {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_strategy()->set_kind(v1::STRATEGY_KIND_PARAMETER_SERVER);
  v1::ProgramSpec& program = *spec.mutable_program();
  program.set_name(name);
  program.set_sha256(std::string(64, 'a'));
  program.add_arguments("--epochs");
  program.add_arguments("3");
  return spec;
}

inline v1::JobSpec WithWorkers(std::uint32_t workers, std::uint32_t most = 0,
                               const std::string& name = "words") {
  v1::JobSpec spec = ProgramSpec(name);
  spec.mutable_strategy()->set_workers(workers);
  spec.mutable_strategy()->set_max_workers(most);
  return spec;
}

inline v1::JobSpec Restarting(std::uint32_t most = 0) {
  v1::JobSpec spec = ProgramSpec();
  spec.mutable_program()->set_restart(v1::RESTART_POLICY_ON_FAILURE);
  spec.mutable_program()->set_max_restarts(most);
  return spec;
}

class Programs : public Cluster {
 public:
  ProgramJob& words(const std::string& name = "words") {
    return dynamic_cast<ProgramJob&>(any(name));
  }
  v1::JobState State(const std::string& name = "words") { return Cluster::State(name); }
  std::string Said() { return any("words").record().job().message(); }

  void MainIsReady() {
    v1::FromProgram message;
    (void)message.mutable_ready();
    core->OnDriverMessage(words().id(), words().driver(), message);
    Settle();
  }
  // Variables of the program are on that server, as its heartbeat says.
  void ServerHolds(int index) {
    v1::DaemonMessage beat;
    beat.mutable_heartbeat()->set_sequence(1'000);
    v1::JobBytes& held = *beat.mutable_heartbeat()->add_job_bytes();
    held.set_job_id(words().id());
    held.set_bytes(8);
    at({"ps", index}).Say(beat);
  }
  void MainEnds(const std::string& how) {
    core->OnDriverExit(words().id(), words().driver(), how == "exit code 0", how);
    Settle();
  }
  void Report(std::uint64_t done, std::optional<Incarnation> driver = std::nullopt) {
    v1::FromProgram message;
    message.mutable_report()->set_done(done);
    message.mutable_report()->set_phase("epoch 2");
    core->OnDriverMessage(words().id(), driver.value_or(words().driver()), message);
  }
  // Submits it, and main() begins.
  void Run(const v1::JobSpec& spec = ProgramSpec()) {
    REQUIRE(Submit(spec).ok());
    MainIsReady();
    REQUIRE(State() == v1::JOB_STATE_RUNNING);
  }

  // Whom the driver was told of last.
  v1::ProgramMembers Members() {
    for (auto one = drivers.sent.rbegin(); one != drivers.sent.rend(); ++one) {
      if (one->has_members()) return one->members();
    }
    return {};
  }
  std::vector<std::uint32_t> MemberIndices() {
    std::vector<std::uint32_t> indices;
    const v1::ProgramMembers members = Members();
    for (const v1::ProgramWorker& worker : members.workers()) {
      indices.push_back(worker.task().index());
    }
    return indices;
  }
  std::vector<v1::ExecutorVerdict> Verdicts() {
    std::vector<v1::ExecutorVerdict> verdicts;
    for (const v1::ToProgram& one : drivers.sent) {
      if (one.has_verdict()) verdicts.push_back(one.verdict());
    }
    return verdicts;
  }
  bool AskedToStop() {
    return std::any_of(drivers.sent.begin(), drivers.sent.end(),
                       [](const v1::ToProgram& one) { return one.has_stop(); });
  }
  int Commands(const TaskId& task, v1::Command::BodyCase body) {
    const auto& commands = at(task).commands;
    return static_cast<int>(
        std::count_if(commands.begin(), commands.end(),
                      [body](const v1::Command& one) { return one.body_case() == body; }));
  }
  int Starts(const TaskId& task) { return Commands(task, v1::Command::kStartExecutor); }
  int Stops(const TaskId& task) { return Commands(task, v1::Command::kStopExecutor); }
};

using Indices = std::vector<std::uint32_t>;

}  // namespace muster::coordinator::testing
