#include "bench/collective_timing.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/measure.h"

namespace muster::bench {

namespace {

struct Timing {
  Spread spread;
  double cpu = 0;  // seconds of rank 0's processors, of one call
};

}  // namespace

Result<std::string> TimeCollectives(const CollectiveCalls& calls) {
  constexpr std::size_t kSizes[] = {4, 1U << 10, 64U << 10, 1U << 20, 25'000'000, 64U << 20};
  constexpr std::int64_t kFewest = 5;
  constexpr double kRoundSeconds = 0.15;
  // Seconds of one of `repetitions` calls; the number is rank 0's on all ranks.
  const auto time = [&](const std::function<Status()>& once) -> Result<Timing> {
    const auto seconds = [&](std::int64_t repetitions) -> Result<double> {
      MUSTER_TRY(calls.barrier());
      const auto begin = std::chrono::steady_clock::now();
      for (std::int64_t i = 0; i < repetitions; ++i) MUSTER_TRY(once());
      const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
      return all.count() / static_cast<double>(repetitions);
    };
    MUSTER_TRY_ASSIGN(const double about, seconds(kFewest));
    auto repetitions = std::clamp<std::int64_t>(static_cast<std::int64_t>(kRoundSeconds / about),
                                                kFewest, 200'000);
    MUSTER_TRY(calls.broadcast(repetitions));
    std::vector<double> rounds;
    const CpuSeconds before = CpuSeconds::SoFar();
    for (int round = 0; round < kRounds; ++round) {
      MUSTER_TRY_ASSIGN(const double one, seconds(repetitions));
      rounds.push_back(one);
    }
    const CpuSeconds spent = CpuSeconds::SoFar() - before;
    return Timing{SpreadOf(std::move(rounds)),
                  (spent.user + spent.system) / static_cast<double>(kRounds * repetitions)};
  };
  const auto ordinary = [](std::size_t count) -> Result<std::shared_ptr<float>> {
    return std::shared_ptr<float>(new float[count], std::default_delete<float[]>());
  };
  const auto memory = calls.memory ? calls.memory : ordinary;
  nlohmann::ordered_json figures;
  for (const std::size_t bytes : kSizes) {
    const std::string name = bytes >= 1U << 20
                                 ? fmt::format("{:.0f}_mb", static_cast<double>(bytes) / 1e6)
                             : bytes >= 1024 ? fmt::format("{}_kb", bytes / 1024)
                                             : fmt::format("{}_b", bytes);
    const std::size_t count = bytes / sizeof(float);
    MUSTER_TRY_ASSIGN(const std::shared_ptr<float> in, memory(count));
    MUSTER_TRY_ASSIGN(const std::shared_ptr<float> out, memory(count));
    const std::span<float> values(in.get(), count), sums(out.get(), count);
    std::ranges::fill(values, 1.0f);
    std::ranges::fill(sums, 0.0f);
    MUSTER_TRY_ASSIGN(const Timing timing, time([&] { return calls.all_reduce(values, sums); }));
    const Spread& spread = timing.spread;
    if (sums.front() != static_cast<float>(calls.size)) return Internal("a wrong sum");
    figures[name] = {{"us", spread.median * 1e6},
                     {"least_us", spread.least * 1e6},
                     {"most_us", spread.most * 1e6},
                     {"cpu_us", timing.cpu * 1e6},
                     {"gb_per_s", static_cast<double>(bytes) / spread.median / 1e9}};
  }
  MUSTER_TRY_ASSIGN(const Timing barrier, time(calls.barrier));
  figures["barrier_us"] = barrier.spread.median * 1e6;
  return figures.dump();
}

}  // namespace muster::bench
