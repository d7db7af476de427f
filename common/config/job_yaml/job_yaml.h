// job.yaml -> muster.v1.JobSpec, with every problem located. docs/formats/job-spec.md is the
// manual.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/config/job_yaml/problem.h"
#include "common/config/job_yaml/yaml_walk.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::config {

// Larger files are refused unread: a job is a page or two, its model an archive of its own.
inline constexpr std::size_t kMostJobYamlBytes = 1 << 20;

struct JobFile {
  v1::JobSpec spec;
  // Everything wrong with it, in the order of the file; empty: the job can be submitted.
  std::vector<LocatedProblem> problems;
  // Where each field stands; for problems that are found later, by a worker.
  std::map<std::string, Position> positions;
  std::string file;
  // As it was parsed.
  std::string text;

  // "job.yaml:3:5: optimizer.learning_rate: must be above 0; given -1"
  std::string Describe(const LocatedProblem& problem) const;
};

// What a worker says of the TorchScript in the file ("step 1: forward, line 3, column 9: ...") with
// the place in the file in front of each such line: "job.yaml:12:15: step 1: forward: ...". Where
// the source is written so that its lines are not the file's (a quoted string), the place is that
// of its first character, and the line within it stays in the text.
std::string LocateScript(const JobFile& job, const std::string& message);

// The name of a job that is given none: "build/my job.yaml" -> "my-job", "job" where nothing of the
// file's name may stand in one.
std::string NameFromFile(const std::string& file);

// The text alone: walked by the schema, then validated (validate_job.h). `file` is for messages and
// gives the job its name when the text does not.
JobFile ParseJobYaml(std::string_view text, const std::string& file);

// Reads `path`. Relative paths of data, archive and checkpoints become absolute: they are meant
// relative to the file's folder.
//   kNotFound, kPermissionDenied: from opening it.  kResourceExhausted: more than 1 MiB.
Result<JobFile> LoadJobYaml(const std::string& path);

// Makes the relative paths in `spec` absolute, below `folder`.
void ResolvePaths(const std::string& folder, v1::JobSpec& spec);

}  // namespace muster::config
