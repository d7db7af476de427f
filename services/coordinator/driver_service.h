// DriverService (proto/muster/v1/driver.proto) over the coordinator.
#pragma once

#include "muster/v1/driver.grpc.pb.h"
#include "services/coordinator/front.h"

namespace muster::coordinator {

// Lifetime: `front` outlives it.
class DriverServiceImpl : public v1::DriverService::CallbackService {
 public:
  explicit DriverServiceImpl(Front& front) : front_(front) {}

  grpc::ServerUnaryReactor* OpenJob(grpc::CallbackServerContext* context,
                                    const v1::OpenJobRequest* request,
                                    v1::OpenJobReply* reply) override;
  grpc::ServerUnaryReactor* BeginEvaluation(grpc::CallbackServerContext* context,
                                            const v1::BeginEvaluationRequest* request,
                                            v1::BeginEvaluationReply* reply) override;
  grpc::ServerUnaryReactor* SaveCheckpoint(grpc::CallbackServerContext* context,
                                           const v1::SaveCheckpointRequest* request,
                                           v1::SaveCheckpointReply* reply) override;
  grpc::ServerUnaryReactor* ReportProgress(grpc::CallbackServerContext* context,
                                           const v1::ReportProgressRequest* request,
                                           v1::ReportProgressReply* reply) override;
  grpc::ServerUnaryReactor* FinishJob(grpc::CallbackServerContext* context,
                                      const v1::FinishJobRequest* request,
                                      v1::FinishJobReply* reply) override;

 private:
  Front& front_;
};

}  // namespace muster::coordinator
