// What a closure that fails on another machine throws where its program asks for it: an Error that
// says whose trouble it is and where it happened. docs/strategies/parameter_server.md says what is
// tried again and what is thrown.
//
// Threading: plain values.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "strategy/base/error.h"

namespace muster {

enum class ErrorOrigin : std::uint8_t {
  kUser = 1,         // the function itself
  kInput,            // a value that it was given holds an error
  kWorker,           // a worker, its process or its host
  kParameterServer,  // a parameter server
  kCoordinator,      // the program's own process, or the cluster's coordinator
};
std::string to_string(ErrorOrigin origin);
std::ostream& operator<<(std::ostream& out, ErrorOrigin origin);

// Where in a closure's life it happened.
enum class ClosurePhase : std::uint8_t { kQueued = 1, kInputs, kRun, kWrites, kResult, kBuild };
std::string to_string(ClosurePhase phase);
std::ostream& operator<<(std::ostream& out, ClosurePhase phase);

struct ClosureDetails {
  ErrorOrigin origin = ErrorOrigin::kUser;
  ClosurePhase phase = ClosurePhase::kRun;
  // "worker:1", "ps:0"; empty: none in particular.
  std::string task = {};
  // Which process of the task it was; 0: not known.
  std::uint64_t incarnation = 0;
  // How often the closure had been sent round again before.
  std::uint32_t retries = 0;
};

// The code is the function's own where it threw a muster::Error, UNKNOWN where it threw anything
// else.
class ClosureError : public Error {
 public:
  ClosureError(ErrorCode code, const std::string& message, ClosureDetails details);
  const ClosureDetails& details() const { return details_; }
  // What was said, without the details that message() ends with.
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  ClosureDetails details_;
};

// A value that the closure was given holds an error, whose code this one has: the function did not
// run.
class ClosureInputError : public ClosureError {
 public:
  using ClosureError::ClosureError;
};

// The worker that held a per-worker value is lost; the value is built again when it is back.
class ClosureAbortedError : public ClosureError {
 public:
  using ClosureError::ClosureError;
};

// A parameter server is lost, and the values that it held with it.
class PsUnavailable : public ClosureError {
 public:
  using ClosureError::ClosureError;
};

// OUT_OF_RANGE: this worker's data has ended.
class EndOfData : public Error {
 public:
  explicit EndOfData(const std::string& message);
};

}  // namespace muster
