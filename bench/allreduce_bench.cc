// muster-bench allreduce: groups of processes on this host, over shared memory and over sockets,
// beside memcpy and a bare ping-pong.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/measure.h"
#include "bench/subcommands.h"
#include "collectives/process/form_group.h"
#include "common/net/socket.h"

namespace muster::bench {
namespace {

using collectives::Group;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kSizes[] = {4, 1U << 10, 64U << 10, 1U << 20, 25'000'000, 64U << 20};
constexpr int kFewest = 5;
// Each round of a size takes about this long.
constexpr double kRoundSeconds = 0.15;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string NameOfBytes(std::size_t bytes) {
  if (bytes >= 1U << 20) return fmt::format("{:.0f}_mb", static_cast<double>(bytes) / 1e6);
  return bytes >= 1024 ? fmt::format("{}_kb", bytes / 1024) : fmt::format("{}_b", bytes);
}

// Median seconds of an all-reduce of float32, by rank 0's clock; all ranks call it.
Result<Spread> MeasureSize(Group& group, std::size_t bytes) {
  std::vector<float> values(bytes / sizeof(float), 1.0f), sums(values.size());
  const collectives::ReduceBuffer buffer{.type = DType::kFloat32,
                                         .shape = {static_cast<std::int64_t>(values.size())},
                                         .in = values.data(),
                                         .out = sums.data()};
  const auto once = [&] { return group.AllReduce(collectives::Reduction::kSum, {&buffer, 1}); };
  std::int64_t repetitions = kFewest;
  const auto start = Clock::now();
  for (int i = 0; i < kFewest; ++i) MUSTER_TRY(once());
  const double one = Seconds(Clock::now() - start) / kFewest;
  repetitions =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(kRoundSeconds / one), kFewest, 200'000);
  MUSTER_TRY(group.Broadcast(std::as_writable_bytes(std::span(&repetitions, 1)), 0));
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    MUSTER_TRY(group.Barrier());
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < repetitions; ++i) MUSTER_TRY(once());
    rounds.push_back(Seconds(Clock::now() - begin) / static_cast<double>(repetitions));
  }
  if (sums.front() != static_cast<float>(group.size())) return Internal("a wrong sum");
  return SpreadOf(std::move(rounds));
}

// One rank; rank 0 writes its figures.
Status RunRank(const collectives::GroupSpec& spec, const net::Listener& listener,
               nlohmann::ordered_json& figures) {
  MUSTER_TRY_ASSIGN(const std::unique_ptr<Group> group, collectives::FormGroup(spec, listener));
  for (const std::size_t bytes : kSizes) {
    MUSTER_TRY_ASSIGN(const Spread seconds, MeasureSize(*group, bytes));
    figures[NameOfBytes(bytes)] = {
        {"us", seconds.median * 1e6},
        {"least_us", seconds.least * 1e6},
        {"most_us", seconds.most * 1e6},
        {"gb_per_s", static_cast<double>(bytes) / seconds.median / 1e9},
    };
  }
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    constexpr int kBarriers = 2'000;
    const auto begin = Clock::now();
    for (int i = 0; i < kBarriers; ++i) MUSTER_TRY(group->Barrier());
    rounds.push_back(Seconds(Clock::now() - begin) / kBarriers);
  }
  figures["barrier_us"] = SpreadOf(std::move(rounds)).median * 1e6;
  return Ok();
}

// The ranks as processes; rank 0 is this one.
Result<nlohmann::ordered_json> RunGroup(int ranks, bool shared_memory) {
  collectives::GroupSpec spec;
  spec.job = "bench";
  spec.key = "bench";
  spec.spin = net::SpinMode::kAlways;
  spec.shared_memory = shared_memory;
  std::vector<net::Listener> listeners;
  for (int r = 0; r < ranks; ++r) {
    MUSTER_TRY_ASSIGN(net::Listener listener, net::ListenTcp("127.0.0.1:0"));
    spec.members.push_back({fmt::format("rank:{}", r), listener.address});
    listeners.push_back(std::move(listener));
  }
  nlohmann::ordered_json figures;
  std::vector<pid_t> others;
  for (int r = 1; r < ranks; ++r) {
    const pid_t pid = ::fork();
    if (pid < 0) return FromErrno(errno, "fork");
    if (pid == 0) {
      spec.rank = r;
      const Status status = RunRank(spec, listeners[static_cast<std::size_t>(r)], figures);
      ::_exit(status.ok() ? 0 : 1);
    }
    others.push_back(pid);
  }
  const Status status = RunRank(spec, listeners[0], figures);
  for (const pid_t pid : others) (void)::waitpid(pid, nullptr, 0);
  MUSTER_TRY(status);
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

}  // namespace

int RunAllreduce(int argc, char** argv) {
  CLI::App app("All-reduce of float32 between processes of this host", "muster-bench allreduce");
  std::vector<int> ranks = {2, 4};
  app.add_option("--ranks", ranks, "numbers of processes")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  nlohmann::ordered_json out = {{"benchmark", "allreduce"}};
  out["memcpy_gb_per_s"] = {{"1_mb", MemcpyGbPerSecond(1U << 20)},
                            {"64_mb", MemcpyGbPerSecond(64U << 20)}};
  out["socket_one_way_us"] = PingPongMicroseconds();
  for (const int n : ranks) {
    for (const bool shared_memory : {true, false}) {
      auto figures = RunGroup(n, shared_memory);
      if (!figures.ok()) {
        fmt::print(stderr, "muster-bench allreduce: {}\n", ToString(figures.status()));
        return 1;
      }
      out[fmt::format("ranks_{}", n)][shared_memory ? "shared_memory" : "sockets"] =
          *std::move(figures);
    }
  }
  fmt::print("{}\n", out.dump(2));
  return 0;
}

}  // namespace muster::bench
