// A WorkerCore over an IO that records, in time that stands still.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
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

  std::uint64_t Start(std::uint64_t view, std::uint64_t epoch = 1, const std::string& sha = "") {
    v1::Command command;
    command.set_id(next_command++);
    v1::StartExecutor& start = *command.mutable_start_executor();
    start.mutable_plan()->set_job_id("j");
    start.mutable_plan()->set_view(view);
    start.mutable_plan()->set_epoch(epoch);
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
    if (servers) (void)start.mutable_plan()->add_ps();
    start.set_adopt(true);
    core.OnCommand(StreamId(7), command);
    return command.id();
  }
  void Ready(ProcessId process, const Status& status = Ok()) {
    v1::FromExecutor message;
    message.mutable_ready()->mutable_status()->set_code(static_cast<int>(status.code()));
    message.mutable_ready()->mutable_status()->set_message(Message(status));
    core.OnMessage(process, message);
  }
  void StartReady(std::uint64_t view) {
    Start(view);
    Ready(io.launched.back());
  }
  static v1::ClosureAssignment Assignment(std::uint64_t view, std::uint64_t id,
                                          std::uint64_t attempt = 1) {
    v1::ClosureAssignment assignment;
    assignment.set_job_id("j");
    assignment.set_view(view);
    assignment.mutable_closure()->set_kind(v1::CLOSURE_KIND_TRAIN);
    assignment.mutable_closure()->set_id(id);
    assignment.set_attempt(attempt);
    return assignment;
  }
  void Finish(ProcessId process, std::uint64_t view, std::uint64_t id, std::uint64_t attempt = 1) {
    v1::FromExecutor message;
    v1::ClosureResult& result = *message.mutable_closure();
    result.set_job_id("j");
    result.set_view(view);
    result.mutable_closure()->set_kind(v1::CLOSURE_KIND_TRAIN);
    result.mutable_closure()->set_id(id);
    result.set_attempt(attempt);
    core.OnMessage(process, message);
  }
  StatusCode Code(std::uint64_t command) const {
    for (const auto& [stream, result] : io.replies) {
      if (result.command_id() == command) return static_cast<StatusCode>(result.status().code());
    }
    return StatusCode::kUnknown;
  }
  std::vector<v1::ClosureResult> Results() const {
    std::vector<v1::ClosureResult> results;
    for (const auto& message : io.up) {
      if (message.has_closure()) results.push_back(message.closure());
    }
    return results;
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
