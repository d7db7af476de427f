// Uploaded files by SHA-256, below one folder. A file is there whole or not at all.
//
// Threading: any thread; a Writer belongs to one caller at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "coordinator/offload.h"

namespace muster::coordinator {

class FileStore {
 public:
  static constexpr std::uint64_t kMostBytes = 256 << 20;

  // Receives one file under a temporary name; without Commit() nothing stays.
  class Writer {
   public:
    virtual ~Writer() = default;
    // kResourceExhausted: more than kMostBytes, or the disk is full.
    virtual Status Append(std::string_view bytes) = 0;
    // Synced and renamed. kDataLoss: what arrived has another hash.
    virtual Result<std::uint64_t> Commit() = 0;
  };

  // The folder is made when the first file comes.
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {}

  // kInvalidArgument: no SHA-256 in hex.
  Result<std::unique_ptr<Writer>> Begin(const std::string& sha256) const;
  bool Has(const std::string& sha256) const;
  // Where a file lies, whether or not it is there. kInvalidArgument as above.
  Result<std::string> Path(const std::string& sha256) const;
  // The path of a file that is there, which from now on its owner may run. kNotFound: it is not.
  Result<std::string> Executable(const std::string& sha256) const;
  // Somebody counts on the file: it is not collected for another `unused` (see below).
  void Touch(const std::string& sha256) const;
  // Has and Touch, away from the strand.
  void Look(LaneOffload& disks, const std::string& sha256, std::function<void(bool)> then) const;
  // Removes what has been touched by nobody for longer than `unused`: uploads that were broken off,
  // and files but those in `used`. Answers how many.
  std::size_t Collect(const std::set<std::string>& used, std::chrono::seconds unused) const;

 private:
  const std::string directory_;
};

}  // namespace muster::coordinator
