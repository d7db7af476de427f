// Who submitted, stopped or read what: a file of JSON lines in the coordinator's state folder.
//
// {"did": "submit", "time": "2026-11-23 00:04:48 UTC", "what": "words-1f3a", "who": "submitter
// ana"}
//
// Threading: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/mutex.h"

namespace muster::coordinator {

struct AuditEntry {
  std::string time = {};
  std::string who = {};
  std::string did = {};
  std::string what = {};
  // Why it was not done; empty: it was.
  std::string refused = {};
  // How often the same was done, or refused, since the line before this one of it.
  std::uint64_t again = 0;
};

class AuditLog {
 public:
  explicit AuditLog(std::string path) : path_(std::move(path)) {}

  // Blocks on the disk. What cannot be written goes to the log, and is told there.
  void Write(const AuditEntry& entry);

 private:
  const std::string path_;
  Mutex mutex_;
};

}  // namespace muster::coordinator
