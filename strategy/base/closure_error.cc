#include "strategy/base/closure_error.h"

#include <ostream>
#include <utility>

#include "dispatch/core/closure_error.h"

#include "common/base/words.h"

namespace muster {
namespace {

// "text (worker:1, incarnation 7, running, after 2 retries)".
std::string WithDetails(const std::string& message, const ClosureDetails& details) {
  std::string where = details.task.empty() ? to_string(details.origin) : details.task;
  if (details.incarnation != 0) where += ", incarnation " + std::to_string(details.incarnation);
  where += ", " + to_string(details.phase);
  if (details.retries != 0) where += ", after " + Counted(details.retries, "retry", "retries");
  return message + " (" + where + ")";
}

}  // namespace

// The numbers are dispatch's, which sends them.
std::string to_string(ErrorOrigin origin) {
  static_assert(static_cast<int>(ErrorOrigin::kCoordinator) ==
                static_cast<int>(dispatch::Origin::kCoordinator));
  return dispatch::Words(static_cast<dispatch::Origin>(origin));
}

std::string to_string(ClosurePhase phase) {
  static_assert(static_cast<int>(ClosurePhase::kBuild) ==
                static_cast<int>(dispatch::Phase::kBuild));
  return dispatch::Words(static_cast<dispatch::Phase>(phase));
}

std::ostream& operator<<(std::ostream& out, ErrorOrigin origin) { return out << to_string(origin); }
std::ostream& operator<<(std::ostream& out, ClosurePhase phase) { return out << to_string(phase); }

ClosureError::ClosureError(ErrorCode code, const std::string& message, ClosureDetails details)
    : Error(code, WithDetails(message, details)), text_(message), details_(std::move(details)) {}

EndOfData::EndOfData(const std::string& message) : Error(ErrorCode::kOutOfRange, message) {}

}  // namespace muster
