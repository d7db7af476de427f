#include "common/telemetry/event_file.h"

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <span>
#include <utility>

#include <stdio_ext.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/base/host_name.h"

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie");

namespace muster::telemetry {
namespace {

template <class T>
void Append(std::string& to, T value) {
  char bytes[sizeof(value)];
  std::memcpy(bytes, &value, sizeof(value));
  to.append(bytes, sizeof(value));
}

// Protocol buffers' wire format: a key is the field's number and its wire type.
enum Wire : std::uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

void AppendVarint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to.push_back(static_cast<char>(value | 0x80));
  to.push_back(static_cast<char>(value));
}
void AppendKey(std::string& to, std::uint32_t field, Wire wire) {
  AppendVarint(to, field << 3 | wire);
}
void AppendBytes(std::string& to, std::uint32_t field, std::string_view bytes) {
  AppendKey(to, field, kLength);
  AppendVarint(to, bytes.size());
  to.append(bytes);
}

// Event{1: wall time in seconds (double), 2: step (int64), 3: file version, 5: Summary,
// 7: SessionLog}.
std::string BeginEvent(std::chrono::system_clock::time_point time) {
  std::string event;
  AppendKey(event, 1, kFixed64);
  Append(event, std::chrono::duration<double>(time.time_since_epoch()).count());
  return event;
}
std::string BeginEvent(std::chrono::system_clock::time_point time, std::int64_t step) {
  std::string event = BeginEvent(time);
  AppendKey(event, 2, kVarint);
  AppendVarint(event, static_cast<std::uint64_t>(step));
  return event;
}

}  // namespace

Result<std::unique_ptr<EventFile>> EventFile::Create(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return FromErrno(error.value(), "make directory " + directory);
  static std::atomic<int> counter = 0;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  std::string path;
  std::FILE* file = nullptr;
  do {  // a process of the same number may have written here, in another container
    path = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{:06}", directory, seconds.count(),
                       HostName(), ::getpid(), counter++);
    file = std::fopen(path.c_str(), "wbxe");
  } while (file == nullptr && errno == EEXIST);
  if (file == nullptr) return FromErrno(errno, "create " + path);
  std::unique_ptr<EventFile> made(new EventFile(std::move(path), file));
  std::string event = BeginEvent(std::chrono::system_clock::now());
  AppendBytes(event, 3, "brain.Event:2");
  const Status begun = made->Put(event);
  if (begun.ok()) return made;
  // Whoever tries again makes another one: those that could not be begun would pile up.
  (void)made->Close();
  (void)std::filesystem::remove(made->path_, error);
  return begun;
}

EventFile::~EventFile() { (void)Close(); }

// Summary{1: Value{1: tag, 2: simple value (float)}}.
Status EventFile::Scalar(std::string_view tag, std::int64_t step, float value,
                         std::chrono::system_clock::time_point time) {
  std::string point;
  AppendBytes(point, 1, tag);
  AppendKey(point, 2, kFixed32);
  Append(point, value);
  std::string summary;
  AppendBytes(summary, 1, point);
  std::string event = BeginEvent(time, step);
  AppendBytes(event, 5, summary);
  const MutexLock lock(mutex_);
  return Write(event);
}

// SessionLog{1: status (START is 1)}.
Status EventFile::Begin(std::int64_t step, std::chrono::system_clock::time_point time) {
  std::string session;
  AppendKey(session, 1, kVarint);
  AppendVarint(session, 1);
  std::string event = BeginEvent(time, step);
  AppendBytes(event, 7, session);
  const MutexLock lock(mutex_);
  return Write(event);
}

Status EventFile::Write(std::string_view event) {
  if (file_ == nullptr) return FailedPrecondition("{} is closed", path_);
  if (event.size() > std::numeric_limits<int>::max()) {
    return InvalidArgument("{}: an event of {} bytes, at most {} are possible", path_, event.size(),
                           std::numeric_limits<int>::max());
  }
  std::string record;
  Append(record, static_cast<std::uint64_t>(event.size()));
  Append(record, MaskedCrc32c(std::as_bytes(std::span(record))));
  record.append(event);
  Append(record, MaskedCrc32c(std::as_bytes(std::span(event))));
  if (std::fwrite(record.data(), 1, record.size(), file_) != record.size()) {
    return GoBack(errno);
  }
  if (std::chrono::steady_clock::now() - flushed_ > kFlushEvery) return FlushLocked();
  return Ok();
}

Status EventFile::Put(std::string_view event) {
  const MutexLock lock(mutex_);
  MUSTER_TRY(Write(event));
  return FlushLocked();
}

Status EventFile::FlushLocked() {
  flushed_ = std::chrono::steady_clock::now();
  if (std::fflush(file_) != 0) return GoBack(errno);
  whole_ = ::ftello(file_);
  return Ok();
}

Status EventFile::GoBack(int error) {
  ::__fpurge(file_);  // else it would be written behind what is cut off here
  std::clearerr(file_);
  if (::ftruncate(::fileno(file_), whole_) != 0 || ::fseeko(file_, whole_, SEEK_SET) != 0) {
    // What is written from now on could not be read.
    (void)std::fclose(std::exchange(file_, nullptr));
  }
  return FromErrno(error, "write " + path_);
}

Status EventFile::Flush() {
  const MutexLock lock(mutex_);
  return file_ == nullptr ? Ok() : FlushLocked();
}

Status EventFile::Close() {
  const MutexLock lock(mutex_);
  if (file_ == nullptr) return Ok();
  std::FILE* const file = std::exchange(file_, nullptr);
  if (std::fclose(file) != 0) return FromErrno(errno, "write " + path_);
  return Ok();
}

}  // namespace muster::telemetry
