// The file system as checkpoints see it, behind a seam: the real one, and a fake in tests/support
// that fails at any call, fills up, and forgets at a crash what was not synced.
//
// Threading: any thread; one WritableFile belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace muster::storage {

// Errors of all: kNotFound, kAlreadyExists, kPermissionDenied (a read-only mount too),
// kResourceExhausted (no room, no descriptors), kUnknown: the disk failed (EIO, ESTALE...). Never
// kUnavailable, which means a peer of ours: a network mount that does not answer is this host's
// disk.

// Destruction without Close() closes and keeps the file. kResourceExhausted: the disk is full.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Reserves space for the first `bytes` bytes, so that a full disk shows before the writing does.
  virtual Status Reserve(std::uint64_t bytes) = 0;
  virtual Status Append(std::span<const std::byte> bytes) = 0;
  // The content is durable when this succeeds. After a failure the file must not be used: the
  // kernel may have dropped its pages.
  virtual Status Sync() = 0;
  virtual Status Close() = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual std::uint64_t size() const = 0;  // when it was opened
  // Fills `into` from `offset`. kDataLoss: the file ends before.
  virtual Status Read(std::uint64_t offset, std::span<std::byte> into) const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Makes or empties a file.
  virtual Result<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  virtual Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // Rename() that replaces nothing. kAlreadyExists: `to` is there.
  virtual Status RenameNew(const std::string& from, const std::string& to) = 0;
  // Makes entries of a folder (creations, renames, removals) durable, where its file system can.
  virtual Status SyncFolder(const std::string& path) = 0;
  // A missing file is no error.
  virtual Status Remove(const std::string& path) = 0;
  virtual Status RemoveTree(const std::string& path) = 0;
  // With its parents; durable.
  virtual Status MakeFolders(const std::string& path) = 0;
  // False: it is certainly not there.
  virtual Result<bool> Exists(const std::string& path) = 0;
  // Whether the name itself is a symbolic link, where there are such things.
  virtual bool IsLink(const std::string& path) {
    (void)path;
    return false;
  }
  // Names in a folder, unsorted. kNotFound.
  virtual Result<std::vector<std::string>> List(const std::string& folder) = 0;
};

// Stateless; lives for ever.
FileSystem& RealFileSystem();

// "a/b" + "c" = "a/b/c"; "" + "c" = "c".
std::string JoinPath(const std::string& folder, const std::string& name);
// A name beside `path` for what will be renamed to it; ends in ".tmp". No two calls answer the
// same: a writer that was given up and wakes late has another file.
std::string TemporaryName(const std::string& path);
// Folder of a path; "." for a bare name.
std::string ParentOf(const std::string& path);

}  // namespace muster::storage
