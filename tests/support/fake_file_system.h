// Files in memory that fail at any call, fill up, and lose at a crash what was not synced.
//
// Threading: not thread-safe.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/storage/file_system.h"

namespace muster::storage {

class FakeFileSystem : public FileSystem {
 public:
  // What a crash does with names (creations, renames, removals) whose folder was not synced: a real
  // file system may have written them or not.
  enum class UnsyncedNames { kLost, kKept };

  // From the n-th changing call on (from 0), every one fails: the process died there.
  void FailFrom(std::uint64_t call) { fail_from_ = calls_ + call; }
  // The n-th changing call alone fails.
  void FailAt(std::uint64_t call) { fail_at_ = calls_ + call; }
  // No folder can be listed, no name looked up.
  void SetUnreadable(bool unreadable) { unreadable_ = unreadable; }
  void Heal() { fail_from_ = fail_at_ = UINT64_MAX; }
  std::uint64_t calls() const { return calls_; }
  // Bytes that all files together may have.
  void SetCapacity(std::uint64_t bytes) { capacity_ = bytes; }

  // Loses every byte that was not synced.
  void Crash(UnsyncedNames names) {
    if (names == UnsyncedNames::kLost) entries_ = durable_entries_;
    durable_entries_ = entries_;
    for (auto& [path, file] : entries_) file->bytes = file->durable;
    Heal();
  }

  std::vector<std::byte>* Find(const std::string& path) {
    const auto at = entries_.find(path);
    return at == entries_.end() ? nullptr : &at->second->bytes;
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> paths;
    for (const auto& [path, file] : entries_) paths.push_back(path);
    return paths;
  }

  Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    MUSTER_TRY(Call("create " + path));
    if (!folders_.contains(ParentOf(path))) return NotFound("no folder for {}", path);
    entries_[path] = std::make_shared<File>();
    return std::make_unique<Writer>(*this, entries_[path]);
  }
  Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    const auto at = entries_.find(path);
    if (at == entries_.end()) return NotFound("{} does not exist", path);
    return std::make_unique<Reader>(at->second);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    MUSTER_TRY(Call("rename " + from));
    const auto at = entries_.find(from);
    if (at == entries_.end()) return NotFound("{} does not exist", from);
    entries_[to] = at->second;
    entries_.erase(from);
    return Ok();
  }
  Status RenameNew(const std::string& from, const std::string& to) override {
    if (entries_.contains(to)) return AlreadyExists("{} exists", to);
    return Rename(from, to);
  }
  Status SyncFolder(const std::string& path) override {
    MUSTER_TRY(Call("sync " + path));
    std::erase_if(durable_entries_, [&](const auto& e) { return ParentOf(e.first) == path; });
    for (const auto& entry : entries_) {
      if (ParentOf(entry.first) == path) durable_entries_.insert(entry);
    }
    return Ok();
  }
  Status Remove(const std::string& path) override {
    MUSTER_TRY(Call("remove " + path));
    entries_.erase(path);
    return Ok();
  }
  Status RemoveTree(const std::string& path) override {
    MUSTER_TRY(Call("remove tree " + path));
    std::erase_if(entries_, [&](const auto& e) { return e.first.starts_with(path + "/"); });
    std::erase_if(folders_, [&](const auto& f) { return f == path || f.starts_with(path + "/"); });
    return Ok();
  }
  Status MakeFolders(const std::string& path) override {
    MUSTER_TRY(Call("make " + path));
    for (std::string at = path; at != "." && at != "/"; at = ParentOf(at)) folders_.insert(at);
    return Ok();
  }
  Result<bool> Exists(const std::string& path) override {
    if (unreadable_) return Unknown("look at {}: made to fail", path);
    return entries_.contains(path) || folders_.contains(path);
  }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    if (unreadable_) return Unknown("list {}: made to fail", folder);
    if (!folders_.contains(folder)) return NotFound("{} does not exist", folder);
    std::set<std::string> names;
    const auto add = [&](const std::string& path) {
      if (ParentOf(path) == folder) names.insert(path.substr(folder.size() + 1));
    };
    for (const auto& [path, file] : entries_) add(path);
    for (const std::string& path : folders_) add(path);
    return std::vector<std::string>(names.begin(), names.end());
  }

 private:
  struct File {
    std::vector<std::byte> bytes;
    std::vector<std::byte> durable;
  };

  class Writer : public WritableFile {
   public:
    Writer(FakeFileSystem& files, std::shared_ptr<File> file)
        : files_(files), file_(std::move(file)) {}
    Status Reserve(std::uint64_t bytes) override {
      MUSTER_TRY(files_.Call("reserve"));
      return files_.CheckRoom(bytes);
    }
    Status Append(std::span<const std::byte> bytes) override {
      MUSTER_TRY(files_.Call("append"));
      MUSTER_TRY(files_.CheckRoom(bytes.size()));
      file_->bytes.insert(file_->bytes.end(), bytes.begin(), bytes.end());
      return Ok();
    }
    Status Sync() override {
      MUSTER_TRY(files_.Call("fdatasync"));
      file_->durable = file_->bytes;
      return Ok();
    }
    Status Close() override { return files_.Call("close"); }

   private:
    FakeFileSystem& files_;
    const std::shared_ptr<File> file_;
  };

  class Reader : public ReadableFile {
   public:
    explicit Reader(std::shared_ptr<File> file) : file_(std::move(file)) {}
    std::uint64_t size() const override { return file_->bytes.size(); }
    Status Read(std::uint64_t offset, std::span<std::byte> into) const override {
      const std::uint64_t end = file_->bytes.size();
      if (offset > end || into.size() > end - offset) return DataLoss("the file ends at {}", end);
      if (!into.empty()) std::memcpy(into.data(), file_->bytes.data() + offset, into.size());
      return Ok();
    }

   private:
    const std::shared_ptr<File> file_;
  };

  Status Call(const std::string& what) {
    const std::uint64_t call = calls_++;
    if (call >= fail_from_ || call == fail_at_) return Unknown("{}: made to fail", what);
    return Ok();
  }
  Status CheckRoom(std::uint64_t bytes) const {
    std::uint64_t used = 0;
    for (const auto& [path, file] : entries_) used += file->bytes.size();
    if (used + bytes > capacity_) return ResourceExhausted("no space left on the fake disk");
    return Ok();
  }

  std::map<std::string, std::shared_ptr<File>> entries_;
  std::map<std::string, std::shared_ptr<File>> durable_entries_;
  std::set<std::string> folders_;
  bool unreadable_ = false;
  std::uint64_t calls_ = 0;
  std::uint64_t fail_from_ = UINT64_MAX;
  std::uint64_t fail_at_ = UINT64_MAX;
  std::uint64_t capacity_ = UINT64_MAX;
};

}  // namespace muster::storage
