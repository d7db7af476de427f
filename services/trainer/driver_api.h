// What a driver may ask of the coordinator, without the pipe, so that the trainer's loop is tested
// against a scripted one. Errors are those of proto/muster/v1/driver.proto; the calls may be
// repeated.
#pragma once

#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"
#include "muster/v1/driver.pb.h"

namespace muster::trainer {

class DriverApi {
 public:
  virtual ~DriverApi() = default;
  virtual Result<v1::OpenJobReply> OpenJob() = 0;
  virtual Result<v1::BeginEvaluationReply> BeginEvaluation(ViewId view,
                                                           const v1::ModelReport& report) = 0;
  virtual Result<v1::SaveCheckpointReply> SaveCheckpoint(ViewId view, std::uint64_t step,
                                                         const v1::ModelReport& report) = 0;
  virtual Result<v1::ReportProgressReply> Report(ViewId view, const v1::JobProgress& progress,
                                                 const v1::EvaluationResult* evaluation) = 0;
  virtual Status Finish(ViewId view, const Status& status, const v1::EvaluationResult* evaluation,
                        const v1::ModelReport& report) = 0;
};

}  // namespace muster::trainer
