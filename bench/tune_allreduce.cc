#include "bench/tune_allreduce.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "bench/measure.h"
#include "bench/rank_processes.h"
#include "collectives/cost_fit.h"
#include "collectives/costs_file.h"
#include "collectives/kernels.h"
#include "common/base/wall_time.h"

namespace muster::bench {
namespace {

using collectives::Algorithm;
using collectives::Costs;
using collectives::LinkKind;
using collectives::Timing;
using Clock = std::chrono::steady_clock;

// Up to what an operation over links takes at once: longer ones are so many of these.
constexpr std::size_t kSizes[] = {4, 1U << 10, 16U << 10, 128U << 10, 1U << 20, 4U << 20};
constexpr double kRoundSeconds = 0.03;

// Costs by which this algorithm is taken: each other one is said to take a minute.
collectives::LinkCosts Only(Algorithm algorithm) {
  collectives::LinkCosts costs;
  for (collectives::AlgorithmCosts& kind : costs.of_kind) {
    for (const Algorithm other : collectives::kAlgorithms) {
      kind.of(other) = {.round = other == algorithm ? 0.0 : 60.0};
    }
  }
  return costs;
}

// A group's times for all sizes, the least of kRounds: what else runs here costs other rounds.
Result<std::vector<Timing>> TimesOf(collectives::Group& group) {
  std::vector<Timing> times;
  for (const std::size_t bytes : kSizes) {
    std::vector<float> values(bytes / sizeof(float), 1.0f), sums(values.size());
    const collectives::ReduceBuffer buffer{.type = DType::kFloat32,
                                           .shape = {static_cast<std::int64_t>(values.size())},
                                           .in = values.data(),
                                           .out = sums.data()};
    const auto seconds = [&](std::int64_t repetitions) -> Result<double> {
      MUSTER_TRY(group.Barrier());
      const auto begin = Clock::now();
      for (std::int64_t i = 0; i < repetitions; ++i) {
        MUSTER_TRY(group.AllReduce(collectives::Reduction::kSum, {&buffer, 1}));
      }
      return SecondsSince(begin) / static_cast<double>(repetitions);
    };
    MUSTER_TRY_ASSIGN(const double about, seconds(3));
    auto repetitions =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(kRoundSeconds / about), 3, 20'000);
    MUSTER_TRY(group.Broadcast(std::as_writable_bytes(std::span(&repetitions, 1)), 0));
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      MUSTER_TRY_ASSIGN(const double one, seconds(repetitions));
      rounds.push_back(one);
    }
    times.push_back(
        {.members = group.size(), .bytes = bytes, .seconds = SpreadOf(std::move(rounds)).least});
    if (sums.front() != static_cast<float>(group.size())) return Internal("a wrong sum");
  }
  return times;
}

// Seconds for each byte that is added to another.
double SecondsToAdd() {
  constexpr std::size_t kCount = std::size_t{1} << 18;
  std::vector<float> a(kCount, 1.0f), b(kCount, 2.0f), sums(kCount);
  const std::vector<const void*> sources{a.data(), b.data()};
  void* const to = sums.data();
  std::vector<double> rounds;
  for (int round = 0; round < 25; ++round) {
    const auto begin = Clock::now();
    collectives::ReduceRange(collectives::Reduction::kSum, DType::kFloat32, sources, {&to, 1}, 0,
                             kCount);
    rounds.push_back(SecondsSince(begin));
  }
  return SpreadOf(std::move(rounds)).least / (kCount * sizeof(float));
}

// How far the figures are from what was measured: the median of |predicted / measured - 1|.
double ErrorOf(Algorithm algorithm, const std::vector<Timing>& timings, const Costs& costs) {
  std::vector<double> errors;
  for (const Timing& timing : timings) {
    errors.push_back(std::abs(
        PredictedSeconds(algorithm, timing.members, timing.bytes, costs) / timing.seconds - 1));
  }
  return SpreadOf(std::move(errors)).median;
}

Status Write(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file.fail()) return FromErrno(errno == 0 ? EIO : errno, fmt::format("write {}", path));
  return Ok();
}

// Into `staged`, which takes the place of the file at `path` when it is whole.
Status Tune(const std::vector<int>& ranks, const std::string& staged, const std::string& path) {
  // Before a minute of measurements, that there is a place for them.
  MUSTER_TRY(Write(staged, ""));
  collectives::LinkCosts costs;
  nlohmann::ordered_json out = {{"benchmark", "allreduce --tune"}};
  const double adding = SecondsToAdd();
  const std::pair<LinkKind, const char*> kinds[] = {{LinkKind::kTcp, "tcp"},
                                                    {LinkKind::kUnix, "unix"}};
  for (const auto& [kind, name] : kinds) {
    for (const Algorithm algorithm : collectives::kAlgorithms) {
      std::vector<Timing> timings;
      for (const int n : ranks) {
        collectives::GroupSpec spec;
        spec.transport = kind == LinkKind::kTcp ? collectives::Transport::kTcp
                                                : collectives::Transport::kSockets;
        spec.costs = Only(algorithm);
        MUSTER_TRY(InRanks(n, spec, [&](collectives::Group& group) -> Status {
          MUSTER_TRY_ASSIGN(const std::vector<Timing> times, TimesOf(group));
          timings.insert(timings.end(), times.begin(), times.end());
          return Ok();
        }));
      }
      const Costs fit = collectives::FitCosts(algorithm, timings, adding);
      costs.of_kind[static_cast<std::size_t>(kind)].of(algorithm) = fit;
      nlohmann::ordered_json measured;
      for (const Timing& timing : timings) {
        measured.push_back(
            {{"ranks", timing.members},
             {"bytes", timing.bytes},
             {"us", timing.seconds * 1e6},
             {"model_us", PredictedSeconds(algorithm, timing.members, timing.bytes, fit) * 1e6}});
      }
      out[name][std::string(NameOf(algorithm))] = {
          {"median_error", ErrorOf(algorithm, timings, fit)}, {"measured", measured}};
    }
  }
  char host[256] = "";
  (void)::gethostname(host, sizeof(host) - 1);
  const std::string how =
      fmt::format("by muster bench allreduce --tune on {}, {} processors, {} processes, {}", host,
                  std::thread::hardware_concurrency(), fmt::join(ranks, " and "),
                  UtcText(std::chrono::system_clock::now()));
  MUSTER_TRY(Write(staged, CostsText(costs, how)));
  if (std::rename(staged.c_str(), path.c_str()) != 0) {
    return FromErrno(errno, fmt::format("write {}", path));
  }
  out["file"] = path;
  fmt::print("{}\n", out.dump(2));
  fmt::print(stderr, "{} is written; groups go by it where {}={}\n", path,
             collectives::kCostsVariable, path);
  return Ok();
}

}  // namespace

int TuneAllreduce(const std::vector<int>& ranks, const std::string& path) {
  if (std::ranges::none_of(ranks, [](int n) { return n > 1; })) {
    fmt::print(stderr, "muster-bench allreduce --tune: --ranks {}: two or more are needed\n",
               fmt::join(ranks, " "));
    return 2;
  }
  std::vector<int> several = ranks;
  std::erase_if(several, [](int n) { return n < 2; });
  const std::string staged = path + ".new";
  const Status status = Tune(several, staged, path);
  if (status.ok()) return 0;
  (void)std::remove(staged.c_str());
  fmt::print(stderr, "muster-bench allreduce --tune: {}\n", ToString(status));
  return 1;
}

}  // namespace muster::bench
