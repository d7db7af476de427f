#include "services/admin/metrics.h"

#include <fstream>
#include <iterator>
#include <regex>
#include <set>

#include "tests/support/catch.h"

namespace muster::services {
namespace {

std::string File(const std::string& name) {
  std::ifstream file(std::string(MUSTER_SOURCE) + "/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("the table is in the order of its enum, and no name stands in it twice", "[metrics]") {
  std::set<std::string_view> names;
  for (const MetricInfo& info : AllMetrics()) {
    CAPTURE(info.name);
    CHECK(&InfoOf(info.metric) == &info);
    CHECK(names.insert(info.name).second);
    CHECK(info.name.ends_with("_total") == (info.kind == MetricInfo::Kind::kCounter));
    CHECK((info.unit == "1" || info.name.find(info.unit) != std::string_view::npos));
    CHECK(info.help.ends_with("."));
  }
}

TEST_CASE("values are written with their labels, which may hold anything", "[metrics]") {
  Samples samples;
  samples.Add(Metric::kJobLoss, 0.25, {"a\"b\\c\nd"});
  samples.Add(Metric::kJobLoss, 0.5, {"e"});
  samples.Add(Metric::kEpoch, 3);

  CHECK(samples.Text() ==
        "# HELP muster_coordinator_epoch Grows with each start of the coordinator on its state "
        "directory.\n"
        "# TYPE muster_coordinator_epoch gauge\n"
        "muster_coordinator_epoch 3\n"
        "# HELP muster_job_loss Mean loss of the training steps since the last report.\n"
        "# TYPE muster_job_loss gauge\n"
        "muster_job_loss{job_id=\"a\\\"b\\\\c\\nd\"} 0.25\n"
        "muster_job_loss{job_id=\"e\"} 0.5\n");
}

TEST_CASE("a process knows its memory, its time and its files", "[metrics]") {
  Samples samples;
  AddProcess(samples);
  const std::string text = samples.Text();

  std::smatch found;
  REQUIRE(std::regex_search(text, found, std::regex("\nprocess_start_time_seconds (\\S+)\n")));
  const double now = static_cast<double>(std::time(nullptr));
  CHECK(std::stod(found[1]) <= now + 1);
  CHECK(std::stod(found[1]) > now - 3'600);
  REQUIRE(std::regex_search(text, found, std::regex("\nprocess_open_fds (\\S+)\n")));
  CHECK(std::stod(found[1]) >= 3);
  REQUIRE(std::regex_search(text, found, std::regex("\nprocess_resident_memory_bytes (\\S+)\n")));
  CHECK(std::stod(found[1]) > 1e6);
}

TEST_CASE("alerts and the dashboard speak of metrics and labels that there are", "[metrics]") {
  std::set<std::string> names;
  for (const MetricInfo& info : AllMetrics()) names.emplace(info.name);

  for (const char* file : {"deploy/monitoring/alerts.yaml", "deploy/monitoring/alerts_test.yaml",
                           "deploy/monitoring/dashboard.json"}) {
    const std::string text = File(file);
    CAPTURE(file);
    CHECK_FALSE(text.empty());
    const std::regex name("\\b(?:muster|process)_[a-z_]+");
    for (auto at = std::sregex_iterator(text.begin(), text.end(), name);
         at != std::sregex_iterator(); ++at) {
      CAPTURE(at->str());
      CHECK(names.contains(at->str()));
    }
  }
}

}  // namespace
}  // namespace muster::services
