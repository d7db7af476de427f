// The log of one daemon of `muster up`: appended to, put aside as "<file>.1" when it is large, and
// never faster than a disk and a reader can bear.
//
// Threading: not thread-safe.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "common/base/rate_limit.h"
#include "common/base/scheduler.h"
#include "common/base/status.h"

namespace muster::cli {

class LogFile {
 public:
  struct Options {
    // Twice this is the most that a daemon's log takes.
    std::uint64_t bytes = 32 << 20;
    // More in one second are counted, not written.
    std::uint64_t lines_per_second = 5'000;
  };

  LogFile(std::string path, const Clock& clock) : LogFile(std::move(path), clock, Options()) {}
  LogFile(std::string path, const Clock& clock, Options options);

  //   kUnknown: it cannot be written.
  Status Open();
  void Write(std::string_view line);

 private:
  void Put(std::string_view line);

  const std::string path_;
  const Clock& clock_;
  const Options options_;
  std::ofstream stream_;
  std::uint64_t size_ = 0;
  RateLimit rate_;
};

}  // namespace muster::cli
