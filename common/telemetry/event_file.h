// A file of events as TensorBoard reads it: TFRecord frames (a length and the bytes, each with a
// masked CRC-32C), one serialised tf.Event in each. The first says which version the file has.
//
// Threading: any thread. Whoever reads the file while it grows sees whole events, then perhaps a
// piece of one, which TensorBoard waits for. What the disk has not taken is lost, and what follows
// stands behind the last event that was flushed.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "common/base/mutex.h"
#include "common/base/status.h"

namespace muster::telemetry {

class EventFile {
 public:
  // A new file in `directory`, which is made if need be:
  // "events.out.tfevents.<seconds>.<host>.<pid>.<number>". Errors: FromErrno()'s; there is no file
  // then.
  static Result<std::unique_ptr<EventFile>> Create(const std::string& directory);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  const std::string& path() const { return path_; }

  // One point of the curve `tag`. Reaches the file at Flush(), or with the first event that is
  // written more than kFlushEvery after the last flush.
  //   kFailedPrecondition: closed.   FromErrno()'s: the disk.
  Status Scalar(std::string_view tag, std::int64_t step, float value,
                std::chrono::system_clock::time_point time = std::chrono::system_clock::now());
  // What earlier files of this folder say of `step` and later ones is void: TensorBoard forgets it
  // (SessionLog START).
  Status Begin(std::int64_t step,
               std::chrono::system_clock::time_point time = std::chrono::system_clock::now());
  Status Flush();
  // Flushes; nothing can be written afterwards. Harmless when repeated.
  Status Close();

  static constexpr std::chrono::seconds kFlushEvery{10};

 private:
  EventFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  Status Write(std::string_view event) MUSTER_REQUIRES(mutex_);
  // As far as the file.
  Status Put(std::string_view event);
  Status FlushLocked() MUSTER_REQUIRES(mutex_);
  // The disk has not taken what was to be written: a piece of an event may be in the file, and
  // nothing behind that could be read.
  Status GoBack(int error) MUSTER_REQUIRES(mutex_);

  const std::string path_;
  Mutex mutex_;
  std::FILE* file_ MUSTER_GUARDED_BY(mutex_);
  // So much of it is whole events that have been flushed.
  off_t whole_ MUSTER_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point flushed_ MUSTER_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::now();
};

}  // namespace muster::telemetry
