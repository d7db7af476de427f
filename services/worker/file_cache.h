// Uploaded files on this host, by SHA-256: fetched from the coordinator once, verified each time.
//
// Threading: one thread. Lifetime: a value.
#pragma once

#include <functional>
#include <string>

#include "common/base/status.h"

namespace muster::services {

class FileCache {
 public:
  // Hands the file's bytes to `sink` in order, until it returns an error.
  using Sink = std::function<Status(const std::string& bytes)>;
  using Fetch = std::function<Status(const std::string& sha256, const Sink& sink)>;

  enum class Use {
    kArchive,
    // Owner may run it.
    kProgram,
  };

  FileCache(std::string directory, Fetch fetch, Use use = Use::kArchive)
      : directory_(std::move(directory)), fetch_(std::move(fetch)), use_(use) {}

  // The path of the file. A damaged copy is fetched again.
  //   kInvalidArgument: no SHA-256.  kDataLoss: what arrived has another hash.
  //   kResourceExhausted: larger than 256 MiB, or the disk is full.  Errors of fetch.
  Result<std::string> Get(const std::string& sha256) const;

 private:
  const std::string directory_;
  const Fetch fetch_;
  const Use use_;
};

}  // namespace muster::services
