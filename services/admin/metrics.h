// What a daemon tells Prometheus. Every metric is declared in one table (metrics_table.cc): the
// daemons' code, docs/metrics.md, the alerts and the dashboard are all held against it.
//
// Threading: the table: any thread. Samples: not thread-safe.
#pragma once

#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::services {

enum class Metric {
  // All daemons.
  kBuildInfo,
  kStartTime,
  kResidentBytes,
  kCpuSeconds,
  kOpenFiles,
  kMostFiles,
  kReady,
  kLoopAge,
  kCertificateEnds,
  // The coordinator.
  kEpoch,
  kTaskUp,
  kTaskResidentBytes,
  kTaskClosures,
  kJobs,
  kJobInfo,
  kJobStep,
  kJobSteps,
  kJobExamplesPerSecond,
  kJobLoss,
  kJobAccuracy,
  kJobStepSeconds,
  kJobLinkBytes,
  kJobBadRecords,
  kJobReruns,
  kJobViews,
  kJobEta,
  kJobEvaluationStep,
  kJobEvaluationLoss,
  kJobEvaluationAccuracy,
  kJobEvaluationAuc,
  kJobClosures,
  kJobRestarts,
  kJobWait,
  kJobCheckpointTime,
  kJobCheckpointStall,
  // Parameter servers and workers.
  kAttached,
  kSession,
  // Parameter servers.
  kPsVariablesBytes,
  kPsStagedBytes,
  kPsPulls,
  kPsPushes,
  kPsDuplicates,
  kPsStepWaits,
  kPsBytes,
  // Workers.
  kWorkerClosures,
  kWorkerExecutor,
  kWorkerJobBytes,
};

struct MetricInfo {
  enum class Kind { kGauge, kCounter };

  Metric metric;
  std::string_view name;
  Kind kind = Kind::kGauge;
  // "seconds", "bytes", "1" for counts and ratios.
  std::string_view unit;
  // Which daemons have it: "all", "coordinator", "ps", "worker", "ps, worker".
  std::string_view daemons;
  // In the order in which Samples::Add() is given their values.
  std::vector<std::string_view> labels;
  std::string_view help;
};

// In the order of the enum.
std::span<const MetricInfo> AllMetrics();
const MetricInfo& InfoOf(Metric metric);

// The values of one scrape.
class Samples {
 public:
  // One value for each label that the metric has. Of equal labels the last counts.
  void Add(Metric metric, double value, std::initializer_list<std::string_view> labels = {});
  // In the text format of Prometheus, in the table's order.
  std::string Text() const;

 private:
  std::map<Metric, std::map<std::vector<std::string>, double>> values_;
};

// What Linux tells of this process: memory, processor time, files.
void AddProcess(Samples& samples);

}  // namespace muster::services
