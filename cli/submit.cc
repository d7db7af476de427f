#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <system_error>

#include <fmt/core.h>
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/format.h"
#include "cli/launch.h"
#include "cli/printable.h"
#include "cli/program.h"
#include "cli/upload.h"
#include "common/base/step_rule.h"
#include "common/base/trouble.h"
#include "common/base/whole_file.h"
#include "common/base/words.h"
#include "common/config/job_yaml/job_yaml.h"
#include "common/config/job_yaml/validate_job.h"
#include "common/messages/job_state.h"
#include "common/messages/steps.h"
#include "muster/v1/cluster.pb.h"

namespace muster::cli {
namespace {

namespace pb = google::protobuf;

// The job file, with --name; its problems go to err, and into `problems`.
Result<config::JobFile> ReadJob(const Context& context, std::vector<std::string>& problems) {
  Result<config::JobFile> file = config::LoadJobYaml(context.options.file);
  if (!file.ok()) {
    // A disk that fails is no mistake in the file.
    return IsDiskTrouble(file.status().code()) ? file.status()
                                               : InvalidArgument("{}", Message(file.status()));
  }
  for (const config::LocatedProblem& problem : file->problems) {
    problems.push_back(file->Describe(problem));
    // They quote the file, which may be another's.
    context.terminal.err << Printable(problems.back()) << '\n';
  }
  if (!problems.empty()) {
    return InvalidArgument("{} in {}", Counted(problems.size(), "problem"), context.options.file);
  }
  if (!context.options.name.empty()) {
    file->spec.set_name(context.options.name);
    for (const config::Problem& problem : config::ValidateJob(file->spec)) {
      return InvalidArgument("--name: {}", problem.message);
    }
  }
  return file;
}

// What is to be submitted, from a job file or as a program.
struct Submission {
  v1::JobSpec spec;
  // Puts the job file's places into a message; may be empty.
  std::function<std::string(const std::string&)> locate = {};
  // The job file, for problems that stand nowhere else; empty: none.
  std::string file = {};

  std::string Located(const std::string& message) const {
    return locate ? locate(message) : message;
  }
};

std::string CheckpointTimes(const v1::CheckpointSpec& checkpoint, const v1::JobPlan& plan) {
  std::string times;
  if (checkpoint.every_steps() > 0)
    times = fmt::format("every {} steps, ", checkpoint.every_steps());
  if (plan.checkpoint_seconds() > 0) {
    times += fmt::format("every {} s{}, ", plan.checkpoint_seconds(),
                         checkpoint.has_every_seconds() ? "" : " (default)");
  }
  return times + "at the end and on stop";
}

void PrintProbe(const Context& context, const v1::JobSpec& spec, const v1::CheckReport& probe) {
  context.terminal.err << fmt::format("{} can run: {}, {}\n", spec.name(),
                                      Counted(probe.function_count(), "registered function"),
                                      probe.abi());
}

// How far batches run ahead of each other, in words.
std::string ConsistencyOf(const v1::JobPlan& plan) {
  const StepRule rule = StepsOf(plan);
  const std::string step =
      rule.gradients == 1 ? "" : fmt::format(", steps of {} batches", rule.gradients);
  if (!rule.bounded()) return "async";
  if (!rule.synchronous()) return fmt::format("staleness {}{}", rule.staleness, step);
  const std::uint32_t twice = plan.steps().speculative();
  return fmt::format("synchronous{}{}: {}", step,
                     twice == 0 ? "" : fmt::format(", {} at a time computed twice if late", twice),
                     Counted(rule.StepOf(plan.total_steps()), "update"));
}

// How many workers make the steps, on what, in words.
std::string WorkersOf(const v1::StrategySpec& strategy) {
  const bool servers = strategy.kind() == v1::STRATEGY_KIND_PARAMETER_SERVER ||
                       strategy.kind() == v1::STRATEGY_KIND_UNSPECIFIED;
  if (servers && strategy.workers() == 0) return "all that are there";
  std::string workers = fmt::format("{}", std::max(1u, strategy.workers()));
  if (strategy.max_workers() > strategy.workers()) {
    workers += fmt::format(" to {}", strategy.max_workers());
  }
  if (strategy.kind() == v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED) workers += ", in step";
  if (strategy.devices() > 1) workers += fmt::format(", with {} devices each", strategy.devices());
  if (!strategy.topology().empty()) workers += ", with the cores of " + strategy.topology();
  return workers;
}

void PrintPlan(const Context& context, const v1::JobSpec& spec, const v1::JobPlan& plan) {
  const Terminal& terminal = context.terminal;
  terminal.err << fmt::format("{} can run: {} of {}\n", spec.name(),
                              Counted(plan.total_steps(), "step"),
                              Counted(spec.batch_size(), "example"));
  terminal.err << "  workers: " << WorkersOf(spec.strategy()) << "\n";
  terminal.err << "  checkpoints: " << CheckpointTimes(spec.checkpoint(), plan) << "\n";
  // In step there is nothing to choose.
  const v1::StrategyKind kind = spec.strategy().kind();
  const bool chosen =
      kind == v1::STRATEGY_KIND_PARAMETER_SERVER || kind == v1::STRATEGY_KIND_UNSPECIFIED;
  if (chosen && plan.ps_size() > 0) {
    terminal.err << "  consistency: " << ConsistencyOf(plan) << "\n";
  }
  for (const v1::VariableLayout& variable : plan.variables()) {
    const std::string shards =
        Joined(variable.shards(), kMostNamed, [](const v1::ShardPlacement& shard) {
          return fmt::format("{} on ps:{}",
                             Counted(static_cast<std::uint64_t>(shard.rows()), "row"),
                             shard.ps_index());
        });
    terminal.err << fmt::format("  {}: {}\n", variable.name(), shards.empty() ? "whole" : shards);
  }
}

// A file with `text` in the folder for such, gone with this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    if (error) {
      status_ = InvalidArgument(
          "TMPDIR (or TMP, TEMP, TEMPDIR): {}; give a folder, or set none: /tmp then",
          error.message());
      return;
    }
    path_ = (folder / "muster-spec-XXXXXX").string();
    const int fd = ::mkstemp(path_.data());
    if (fd < 0) {
      status_ = FromErrno(errno, "make " + path_);
      return;
    }
    status_ = WriteAll(fd, text, path_);
    ::close(fd);
  }
  ~TemporaryFile() {
    if (!path_.empty()) (void)::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const Status& status() const { return status_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Status status_;
};

void PrintProblems(const Context& context, const Submission& job,
                   const pb::RepeatedPtrField<std::string>& problems) {
  for (const std::string& problem : problems) {
    const std::string located = job.Located(problem);
    const bool of_file = located == problem && !job.file.empty();
    context.terminal.err << (of_file ? job.file + ": " : "") << located << '\n';
  }
}

// Without a cluster: an executor on this machine looks at the model and prints its report as JSON.
ExitCode CheckHere(const Context& context, const Submission& job) {
  const v1::JobSpec& spec = job.spec;
  context.terminal.err << "no cluster runs; checking the model on this machine\n";
  const TemporaryFile file(Json(spec));
  if (!file.status().ok()) return Fail(context, file.status());
  std::vector<std::string> arguments{"--check", file.path()};
  if (!spec.model().archive().empty()) {
    arguments.insert(arguments.end(), {"--archive", spec.model().archive()});
  }
  std::string output;
  const Result<int> code = context.run("muster-executor", arguments, &output);
  if (!code.ok()) return Fail(context, code.status());
  // Around the report may stand what libraries say on stderr.
  const std::size_t begin = output.find('{');
  const std::size_t end = output.rfind('}');
  v1::CheckReport report;
  if (begin == std::string::npos || end == std::string::npos ||
      !pb::util::JsonStringToMessage(output.substr(begin, end - begin + 1), &report).ok()) {
    return Fail(context, Internal("muster-executor --check ended with {}: {}", *code, output));
  }
  if (context.options.output == Output::kJson) context.terminal.out << Json(report);
  PrintProblems(context, job, report.problems());
  if (!report.problems().empty()) return ExitCode::kUsage;
  context.terminal.err << fmt::format("the model of {} is sound (torch {})\n", spec.name(),
                                      report.torch_version());
  return ExitCode::kDone;
}

ExitCode DryRun(const Context& context, JobApi& api, const Submission& job) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = job.spec;
  request.set_dry_run(true);
  request.set_restart(context.options.begin_anew);
  const Result<v1::SubmitJobReply> reply = api.Submit(request);
  if (!reply.ok()) return Fail(context, reply.status());
  if (context.options.output == Output::kJson) context.terminal.out << Json(*reply);
  PrintProblems(context, job, reply->problems());
  if (!reply->problems().empty()) return ExitCode::kUsage;
  if (job.spec.has_launch()) {
    context.terminal.err << fmt::format("{} can run\n", job.spec.name());
  } else if (job.spec.has_program()) {
    PrintProbe(context, job.spec, reply->probe());
  } else {
    PrintPlan(context, job.spec, reply->plan());
  }
  if (!reply->waits_for().empty()) {
    context.terminal.err << fmt::format("  submitted now it would wait for {}\n",
                                        reply->waits_for());
  }
  return ExitCode::kDone;
}

// What has become of a submission whose job was there before, and what to do where that is nothing.
std::string AboutExisting(const v1::SubmitJobReply& reply, bool anew) {
  const v1::Job& job = reply.job();
  const std::string state = StateName(job.state());
  if (HasEnded(reply.before()) && !HasEnded(job.state())) {
    const bool model = !job.spec().has_program() && !job.spec().has_launch();
    return fmt::format("{} was {} and {}: job {}, {} now", job.name(), StateName(reply.before()),
                       model && !anew ? "goes on from its newest checkpoint" : "begins anew",
                       job.id(), state);
  }
  const char* what = "";
  if (job.state() == v1::JOB_STATE_SUCCEEDED) {
    what = " (--restart runs it again, --name gives another name)";
  } else if (job.state() == v1::JOB_STATE_STOPPING) {
    what = " (submitted again when it has ended, it goes on)";
  }
  return fmt::format("{} is there already: job {}, {}{}", job.name(), job.id(), state, what);
}

void Hints(const Context& context, const v1::SubmitJobReply& reply) {
  const v1::Job& job = reply.job();
  if (reply.existing()) {
    context.terminal.err << AboutExisting(reply, context.options.begin_anew) << '\n';
  }
  if (context.options.follow || context.options.wait) return;
  context.terminal.err << fmt::format(
      "next: muster wait {0} | muster describe {0} | muster logs {0} -f | muster stop {0}\n",
      job.id());
}

// Its file first, where it has one that the coordinator lacks.
Status Upload(const Context& context, JobApi& api, v1::JobSpec& spec) {
  if (spec.has_launch()) return UploadLaunch(context.terminal, api, context.options, spec);
  if (spec.has_program()) {
    return UploadProgram(context.terminal, api, context.options.program.front(), spec);
  }
  return spec.model().archive().empty() ? Ok() : UploadArchive(context.terminal, api, spec);
}

// Sends it, then shows or awaits what comes of it.
ExitCode SubmitIt(const Context& context, Submission job) {
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) {
    const bool none = api.status().code() == StatusCode::kUnavailable;
    const bool check =
        none && context.options.dry_run && !job.spec.has_program() && !job.spec.has_launch();
    return check ? CheckHere(context, job) : Fail(context, api.status());
  }
  if (const Status sent = Upload(context, **api, job.spec); !sent.ok()) return Fail(context, sent);
  if (context.options.dry_run) return DryRun(context, **api, job);

  v1::SubmitJobRequest request;
  *request.mutable_spec() = job.spec;
  request.set_restart(context.options.begin_anew);
  const Result<v1::SubmitJobReply> reply = (*api)->Submit(request);
  if (reply.status().code() == StatusCode::kCancelled && context.interrupted()) {
    return Fail(context,
                Cancelled("interrupted before the coordinator had answered: it may take the job {} "
                          "all the same; `muster jobs` tells, `muster stop {}` ends it",
                          job.spec.name(), job.spec.name()));
  }
  if (!reply.ok()) {
    return Fail(context, MakeStatus(reply.status().code(), job.Located(Message(reply.status()))));
  }
  const bool waits = context.options.follow || context.options.wait;
  if (context.options.output == Output::kJson) {
    if (!waits) context.terminal.out << Json(*reply) << std::flush;  // else the job, at its end
  } else {
    context.terminal.out << reply->job().id() << '\n' << std::flush;
  }
  Hints(context, *reply);
  if (!waits) return ExitCode::kDone;
  return Follow(context, {.job = reply->job().id(),
                          .show = context.options.follow,
                          .lines = context.options.follow &&
                                   (job.spec.has_program() || job.spec.has_launch()),
                          .locate = job.locate,
                          .known = reply->job()});
}

}  // namespace

ExitCode Submit(const Context& context) {
  if (!context.options.program.empty()) {
    const Result<v1::JobSpec> spec =
        IsLaunch(context.options) ? LaunchJob(context.options) : ProgramJob(context.options);
    if (!spec.ok()) return Fail(context, spec.status());
    return SubmitIt(context, {.spec = *spec});
  }
  std::vector<std::string> problems;
  const Result<config::JobFile> file = ReadJob(context, problems);
  if (!file.ok()) return Fail(context, file.status(), problems);
  return SubmitIt(context, {.spec = file->spec,
                            .locate =
                                [&file](const std::string& message) {
                                  return config::LocateScript(*file, message);
                                },
                            .file = file->file});
}

}  // namespace muster::cli
