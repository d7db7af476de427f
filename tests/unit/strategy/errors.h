// The error that a piece of code throws.
#pragma once

#include <functional>
#include <optional>

#include "strategy/base/error.h"

namespace muster::testing {

// The muster::Error that `body` throws; none when it throws nothing. Others pass through.
inline std::optional<Error> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// Its code, or kOk.
inline ErrorCode code_of(const std::function<void()>& body) {
  const auto error = error_of(body);
  return error ? error->code() : ErrorCode::kOk;
}

// Whether `body` throws an error of this code whose text has `part` in it.
inline bool throws(ErrorCode code, const std::string& part, const std::function<void()>& body) {
  const auto error = error_of(body);
  return error && error->code() == code && error->message().find(part) != std::string::npos;
}

}  // namespace muster::testing
