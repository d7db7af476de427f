// muster-bench allreduce: groups of processes on this host, over shared memory and over sockets,
// beside memcpy, a bare ping-pong, and Open MPI and Gloo where Muster was built with them.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/collective_timing.h"
#include "bench/execute.h"
#include "bench/measure.h"
#include "bench/rank_processes.h"
#include "bench/subcommands.h"
#include "bench/tune_allreduce.h"
#include "collectives/process/group_spec.h"
#include "common/process/child.h"

namespace muster::bench {
namespace {

using collectives::Group;
using collectives::Transport;
using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Where the numbers lie that are summed.
enum class In : std::uint8_t { kOrdinaryMemory, kCommonMemory };

Result<nlohmann::ordered_json> RunGroup(int ranks, Transport transport,
                                        In in = In::kOrdinaryMemory) {
  nlohmann::ordered_json figures;
  const auto rank = [&](Group& group) -> Status {
    CollectiveCalls calls;
    calls.size = group.size();
    calls.all_reduce = [&](std::span<const float> values, std::span<float> sums) {
      const collectives::ReduceBuffer buffer{.type = DType::kFloat32,
                                             .shape = {static_cast<std::int64_t>(values.size())},
                                             .in = values.data(),
                                             .out = sums.data()};
      return group.AllReduce(collectives::Reduction::kSum, {&buffer, 1});
    };
    if (in == In::kCommonMemory) {
      calls.memory = [&](std::size_t count) -> Result<std::shared_ptr<float>> {
        MUSTER_TRY_ASSIGN(const auto memory, group.AllocateCommon(count * sizeof(float)));
        return std::shared_ptr<float>(memory, reinterpret_cast<float*>(memory.get()));
      };
    }
    calls.broadcast = [&](std::int64_t& number) {
      return group.Broadcast(std::as_writable_bytes(std::span(&number, 1)), 0);
    };
    calls.barrier = [&] { return group.Barrier(); };
    MUSTER_TRY_ASSIGN(const std::string text, TimeCollectives(calls));
    figures = nlohmann::ordered_json::parse(text);
    return Ok();
  };
  collectives::GroupSpec spec;
  spec.transport = transport;
  MUSTER_TRY(InRanks(ranks, spec, rank));
  return figures;
}

// Half of a round trip of 4 bytes between two processes that look all the time: no collective over
// sockets can take less.
double PingPongMicroseconds() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) return 0;
  constexpr int kTrips = 20'000;
  const auto pass = [](int fd) {
    char bytes[4];
    while (::recv(fd, bytes, sizeof(bytes), 0) != sizeof(bytes)) {
    }
    (void)!::send(fd, bytes, sizeof(bytes), 0);
  };
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (int i = 0; i < kTrips; ++i) pass(ends[1]);
    ::_exit(0);
  }
  if (pid < 0) {  // nobody would answer
    ::close(ends[0]);
    ::close(ends[1]);
    return 0;
  }
  const auto begin = Clock::now();
  (void)!::send(ends[0], "ping", 4, 0);
  for (int i = 1; i < kTrips; ++i) pass(ends[0]);
  const double us = Seconds(Clock::now() - begin) * 1e6 / kTrips / 2;
  (void)::waitpid(pid, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  return us;
}

double MemcpyGbPerSecond(std::size_t bytes) {
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes);
  std::vector<double> seconds;
  for (int i = 0; i < 9; ++i) {
    const auto begin = Clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    seconds.push_back(Seconds(Clock::now() - begin));
  }
  return static_cast<double>(bytes) / SpreadOf(std::move(seconds)).median / 1e9;
}

// What another library's program measures, which is one line of JSON; null where Muster was built
// without that library.
Result<nlohmann::ordered_json> RunPeer(const std::string& program, std::vector<std::string> before,
                                       const std::vector<std::string>& after) {
  const std::string path = process::SiblingProgram(program);
  if (::access(path.c_str(), X_OK) != 0) return nlohmann::ordered_json();
  before.push_back(path);
  before.insert(before.end(), after.begin(), after.end());
  MUSTER_TRY_ASSIGN(const std::string text, Execute(before, std::chrono::minutes(5)));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('{')) continue;  // a library's warning
    auto figures = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!figures.is_discarded()) return figures;
  }
  return Internal("{} printed no figures: {}", path, text);
}

// Muster's groups and the other libraries', one after another.
Status RunAll(int ranks, nlohmann::ordered_json& out) {
  const std::string n = std::to_string(ranks);
  MUSTER_TRY_ASSIGN(out["shared_memory"], RunGroup(ranks, Transport::kBest));
  MUSTER_TRY_ASSIGN(out["common_memory"], RunGroup(ranks, Transport::kBest, In::kCommonMemory));
  MUSTER_TRY_ASSIGN(out["unix_sockets"], RunGroup(ranks, Transport::kSockets));
  MUSTER_TRY_ASSIGN(out["tcp"], RunGroup(ranks, Transport::kTcp));
  // More ranks than processors are meant here, and so is whoever runs this, root or not.
  const std::vector<std::string> mpirun = {
      "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", n};
  const auto by = [&](const char* transports) {
    auto argv = mpirun;
    argv.insert(argv.end(), {"--mca", "pml", "ob1", "--mca", "btl", transports});
    return argv;
  };
  MUSTER_TRY_ASSIGN(out["open_mpi"], RunPeer("muster-mpi-allreduce", mpirun, {}));
  MUSTER_TRY_ASSIGN(out["open_mpi_shared_memory"],
                    RunPeer("muster-mpi-allreduce", by("self,vader"), {}));
  MUSTER_TRY_ASSIGN(out["open_mpi_tcp"], RunPeer("muster-mpi-allreduce", by("self,tcp"), {}));
  MUSTER_TRY_ASSIGN(out["gloo_tcp"], RunPeer("muster-gloo-allreduce", {}, {n}));
  return Ok();
}

}  // namespace

int RunAllreduce(int argc, char** argv) {
  CLI::App app("All-reduce of float32 between processes of this host", "muster-bench allreduce");
  std::vector<int> ranks = {2, 4};
  app.add_option("--ranks", ranks, "numbers of processes")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  std::string tune;
  CLI::Option* const tuned =
      app.add_option("--tune", tune,
                     "measure what groups choose their algorithms by, and write it to this file")
          ->type_name("FILE");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (tuned->count() > 0) return TuneAllreduce(ranks, tune);
  nlohmann::ordered_json out = {{"benchmark", "allreduce"}};
  out["memcpy_gb_per_s"] = {{"1_mb", MemcpyGbPerSecond(1U << 20)},
                            {"64_mb", MemcpyGbPerSecond(64U << 20)}};
  out["socket_one_way_us"] = PingPongMicroseconds();
  for (const int n : ranks) {
    const Status status = RunAll(n, out[fmt::format("ranks_{}", n)]);
    if (!status.ok()) {
      fmt::print(stderr, "muster-bench allreduce: {}\n", ToString(status));
      return 1;
    }
  }
  fmt::print("{}\n", out.dump(2));
  return 0;
}

}  // namespace muster::bench
