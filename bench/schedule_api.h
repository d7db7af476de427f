// The part of `muster-bench schedule` about the public API: closures of a program that is submitted
// to a cluster of daemons.
#pragma once

#include <memory>
#include <vector>

#include "bench/cluster.h"
#include "common/base/status.h"

namespace muster::bench {

// A cluster of two workers and a parameter server, as long as the object lives.
class ScheduleApi {
 public:
  // Null where the daemons are not installed beside this program.
  static Result<std::unique_ptr<ScheduleApi>> Start();

  // One round: a job of `closures` empty closures, then of single ones.
  Status Measure(int round, int closures);

  const std::vector<double>& closures_per_second() const { return rates_; }
  // Seconds of one schedule and fetch.
  const std::vector<double>& latencies() const { return latencies_; }

 private:
  explicit ScheduleApi(std::unique_ptr<Cluster> cluster) : cluster_(std::move(cluster)) {}

  std::unique_ptr<Cluster> cluster_;
  std::vector<double> rates_;
  std::vector<double> latencies_;
};

}  // namespace muster::bench
