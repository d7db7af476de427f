#include "cli/drain.h"

#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "cli/flags.h"
#include "cli/format.h"
#include "common/base/task_name.h"
#include "common/base/utf8.h"
#include "common/base/words.h"
#include "common/messages/task_proto.h"

namespace muster::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPause{200};
// Without --timeout: twice what daemons take at most as they are.
constexpr milliseconds kLimit{120'000};

std::string CheckTask(const std::string& text) {
  if (TaskIn(text) && FirstBadUtf8(text) == std::string::npos) return "";
  return fmt::format("\"{}\" is no task: give one of `muster status`, as worker:1 or ps:0",
                     ToValidUtf8(text));
}

void AddTask(CLI::App& command, Options& options) {
  command.add_option("TASK", options.task, "A task of the cluster: worker:1, ps:0")
      ->required()
      ->check(CLI::Validator(CheckTask, ""))
      ->type_name("");
  AddOutput(command, options);
}

const v1::TaskState* Find(const v1::ClusterStatus& status, const std::string& task) {
  for (const v1::TaskState& state : status.tasks()) {
    if (TaskName(state.task()) == task) return &state;
  }
  return nullptr;
}

// What a task that drains waits for.
std::string WaitsFor(const v1::TaskState& state) {
  const auto jobs = static_cast<std::uint64_t>(state.held_by_size());
  if (jobs == 0) return "what runs there";
  return fmt::format("{} {}", Agreeing(jobs, "job", "jobs"), Joined(state.held_by()));
}

std::string Who(const v1::TaskState& state) {
  return fmt::format("{}, {}", state.drained_by().empty() ? "an operator" : state.drained_by(),
                     DateTime(state.drained_ms()));
}

// Others of its kind that have its work now.
std::string WhoIsLeft(const v1::ClusterStatus& status, const std::string& type) {
  for (const v1::TaskState& state : status.tasks()) {
    if (state.task().type() == type && state.state() == "up") return "";
  }
  const std::string kind = type == "ps" ? "parameter server" : type;
  return fmt::format("no {} is up now: jobs that need one wait for it\n", kind);
}

void SayEnd(const Context& context, const v1::ClusterStatus& status, const v1::TaskState& state) {
  context.terminal.err << fmt::format(
      "{0} is drained{1}; it gets no work until `muster undrain {0}`\n{2}", TaskName(state.task()),
      state.pid() == 0 ? "" : fmt::format(" (process {} of it is there and idle)", state.pid()),
      WhoIsLeft(status, state.task().type()));
  if (context.options.output == Output::kJson) context.terminal.out << Json(state);
}

}  // namespace

void AddDraining(CLI::App& app, Options& options) {
  CLI::App* drain = app.add_subcommand(
      "drain",
      "Take a task out of work: what it runs ends or goes to others, then its daemon ends");
  AddTask(*drain, options);
  AddDuration(*drain, "--timeout",
              "How long to wait for that (120s); exit code 7 after it, the drain goes on",
              [&options](milliseconds timeout) { options.timeout = timeout; });
  AddTask(*app.add_subcommand("undrain", "Let a task that was drained work again"), options);
}

// Waits until the task has drained, and says whom it waits for whenever that changes. A coordinator
// that is away is asked again: it has the wish on its disk.
ExitCode Drain(const Context& context) {
  // Named as the coordinator names it: "worker:01" is worker:1, and shall be found in its answers.
  const TaskId asked_for = *TaskIn(context.options.task);
  const std::string task = asked_for.ToString();
  const TimePoint begin = context.clock.Now();
  const milliseconds limit = context.options.timeout.value_or(kLimit);
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) return Fail(context, api.status());
  const Result<v1::DrainTaskReply> asked = (*api)->Drain(ToProto(asked_for));
  if (!asked.ok()) return Fail(context, asked.status());
  if (asked->existing()) {
    context.terminal.err << fmt::format("{} was taken out before ({})\n", task, Who(asked->task()));
  }
  std::string told;
  std::string waits = "its daemon";
  while (true) {
    const Result<v1::ClusterStatus> status = (*api)->GetStatus();
    // The coordinator may be on its way back: what it was asked is on its disk. A call that was cut
    // short says nothing.
    const bool failed = !status.ok() && !context.interrupted();
    if (failed && CodeOf(status.status()) != ExitCode::kUnreachable) {
      return Fail(context, status.status());
    }
    const v1::TaskState* const state = status.ok() ? Find(*status, task) : nullptr;
    if (state != nullptr && state->state() == "drained") {
      SayEnd(context, *status, *state);
      return ExitCode::kDone;
    }
    if (state != nullptr && state->drained_ms() == 0) {
      return Fail(context, Aborted("{} was let in again meanwhile (muster undrain)", task));
    }
    if (failed) {
      waits = Message(status.status());
    } else if (state != nullptr && state->state() == "draining") {
      waits = WaitsFor(*state);
    }
    if (std::exchange(told, waits) != waits) {
      context.terminal.err << fmt::format("{} drains: waits for {}\n", task, waits);
    }
    if (context.clock.Now() - begin >= limit) break;
    if (!context.sleep(kPause)) {
      return Fail(context, Cancelled("interrupted while {} drains, which goes on; `muster status` "
                                     "shows it",
                                     task));
    }
  }
  (void)Fail(context, DeadlineExceeded(
                          "{} has not drained after {}, waiting for {}; it goes on, and `muster "
                          "status` shows it",
                          task, Seconds(static_cast<double>(limit.count()) / 1e3), waits));
  return ExitCode::kTimedOut;
}

ExitCode Undrain(const Context& context) {
  const TaskId asked_for = *TaskIn(context.options.task);
  const std::string task = asked_for.ToString();
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) return Fail(context, api.status());
  const Result<v1::UndrainTaskReply> reply = (*api)->Undrain(ToProto(asked_for));
  if (!reply.ok()) return Fail(context, reply.status());
  const v1::TaskState& state = reply->task();
  const std::string now = state.state() == "up"         ? "is let in again, and gets work"
                          : state.state() == "draining" ? "still drains and ends; its next process "
                                                          "gets work"
                                                        : "is let in again; start its daemon";
  context.terminal.err << fmt::format(
      "{} {}\n", task,
      reply->existing() ? fmt::format("was not taken out; it is {}", state.state()) : now);
  if (context.options.output == Output::kJson) context.terminal.out << Json(state);
  return ExitCode::kDone;
}

std::string TakenOutText(const v1::ClusterStatus& status) {
  std::string text;
  for (const v1::TaskState& state : status.tasks()) {
    const std::string task = TaskName(state.task());
    if (state.state() == "draining") {
      text += fmt::format("{} drains: waits for {}\n", task, WaitsFor(state));
    } else if (state.drained_ms() != 0) {
      text += fmt::format("{0} was taken out by {1}; `muster undrain {0}` lets it in\n", task,
                          Who(state));
    }
  }
  return text;
}

}  // namespace muster::cli
