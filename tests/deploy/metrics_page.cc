// What the table of metrics is for those who do not run a daemon: docs/metrics.md, or with --sample
// a page of /metrics with one value of each.
#include <string_view>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "services/admin/metrics.h"

namespace {

using muster::services::AllMetrics;
using muster::services::MetricInfo;

void PrintSample() {
  muster::services::Samples samples;
  for (const MetricInfo& info : AllMetrics()) {
    switch (info.labels.size()) {
      case 0:
        samples.Add(info.metric, 1);
        break;
      case 1:
        samples.Add(info.metric, 1, {"a"});
        break;
      case 2:
        samples.Add(info.metric, 1, {"a", "b"});
        break;
      default:
        samples.Add(info.metric, 1, {"a", "b", "c"});
    }
  }
  fmt::print("{}", samples.Text());
}

void PrintPage() {
  fmt::print(
      "# Metrics\n\n"
      "Made by `tools/metrics-page` from the table in `services/admin/metrics_table.cc`. Daemons "
      "tell them at `/metrics` of\ntheir admin port ([operations.md](operations.md#seen)), in the "
      "text format of Prometheus. Where daemons have\ncertificates Prometheus scrapes by HTTPS, "
      "with one of its own: [security.md](security.md#with-certificates).\n");
  for (const auto& [daemons, title] :
       {std::pair("all", "All daemons"), std::pair("coordinator", "The coordinator"),
        std::pair("ps, worker", "Parameter servers and workers"),
        std::pair("ps", "Parameter servers"), std::pair("worker", "Workers")}) {
    fmt::print("\n## {}\n\n| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n",
               title);
    for (const MetricInfo& info : AllMetrics()) {
      if (info.daemons != daemons) continue;
      fmt::print("| `{}` | {} | {} | {} | {} |\n", info.name,
                 info.kind == MetricInfo::Kind::kCounter ? "counter" : "gauge", info.unit,
                 info.labels.empty() ? "-" : fmt::format("{}", fmt::join(info.labels, ", ")),
                 info.help);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--sample") {
    PrintSample();
  } else {
    PrintPage();
  }
  return 0;
}
