// A coordinator that answers what a test tells it, and a command's surroundings.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/job_api.h"
#include "common/base/scheduler.h"
#include "tests/support/fake_scheduler.h"
#include "tests/support/fixed_environment.h"

namespace muster::cli::testing {

class FakeJobApi : public JobApi {
 public:
  Result<v1::HasFileReply> HasFile(const v1::HasFileRequest& request) override {
    v1::HasFileReply reply;
    reply.set_present(files.contains(request.sha256()));
    return reply;
  }
  Result<v1::UploadFileReply> Upload(const std::string& sha256, std::uint64_t,
                                     const std::function<Result<std::string>()>& read) override {
    std::string all;
    while (true) {
      MUSTER_TRY_ASSIGN(const std::string piece, read());
      if (piece.empty()) break;
      all += piece;
    }
    files[sha256] = all;
    v1::UploadFileReply reply;
    reply.set_bytes(all.size());
    return reply;
  }
  Result<v1::SubmitJobReply> Submit(const v1::SubmitJobRequest& request) override {
    submitted.push_back(request);
    return submit;
  }
  Result<v1::ListJobsReply> List() override { return list; }
  Result<v1::Job> Get(const std::string& name) override {
    if (name != job.id()) return NotFound("no job {}", name);
    return job;
  }
  // Each call takes the next of `watches`; each takes `watch_takes` of time.
  Result<v1::Job> Watch(const std::string& name, std::uint64_t version,
                        std::chrono::milliseconds limit) override {
    watched.push_back(name);
    versions.push_back(version);
    clock.Advance(std::min(limit, watch_takes));
    if (watches.empty()) return job;
    Result<v1::Job> next = watches.front();
    watches.pop_front();
    return next;
  }
  Result<v1::Job> Stop(const v1::StopJobRequest& request) override {
    stops.push_back(request);
    return job;
  }
  Status ReadLogs(const v1::ReadLogsRequest& request,
                  const std::function<void(const v1::LogRecord&)>& on_record) override {
    log_requests.push_back(request);
    if (logs.empty()) return Ok();
    auto [records, end] = logs.front();
    logs.pop_front();
    for (const v1::LogRecord& record : records) on_record(record);
    clock.Advance(logs_take);
    return end;
  }
  // Each call takes the next of `statuses`, then `status`.
  Result<v1::ClusterStatus> GetStatus() override {
    if (statuses.empty()) return status;
    Result<v1::ClusterStatus> next = statuses.front();
    statuses.pop_front();
    return next;
  }
  Result<v1::ListCheckpointsReply> ListCheckpoints(const std::string&) override {
    return checkpoints;
  }
  Result<v1::CollectCheckpointsReply> CollectCheckpoints(
      const v1::CollectCheckpointsRequest& request) override {
    collects.push_back(request);
    return collect;
  }
  Result<v1::DrainTaskReply> Drain(const v1::Task& task) override {
    drained.push_back(fmt::format("{}:{}", task.type(), task.index()));
    return drain;
  }
  Result<v1::UndrainTaskReply> Undrain(const v1::Task& task) override {
    drained.push_back(fmt::format("not {}:{}", task.type(), task.index()));
    return undrain;
  }
  Status Backup(const std::function<Status(const std::string&)>& write) override {
    for (const std::string& piece : backup) MUSTER_TRY(write(piece));
    return backup_end;
  }
  Status ReportExit(const v1::ReportExitRequest&) override { return Ok(); }
  void CancelCalls() override { cancelled = true; }

  FakeScheduler clock;
  std::map<std::string, std::string> files;
  Result<v1::SubmitJobReply> submit = v1::SubmitJobReply();
  std::vector<v1::SubmitJobRequest> submitted;
  Result<v1::ListJobsReply> list = v1::ListJobsReply();
  v1::Job job;
  std::deque<Result<v1::Job>> watches;
  std::chrono::milliseconds watch_takes{100};
  std::vector<std::string> watched;
  std::vector<std::uint64_t> versions;
  std::vector<v1::StopJobRequest> stops;
  std::deque<std::pair<std::vector<v1::LogRecord>, Status>> logs;
  // For so long a stream goes on behind its last line.
  std::chrono::milliseconds logs_take{0};
  std::vector<v1::ReadLogsRequest> log_requests;
  Result<v1::ClusterStatus> status = v1::ClusterStatus();
  std::deque<Result<v1::ClusterStatus>> statuses;
  Result<v1::ListCheckpointsReply> checkpoints = v1::ListCheckpointsReply();
  std::vector<v1::CollectCheckpointsRequest> collects;
  Result<v1::CollectCheckpointsReply> collect = v1::CollectCheckpointsReply();
  std::vector<std::string> backup;
  Status backup_end;
  std::vector<std::string> drained;
  Result<v1::DrainTaskReply> drain = v1::DrainTaskReply();
  Result<v1::UndrainTaskReply> undrain = v1::UndrainTaskReply();
  bool cancelled = false;
};

// Runs a command line against the fake; keeps what it printed.
struct Fixture {
  FakeJobApi api;
  std::ostringstream out;
  std::ostringstream err;
  Status connect = Ok();
  bool interrupted = false;
  // Somebody watches err.
  bool live = false;
  // Somebody watches out, too, on a screen of that size.
  std::optional<ScreenSize> screen = {};
  Result<int> program_code = 0;
  std::string program_output = {};
  std::vector<std::vector<std::string>> programs;

  ExitCode Run(const std::vector<std::string>& arguments) {
    const auto parsed = ParseCommandLine(arguments);
    if (const auto* early = std::get_if<EarlyExit>(&parsed)) {
      (early->code == ExitCode::kDone ? out : err) << early->text;
      return early->code;
    }
    const Environment environment = FixedEnvironment({});
    const Terminal terminal{.out = out,
                            .err = err,
                            .live = live || screen,
                            .screen = screen.has_value(),
                            .size = [this] { return screen.value_or(ScreenSize()); }};
    const Context context{
        .options = std::get<Options>(parsed),
        .terminal = terminal,
        .environment = environment,
        .clock = api.clock,
        .connect = [this]() -> Result<JobApi*> {
          if (!connect.ok()) return connect;
          return &api;
        },
        .interrupted = [this] { return interrupted; },
        .sleep =
            [this](std::chrono::milliseconds time) {
              api.clock.Advance(time);
              return !interrupted;
            },
        .run = [this](const std::string& program, const std::vector<std::string>& rest,
                      std::string* output) -> Result<int> {
          programs.push_back({program});
          programs.back().insert(programs.back().end(), rest.begin(), rest.end());
          if (output != nullptr) *output = program_output;
          return program_code;
        },
    };
    return RunCommand(context);
  }

  bool Said(const std::string& part) const { return err.str().find(part) != std::string::npos; }
};

inline v1::Job MakeJob(const std::string& id, v1::JobState state, std::uint64_t version = 1) {
  v1::Job job;
  job.set_id(id);
  job.set_name("digits");
  job.set_state(state);
  job.set_version(version);
  return job;
}

}  // namespace muster::cli::testing
