// Who submitted, stopped or read what: a file of JSON lines in the coordinator's state folder.
//
// {"time": "2026-11-23 00:04:48 UTC", "who": "submitter ana", "did": "submit", "what": "words"}
//
// Threading: any thread.
#pragma once

#include <string>
#include <string_view>

#include "common/base/mutex.h"

namespace muster::coordinator {

class AuditLog {
 public:
  explicit AuditLog(std::string path) : path_(std::move(path)) {}

  // Blocks on the disk. What cannot be written goes to the log, and is told there.
  void Write(std::string_view time, std::string_view who, std::string_view did,
             std::string_view what);

 private:
  const std::string path_;
  Mutex mutex_;
};

}  // namespace muster::coordinator
