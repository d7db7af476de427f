// muster-bench-closures: the program that `muster-bench schedule` submits: what a closure costs
// through the public API. A program of its own because it links libtorch.
//
// Arguments: how many closures one round of throughput has, and the file that its figures go to.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>
#include <vector>

#include "bench/measure.h"
#include "strategy/muster.h"

namespace {
void Nothing() {}
}  // namespace
MUSTER_FUNCTION(Nothing);

namespace muster::bench {
namespace {

constexpr int kLatencySamples = 1'000;

void ScheduleAll(ClusterCoordinator& coordinator, int closures) {
  for (int i = 0; i < closures; ++i) coordinator.schedule<Nothing>();
  coordinator.join();
}

// Seconds of one schedule and fetch, the median.
double Latency(ClusterCoordinator& coordinator) {
  std::vector<double> seconds;
  for (int i = 0; i < kLatencySamples; ++i) {
    const auto start = std::chrono::steady_clock::now();
    coordinator.schedule<Nothing>().fetch();
    if (i >= kLatencySamples / 10) seconds.push_back(SecondsSince(start));
  }
  return SpreadOf(std::move(seconds)).median;
}

int Run(int closures, const char* path) {
  ClusterCoordinator coordinator;
  ScheduleAll(coordinator, closures / 10);  // warm
  const auto start = std::chrono::steady_clock::now();
  ScheduleAll(coordinator, closures);
  const double rate = closures / SecondsSince(start);
  const double latency = Latency(coordinator);
  std::ofstream out(path);
  out << rate << " " << latency << "\n";
  return out.flush() ? 0 : 1;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  muster::init(argc, argv);
  if (argc != 3) {
    std::fputs("usage: muster-bench-closures <closures> <file>\n", stderr);
    return 2;
  }
  return muster::bench::Run(std::atoi(argv[1]), argv[2]);
}
