// muster-executor: runs the closures of one job for a worker daemon, which starts it with a socket
// pair as descriptor 3. By hand: muster-executor --check SPEC.
#include <csignal>
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/process/message_pipe.h"
#include "services/executor/check_command.h"
#include "services/executor/executor.h"

namespace {

constexpr int kPipe = 3;
constexpr int kUsage = 2;

int Serve() {
  struct stat info{};
  if (fstat(kPipe, &info) != 0 || !S_ISSOCK(info.st_mode)) {
    fmt::print(stderr,
               "muster-executor: descriptor 3 is no socket: a worker daemon starts this program; "
               "by hand: muster-executor --check SPEC\n");
    return kUsage;
  }
  // What a forward prints is in the pipe when its process dies, whatever it dies of.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  // Quietly: the daemon that asks for it knows why.
  std::signal(SIGTERM, [](int) { _exit(0); });
  muster::process::MessagePipe pipe(kPipe);
  muster::executor::Executor executor(
      // At once, also in the middle of a step: nobody waits for its result any more.
      pipe, [](const muster::Status& status) {
        _exit(status.code() == muster::StatusCode::kUnavailable ? 0 : 1);
      });
  const muster::Status status = executor.Serve();
  fmt::print(stderr, "muster-executor: {}\n", muster::ToString(status));
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs one job's closures for a worker daemon (descriptor 3), or checks a job.");
  muster::executor::CheckCommand check;
  app.add_option("--check", check.spec_path,
                 "Check this serialized muster.v1.JobSpec (binary or JSON; '-': standard input) "
                 "and print the report as JSON; exit 2 when there are problems");
  app.add_option("--archive", check.archive_path, "With --check: the job's .pt archive");
  app.add_flag("--data", check.data, "With --check: also open the data");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return check.spec_path.empty() ? Serve() : muster::executor::RunCheck(check);
}
