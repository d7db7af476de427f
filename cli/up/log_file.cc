#include "cli/up/log_file.h"

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace muster::cli {

LogFile::LogFile(std::string path, const Clock& clock, Options options)
    : path_(std::move(path)),
      clock_(clock),
      options_(options),
      rate_(std::chrono::seconds(1), options.lines_per_second) {}

Status LogFile::Open() {
  stream_.open(path_, std::ios::app);
  if (!stream_) return Unknown("cannot write the log {}", path_);
  std::error_code ignored;
  size_ = std::filesystem::file_size(path_, ignored);
  if (ignored) size_ = 0;
  return Ok();
}

void LogFile::Write(std::string_view line) {
  const auto held = rate_.Ask(clock_.Now());
  if (!held) return;
  if (*held > 0) {
    Put(fmt::format("[{} lines are missing here: more than {} came in a second]", *held,
                    options_.lines_per_second));
  }
  Put(line);
}

void LogFile::Put(std::string_view line) {
  if (size_ > 0 && size_ + line.size() + 1 > options_.bytes) {
    stream_.close();
    (void)std::rename(path_.c_str(), (path_ + ".1").c_str());
    stream_.clear();
    stream_.open(path_, std::ios::trunc);
    size_ = 0;
  }
  // A disk that was full may have room again, a folder that was gone be there.
  if (!stream_) stream_.clear();
  if (!stream_.is_open()) stream_.open(path_, std::ios::app);
  stream_ << line << '\n' << std::flush;
  // What a full disk did not take counts for nothing: it would put aside, and over each other, the
  // logs that tell of the time before.
  if (stream_) size_ += line.size() + 1;
}

}  // namespace muster::cli
