#include "common/data/cache.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/base/host_name.h"
#include "common/base/mutex.h"
#include "common/data/decompress.h"
#include "common/data/file_lock.h"

namespace muster::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDecoded = "decoded";
constexpr std::string_view kTemporary = ".tmp";
// Locks are few files that stay; two sources that share one only wait for each other.
constexpr std::uint64_t kLocks = 64;
// How much is decoded at most between two looks at all copies.
constexpr std::uint64_t kStride = std::uint64_t{16} << 20;
constexpr auto kPoll = std::chrono::milliseconds(10);

std::uint64_t PathHash(const SourceFile& file) {
  return XXH3_64bits(file.path.data(), file.path.size());
}

std::string PathKey(const SourceFile& file) { return fmt::format("{:016x}", PathHash(file)); }

std::string StateKey(const SourceFile& file) {
  const std::uint64_t state[] = {file.size, static_cast<std::uint64_t>(file.mtime_ns)};
  return fmt::format("{:016x}", XXH3_64bits(state, sizeof(state)));
}

struct Entry {
  fs::path path;
  std::uint64_t size = 0;
  fs::file_time_type used;
};

// Calls see(path) for each entry of a directory.
template <class See>
void ForEachEntry(const std::string& directory, const See& see) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    see(it->path());
  }
}

// Decoded copies, finished or being written. What disappears meanwhile is left out.
std::vector<Entry> DecodedCopies(const std::string& directory) {
  std::vector<Entry> entries;
  const std::string copy = fmt::format(".{}", kDecoded);
  ForEachEntry(directory, [&](const fs::path& path) {
    if (path.filename().string().find(copy) == std::string::npos) return;
    std::error_code gone;
    Entry entry{.path = path, .size = fs::file_size(path, gone), .used = {}};
    if (!gone) entry.used = fs::last_write_time(path, gone);
    if (!gone) entries.push_back(std::move(entry));
  });
  return entries;
}

// Whether what is open as `fd` is still what `path` names.
bool IsAt(int fd, const fs::path& path) {
  struct stat open = {};
  struct stat named = {};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

// Removes a copy unless some process has it mapped or is writing it (each holds a shared lock on
// it): what a process left half written that was killed goes, too.
bool RemoveUnused(const fs::path& path) {
  // What is not there any more has been removed by another process, or, half written, become a
  // copy.
  const bool half = path.extension() != fmt::format(".{}", kDecoded);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT && !half;
  bool removed = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  // Nor is the name always still its own.
  if (removed) removed = IsAt(fd, path) ? ::unlink(path.c_str()) == 0 || errno == ENOENT : !half;
  ::close(fd);
  return removed;
}

}  // namespace

// An entry that becomes visible when it is complete, and leaves nothing behind otherwise.
class Cache::Writer {
 public:
  explicit Writer(std::string path)
      : path_(std::move(path)), temporary_(fmt::format("{}{}{}", path_, kTemporary, ::getpid())) {}
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }

  // Its lock says that somebody writes it: who makes room removes what has none, which this one may
  // be until it is locked.
  Status Open() {
    // Not for ever: there are file systems whose answers differ.
    for (int attempt = 0; attempt < 10; ++attempt) {
      if (fd_ >= 0) ::close(fd_);
      fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      if (fd_ < 0) return Failure("create");
      while (::flock(fd_, LOCK_SH) != 0 && errno == EINTR) {
      }
      if (IsAt(fd_, temporary_)) break;
    }
    return Ok();
  }

  Status Write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ::ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failure("write");
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return Ok();
  }

  // A copy that is renamed before its bytes are on the disk could be half empty after a power cut.
  Status Commit() {
    if (::fdatasync(fd_) != 0) return Failure("sync");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return Failure("rename");
    ::close(std::exchange(fd_, -1));
    return Ok();
  }

 private:
  Status Failure(std::string_view what) const {
    return FromErrno(errno,
                     fmt::format("data cache: {} {} on host {}", what, temporary_, HostName()));
  }

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
};

// What was seen of the directory: a job may have more files than may each look at all entries.
struct Cache::Seen {
  Mutex mutex;
  // What was there when the first entry was written, sorted.
  std::optional<std::vector<std::string>> names MUSTER_GUARDED_BY(mutex);
  // What may be decoded before all copies are looked at again.
  std::uint64_t room MUSTER_GUARDED_BY(mutex) = 0;
};

Cache::Cache(Options options) : options_(std::move(options)), seen_(std::make_shared<Seen>()) {}

Result<Cache> Cache::Open(Options options) {
  if (options.directory.empty()) return InvalidArgument("data cache: no directory given");
  std::error_code error;
  fs::create_directories(options.directory, error);
  if (std::error_code ignored; !fs::is_directory(options.directory, ignored)) {
    return FromErrno(error ? error.value() : ENOTDIR,
                     fmt::format("data cache: make {} on host {}", options.directory, HostName()));
  }
  return Cache(std::move(options));
}

std::string Cache::EntryPath(const SourceFile& file, std::string_view kind) const {
  return fmt::format("{}/{}-{}.{}", options_.directory, PathKey(file), StateKey(file), kind);
}

std::string Cache::LockPath(const SourceFile& file) const {
  return fmt::format("{}/lock-{:02x}", options_.directory, PathHash(file) % kLocks);
}

Status Cache::ForEachLocked(std::span<const SourceFile> files,
                            const std::function<Status(std::size_t)>& prepare) const {
  std::vector<std::size_t> pending(files.size());
  for (std::size_t i = 0; i < pending.size(); ++i) pending[i] = i;
  auto last_progress = std::chrono::steady_clock::now();
  while (!pending.empty()) {
    std::vector<std::size_t> busy;
    for (const std::size_t i : pending) {
      MUSTER_TRY_ASSIGN(const std::optional<FileLock> lock, FileLock::Try(LockPath(files[i])));
      if (!lock.has_value()) {
        busy.push_back(i);
        continue;
      }
      MUSTER_TRY(prepare(i));
    }
    const auto now = std::chrono::steady_clock::now();
    if (busy.size() < pending.size()) {
      last_progress = now;
    } else if (now - last_progress > options_.patience) {
      const SourceFile& file = files[busy.front()];
      return DeadlineExceeded("{} on host {}: {} has been preparing it for over {} s (lock {})",
                              file.path, HostName(), FileLock::Holder(LockPath(file)),
                              options_.patience.count() / 1000, LockPath(file));
    }
    pending = std::move(busy);
    if (!pending.empty()) std::this_thread::sleep_for(kPoll);
  }
  return Ok();
}

Result<Mapping> Cache::Content(const SourceFile& file) const {
  if (file.compression == Compression::kNone) return Mapping::Open(file);
  const std::string path = EntryPath(file, kDecoded);
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // Until it is open, another process that makes room may remove it.
  for (int attempt = 0; fd < 0 && errno == ENOENT && attempt < 3; ++attempt) {
    MUSTER_TRY(Decode(file));
    fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  }
  if (fd < 0) return FromErrno(errno, fmt::format("data cache: open {}", path));
  // Keeps it from being evicted. Whoever evicts holds the exclusive lock for an instant only, and a
  // copy that was unlinked in that instant is still whole behind `fd`.
  ::flock(fd, LOCK_SH);
  ::futimens(fd, nullptr);
  return Mapping::Adopt(fd, path);
}

Status Cache::Decode(const SourceFile& file) const {
  RemoveStale(file, kDecoded);
  MUSTER_TRY_ASSIGN(const Mapping compressed, Mapping::Open(file));
  Writer writer(EntryPath(file, kDecoded));
  MUSTER_TRY(writer.Open());
  const auto write = [&](std::span<const std::byte> piece) -> Status {
    MUSTER_TRY(TakeRoom(file, piece.size()));
    return writer.Write(piece);
  };
  MUSTER_TRY(Decompress(file.compression, compressed.bytes(), file.path, write));
  return writer.Commit();
}

Status Cache::TakeRoom(const SourceFile& file, std::uint64_t more) const {
  {
    const MutexLock lock(seen_->mutex);
    if (seen_->room >= more) {
      seen_->room -= more;
      return Ok();
    }
  }
  MUSTER_TRY_ASSIGN(const std::uint64_t left, MakeRoom(file, more));
  const MutexLock lock(seen_->mutex);
  seen_->room = std::min(left, kStride);
  return Ok();
}

// Counts all copies, those that are being written too; where they are too many the least recently
// used ones go, until it is enough.
Result<std::uint64_t> Cache::MakeRoom(const SourceFile& file, std::uint64_t more) const {
  std::vector<Entry> entries = DecodedCopies(options_.directory);
  std::uint64_t used = more;
  for (const Entry& entry : entries) used += entry.size;
  if (used <= options_.limit_bytes) return options_.limit_bytes - used;

  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& entry : entries) {
    if (RemoveUnused(entry.path)) used -= std::min(used, entry.size);
    if (used <= options_.limit_bytes) return options_.limit_bytes - used;
  }
  return ResourceExhausted(
      "{} on host {}: decoded copies in {} would take over {} bytes, the limit is {}: raise "
      "data.cache_bytes, or give the files decompressed",
      file.path, HostName(), options_.directory, used, options_.limit_bytes);
}

void Cache::RemoveStale(const SourceFile& file, std::string_view kind) const {
  const std::string key = PathKey(file);
  const std::string ours = fmt::format("{}-{}.", key, StateKey(file));
  const std::string end = fmt::format(".{}", kind);
  const MutexLock lock(seen_->mutex);
  if (!seen_->names) {
    std::vector<std::string>& names = seen_->names.emplace();
    ForEachEntry(options_.directory,
                 [&](const fs::path& path) { names.push_back(path.filename().string()); });
    std::ranges::sort(names);
  }
  for (auto name = std::ranges::lower_bound(*seen_->names, key);
       name != seen_->names->end() && name->starts_with(key); ++name) {
    const fs::path path = fs::path(options_.directory) / *name;
    // We hold the lock: whoever was writing is dead.
    const bool unfinished = name->find(end + std::string(kTemporary)) != std::string::npos;
    const bool outdated = !name->starts_with(ours) && name->ends_with(end);
    if (unfinished) ::unlink(path.c_str());
    if (outdated) RemoveUnused(path);
  }
}

Result<std::optional<Mapping>> Cache::Find(const SourceFile& file, std::string_view kind) const {
  Result<Mapping> mapping = Mapping::Open(EntryPath(file, kind));
  if (mapping.ok()) return std::optional<Mapping>(*std::move(mapping));
  if (mapping.status().code() == StatusCode::kNotFound) return std::optional<Mapping>();
  return mapping.status();
}

Status Cache::Store(const SourceFile& file, std::string_view kind,
                    std::span<const std::span<const std::byte>> pieces) const {
  RemoveStale(file, kind);
  Writer writer(EntryPath(file, kind));
  MUSTER_TRY(writer.Open());
  for (const auto& piece : pieces) MUSTER_TRY(writer.Write(piece));
  return writer.Commit();
}

}  // namespace muster::data
