#include "services/coordinator/coordinator_metrics.h"

#include "tests/support/catch.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator {
namespace {

struct Scraped : testing::Cluster {
  Scraped() {
    JoinAll(1, 1);
    REQUIRE(Submit(Spec()).ok());
    REQUIRE(Open().ok());
  }
  void Report(std::uint64_t step, double loss) {
    auto report = As<v1::ReportProgressRequest>();
    report.mutable_progress()->set_total_steps(100);
    report.mutable_progress()->set_step(step);
    report.mutable_progress()->set_loss(loss);
    REQUIRE(job().ReportProgress(report).ok());
  }
  std::string Scrape() {
    services::Samples samples;
    AddMetrics(*core, 0, samples);
    return samples.Text();
  }
};

TEST_CASE_METHOD(Scraped, "a job has no loss and no times of a step before its first one",
                 "[metrics][unit]") {
  Report(0, 0);
  const std::string before = Scrape();
  CHECK(before.find("\nmuster_job_step{") != std::string::npos);
  CHECK(before.find("muster_job_loss") == std::string::npos);
  CHECK(before.find("muster_job_step_part_seconds") == std::string::npos);

  Report(40, 0.5);
  const std::string after = Scrape();
  const std::string id = job().record().job().id();
  CHECK(after.find("\nmuster_job_loss{job_id=\"" + id + "\"} 0.5\n") != std::string::npos);
  CHECK(after.find("\nmuster_job_step_part_seconds{") != std::string::npos);
}

}  // namespace
}  // namespace muster::coordinator
