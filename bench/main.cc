// muster-bench: measures parts of Muster beside what bounds them, one JSON object per run.
#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <string_view>

#include <unistd.h>

#include "bench/measure.h"
#include "bench/ps_peer.h"
#include "bench/schedule_peer.h"
#include "bench/subcommands.h"
#include "common/process/child.h"

namespace muster::bench {

namespace {

int Become(const std::string& name, char** argv) {
  const std::string program = process::SiblingProgram(name);
  argv[0] = const_cast<char*>(program.c_str());
  execv(program.c_str(), argv);
  std::perror(program.c_str());
  return 1;
}

}  // namespace

int RunStrategy(int, char** argv) { return Become("muster-strategy-bench", argv); }
int RunBackward(int, char** argv) { return Become("muster-backward-bench", argv); }

}  // namespace muster::bench

namespace {

struct Subcommand {
  std::string_view name;
  // Empty: internal.
  std::string_view help;
  int (*run)(int argc, char** argv);
};

constexpr std::array kSubcommands = {
    Subcommand{"ps", "parameter server: pull, push, rows, by link", muster::bench::RunPs},
    Subcommand{"connect", "connections, in the clear and behind TLS", muster::bench::RunConnect},
    Subcommand{"schedule", "closures between a driver and executors", muster::bench::RunSchedule},
    Subcommand{"allreduce", "sums between processes of one host", muster::bench::RunAllreduce},
    Subcommand{"train", "a job on a local cluster, beside a plain libtorch loop",
               muster::bench::RunTrain},
    Subcommand{"backward", "a step of several workers, on each of them",
               muster::bench::RunBackward},
    Subcommand{"strategy", "the C++ API, beside plain libtorch", muster::bench::RunStrategy},
    Subcommand{"ps-peer", "", [](int, char**) { return muster::bench::RunPeer(); }},
    Subcommand{"schedule-executor", "", muster::bench::RunScheduleExecutor},
};

int Usage(std::FILE* out, int code) {
  std::fputs("usage: muster-bench <benchmark> [options]\n\n", out);
  for (const Subcommand& subcommand : kSubcommands) {
    if (subcommand.help.empty()) continue;
    std::fprintf(out, "  %-10.*s %.*s\n", static_cast<int>(subcommand.name.size()),
                 subcommand.name.data(), static_cast<int>(subcommand.help.size()),
                 subcommand.help.data());
  }
  std::fputs("\nPrints one JSON object. docs/benchmarks.md says how it measures.\n", out);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h") return muster::bench::Told(Usage(stdout, 0));
  const auto* found = std::ranges::find(kSubcommands, name, &Subcommand::name);
  if (found == kSubcommands.end()) {
    if (argc > 1) std::fprintf(stderr, "error: there is no benchmark \"%s\"\n\n", argv[1]);
    return Usage(stderr, 2);
  }
  return muster::bench::Told(found->run(argc - 1, argv + 1));
}
