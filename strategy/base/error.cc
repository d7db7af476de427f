#include "strategy/base/error.h"

#include <ostream>

#include "common/base/status.h"

namespace muster {

std::string to_string(ErrorCode code) {
  return std::string(CodeName(static_cast<StatusCode>(code)));
}

std::ostream& operator<<(std::ostream& out, ErrorCode code) { return out << to_string(code); }

Error::Error(ErrorCode code, const std::string& message)
    : std::runtime_error(to_string(code) + ": " + message), code_(code), message_(message) {}

void raise(ErrorCode code, const std::string& message) { throw Error(code, message); }

}  // namespace muster
