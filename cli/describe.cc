#include <algorithm>
#include <map>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/format.h"
#include "common/base/byte_count.h"
#include "common/base/shell_word.h"
#include "common/base/words.h"
#include "common/messages/job_state.h"

namespace muster::cli {
namespace {

void Line(std::string& text, const std::string& key, const std::string& value) {
  text += fmt::format("{:<12} {}\n", key, value);
}

std::string Progress(const v1::JobProgress& progress) {
  std::string text = fmt::format("step {} of {} (epoch {:.2f})", progress.step(),
                                 progress.total_steps(), progress.epoch());
  if (progress.examples_per_second() > 0) {
    text += fmt::format(", {} examples/s",
                        Thousands(static_cast<std::uint64_t>(progress.examples_per_second())));
  }
  if (progress.step() > 0) text += fmt::format(", loss {:.4f}", progress.loss());
  if (!progress.phase().empty()) text += ", " + progress.phase();
  return text;
}

std::string Scores(const v1::EvaluationResult& result) {
  std::string text = fmt::format("loss {:.4f}", result.loss());
  if (result.has_accuracy()) text += fmt::format(", accuracy {:.4f}", result.accuracy());
  if (result.has_auc()) text += fmt::format(", auc {:.4f}", result.auc());
  return text;
}

std::string Evaluation(const v1::EvaluationResult& result) {
  return fmt::format("at step {} on {} example{}: {}", result.step(), Thousands(result.examples()),
                     result.examples() == 1 ? "" : "s", Scores(result));
}

// What evaluator:0 has made of it.
std::string EvaluationOf(const v1::CheckpointInfo& info) {
  if (info.has_evaluation()) return Scores(info.evaluation());
  return info.unevaluated().empty() ? "waits" : "failed: " + info.unevaluated();
}

std::string CommandLine(const std::string& name,
                        const google::protobuf::RepeatedPtrField<std::string>& arguments) {
  std::string text = ShellWord(name);
  for (const std::string& argument : arguments) text += " " + ShellWord(argument);
  return text;
}

void Head(const Terminal& terminal, const v1::Job& job, std::int64_t now_ms, std::string& text) {
  Line(text, "Job", job.id());
  Line(text, "Name", job.name());
  const Colour colour = job.state() == v1::JOB_STATE_SUCCEEDED ? Colour::kGreen
                        : job.state() == v1::JOB_STATE_FAILED  ? Colour::kRed
                                                               : Colour::kYellow;
  std::string state = Paint(terminal, colour, StateName(job.state()));
  if (!Reason(job).empty()) state += fmt::format(" ({})", Reason(job));
  Line(text, "State", state);
  const bool failed = job.state() == v1::JOB_STATE_FAILED && !job.error().message().empty();
  if (!job.message().empty() && !(failed && job.message() == job.error().message())) {
    Line(text, "", job.message());
  }
  if (failed) {
    Line(text, "Error",
         fmt::format("{}: {}", CodeName(static_cast<StatusCode>(job.error().code())),
                     job.error().message()));
  }
  const v1::ProgramSpec& program = job.spec().program();
  const v1::LaunchSpec& launch = job.spec().launch();
  if (job.spec().has_program()) {
    Line(text, "Program", CommandLine(program.name(), program.arguments()));
  }
  if (job.spec().has_launch()) {
    Line(text, "Command", CommandLine(launch.command(), launch.arguments()));
  }
  Line(text, "Submitted",
       fmt::format("{} ({} ago)", DateTime(job.submitted_ms()),
                   Seconds(static_cast<double>(now_ms - job.submitted_ms()) / 1000)));
  if (job.started_ms() != 0) {
    const std::int64_t end = job.ended_ms() != 0 ? job.ended_ms() : now_ms;
    Line(text, job.ended_ms() != 0 ? "Ran" : "Running",
         fmt::format("{:.1f} s", static_cast<double>(end - job.started_ms()) / 1000));
  }
}

void ProgramFigures(const v1::Job& job, std::string& text) {
  const v1::ProgramReport& report = job.program();
  if (job.has_program()) {
    std::string closures = fmt::format("{} done", Thousands(report.done()));
    if (!HasEnded(job.state())) {
      closures += fmt::format(", {} in flight, {} queued", Thousands(report.in_flight()),
                              Thousands(report.queued()));
      if (report.closures_per_second() > 0) {
        closures += fmt::format(
            ", {}/s", Thousands(static_cast<std::uint64_t>(report.closures_per_second())));
      }
    }
    Line(text, "Closures", closures);
    if (report.reruns() > 0) Line(text, "Run again", Counted(report.reruns(), "closure"));
    if (!report.phase().empty()) Line(text, "Phase", report.phase());
  }
  const v1::LaunchSpec& launch = job.spec().launch();
  if (launch.elastic() && !HasEnded(job.state())) {
    const v1::StrategySpec& strategy = job.spec().strategy();
    const auto run =
        std::count_if(job.launch().tasks().begin(), job.launch().tasks().end(),
                      [](const v1::LaunchedTask& task) { return task.state() == "running"; });
    Line(text, "Take part",
         fmt::format("{} of {} to {}", Counted(static_cast<std::uint64_t>(run), "process"),
                     std::max(1U, strategy.workers()), strategy.max_workers()));
  }
  if (job.restarts() > 0) {
    Line(text, launch.elastic() ? "Replaced" : "Begun anew",
         launch.elastic() ? Counted(job.restarts(), "process", "processes")
                          : Counted(job.restarts(), "time"));
  }
}

void Figures(const v1::Job& job, std::string& text) {
  const v1::JobProgress& progress = job.progress();
  if (job.has_progress()) {
    Line(text, "Progress", Progress(progress));
    std::string times =
        fmt::format("read {:.0f}, pull {:.0f}, compute {:.0f}, push {:.0f} us", progress.read_us(),
                    progress.pull_us(), progress.compute_us(), progress.push_us());
    if (progress.pause_us() > 0) {
      times += fmt::format("; these means hold a pause: one step took {:.1f} s",
                           static_cast<double>(progress.pause_us()) / 1e6);
    }
    Line(text, "Step time", times);
    Line(text, "Links",
         fmt::format("{} through shared memory, {} over TCP", ByteCount(progress.local_bytes()),
                     ByteCount(progress.tcp_bytes())));
    if (progress.bad_records() > 0) {
      Line(text, "Bad records", fmt::format("{} skipped", progress.bad_records()));
    }
  }
  if (job.has_evaluation()) Line(text, "Evaluation", Evaluation(job.evaluation()));
  if (job.closures_rerun() > 0) {
    Line(text, "Run again", Counted(job.closures_rerun(), "closure"));
  }
  if (job.view() > 1) Line(text, "Returned", Counted(job.view() - 1, "time") + " to a checkpoint");
  if (!job.checkpoints().empty()) {
    Line(text, "Stall", fmt::format("{} ms for the last checkpoint", job.checkpoint_stall_ms()));
  }
}

void Variables(const v1::Job& job, std::string& text) {
  if (job.variables().empty()) return;
  std::vector<std::vector<std::string>> rows{{"VARIABLE", "SHAPE", "SHARDS"}};
  for (const v1::VariableLayout& variable : job.variables()) {
    std::string shards = Joined(variable.shards(), kMostNamed, [](const v1::ShardPlacement& shard) {
      return fmt::format("ps:{} rows {}-{}", shard.ps_index(), shard.row_offset(),
                         shard.row_offset() + shard.rows());
    });
    if (shards.empty()) shards = "whole";  // no parameter servers
    rows.push_back(
        {variable.name(), fmt::format("[{}]", fmt::join(variable.shape(), ", ")), shards});
  }
  text += "\n" + Table(rows);
}

void Tasks(const v1::Job& job, std::string& text) {
  if (job.tasks().empty()) return;
  std::vector<std::vector<std::string>> rows{
      {"TASK", "STATE", "PID", "SESSION", "EXECUTOR", "CLOSURES", "MEMORY", "HELD"}};
  for (const v1::TaskState& task : job.tasks()) {
    rows.push_back({TaskName(task.task()), task.state(),
                    task.pid() == 0 ? "-" : std::to_string(task.pid()),
                    std::to_string(task.session()),
                    task.executor_pid() == 0 ? "-" : std::to_string(task.executor_pid()),
                    std::to_string(task.closures_done()), ByteCount(task.resident_bytes()),
                    task.job_bytes().empty() ? "-" : ByteCount(task.job_bytes(0).bytes())});
  }
  text += "\n" + Table(rows);
}

void Processes(const v1::Job& job, std::string& text) {
  if (job.launch().tasks().empty()) return;
  std::vector<std::vector<std::string>> rows{
      {"PROCESS", "STATE", "PID", "WORKER", "HOST", "ADDRESS", "END"}};
  for (const v1::LaunchedTask& task : job.launch().tasks()) {
    rows.push_back({TaskName(task.task()), task.state(),
                    task.pid() == 0 ? "-" : std::to_string(task.pid()), TaskName(task.worker()),
                    task.hostname(), task.address().empty() ? "-" : task.address(),
                    task.how().empty() ? "-" : task.how()});
  }
  text += "\n" + Table(rows);
}

// Collective calls that have not ended: who stands in them, and for whom.
void Waits(const v1::Job& job, std::string& text) {
  std::vector<std::vector<std::string>> rows{{"WAITS", "FOR", "SINCE", "OPERATION"}};
  for (const v1::TaskState& task : job.tasks()) {
    for (const v1::CollectiveWait& wait : task.waits()) {
      std::string since = Seconds(static_cast<double>(wait.lasts_ms()) / 1000);
      if (wait.limit_ms() > 0) {
        since += " of " + Seconds(static_cast<double>(wait.limit_ms()) / 1000);
      }
      const std::string number =
          wait.operation() == 0 ? "" : fmt::format("{} of ", wait.operation());
      rows.push_back({TaskName(wait.task()), wait.awaited(), since,
                      fmt::format("{}generation {}: {}", number, wait.generation(), wait.call())});
    }
  }
  if (rows.size() > 1) text += "\n" + Table(rows);
}

void Checkpoints(const v1::Job& job, std::string& text) {
  if (job.checkpoints().empty()) return;
  const bool evaluated = job.spec().evaluation().evaluator();
  std::vector<std::vector<std::string>> rows{{"CHECKPOINT", "SAVED", "SIZE", "STALL"}};
  if (evaluated) rows[0].push_back("EVALUATION");
  rows[0].push_back("FOLDER");
  for (const v1::CheckpointInfo& info : job.checkpoints()) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {fmt::format("step {}", info.step()), DateTime(info.created_ms()),
           ByteCount(info.bytes()), fmt::format("{} ms", info.stall_ms())};
    if (evaluated) row.push_back(EvaluationOf(info));
    row.push_back(info.directory() + (info.refused().empty() ? "" : " REFUSED: " + info.refused()));
  }
  text += "\n" + Table(rows);
}

void Events(const v1::Job& job, std::string& text) {
  if (job.events().empty()) return;
  text += "\nEVENTS\n";
  // As in most stories, whatever is in this one.
  std::size_t width = 20;
  for (const v1::Event& event : job.events()) width = std::max(width, event.reason().size());
  for (const v1::Event& event : job.events()) {
    const std::string task = TaskName(event.task());
    text += fmt::format("{}  {:<{}} {}{}\n", ClockTime(event.time_ms()), event.reason(), width,
                        event.message().find(task) != std::string::npos ? "" : task + ": ",
                        event.message());
    for (const std::string& line : event.log_lines()) text += "    | " + line + "\n";
  }
}

}  // namespace

std::string DescribeText(const Terminal& terminal, const v1::Job& job, std::int64_t now_ms) {
  std::string text;
  Head(terminal, job, now_ms, text);
  Figures(job, text);
  ProgramFigures(job, text);
  Variables(job, text);
  Processes(job, text);
  Tasks(job, text);
  Waits(job, text);
  Checkpoints(job, text);
  Events(job, text);
  return text;
}

}  // namespace muster::cli
