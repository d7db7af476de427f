// Uploaded files on this host, by SHA-256: fetched from the coordinator once, verified each time,
// and removed when nobody has asked for them for a day.
//
// Threading: one thread; other processes may use the same folder. Lifetime: a value.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

#include "common/base/scheduler.h"
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

  static constexpr std::chrono::hours kUnused{24};

  // The path of the file, which stays for another kUnused. A damaged copy is fetched again.
  //   kInvalidArgument: no SHA-256.  kDataLoss: what arrived has another hash.
  //   kResourceExhausted: larger than 256 MiB, or the disk is full.  Errors of fetch.
  Result<std::string> Get(const std::string& sha256) const;

  // Removes what nobody has asked for in kUnused, and what processes that have ended had not wholly
  // fetched. Whoever has a file open, or runs it, keeps it. Returns how many.
  std::size_t Collect(std::chrono::system_clock::time_point now) const;

 private:
  const std::string directory_;
  const Fetch fetch_;
  const Use use_;
};

// Collect() now and then every hour, on `files`, the thread of the cache. Lifetime: `cache`
// outlives what runs there.
void KeepTidy(Scheduler& files, const FileCache& cache);

}  // namespace muster::services
