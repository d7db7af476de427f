#include "cli/stream_files.h"

#include <filesystem>
#include <system_error>

#include "common/base/whole_file.h"

namespace muster::cli {
namespace {

class StreamFile : public storage::WritableFile {
 public:
  explicit StreamFile(std::ostream& stream) : stream_(stream) {}
  Status Reserve(std::uint64_t) override { return Ok(); }
  Status Append(std::span<const std::byte> bytes) override {
    stream_.write(reinterpret_cast<const char*>(bytes.data()),
                  static_cast<std::streamsize>(bytes.size()));
    return Written();
  }
  Status Sync() override {
    stream_.flush();
    return Written();
  }
  Status Close() override { return Ok(); }

 private:
  Status Written() const {
    if (stream_) return Ok();
    return muster::Unknown(
        "standard output took no more: it is closed, its reader has gone, or its disk is full");
  }
  std::ostream& stream_;
};

class StreamFiles : public storage::FileSystem {
 public:
  explicit StreamFiles(std::ostream& stream) : stream_(stream) {}
  Result<std::unique_ptr<storage::WritableFile>> Create(const std::string&) override {
    return std::make_unique<StreamFile>(stream_);
  }
  Result<std::unique_ptr<storage::ReadableFile>> Open(const std::string& path) override {
    return storage::RealFileSystem().Open(path);
  }
  Status Rename(const std::string&, const std::string&) override { return Ok(); }
  Status RenameNew(const std::string&, const std::string&) override { return Ok(); }
  Status SyncFolder(const std::string&) override { return Ok(); }
  Status Remove(const std::string&) override { return Ok(); }
  Status RemoveTree(const std::string&) override { return Ok(); }
  Status MakeFolders(const std::string&) override { return Ok(); }
  Result<bool> Exists(const std::string& path) override {
    return storage::RealFileSystem().Exists(path);
  }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    return storage::RealFileSystem().List(folder);
  }

 private:
  std::ostream& stream_;
};

}  // namespace

std::unique_ptr<storage::FileSystem> FilesWritingTo(std::ostream& stream) {
  return std::make_unique<StreamFiles>(stream);
}

Result<std::string> PlaceOfOutput(const std::string& file) {
  if (file == "-") return file;
  MUSTER_TRY_ASSIGN(const std::string place, PlaceOfFile(file));
  const std::string folder = storage::ParentOf(place);
  std::error_code error;
  if (std::filesystem::exists(folder, error) || error) return place;
  return InvalidArgument("write {}: there is no folder {}", file, folder);
}

}  // namespace muster::cli
