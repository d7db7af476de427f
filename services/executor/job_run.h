// One job and view on this worker: its data and its steps; runs closures.
//
// Threading: one thread makes and uses it; Expect() from any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "services/executor/batch_reader.h"
#include "services/executor/steps.h"

namespace muster::v1 {
class ClosureAssignment;
class ClosureResult;
class ExecutorStart;
class GetValues;
class Piece;
class ProbeData;
class ProbeReport;
class JobSpec;
class SaveReport;
class SaveVariables;
class SetBuffers;
}  // namespace muster::v1

namespace muster::executor {

class JobRun {
 public:
  // Opens the data and the steps: with parameter servers when the plan has some.
  //   kInvalidArgument, kNotFound, kDataLoss: the user's error.  Else those of steps.h.
  static Result<std::unique_ptr<JobRun>> Open(const v1::ExecutorStart& start,
                                              const std::string& token);

  // This closure will be run soon: its batch is read meanwhile.
  void Expect(const v1::ClosureAssignment& assignment);
  // The result to send, its status included.
  v1::ClosureResult Run(const v1::ClosureAssignment& assignment);

  // The model's values, a piece after the other. kAborted: another job or view.
  // kFailedPrecondition: no snapshot, or one that ends before the offset.
  Result<v1::Piece> Values(const v1::GetValues& request);
  // For the evaluation closures that name this version. Errors of Model::EvaluateWith().
  Status SetBuffers(const v1::SetBuffers& request);
  // Steps::Save(). kAborted: another job or view.
  Result<v1::SaveReport> Save(const v1::SaveVariables& request);

  const std::string& job_id() const { return job_id_; }

 private:
  JobRun() = default;
  Status Train(const v1::ClosureAssignment& assignment, v1::ClosureResult& result);
  Status Evaluate(const v1::ClosureAssignment& assignment, v1::ClosureResult& result);

  std::string job_id_;
  std::uint64_t view_ = 0;
  std::unique_ptr<Steps> steps_;
  std::unique_ptr<BatchReader> training_;
  std::unique_ptr<BatchReader> evaluation_;  // null without evaluation
  std::string snapshot_;                     // a serialized ModelValues, while it is fetched
  std::uint64_t buffers_version_ = 0;
};

// Opens the data on this host and counts. An error is this host's alone: its disk is full, it has
// too many files open.
Result<v1::ProbeReport> ProbeData(const v1::ProbeData& request, const std::string& cache_directory);

}  // namespace muster::executor
