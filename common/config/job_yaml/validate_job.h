// What makes a JobSpec wrong before anything runs: values out of range, settings that exclude each
// other, names that point nowhere. Works on the message alone, so the CLI and the coordinator
// agree. What only the data or the model can tell (shapes, a forward that does not compile) is a
// worker's to find.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/job_yaml/problem.h"

namespace muster::v1 {
class DataSpec;
class JobSpec;
}  // namespace muster::v1

namespace muster::config {

// Every problem, in no particular order; empty: the job can be tried. `name` is required here.
Problems ValidateJob(const v1::JobSpec& spec);

// The same for one data section; `path` ("data", "evaluation.data") begins the problems' paths.
void ValidateData(const std::string& path, const v1::DataSpec& data, Problems& problems);

// The columns that the data declares, sorted; what forward, embeddings and loss may name.
std::vector<std::string> DeclaredColumns(const v1::DataSpec& data);

// Letters, digits and '_', not beginning with a digit, at most job_limits::kLongestName: what
// TorchScript takes as a name of an argument or an attribute.
bool IsIdentifier(std::string_view name);

}  // namespace muster::config
