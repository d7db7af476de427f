// A WorkerCore over an IO that records, in time that stands still.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "worker/worker_core.h"

namespace muster::worker {

// Records what the core orders.
struct FakeIo : WorkerIo {
  struct Sent {
    ProcessId process;
    v1::ToExecutor message;
  };
  struct Program {
    ProcessId process;
    std::string path;
    v1::ProgramSpec spec;
    v1::ProgramStart start;
  };
  std::vector<ProcessId> launched;
  std::vector<Program> programs;
  std::vector<std::pair<ProcessId, v1::ToProgram>> to_programs;
  FileKind fetched = FileKind::kArchive;
  std::set<ProcessId> killed;
  std::vector<Sent> sent;
  std::vector<std::string> fetches;
  std::vector<v1::DaemonMessage> up;
  std::vector<std::pair<StreamId, v1::CommandResult>> replies;
  Status launch_error;

  Result<int> Launch(ProcessId process) override {
    if (!launch_error.ok()) return launch_error;
    launched.push_back(process);
    return 1'000 + static_cast<int>(process.value());
  }
  void Complete(v1::ProgramStart& start) const override { start.set_key("key"); }
  Result<int> LaunchProgram(ProcessId process, const std::string& path, const v1::ProgramSpec& spec,
                            const v1::ProgramStart& start) override {
    if (!launch_error.ok()) return launch_error;
    programs.push_back({process, path, spec, start});
    return 1'000 + static_cast<int>(process.value());
  }
  void SendProgram(ProcessId process, const v1::ToProgram& message) override {
    to_programs.emplace_back(process, message);
  }
  void Kill(ProcessId process) override { killed.insert(process); }
  Result<Millis> CpuTime(ProcessId) const override { return cpu; }
  Millis cpu{0};
  std::optional<process::Wait> WaitOf(ProcessId) const override { return wait; }
  std::optional<process::Wait> wait;
  std::uint64_t MemoryOf(ProcessId process) override {
    return killed.contains(process) ? 0 : memory;
  }
  std::uint64_t memory = 0;
  void Send(ProcessId process, const v1::ToExecutor& message) override {
    sent.push_back({process, message});
  }
  void Fetch(const std::string& sha256, FileKind kind) override {
    fetches.push_back(sha256);
    fetched = kind;
  }
  void ToCoordinator(v1::DaemonMessage message) override { up.push_back(std::move(message)); }
  void Reply(StreamId stream, v1::CommandResult result) override {
    replies.emplace_back(stream, std::move(result));
  }
};

struct WorkerFixture {
  FakeScheduler scheduler;
  FakeIo io;
  WorkerCore core{{.worker_index = 2,
                   .threads = 3,
                   .advertised_host = "host-2",
                   .cache_directory = "/cache",
                   .warm = false},
                  scheduler,
                  io};
  std::uint64_t next_command = 1;

  std::uint64_t Start(std::uint64_t view, std::uint64_t epoch = 1, const std::string& sha = "",
                      std::uint64_t incarnation = 1) {
    v1::Command command;
    command.set_id(next_command++);
    v1::StartExecutor& start = *command.mutable_start_executor();
    start.mutable_plan()->set_job_id("j");
    start.mutable_plan()->set_view(view);
    start.mutable_plan()->set_epoch(epoch);
    start.mutable_program()->set_incarnation(incarnation);
    start.mutable_spec()->mutable_model()->set_archive_sha256(sha);
    core.OnCommand(StreamId(7), command);
    return command.id();
  }
  std::uint64_t Adopt(std::uint64_t view, std::uint64_t epoch, bool servers = false) {
    v1::Command command;
    command.set_id(next_command++);
    v1::StartExecutor& start = *command.mutable_start_executor();
    start.mutable_plan()->set_job_id("j");
    start.mutable_plan()->set_view(view);
    start.mutable_plan()->set_epoch(epoch);
    if (servers) {
      (void)start.mutable_plan()->add_ps();
      start.mutable_program()->set_incarnation(next_command + 1'000);
    }
    start.set_adopt(true);
    core.OnCommand(StreamId(7), command);
    return command.id();
  }
  void Ready(ProcessId process, const Status& status = Ok()) {
    v1::FromExecutor message;
    message.mutable_ready()->mutable_status()->set_code(static_cast<int>(status.code()));
    message.mutable_ready()->mutable_status()->set_message(Message(status));
    message.mutable_ready()->mutable_endpoint()->set_tcp_address("127.0.0.1:9");
    message.mutable_ready()->set_group_address("127.0.0.1:8");
    core.OnMessage(process, message);
  }
  void StartReady(std::uint64_t view) {
    Start(view);
    Ready(io.launched.back());
  }
  void AnswerAdoption(ProcessId process, std::uint64_t steps, const Status& status = Ok()) {
    v1::FromExecutor message;
    v1::AdoptAnswer& answer = *message.mutable_adopted();
    answer.set_steps(steps);
    answer.mutable_status()->set_code(static_cast<int>(status.code()));
    answer.mutable_status()->set_message(Message(status));
    core.OnMessage(process, message);
  }
  // What its executor runs, and how many it has ended.
  void Pulse(ProcessId process, std::uint64_t ended, std::uint64_t closure = 0) {
    v1::FromExecutor message;
    v1::ProgramPulse& pulse = *message.mutable_pulse();
    pulse.set_ended(ended);
    if (closure > 0) {
      pulse.add_running()->set_closure(closure);
      pulse.mutable_running(0)->set_attempt(closure);
    }
    core.OnMessage(process, message);
  }
  // Second by second, with a pulse each; what the pulse says stays as it is.
  void Live(ProcessId process, Millis time, std::uint64_t ended, std::uint64_t closure) {
    for (Millis passed{0}; passed < time; passed += Millis(1'000)) {
      Pulse(process, ended, closure);
      scheduler.Advance(Millis(1'000));
    }
  }
  StatusCode Code(std::uint64_t command) const {
    for (const auto& [stream, result] : io.replies) {
      if (result.command_id() == command) return static_cast<StatusCode>(result.status().code());
    }
    return StatusCode::kUnknown;
  }
  std::vector<v1::ExecutorEvent> Events() const {
    std::vector<v1::ExecutorEvent> events;
    for (const auto& message : io.up) {
      if (message.has_executor()) events.push_back(message.executor());
    }
    return events;
  }
};

}  // namespace muster::worker
