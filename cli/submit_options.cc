// muster submit: a model job's YAML, a program, a command.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "cli/flags.h"
#include "cli/launch.h"
#include "cli/options.h"
#include "common/base/job_limits.h"
#include "common/base/number_in.h"
#include "common/base/tpu_mesh.h"
#include "common/base/utf8.h"
#include "common/config/units.h"

namespace muster::cli {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t kMostRestarts = 1'000'000;

// 0 stands for what the host has, which is said by leaving it out.
std::string CheckMemory(const std::string& text) {
  const Result<std::uint64_t> size = config::ParseSize(text);
  if (!size.ok()) return Message(size.status());
  return *size > 0 ? "" : "must be above 0; leave it out for what the host has";
}

// "3", or "2:4".
std::optional<Options::Workers> WorkersOf(std::string_view text) {
  const std::size_t colon = text.find(':');
  const auto least = NumberIn<std::uint32_t>(text.substr(0, colon));
  const auto most = colon == std::string_view::npos
                        ? std::optional<std::uint32_t>(0)
                        : NumberIn<std::uint32_t>(text.substr(colon + 1));
  if (!least || !most) return std::nullopt;
  return Options::Workers{.least = *least, .most = *most};
}

std::string CheckWorkers(const std::string& text) {
  const auto workers = WorkersOf(text);
  if (!workers) {
    return fmt::format("\"{}\" is neither a number (3) nor a range (2:4)", ToValidUtf8(text));
  }
  if (workers->least == 0 || workers->least > job_limits::kMostWorkers ||
      workers->most > job_limits::kMostWorkers) {
    return fmt::format("from 1 to {}; given {} (leave it out for all that are there)",
                       job_limits::kMostWorkers, text);
  }
  const bool range = text.find(':') != std::string::npos;
  if (range && workers->most < workers->least) {
    return fmt::format("{} is more than {}; give MIN:MAX", workers->least, workers->most);
  }
  return "";
}

std::string CheckStrategy(const std::string& name) {
  if (name == "parameter_server" || name == "multi_worker_mirrored" || name == "none") return "";
  return fmt::format(
      "programs run under parameter_server or multi_worker_mirrored, commands under none; \"{}\" "
      "is "
      "none of these, or is not built yet for programs",
      ToValidUtf8(name));
}

std::string CheckRestartPolicy(const std::string& policy) {
  if (policy == "never" || policy == "on-failure" || policy == "exit-code") return "";
  return fmt::format("there is no \"{}\"; choose never, on-failure or exit-code",
                     ToValidUtf8(policy));
}

Options::RestartPolicy RestartPolicyNamed(const std::string& name) {
  if (name == "on-failure") return Options::RestartPolicy::kOnFailure;
  return name == "exit-code" ? Options::RestartPolicy::kExitCode : Options::RestartPolicy::kNever;
}

// By --restart-policy NAME, and by --restart NAME, its second name.
void SetRestartPolicy(Options& options, const std::string& name) {
  const Options::RestartPolicy policy = RestartPolicyNamed(name);
  if (options.restart_policy.value_or(policy) != policy) {
    throw CLI::ValidationError(
        "--restart POLICY is --restart-policy: two different ones are given");
  }
  options.restart_policy = policy;
}

// Alone it is about a job that has ended, with a policy about a main() that fails: two things, but
// each is what somebody means who types it so. Both may be given.
void AddRestart(CLI::App& submit, Options& options) {
  submit
      .add_option_function<std::vector<std::string>>(
          "--restart",
          [&options](const std::vector<std::string>& given) {
            for (const std::string& policy : given) {
              if (policy.empty()) {
                options.begin_anew = true;
              } else {
                SetRestartPolicy(options, policy);
              }
            }
          },
          "Alone: a job of this name that has ended begins anew at step 0; its checkpoints are set "
          "aside. With a policy: the same as --restart-policy")
      ->expected(0, 1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(CLI::Validator(
          [](const std::string& policy) {
            return policy.empty() ? std::string() : CheckRestartPolicy(policy);
          },
          ""))
      ->type_name("[never|on-failure|exit-code]");
}

std::string CheckVariable(const std::string& text) {
  const std::size_t sign = text.find('=');
  if (sign != std::string::npos && sign != 0) return "";
  return fmt::format("\"{}\" is not NAME=VALUE", ToValidUtf8(text));
}

std::string CheckTpuTopology(const std::string& text) {
  const auto mesh = ParseTpuMesh(ToValidUtf8(text));
  return mesh.ok() ? "" : std::string(Message(mesh.status()));
}

// What belongs to programs alone: what stands behind `--` is not the library's to read.
void AddProgram(CLI::App& submit, Options& options) {
  submit
      .add_option(
          "--strategy", options.strategy,
          "Of a program: parameter_server (default), or multi_worker_mirrored; of any other "
          "command: none (default for scripts and commands in PATH)")
      ->check(CLI::Validator(CheckStrategy, ""))
      ->type_name("parameter_server|multi_worker_mirrored|none");
  submit
      .add_option_function<std::string>(
          "--workers",
          [&options](const std::string& text) { options.job_workers = *WorkersOf(text); },
          "Of a program or command: how many workers run it (default: all that are there)")
      ->check(CLI::Validator(CheckWorkers, ""))
      ->type_name("N|MIN:MAX");
  submit
      .add_option("--closures-per-worker", options.closures_per_worker,
                  "Of a program: how many closures a worker runs at a time (default 1)")
      ->check(CLI::Range(std::uint32_t{1}, job_limits::kMostClosuresPerWorker))
      ->type_name("K");
  submit
      .add_option("--ps", options.job_servers,
                  "Of a program: how many parameter servers hold its variables (default: all that "
                  "are there)")
      ->check(CLI::Range(std::uint32_t{1}, job_limits::kMostServers))
      ->type_name("N");
  submit
      .add_option_function<std::string>(
          "--memory",
          [&options](const std::string& size) { options.memory_bytes = *config::ParseSize(size); },
          "Of a program: what an executor may allocate, as 2GiB (default: what the host has)")
      ->check(CLI::Validator(CheckMemory, ""))
      ->type_name("SIZE");
  submit
      .add_option("--processes-per-worker", options.processes_per_worker,
                  "Of a command: how many processes each worker runs (default 1)")
      ->check(CLI::Range(std::uint32_t{1}, job_limits::kMostProcessesPerWorker))
      ->type_name("K");
  submit
      .add_option(
          "--send", options.send,
          "Of a command: a file, or a folder with all that is in it, that is sent, and lies "
          "in the folder that it runs in")
      ->allow_extra_args(false)
      ->type_name("PATH");
  submit
      .add_option_function<std::vector<std::string>>(
          "--env",
          [&options](const std::vector<std::string>& all) {
            for (const std::string& one : all) {
              const std::size_t sign = one.find('=');
              options.job_environment[one.substr(0, sign)] = one.substr(sign + 1);
            }
          },
          "Of a command: a variable in the environment of its processes")
      ->allow_extra_args(false)
      ->check(CLI::Validator(CheckVariable, ""))
      ->type_name("NAME=VALUE");
  submit
      .add_option_function<std::string>(
          "--tpu-topology",
          [&options](const std::string& mesh) {
            options.job_environment[kTpuTopologyVariable] = mesh;
          },
          "Of a command: the TPU cores that each process has: chips along x, y and z, and cores of "
          "a chip")
      ->check(CLI::Validator(CheckTpuTopology, ""))
      ->type_name("XxYxZxCORES");
  AddDuration(
      submit, "--end-grace",
      "Of a command: between SIGTERM and SIGKILL, for processes that end because another "
      "one has failed (10s); 0: none; at most 1h",
      [&options](milliseconds grace) { options.end_grace = AtLeastOne(grace); },
      milliseconds(job_limits::kMostGraceMs));
  submit.add_flag("--evaluator", options.evaluator,
                  "Of a program: evaluator:0, a process beside main(), evaluates its checkpoints");
  submit
      .add_option_function<std::string>(
          "--restart-policy",
          [&options](const std::string& name) { SetRestartPolicy(options, name); },
          "Of a program: never (default), or on-failure: main() begins anew when it has failed "
          "or the coordinator was restarted; a command's processes all do, but with "
          "multi_worker_mirrored and MIN:MAX the failed one alone (default there). exit-code: "
          "not where the exit code is from 1 to 127")
      ->check(CLI::Validator(CheckRestartPolicy, ""))
      ->type_name("never|on-failure|exit-code");
  submit
      .add_option("--max-restarts", options.max_restarts,
                  "With on-failure or exit-code: how often it may begin anew (default 3); of "
                  "processes that come and go, how many may fail one after another within a minute "
                  "of their start (default 3 for each of MAX)")
      ->check(CLI::Range(std::uint32_t{1}, kMostRestarts))
      ->type_name("N");
}

// The library knows nothing of what stands behind `--`.
class SubmitFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* command, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(command, std::move(name));
    const std::size_t end = usage.find_last_not_of('\n');
    return usage.insert(end + 1, Behind(*command));
  }
};

}  // namespace

std::string Behind(const CLI::App& command) {
  if (command.get_name() == "submit") return " [-- PROGRAM ARGUMENTS...]";
  return command.get_name() == "bench" ? " BENCHMARK [OPTIONS]" : "";
}

void CheckSubmit(const CLI::App& submit, const Options& options) {
  const auto given = [&submit](const std::string& name) { return submit.count(name) > 0; };
  const bool program = !options.program.empty();
  if (program && given("--file")) {
    throw CLI::ValidationError(
        "either a job file (-f) or a program (behind --), not both: a job file trains a model");
  }
  if (!program && !given("--file")) {
    throw CLI::ValidationError(
        "give a job file: -f job.yaml, or a program: -- build/words "
        "ARGUMENTS");
  }
  if (program && options.program.front().empty()) {
    throw CLI::ValidationError("the program behind -- is empty: -- build/words ARGUMENTS");
  }
  for (const char* name :
       {"--strategy", "--workers", "--closures-per-worker", "--ps", "--evaluator", "--memory",
        "--restart-policy", "--max-restarts", "--processes-per-worker", "--send", "--env",
        "--tpu-topology", "--end-grace"}) {
    if (!program && given(name)) {
      throw CLI::ValidationError(fmt::format(
          "{} belongs to a program (behind --); a job file says what its job needs", name));
    }
  }
  if (!program && options.restart_policy) {
    throw CLI::ValidationError(
        "--restart with a policy belongs to a program (behind --); alone it lets a job that has "
        "ended begin anew");
  }
  const bool launch = IsLaunch(options);
  const auto policy = options.restart_policy.value_or(
      IsElastic(options) ? Options::RestartPolicy::kOnFailure : Options::RestartPolicy::kNever);
  if (options.max_restarts > 0 && policy == Options::RestartPolicy::kNever) {
    throw CLI::ValidationError("--max-restarts belongs to --restart-policy on-failure");
  }
  for (const char* name : {"--closures-per-worker", "--ps", "--evaluator", "--memory"}) {
    if (launch && given(name)) {
      throw CLI::ValidationError(
          fmt::format("{} belongs to programs of --strategy parameter_server", name));
    }
  }
  for (const char* name :
       {"--processes-per-worker", "--send", "--env", "--tpu-topology", "--end-grace"}) {
    if (program && !launch && given(name)) {
      throw CLI::ValidationError(
          fmt::format("{} belongs to commands: --strategy none, or multi_worker_mirrored", name));
    }
  }
  if (program && !launch && options.restart_policy == Options::RestartPolicy::kExitCode) {
    throw CLI::ValidationError(
        "--restart-policy exit-code belongs to commands: --strategy none, or "
        "multi_worker_mirrored");
  }
}

CLI::App* AddSubmit(CLI::App& app, Options& options) {
  CLI::App* submit = app.add_subcommand(
      "submit",
      "Submit a job file (-f), or a program (-- PROGRAM ARGUMENTS); the job's id alone "
      "goes to stdout");
  const CLI::Validator not_empty(CheckNotEmpty, "");
  submit->add_option("-f,--file", options.file, "The job file (docs/formats/job-spec.md)")
      ->check(not_empty);
  submit
      ->add_option("--name", options.name,
                   "Name of the job; the same name and job again answers the same id, and lets a "
                   "stopped or failed job go on")
      ->check(not_empty);
  CLI::Option* follow = submit->add_flag(
      "--follow", options.follow,
      "Show progress and what a program prints, end with the job's exit code; Ctrl-C detaches");
  CLI::Option* wait =
      submit->add_flag("--wait", options.wait, "Wait quietly, end with the job's exit code");
  submit->add_flag("--dry-run", options.dry_run, "Find what is wrong without running")
      ->excludes(follow)
      ->excludes(wait);
  AddRestart(*submit, options);
  submit->formatter(std::make_shared<SubmitFormatter>());
  AddProgram(*submit, options);
  AddOutput(*submit, options);
  return submit;
}

}  // namespace muster::cli
