// One job and view on this worker: its model, its data, its parameter servers; runs closures.
//
// Threading: one thread makes and uses it; Expect() from any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "ps/client/ps_client.h"
#include "services/executor/batch_reader.h"
#include "worker/engine/model.h"

namespace muster::v1 {
class ClosureAssignment;
class ClosureResult;
class ExecutorStart;
class GetValues;
class Piece;
class ProbeReport;
class JobSpec;
class SetBuffers;
}  // namespace muster::v1

namespace muster::executor {

class JobRun {
 public:
  // Connects, loads the model, opens the data, and gives the parameter servers an archive's initial
  // values when it is told to.
  //   kInvalidArgument, kNotFound, kDataLoss: the user's error.  Else PsClient's.
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

  const std::string& job_id() const { return job_id_; }

 private:
  JobRun() = default;
  Status MatchVariables(const v1::ExecutorStart& start);
  Status GiveInitialValues(const v1::ExecutorStart& start);
  Status BindParameters();

  Status Train(const v1::ClosureAssignment& assignment, v1::ClosureResult& result);
  Status Evaluate(const v1::ClosureAssignment& assignment, v1::ClosureResult& result);
  // Parameters and the rows that the batch needs; sets pull_us.
  Result<std::vector<engine::Lookup>> Pull(const data::Element& batch, v1::ClosureResult& result);
  Status Push(const v1::ClosureAssignment& assignment, std::vector<engine::Lookup>& lookups,
              v1::ClosureResult& result);

  std::string job_id_;
  std::uint64_t view_ = 0;
  // The client's memory holds the model's parameters, so it goes last.
  std::unique_ptr<ps::PsClient> client_;
  std::unique_ptr<engine::Model> model_;
  std::unique_ptr<BatchReader> training_;
  std::unique_ptr<BatchReader> evaluation_;  // null without evaluation
  // Variable ids by Model::parameters() and Model::embeddings().
  std::vector<std::uint32_t> dense_;
  std::vector<std::uint32_t> embedding_;
  std::string snapshot_;  // a serialized ModelValues, while it is fetched
  std::uint64_t buffers_version_ = 0;
};

// Opens the data on this host and counts.
v1::ProbeReport ProbeData(const v1::JobSpec& spec, const std::string& cache_directory);

}  // namespace muster::executor
