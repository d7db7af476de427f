#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>

#include <signal.h>
#include <unistd.h>

#include "cli/cluster_finder.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "cli/up/up.h"
#include "common/process/child.h"
#include "common/process/standard_streams.h"
#include "common/rpc/names.h"

namespace muster::cli {
namespace {

constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::milliseconds kGrace{2000};

// A program of ours that shares our terminal, or whose output is kept; Ctrl-C ends it.
Result<int> RunSibling(const Interrupt& interrupt, const std::string& program,
                       const std::vector<std::string>& arguments, std::string* output) {
  process::Child::Options options;
  options.argv = {process::SiblingProgram(program)};
  if (output != nullptr) {
    options.on_line = [output](std::chrono::system_clock::time_point, const std::string& line) {
      *output += line + "\n";
    };
  }
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  MUSTER_TRY_ASSIGN(const auto child, process::Child::Start(std::move(options)));
  Result<process::Exit> ended = child->Wait(kTick);
  while (!ended.ok() && !interrupt.raised()) ended = child->Wait(kTick);
  const process::Exit exit = ended.ok() ? *ended : child->End(kGrace);
  return exit.signal != 0 ? 128 + exit.signal : exit.code;
}

// Builds what a command is given, the cluster's client only when it asks for it, and runs it.
ExitCode Run(const Options& options) {
  const bool up = options.command == "up";
  Interrupt interrupt(/*hang_up=*/up);
  const Environment environment = ProcessEnvironment();
  const Terminal terminal = ProcessTerminal(environment, options.colours);
  const ThreadScheduler clock;
  if (up) return Up(options, terminal, environment, clock, interrupt);

  // JSON spells them out itself; a file or a program gets what was written.
  const bool printable = options.output != Output::kJson &&
                         (::isatty(STDOUT_FILENO) == 1 || ::isatty(STDERR_FILENO) == 1);
  std::unique_ptr<JobApi> api;
  const Context context{
      .options = options,
      .terminal = terminal,
      .environment = environment,
      .clock = clock,
      .connect = [&]() -> Result<JobApi*> {
        if (!api) {
          MUSTER_TRY_ASSIGN(const Cluster cluster, FindCluster(options, environment));
          const auto warn = [&](const std::string& text) {
            // `version` says it by itself.
            if (options.command != "version") terminal.err << "warning: " << text << '\n';
          };
          api = NewGrpcJobApi(cluster, printable, warn);
          interrupt.OnRaise([&api] { api->CancelCalls(); });
        }
        return api.get();
      },
      .interrupted = [&] { return interrupt.raised(); },
      .sleep =
          [&](std::chrono::milliseconds time) {
            // In short ones, so that Ctrl-C is heard at once: a second one ends the program on the
            // spot, and would leave the screen of `top` on the terminal.
            const TimePoint end = clock.Now() + time;
            while (!interrupt.raised() && clock.Now() < end) {
              std::this_thread::sleep_for(std::min<TimePoint::duration>(end - clock.Now(), kTick));
            }
            return !interrupt.raised();
          },
      .run = [&](const std::string& program, const std::vector<std::string>& arguments,
                 std::string* output) { return RunSibling(interrupt, program, arguments, output); },
  };
  const ExitCode code = RunCommand(context);
  interrupt.OnRaise({});
  if (Flushed(std::cout, code, std::cerr) != code) return ExitCode::kJobFailed;
  return interrupt.raised() ? ExitCode::kInterrupted : code;
}

ExitCode ParseAndRun(const std::vector<std::string>& arguments) {
  const auto parsed = ParseCommandLine(arguments);
  if (const auto* early = std::get_if<EarlyExit>(&parsed)) {
    (early->code == ExitCode::kDone ? std::cout : std::cerr) << early->text;
    std::cout << early->json;
    return Flushed(std::cout, early->code, std::cerr);
  }
  return Run(std::get<Options>(parsed));
}

}  // namespace
}  // namespace muster::cli

int main(int argc, char** argv) {
  muster::process::FillStandardStreams();
  // A file above the limit of its size is an error, like a full disk, and what is half of one goes.
  (void)::signal(SIGXFSZ, SIG_IGN);
  muster::rpc::UseSystemResolver();
  return static_cast<int>(muster::cli::Guarded(
      [&] { return muster::cli::ParseAndRun({argv + 1, argv + argc}); }, std::cerr));
}
