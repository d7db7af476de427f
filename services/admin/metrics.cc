#include "services/admin/metrics.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/status.h"

namespace muster::services {
namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// By the kernel's clock, so that it is the same in each scrape.
double StartTime() {
  static const double start = [] {
    timespec now{};
    timespec up{};
    (void)::clock_gettime(CLOCK_REALTIME, &now);
    (void)::clock_gettime(CLOCK_BOOTTIME, &up);
    std::ifstream stat("/proc/self/stat");
    std::string line;
    std::getline(stat, line);
    // Field 22, counted behind the command's name, which may hold anything.
    std::size_t at = line.rfind(')');
    for (int field = 2; field < 22 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
    const double ticks = at == std::string::npos ? 0 : std::strtod(line.c_str() + at, nullptr);
    const double boot = static_cast<double>(now.tv_sec - up.tv_sec) +
                        static_cast<double>(now.tv_nsec - up.tv_nsec) / 1e9;
    return boot + ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }();
  return start;
}

}  // namespace

void Samples::Add(Metric metric, double value, std::initializer_list<std::string_view> labels) {
  MUSTER_INVARIANT(labels.size() == InfoOf(metric).labels.size());
  values_[metric][{labels.begin(), labels.end()}] = value;
}

std::string Samples::Text() const {
  std::vector<prometheus::MetricFamily> families;
  for (const auto& [metric, values] : values_) {
    const MetricInfo& info = InfoOf(metric);
    const bool counter = info.kind == MetricInfo::Kind::kCounter;
    prometheus::MetricFamily& family = families.emplace_back();
    family.name = info.name;
    family.help = info.help;
    family.type = counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    for (const auto& [labels, value] : values) {
      prometheus::ClientMetric& one = family.metric.emplace_back();
      for (std::size_t i = 0; i < labels.size(); ++i) {
        one.label.push_back({.name = std::string(info.labels[i]), .value = labels[i]});
      }
      (counter ? one.counter.value : one.gauge.value) = value;
    }
  }
  return prometheus::TextSerializer().Serialize(families);
}

void AddProcess(Samples& samples) {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  samples.Add(Metric::kCpuSeconds, Seconds(usage.ru_utime) + Seconds(usage.ru_stime));
  samples.Add(Metric::kStartTime, StartTime());
  std::ifstream statm("/proc/self/statm");
  double total = 0;
  double resident = 0;
  if (statm >> total >> resident) {
    samples.Add(Metric::kResidentBytes, resident * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  }
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  // But for the one that reads the folder.
  if (!error)
    samples.Add(Metric::kOpenFiles,
                static_cast<double>(std::distance(begin(files), end(files)) - 1));
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    samples.Add(Metric::kMostFiles, static_cast<double>(limit.rlim_cur));
  }
}

}  // namespace muster::services
