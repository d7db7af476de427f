#include "common/data/file_state.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include <sys/stat.h>

#include "common/base/host_name.h"
#include "common/base/wall_time.h"
#include "common/base/words.h"

namespace muster::data {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

constexpr std::string_view kChecked = "was checked";
constexpr std::string_view kOpened = "opened it";

Status Changed(const std::string& path, const std::string& what,
               std::string_view since = kChecked) {
  return DataLoss(
      "{} on host {}: was changed after the job {}: {}; put the file back as it was (with its "
      "time), "
      "or submit a job of another name for the new data",
      path, HostName(), since, what);
}

Status CompareSizeAndTime(const FileState& expected, std::uint64_t size, std::int64_t mtime_ns,
                          std::string_view since = kChecked) {
  if (size != expected.size) {
    return Changed(expected.path, fmt::format("{}, {} then", Counted(size, "byte"), expected.size),
                   since);
  }
  if (expected.mtime_ns != 0 && mtime_ns != expected.mtime_ns) {
    return Changed(expected.path,
                   fmt::format("last written {}, {} then", UtcTextOfNanos(mtime_ns),
                               UtcTextOfNanos(expected.mtime_ns)),
                   since);
  }
  return Ok();
}

}  // namespace

Status CompareOnDisk(std::span<const FileState> expected) {
  for (const FileState& file : expected) {
    struct stat info = {};
    if (::stat(file.path.c_str(), &info) != 0) continue;
    MUSTER_TRY(CompareSizeAndTime(file, static_cast<std::uint64_t>(info.st_size),
                                  info.st_mtim.tv_sec * kSecond + info.st_mtim.tv_nsec));
  }
  return Ok();
}

FileWatch::FileWatch(std::vector<SourceFile> files, const Clock& clock)
    : files_(std::move(files)),
      due_(std::make_unique<std::atomic<TimePoint::rep>[]>(files_.size())),
      clock_(&clock) {}

Status FileWatch::Look(std::size_t number, TimePoint now) const {
  const TimePoint::rep ticks = now.time_since_epoch().count();
  std::atomic<TimePoint::rep>& due = due_[number];
  if (ticks < due.load(std::memory_order_relaxed)) return Ok();
  due.store(ticks + std::chrono::duration_cast<TimePoint::duration>(kEvery).count(),
            std::memory_order_relaxed);
  const SourceFile& file = files_[number];
  // What is read of a packed file is its decoded copy in the cache.
  if (file.compression != Compression::kNone) return Ok();
  struct stat info = {};
  if (::stat(file.path.c_str(), &info) != 0) return Ok();
  if (info.st_dev != file.device || info.st_ino != file.inode) return Ok();
  const Status same =
      CompareSizeAndTime({.path = file.path, .size = file.size, .mtime_ns = file.mtime_ns},
                         static_cast<std::uint64_t>(info.st_size),
                         info.st_mtim.tv_sec * kSecond + info.st_mtim.tv_nsec, kOpened);
  // Due at once: who reads ahead may have seen it, and a batch before that one is still to be read.
  if (!same.ok()) due.store(0, std::memory_order_relaxed);
  return same;
}

Status CompareFiles(std::span<const FileState> expected, std::span<const FileState> found) {
  for (std::size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
    if (i >= found.size()) return Changed(expected[i].path, "it is not among the files any more");
    const FileState& file = found[i];
    if (i >= expected.size() || file.path != expected[i].path) {
      return Changed(file.path, fmt::format("it stands where {} stood; {}, {} then",
                                            i < expected.size() ? expected[i].path : "no file",
                                            Counted(found.size(), "file"), expected.size()));
    }
    MUSTER_TRY(CompareSizeAndTime(expected[i], file.size, file.mtime_ns));
    if (file.records != expected[i].records) {
      return Changed(file.path, fmt::format("{}, {} then", Counted(file.records, "good record"),
                                            expected[i].records));
    }
    if (file.index_hash != expected[i].index_hash) {
      return Changed(file.path, fmt::format("its records begin at other places (hash {:016x}, "
                                            "{:016x} then)",
                                            file.index_hash, expected[i].index_hash));
    }
  }
  return Ok();
}

}  // namespace muster::data
