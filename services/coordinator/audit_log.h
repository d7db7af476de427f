// Who submitted, stopped or read what: a file of JSON lines in the coordinator's state folder.
//
// {"did": "submit", "time": "2026-11-23T00:04:48Z", "what": "words-1f3a", "who": "submitter
// ana"}
//
// A file that has grown to its limit is renamed, and takes the place of the one that was before.
//
// Threading: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/base/mutex.h"
#include "common/net/fd.h"

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
  // `most_bytes`: of the file; 0: as many as come, because somebody else moves it away.
  AuditLog(std::string path, std::uint64_t most_bytes)
      : path_(std::move(path)), most_bytes_(most_bytes) {}

  // Blocks on the disk. What cannot be written goes to the log, and is told there.
  void Write(const AuditEntry& entry);

 private:
  net::Fd Open() const;

  const std::string path_;
  const std::uint64_t most_bytes_;
  Mutex mutex_;  // for one line at a time in the file
};

}  // namespace muster::coordinator
