// Opens a job's data on this host.
//
// Threading: free functions, any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "services/executor/batch_reader.h"

namespace muster::v1 {
class DataFiles;
class DataSpec;
class JobSpec;
}  // namespace muster::v1

namespace muster::executor {

// What errors of the two kinds of data begin with; the coordinator goes by it (StartExecutor).
inline constexpr std::string_view kTraining = "data";
inline constexpr std::string_view kEvaluation = "evaluation.data";

// With `expected` (StartExecutor.data; empty: not compared) the files must be these: kDataLoss.
//   kInvalidArgument, kNotFound, kDataLoss: the user's error.
Result<std::unique_ptr<BatchReader>> OpenTrainingData(const v1::JobSpec& spec,
                                                      const std::string& cache_directory,
                                                      const v1::DataFiles& expected);
// In order, whatever its spec says; spec.evaluation is there.
Result<std::unique_ptr<BatchReader>> OpenEvaluationData(const v1::JobSpec& spec,
                                                        const std::string& cache_directory,
                                                        const v1::DataFiles& expected);

std::uint32_t EvaluationBatch(const v1::JobSpec& spec);
// Evaluation reads in order, whatever its data says.
v1::DataSpec InOrder(v1::DataSpec spec);

}  // namespace muster::executor
