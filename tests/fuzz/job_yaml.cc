// The job file, as its user wrote it.
#include "common/config/job_yaml/job_yaml.h"

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  const std::string_view text = fuzz::Text(data, size);
  const config::JobFile job = config::ParseJobYaml(text, "job.yaml");
  for (const config::LocatedProblem& problem : job.problems) (void)job.Describe(problem);
  (void)config::LocateScript(job, "step 1: forward, line 1, column 1: wrong");
  return 0;
}
