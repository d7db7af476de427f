// A cluster that runs a job whose processes come and go.
#pragma once

#include <algorithm>
#include <csignal>
#include <functional>
#include <map>
#include <string>

#include <fmt/format.h>

#include "common/cluster/worker_book.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator::testing {

inline constexpr auto kProcessExited = v1::LaunchEvent::KIND_EXITED;

inline v1::JobSpec ElasticSpec(std::uint32_t least, std::uint32_t most,
                               v1::RestartPolicy policy = v1::RESTART_POLICY_ON_FAILURE) {
  v1::JobSpec spec;
  spec.set_name("train");
  spec.mutable_strategy()->set_kind(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
  spec.mutable_strategy()->set_workers(least);
  spec.mutable_strategy()->set_max_workers(most);
  v1::LaunchSpec& launch = *spec.mutable_launch();
  launch.set_command("train");
  launch.set_elastic(true);
  launch.set_restart(policy);
  return spec;
}

class ElasticCluster : public Cluster {
 public:
  const v1::Job& job() { return any("train").record().job(); }
  std::string Message() { return job().message(); }
  // What process `place` is, as people see it.
  v1::LaunchedTask Task(std::uint32_t place) {
    for (const v1::LaunchedTask& task : job().launch().tasks()) {
      if (task.task().index() == place) return task;
    }
    return {};
  }
  int Running() {
    const auto& tasks = job().launch().tasks();
    return static_cast<int>(
        std::ranges::count_if(tasks, [](const auto& task) { return task.state() == "running"; }));
  }
  void Run(const v1::JobSpec& spec) {
    REQUIRE(Submit(spec).ok());
    REQUIRE(job().state() == v1::JOB_STATE_RUNNING);
  }
  void Ends(std::uint32_t place, std::uint32_t code, std::uint32_t signal = 0, bool asked = false) {
    at(FromProto(Task(place).worker())).LaunchedProcess(place, kProcessExited, code, signal, asked);
    Settle();
  }
  // One that says of its end what `say` adds.
  void EndsSaying(std::uint32_t place, const std::string& how,
                  const std::function<void(v1::LaunchEvent&)>& say) {
    const v1::LaunchedTask task = Task(place);
    v1::DaemonMessage message;
    v1::LaunchEvent& event = *message.mutable_launched();
    event.set_job_id(job().id());
    event.set_launch(task.launch());
    *event.mutable_task() = task.task();
    event.set_kind(kProcessExited);
    event.set_how(how);
    say(event);
    at(FromProto(task.worker())).Say(message);
    Settle();
  }
  // It says that the run had ended when it came.
  void EndsTooLate(std::uint32_t place, std::uint32_t code = 1) {
    EndsSaying(place, fmt::format("exit code {}", code), [code](v1::LaunchEvent& event) {
      event.set_exit_code(code);
      event.set_too_late(true);
    });
  }
  // What the process on that worker was told last of the others: where they are, and whether one
  // has come to the end.
  std::map<int, std::string> Known(int worker) { return BookOf(worker).addresses; }
  bool Ended(int worker) { return BookOf(worker).ended; }
  cluster::WorkerBook BookOf(int worker) {
    std::string text;
    for (const v1::Command& command : at({"worker", worker}).commands) {
      if (command.has_start_launch()) text = command.start_launch().workers();
      if (command.has_update_launch()) text = command.update_launch().workers();
    }
    const auto book = cluster::ParseWorkerBook(text);
    REQUIRE(book.ok());
    return *book;
  }
};

}  // namespace muster::coordinator::testing
