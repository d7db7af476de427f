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

Status PatientDriver::Schedule(ViewId view, const std::vector<v1::Closure>& closures) {
  return Ask([&] { return api_.Schedule(view, closures); });
}

Result<v1::JoinReply> PatientDriver::Join(ViewId view, Millis timeout) {
  return Ask([&] { return api_.Join(view, timeout); });
}

Result<v1::FetchReply> PatientDriver::Fetch(ViewId view, v1::ClosureKind kind) {
  return Ask([&] { return api_.Fetch(view, kind); });
}

Result<v1::SaveCheckpointReply> PatientDriver::SaveCheckpoint(ViewId view, std::uint64_t step) {
  return Ask([&] { return api_.SaveCheckpoint(view, step); });
}

Result<v1::ReportProgressReply> PatientDriver::Report(ViewId view, const v1::JobProgress& progress,
                                                      const v1::EvaluationResult* evaluation) {
  return Ask([&] { return api_.Report(view, progress, evaluation); });
}

Status PatientDriver::Finish(ViewId view, const Status& status,
                             const v1::EvaluationResult* evaluation) {
  return Ask([&] { return api_.Finish(view, status, evaluation); });
}

}  // namespace muster::trainer
