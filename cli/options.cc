#include "cli/options.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include "cli/certs.h"
#include "cli/completion.h"
#include "cli/drain.h"
#include "cli/flags.h"
#include "cli/format.h"
#include "cli/manual.h"
#include "common/base/job_limits.h"
#include "common/base/number_in.h"
#include "common/base/suggest.h"
#include "common/base/utf8.h"
#include "common/base/version.h"
#include "common/config/units.h"
#include "common/storage/checkpoint.h"

namespace muster::cli {
namespace {

using std::chrono::milliseconds;

constexpr int kMostTasks = 64;  // of `up`, on one machine

// Travels as 32 bits of milliseconds, which are 49 days.
constexpr milliseconds kMostStopGrace = std::chrono::hours(24 * 30);

std::string CheckDuration(const std::string& text, std::optional<milliseconds> most) {
  const auto duration = config::ParseDuration(text);
  if (!duration.ok()) return Message(duration.status());
  if (!most || *duration <= *most) return "";
  return fmt::format("at most {}; given {}", config::FormatDuration(*most), text);
}

std::string CheckOutput(const std::string& name) {
  if (name == "table" || name == "json") return "";
  return fmt::format("there is no output \"{}\"; choose table or json", name);
}

std::string CheckColour(const std::string& when) {
  if (when == "auto" || when == "always" || when == "never") return "";
  return fmt::format("--color: there is no \"{}\"; choose auto, always or never", when);
}

}  // namespace

std::string CheckNotEmpty(const std::string& text) {
  if (!text.empty()) return "";
  return "it is empty, as of a variable that was not set; give it a value, or leave it out";
}

void AddOutput(CLI::App& command, Options& options) {
  command
      .add_option_function<std::string>(
          "-o,--output",
          [&options](const std::string& name) {
            options.output = name == "json" ? Output::kJson : Output::kTable;
          },
          "table (for people) or json (protobuf's mapping)")
      ->check(CLI::Validator(CheckOutput, ""))
      ->type_name("table|json");
}

namespace {

// A name travels in a message, which takes UTF-8 only. There an empty one stands for all, which
// nobody means who gives one: a variable of a script was not set.
std::string CheckName(const std::string& name) {
  if (name.empty()) return "the name is empty";
  if (FirstBadUtf8(name) == std::string::npos) return "";
  return fmt::format("\"{}\" is no name: it is not UTF-8", ToValidUtf8(name));
}

// A folder's path stays here.
std::string CheckNameOrPath(const std::string& name) {
  return name.find('/') == std::string::npos ? CheckName(name) : "";
}

// The same where there may be none.
std::string CheckNameIfAny(const std::string& name) {
  return name.empty() ? "the name is empty; leave it out for all" : CheckName(name);
}

// "step-000000000500", the name of a checkpoint's folder, or its number alone.
std::optional<std::uint64_t> StepOf(std::string_view text) {
  const auto step = storage::StepOfDirectory(text);
  return step ? step : NumberIn<std::uint64_t>(text);
}

std::string CheckStep(const std::string& text) {
  if (StepOf(text)) return "";
  return fmt::format(
      "\"{}\" is neither a step (500) nor a checkpoint's folder "
      "(step-000000000500)",
      ToValidUtf8(text));
}

void AddStep(CLI::App& command, Options& options) {
  command
      .add_option_function<std::string>(
          "--step", [&options](const std::string& text) { options.step = StepOf(text); },
          "Of this step, a number or a folder's name (default: the newest)")
      ->check(CLI::Validator(CheckStep, ""))
      ->type_name("STEP");
}

void AddJob(CLI::App& command, Options& options) {
  command.add_option("JOB", options.job, "The job's id or name")
      ->required()
      ->check(CLI::Validator(CheckName, ""))
      ->type_name("");
}

void AddJobOrFolder(CLI::App& command, Options& options) {
  command
      .add_option("JOB", options.job, "The job's id or name, or the path of a checkpoint's folder")
      ->required()
      ->check(CLI::Validator(CheckNameOrPath, ""))
      ->type_name("");
}

}  // namespace

void AddDuration(CLI::App& command, const std::string& flag, const std::string& doc,
                 std::function<void(milliseconds)> set, std::optional<milliseconds> most) {
  command
      .add_option_function<std::string>(
          flag,
          [set](const std::string& text) {
            set(std::chrono::duration_cast<milliseconds>(*config::ParseDuration(text)));
          },
          doc)
      ->check(CLI::Validator([most](const std::string& text) { return CheckDuration(text, most); },
                             "DURATION"));
}

namespace {

CLI::App* AddUp(CLI::App& app, Options& options) {
  CLI::App* up = app.add_subcommand("up", "Start a cluster on this machine; Ctrl-C drains it");
  up->add_option("--ps", options.ps,
                 "Parameter servers; 0 is enough for every strategy but parameter_server")
      ->capture_default_str()
      ->check(CLI::Range(0, kMostTasks));
  up->add_option("--workers", options.workers, "Workers")
      ->capture_default_str()
      ->check(CLI::Range(1, kMostTasks));
  up->add_flag("--evaluator", options.evaluator,
               "Also evaluator:0, which evaluates the checkpoints of model jobs that say "
               "evaluation.evaluator, while they train");
  up->add_flag("!--no-restart", options.restart, "Leave dead daemons dead");
  up->add_option("--state-dir", options.state_dir,
                 "Where jobs, checkpoints and logs are kept (default: a new folder in /tmp or "
                 "XDG_RUNTIME_DIR)")
      ->check(CLI::Validator(CheckNotEmpty, ""));
  AddDuration(*up, "--drain-timeout",
              "Time for checkpoints of running jobs and closures in flight when it ends (30s)",
              [&options](milliseconds limit) { options.drain_timeout = limit; });
  up->add_flag("-v,--verbose", options.verbose, "Print the daemons' logs too");
  return up;
}

// A cluster that is there is not what `up` makes.
void CheckUp(const CLI::App& app) {
  for (const char* name : {"--coordinator", "--token-file"}) {
    if (app.count(name) > 0) {
      throw CLI::ValidationError(fmt::format(
          "{} names a cluster that is there, and `up` makes one: leave it out (--state-dir says "
          "where its token is)",
          name));
    }
  }
  for (const char* name : {"--tls-ca", "--tls-cert", "--tls-key"}) {
    if (app.count(name) > 0) {
      throw CLI::ValidationError(fmt::format(
          "{} is of this command alone: for `up` set MUSTER_TLS_CA, MUSTER_TLS_CERT and "
          "MUSTER_TLS_KEY, which its daemons read, too",
          name));
    }
  }
}

void AddWatching(CLI::App& app, Options& options) {
  AddOutput(*app.add_subcommand("jobs", "List jobs, newest first"), options);
  CLI::App* describe = app.add_subcommand("describe", "Tell the story of one job");
  AddJob(*describe, options);
  AddOutput(*describe, options);

  CLI::App* logs = app.add_subcommand("logs", "Print what a job's processes wrote");
  AddJob(*logs, options);
  logs->add_option("TASK", options.task, "Only this task: worker:1, trainer; of a program chief:0")
      ->check(CLI::Validator(CheckNameIfAny, ""))
      ->type_name("");
  logs->add_flag("-f,--follow", options.follow, "Go on until the job has ended");
  logs->add_option("--tail", options.tail, "Only the last lines")
      ->check(CLI::Range(1U, job_limits::kMostTail))
      ->type_name("N");
  AddDuration(*logs, "--since", "Only lines of this last time: 10m",
              [&options](milliseconds since) { options.since = since; });
  AddOutput(*logs, options);

  CLI::App* status = app.add_subcommand("status", "Show the cluster and its tasks");
  CLI::Option* ready =
      status
          ->add_option_function<std::string>(
              "--wait", [&options](const std::string&) { options.wait_ready = true; },
              "ready: first wait until all tasks are up")
          ->check(CLI::IsMember({"ready"}))
          ->type_name("ready");
  AddDuration(*status, "--timeout", "How long to wait (60s); exit code 7 after that",
              [&options](milliseconds timeout) { options.timeout = timeout; });
  status->get_option("--timeout")->needs(ready);
  AddOutput(*status, options);
  CLI::App* top = app.add_subcommand("top", "Jobs and tasks on one screen, refreshed each second");
  top->add_flag("--once", options.once, "Print it once");
}

void AddEnding(CLI::App& app, Options& options) {
  CLI::App* stop =
      app.add_subcommand("stop", "End a job: it saves a checkpoint, a program is asked to end");
  AddJob(*stop, options);
  AddDuration(
      *stop, "--grace",
      "Time for that before the job is cut off (60s); 0: it is cut off at once; at most 30d",
      [&options](milliseconds grace) { options.grace = AtLeastOne(grace); }, kMostStopGrace);
  AddOutput(*stop, options);

  CLI::App* wait = app.add_subcommand("wait", "Wait for a job; end with its exit code");
  AddJob(*wait, options);
  AddDuration(*wait, "--timeout", "Give up after this time with exit code 7; the job goes on",
              [&options](milliseconds timeout) { options.timeout = timeout; });
  AddOutput(*wait, options);
}

void AddCheckpoints(CLI::App& app, Options& options) {
  CLI::App* checkpoints =
      app.add_subcommand("checkpoints", "List, verify, export, clear away checkpoints");
  checkpoints->require_subcommand(1);
  CLI::App* list = checkpoints->add_subcommand("list", "The job's checkpoints, newest first");
  AddJob(*list, options);
  AddOutput(*list, options);
  CLI::App* verify = checkpoints->add_subcommand("verify", "Read every byte and check it");
  AddJobOrFolder(*verify, options);
  AddStep(*verify, options);
  AddOutput(*verify, options);
  CLI::App* gc = checkpoints->add_subcommand(
      "gc", "Remove checkpoints that no job goes on from, and what interrupted saves have left");
  gc->add_option("JOB", options.job, "Only this job's, by its id or name (default: all)")
      ->check(CLI::Validator(CheckNameIfAny, ""))
      ->type_name("");
  gc->add_flag("--dry-run", options.dry_run, "Only say what would go");
  gc->add_flag("--finished", options.finished,
               "Also the last checkpoint of jobs that have succeeded, or are forgotten");
  AddOutput(*gc, options);
  CLI::App* write = checkpoints->add_subcommand("export", "All parameters as one safetensors file");
  AddJobOrFolder(*write, options);
  write->add_option("-o,--output", options.export_file, "The file to write; -: standard output")
      ->required();
  AddStep(*write, options);
}

std::string CheckShell(const std::string& name) {
  if (name == "bash" || name == "zsh" || name == "fish") return "";
  return fmt::format("there is no completion for \"{}\"; choose bash, zsh or fish",
                     ToValidUtf8(name));
}

void AddCompletion(CLI::App& app, std::optional<Shell>& shell) {
  app.add_subcommand("completion", "Print a script that completes commands in a shell")
      ->add_option_function<std::string>(
          "SHELL",
          [&shell](const std::string& name) {
            shell = name == "bash" ? Shell::kBash : name == "zsh" ? Shell::kZsh : Shell::kFish;
          },
          "To be read at the shell's start: source <(muster completion bash)")
      ->required()
      ->check(CLI::Validator(CheckShell, ""))
      ->type_name("bash|zsh|fish");
}

void AddManual(CLI::App& app, std::optional<std::string>& page, bool& list) {
  CLI::App* manual =
      app.add_subcommand("manual", "Print a page of the manual: muster manual submit | man -l -");
  manual->add_option("COMMAND", page, "Of which command (default: of all)")->type_name("");
  manual->add_flag("--list", list, "Only say which commands there are");
}

std::string CommandOf(const CLI::App& app) {
  std::string command;
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    command += (command.empty() ? "" : " ") + at->get_name();
  }
  return command;
}

// What somebody typed that is no command, or no option of the command.
std::string Unknown(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  const std::vector<std::string> strays = app.remaining(/*recurse=*/true);
  if (strays.empty()) return "";
  const std::string stray = strays.front().substr(0, strays.front().find('='));
  const bool option = stray.starts_with("-");
  std::vector<std::string> known;
  if (option) {
    for (const CLI::App* one : {at, &app}) {
      for (const CLI::Option* flag : one->get_options()) {
        for (const std::string& name : flag->get_lnames()) known.push_back("--" + name);
      }
    }
  } else {
    for (const CLI::App* command : at->get_subcommands(nullptr)) {
      known.push_back(command->get_name());
    }
  }
  if (known.empty()) return "";
  return fmt::format("there is no {} \"{}\"{}", option ? "option" : "command", ToValidUtf8(stray),
                     DidYouMean(stray, known));
}

// Where the command stands: behind options of all commands, and their values.
std::vector<std::string>::const_iterator CommandIn(const CLI::App& app,
                                                   const std::vector<std::string>& arguments) {
  auto at = arguments.begin();
  while (at != arguments.end() && at->starts_with("-")) {
    const CLI::Option* const option = app.get_option_no_throw(*at);
    const bool takes_next = option != nullptr && option->get_items_expected_min() > 0;
    if (++at != arguments.end() && takes_next) ++at;
  }
  return at;
}

// Whether JSON was asked for, by the words themselves: options of a line with a mistake are not
// set. (export's -o is a file.)
bool WantsJson(const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "export") return false;
    if (word == "-ojson" || word == "-o=json" || word == "--output=json") return true;
    const bool flag = word == "-o" || word == "--output";
    if (flag && i + 1 < arguments.size() && arguments[i + 1] == "json") return true;
  }
  return false;
}

EarlyExit FromParseError(const CLI::App& app, const CLI::ParseError& error, bool json) {
  const std::string command = CommandOf(app);
  const std::string program = command.empty() ? "muster" : "muster " + command;
  if (dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr) {
    return {fmt::format("{}\n", error.what()), ExitCode::kDone};
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    const CLI::App* at = &app;
    while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
    return {at->help(at == &app ? "" : program.substr(0, program.rfind(' '))), ExitCode::kDone};
  }
  const std::string unknown = Unknown(app);
  const std::string what = unknown.empty() ? error.what() : unknown;
  return {fmt::format("error: {}\n`{} --help` tells what there is.\n", what, program),
          ExitCode::kUsage, json ? ErrorJson(InvalidArgument("{}", what)) : ""};
}

}  // namespace

// The library reads what is ours; what stands behind `bench`, or behind the `--` of `submit`, is
// cut off before.
std::variant<Options, EarlyExit> ParseCommandLine(const std::vector<std::string>& arguments) {
  Options options;
  CLI::App app("Muster: tf.distribute as a cluster service", "muster");
  app.require_subcommand(1);
  app.fallthrough();
  const CLI::Validator not_empty(CheckNotEmpty, "");
  app.add_option("--coordinator", options.coordinator,
                 "host:port (default: MUSTER_COORDINATOR, else your newest `muster up`)")
      ->check(not_empty);
  app.add_option("--token-file", options.token_file,
                 "The cluster's token (default: MUSTER_TOKEN_FILE, else that `up`'s)")
      ->check(not_empty);
  app.add_option("--tls-ca", options.tls_ca,
                 "Of a cluster with TLS: its authorities' certificates (default: MUSTER_TLS_CA)")
      ->check(not_empty)
      ->type_name("FILE");
  app.add_option("--tls-cert", options.tls_certificate, "Your certificate (MUSTER_TLS_CERT)")
      ->check(not_empty)
      ->type_name("FILE");
  app.add_option("--tls-key", options.tls_key, "Its key (MUSTER_TLS_KEY)")
      ->check(not_empty)
      ->type_name("FILE");
  app.add_option_function<std::string>(
         "--color",
         [&options](const std::string& when) {
           options.colours = when == "always"  ? Colours::kAlways
                             : when == "never" ? Colours::kNever
                                               : Colours::kAuto;
         },
         "Colours on stdout: on a terminal (unless NO_COLOR is set), always, or never")
      ->check(CLI::Validator(CheckColour, ""))
      ->type_name("auto|always|never");
  app.set_version_flag("--version", fmt::format("muster {}", muster::Version()),
                       "Print this program's version (muster version: and the cluster's)");
  std::optional<Shell> completion;
  AddCompletion(app, completion);
  std::optional<std::string> page;
  bool list = false;
  AddManual(app, page, list);
  const CLI::App& up = *AddUp(app, options);
  const CLI::App& submit = *AddSubmit(app, options);
  AddWatching(app, options);
  AddEnding(app, options);
  AddCheckpoints(app, options);
  AddDraining(app, options);
  app.add_subcommand(
         "backup",
         "Copy what the coordinator knows, and the files of jobs, into one file; it may "
         "run. muster-coordinator's setting restore takes it")
      ->add_option("FILE", options.backup_file,
                   "The file to write; one that is there is replaced. -: standard output")
      ->required()
      ->type_name("");
  AddCerts(app, options);
  AddOutput(*app.add_subcommand("version", "Print the versions of this program and the cluster"),
            options);
  app.add_subcommand("bench", "Measure this machine: ps, train, ...; runs muster-bench");
  auto end = arguments.end();
  const auto command = CommandIn(app, arguments);
  if (command != end && *command == "bench") {
    // Flags of muster-bench are its own, --help included.
    end = command + 1;
    options.rest.assign(end, arguments.end());
  } else if (std::find(arguments.begin(), end, "submit") != end) {
    // What stands behind `--` of a submission is the program's, flags included.
    end = std::find(arguments.begin(), arguments.end(), "--");
    if (end != arguments.end()) options.program.assign(end + 1, arguments.end());
  }
  // The library wants them in reverse.
  std::vector<std::string> reversed(std::make_reverse_iterator(end), arguments.rend());
  try {
    app.parse(reversed);
    if (submit.parsed()) CheckSubmit(submit, options);
    if (up.parsed()) CheckUp(app);
  } catch (const CLI::ParseError& error) {
    return FromParseError(app, error, WantsJson({arguments.begin(), end}));
  }
  if (completion) return EarlyExit{CompletionScript(app, *completion), ExitCode::kDone};
  options.command = CommandOf(app);
  if (options.command == "manual") {
    if (list) return EarlyExit{ManualList(app)};
    const std::string text = ManualPage(app, page.value_or(""));
    if (!text.empty()) return EarlyExit{text};
    return EarlyExit{fmt::format("error: there is no command \"{}\"\n", ToValidUtf8(*page)),
                     ExitCode::kUsage};
  }
  return options;
}

}  // namespace muster::cli
