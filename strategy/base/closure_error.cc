#include "strategy/base/closure_error.h"

#include <ostream>
#include <utility>

namespace muster {
namespace {

// "text (worker:1, incarnation 7, running, after 2 retries)".
std::string WithDetails(const std::string& message, const ClosureDetails& details) {
  std::string where = details.task.empty() ? to_string(details.origin) : details.task;
  if (details.incarnation != 0) where += ", incarnation " + std::to_string(details.incarnation);
  where += ", " + to_string(details.phase);
  if (details.retries != 0) where += ", after " + std::to_string(details.retries) + " retries";
  return message + " (" + where + ")";
}

}  // namespace

std::string to_string(ErrorOrigin origin) {
  switch (origin) {
    case ErrorOrigin::kUser:
      return "the function";
    case ErrorOrigin::kInput:
      return "an input";
    case ErrorOrigin::kWorker:
      return "a worker";
    case ErrorOrigin::kParameterServer:
      return "a parameter server";
    case ErrorOrigin::kCoordinator:
      return "the coordinator";
  }
  return "an unknown part";
}

std::string to_string(ClosurePhase phase) {
  switch (phase) {
    case ClosurePhase::kQueued:
      return "in the queue";
    case ClosurePhase::kInputs:
      return "taking its inputs";
    case ClosurePhase::kRun:
      return "running";
    case ClosurePhase::kWrites:
      return "writing";
    case ClosurePhase::kResult:
      return "sending its result";
    case ClosurePhase::kBuild:
      return "building a value of the worker";
  }
  return "at an unknown time";
}

std::ostream& operator<<(std::ostream& out, ErrorOrigin origin) { return out << to_string(origin); }
std::ostream& operator<<(std::ostream& out, ClosurePhase phase) { return out << to_string(phase); }

ClosureError::ClosureError(ErrorCode code, const std::string& message, ClosureDetails details)
    : Error(code, WithDetails(message, details)), text_(message), details_(std::move(details)) {}

EndOfData::EndOfData(const std::string& message) : Error(ErrorCode::kOutOfRange, message) {}

}  // namespace muster
