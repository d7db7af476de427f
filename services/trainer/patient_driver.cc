#include "services/trainer/patient_driver.h"

#include <algorithm>

namespace muster::trainer {
namespace {

const Status& StatusOf(const Status& status) { return status; }
template <class Value>
const Status& StatusOf(const Result<Value>& result) {
  return result.status();
}

}  // namespace

template <class Call>
auto PatientDriver::Ask(Call call) -> decltype(call()) {
  Millis rest = options_.first_rest;
  bool waited = false;
  while (true) {
    auto answer = call();
    const Status& status = StatusOf(answer);
    if (status.code() != StatusCode::kUnavailable &&
        status.code() != StatusCode::kDeadlineExceeded) {
      if (waited) options_.say("the coordinator answers again");
      return answer;
    }
    if (!std::exchange(waited, true)) {
      options_.say("no answer from the coordinator, asking again: " + Message(status));
    }
    options_.sleep(rest);
    rest = std::min(rest * 2, options_.longest_rest);
  }
}

Result<v1::OpenJobReply> PatientDriver::OpenJob() {
  return Ask([&] { return api_.OpenJob(); });
}

Result<v1::BeginEvaluationReply> PatientDriver::BeginEvaluation(ViewId view,
                                                                const v1::ModelReport& report) {
  return Ask([&] { return api_.BeginEvaluation(view, report); });
}

Result<v1::SaveCheckpointReply> PatientDriver::SaveCheckpoint(ViewId view, std::uint64_t step,
                                                              const v1::ModelReport& report) {
  return Ask([&] { return api_.SaveCheckpoint(view, step, report); });
}

Result<v1::ReportProgressReply> PatientDriver::Report(ViewId view, const v1::JobProgress& progress,
                                                      const v1::EvaluationResult* evaluation) {
  return Ask([&] { return api_.Report(view, progress, evaluation); });
}

Status PatientDriver::Finish(ViewId view, const Status& status,
                             const v1::EvaluationResult* evaluation,
                             const v1::ModelReport& report) {
  return Ask([&] { return api_.Finish(view, status, evaluation, report); });
}

}  // namespace muster::trainer
