#include <cerrno>
#include <cstdlib>

#include <fmt/core.h>
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/follow.h"
#include "cli/format.h"
#include "cli/upload.h"
#include "common/base/trouble.h"
#include "common/base/words.h"
#include "common/config/job_yaml/job_yaml.h"
#include "common/config/job_yaml/validate_job.h"
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
    context.terminal.err << problems.back() << '\n';
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

// The error of a call, with the places of TorchScript in the job file.
Status Located(const config::JobFile& job, const Status& status) {
  return MakeStatus(status.code(), config::LocateScript(job, Message(status)));
}

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

void PrintPlan(const Context& context, const v1::JobSpec& spec, const v1::JobPlan& plan) {
  const Terminal& terminal = context.terminal;
  terminal.err << fmt::format("{} can run: {} of {}\n", spec.name(),
                              Counted(plan.total_steps(), "step"),
                              Counted(spec.batch_size(), "example"));
  terminal.err << "  checkpoints: " << CheckpointTimes(spec.checkpoint(), plan) << "\n";
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

// A file with `text` that is gone with this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    const int fd = ::mkstemp(path_.data());
    if (fd < 0) {
      status_ = FromErrno(errno, "make " + path_);
      return;
    }
    if (::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      status_ = FromErrno(errno, "write " + path_);
    }
    ::close(fd);
  }
  ~TemporaryFile() { (void)::unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const Status& status() const { return status_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/muster-spec-XXXXXX";
  Status status_;
};

void PrintProblems(const Context& context, const config::JobFile& job,
                   const pb::RepeatedPtrField<std::string>& problems) {
  for (const std::string& problem : problems) {
    const std::string located = config::LocateScript(job, problem);
    context.terminal.err << (located == problem ? job.file + ": " : "") << located << '\n';
  }
}

// Without a cluster: an executor on this machine looks at the model and prints its report as JSON.
ExitCode CheckHere(const Context& context, const config::JobFile& job) {
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

ExitCode DryRun(const Context& context, JobApi& api, const config::JobFile& job) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = job.spec;
  request.set_dry_run(true);
  const Result<v1::SubmitJobReply> reply = api.Submit(request);
  if (!reply.ok()) return Fail(context, reply.status());
  if (context.options.output == Output::kJson) context.terminal.out << Json(*reply);
  PrintProblems(context, job, reply->problems());
  if (!reply->problems().empty()) return ExitCode::kUsage;
  PrintPlan(context, job.spec, reply->plan());
  return ExitCode::kDone;
}

void Hints(const Context& context, const v1::SubmitJobReply& reply) {
  const v1::Job& job = reply.job();
  if (reply.existing()) {
    context.terminal.err << fmt::format("{} is there already: job {}, {}\n", job.name(), job.id(),
                                        StateName(job.state()));
  }
  if (context.options.follow || context.options.wait) return;
  context.terminal.err << fmt::format(
      "next: muster wait {0} | muster describe {0} | muster logs {0} -f | muster stop {0}\n",
      job.id());
}

}  // namespace

ExitCode Submit(const Context& context) {
  std::vector<std::string> problems;
  Result<config::JobFile> job = ReadJob(context, problems);
  if (!job.ok()) return Fail(context, job.status(), problems);
  v1::JobSpec& spec = job->spec;
  const Result<JobApi*> api = context.connect();
  if (!api.ok()) {
    const bool none = api.status().code() == StatusCode::kUnavailable;
    return none && context.options.dry_run ? CheckHere(context, *job) : Fail(context, api.status());
  }
  if (!spec.model().archive().empty()) {
    if (const Status status = UploadArchive(context.terminal, **api, spec); !status.ok()) {
      return Fail(context, status);
    }
  }
  if (context.options.dry_run) return DryRun(context, **api, *job);

  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_restart(context.options.begin_anew);
  const Result<v1::SubmitJobReply> reply = (*api)->Submit(request);
  if (!reply.ok()) return Fail(context, Located(*job, reply.status()));
  const bool waits = context.options.follow || context.options.wait;
  if (context.options.output == Output::kJson) {
    if (!waits) context.terminal.out << Json(*reply) << std::flush;  // else the job, at its end
  } else {
    context.terminal.out << reply->job().id() << std::endl;
  }
  Hints(context, *reply);
  if (!waits) return ExitCode::kDone;
  return Follow(
      context,
      {.job = reply->job().id(),
       .show = context.options.follow,
       .locate = [&job](const std::string& message) { return config::LocateScript(*job, message); },
       .known = reply->job()});
}

}  // namespace muster::cli
