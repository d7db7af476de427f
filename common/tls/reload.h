// When files are loaded anew: when they have changed, and of no use again and again, since what was
// wrong may pass by itself (no descriptors were left, a date has not come yet, others could read
// the key).
//
// Threading: one thread at a time.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <sys/stat.h>

#include "common/base/status.h"

namespace muster::tls {

// Tells a file from the one that replaces it, by its size, time and the like.
inline std::string StampOf(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return fmt::format("{}: {}", path, errno);
  return fmt::format("{}/{}/{}.{:09}", info.st_ino, info.st_size, info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec);
}

class Reload {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Between two attempts with the same files: the first, and what doubling ends at.
  static constexpr std::chrono::milliseconds kFirst{500};
  static constexpr std::chrono::milliseconds kLast{16'000};

  // `stamp`: of the files that are in use.
  explicit Reload(std::string stamp = {}) : stamp_(std::move(stamp)) {}

  // Whether the files, which have this stamp now, are to be loaded.
  bool Due(std::string stamp, Time now) {
    if (stamp != stamp_) *this = Reload(std::move(stamp), now);
    return next_.has_value() && now >= *next_;
  }
  void Succeeded() { *this = Reload(std::move(stamp_)); }
  // True: with another kind of reason than the attempt before, so it is told.
  bool Failed(StatusCode code, Time now) {
    const bool news = failed_ != code;
    failed_ = code;
    next_ = now + pause_;
    pause_ = std::min(pause_ * 2, kLast);
    return news;
  }

 private:
  Reload(std::string stamp, Time next) : stamp_(std::move(stamp)), next_(next) {}

  std::string stamp_;
  std::optional<Time> next_;  // none: these are in use
  std::optional<StatusCode> failed_;
  std::chrono::milliseconds pause_ = kFirst;
};

}  // namespace muster::tls
