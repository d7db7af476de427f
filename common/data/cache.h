// The cache directory: decoded copies of compressed files and indexes of records, shared by all
// processes of this user on this host.
//
// An entry belongs to one state of one source file (path, size, modification time); a file that has
// changed gets a new entry and its old ones are removed. Entries are written beside their place and
// renamed, by whoever holds the file's lock, so a reader sees whole entries only. Decoded copies
// are bounded: the least recently used ones that no process has mapped make room for new ones, as
// does what a killed process left half written. Where several processes decode at once they may go
// some MiB beyond the bound before they see each other's.
//
// Threading: any thread. Lifetime: none; mappings outlive it. One opening of data is one Cache: it
// looks once at what the directory holds of older states.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/data/source_file.h"

namespace muster::data {

// The directory for programs that do not name one, in their environment; daemons set it for theirs.
inline constexpr char kCacheVariable[] = "MUSTER_DATA_CACHE";

class Cache {
 public:
  struct Options {
    std::string directory;
    // Decoded copies in the directory, all together.
    std::uint64_t limit_bytes = std::uint64_t{8} << 30;
    // Longest wait for other processes that prepare files, without any of them becoming ready.
    std::chrono::milliseconds patience = std::chrono::minutes(10);
  };

  //   kInvalidArgument: no directory named.  From the system: it cannot be made.
  static Result<Cache> Open(Options options);

  // Calls prepare(i) for each file, in any order, while this process holds that file's lock. Files
  // that others are preparing come last, so processes that start together share the work.
  //   kDeadlineExceeded: another process held the locks for longer than the patience (named).
  Status ForEachLocked(std::span<const SourceFile> files,
                       const std::function<Status(std::size_t)>& prepare) const;

  // The content of `file`: mapped as it stands or, compressed, its decoded copy, made if need be.
  // Call it under the file's lock.
  //   kDataLoss: cut short or damaged, or changed since it was found.  kResourceExhausted: over the
  //   limit, or the disk is full.
  Result<Mapping> Content(const SourceFile& file) const;

  // The entry of `file` called `kind`, a short name; empty when there is none.
  Result<std::optional<Mapping>> Find(const SourceFile& file, std::string_view kind) const;
  // Writes that entry from `pieces`, one after another. Call it under the file's lock.
  Status Store(const SourceFile& file, std::string_view kind,
               std::span<const std::span<const std::byte>> pieces) const;

 private:
  class Writer;
  struct Seen;

  explicit Cache(Options options);
  std::string EntryPath(const SourceFile& file, std::string_view kind) const;
  std::string LockPath(const SourceFile& file) const;
  // Removes what is left of older states of `file` and of writers that died.
  void RemoveStale(const SourceFile& file, std::string_view kind) const;
  // Room for `more` bytes of decoded data: what is known to be left, or MakeRoom()'s.
  Status TakeRoom(const SourceFile& file, std::uint64_t more) const;
  // Makes room for so much; what is left beside it. A failure names what to do.
  Result<std::uint64_t> MakeRoom(const SourceFile& file, std::uint64_t more) const;
  Status Decode(const SourceFile& file) const;

  Options options_;
  // Shared by copies.
  std::shared_ptr<Seen> seen_;
};

}  // namespace muster::data
