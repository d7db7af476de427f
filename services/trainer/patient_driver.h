// A DriverApi that waits for the coordinator: what it answers kUnavailable or kDeadlineExceeded is
// the cluster's trouble and never the job's, so the call is made again until there is an answer.
//
// Without a limit: a coordinator that dies takes its drivers along, and one that misses a driver
// kills it.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "services/trainer/driver_api.h"

namespace muster::trainer {

// Threading: one thread. Lifetime: `api` outlives it.
class PatientDriver final : public DriverApi {
 public:
  struct Options {
    Millis first_rest{100};
    Millis longest_rest{1'000};
    std::function<void(Millis)> sleep = [](Millis time) { std::this_thread::sleep_for(time); };
    // A sentence for the log, at the first failure and when the coordinator is back.
    std::function<void(const std::string&)> say = [](const std::string&) {};
  };

  PatientDriver(DriverApi& api, Options options) : api_(api), options_(std::move(options)) {}

  Result<v1::OpenJobReply> OpenJob() override;
  Result<v1::BeginEvaluationReply> BeginEvaluation(ViewId view,
                                                   const v1::ModelReport& report) override;
  Result<v1::SaveCheckpointReply> SaveCheckpoint(ViewId view, std::uint64_t step,
                                                 const v1::ModelReport& report) override;
  Result<v1::ReportProgressReply> Report(ViewId view, const v1::JobProgress& progress,
                                         const v1::EvaluationResult* evaluation) override;
  Status Finish(ViewId view, const Status& status, const v1::EvaluationResult* evaluation,
                const v1::ModelReport& report) override;

 private:
  template <class Call>
  auto Ask(Call call) -> decltype(call());

  DriverApi& api_;
  const Options options_;
};

}  // namespace muster::trainer
