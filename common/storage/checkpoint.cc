#include "common/storage/checkpoint.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "common/storage/hash.h"
#include "common/storage/manifest.h"
#include "common/storage/safetensors.h"
#include "common/storage/verified_file.h"
#include "muster/v1/checkpoint.pb.h"

namespace muster::storage {
namespace {

constexpr std::string_view kSlotInfix = "/slot/";
constexpr std::uint64_t kMaxManifestBytes = 64 << 20;

class Opened : public Checkpoint {
 public:
  explicit Opened(v1::CheckpointManifest manifest) : manifest_(std::move(manifest)) {}

  // Opens the files and matches their headers with the manifest.
  Status Load(FileSystem& files, const std::string& directory) {
    std::map<std::string, SafetensorsHeader> headers;
    for (const v1::CheckpointFile& file : manifest_.files()) {
      MUSTER_TRY_ASSIGN(auto opened, VerifiedFile::Open(files, directory, file));
      MUSTER_TRY_ASSIGN(headers[file.name()], HeaderOf(*opened, JoinPath(directory, file.name())));
      files_[file.name()] = std::move(opened);
    }
    for (const v1::TensorSlice& slice : manifest_.slices()) {
      const auto& tensors = headers.at(slice.file()).tensors;
      const auto entry = tensors.find(slice.key());
      if (entry == tensors.end()) {
        return DataLoss("{}/{}: tensor {} is missing", directory, slice.file(), slice.key());
      }
      MUSTER_TRY(Add(slice, entry->second, directory));
    }
    for (auto& [name, tensor] : tensors_) {
      std::sort(tensor.slices.begin(), tensor.slices.end(),
                [](const Slice& a, const Slice& b) { return a.row_offset < b.row_offset; });
    }
    return Ok();
  }

  Status VerifyAll() const {
    for (const auto& [name, file] : files_) MUSTER_TRY(file->VerifyAll());
    return Ok();
  }

  const v1::CheckpointManifest& manifest() const override { return manifest_; }

  Result<std::vector<std::int64_t>> Shape(const std::string& name) const override {
    const auto tensor = tensors_.find(name);
    if (tensor == tensors_.end()) return NotFound("the checkpoint has no tensor {}", name);
    return tensor->second.shape;
  }

  Status ReadRows(const std::string& name, std::int64_t row_offset, std::int64_t rows,
                  std::span<std::byte> into) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return NotFound("the checkpoint has no tensor {}", name);
    const Tensor& tensor = found->second;
    if (row_offset < 0 || rows < 0 || row_offset > tensor.rows || rows > tensor.rows - row_offset ||
        into.size() != static_cast<std::uint64_t>(rows) * tensor.row_bytes) {
      return InvalidArgument("tensor {}: {} rows from {} into {} bytes; it has {} rows of {} bytes",
                             name, rows, row_offset, into.size(), tensor.rows, tensor.row_bytes);
    }
    for (const Slice& slice : tensor.slices) {
      const std::int64_t first = std::max(row_offset, slice.row_offset);
      const std::int64_t last = std::min(row_offset + rows, slice.row_offset + slice.rows);
      if (first >= last) continue;
      const auto place = [&](std::int64_t row) {
        return static_cast<std::uint64_t>(row) * tensor.row_bytes;
      };
      MUSTER_TRY(slice.file->Read(slice.begin + place(first - slice.row_offset),
                                  into.subspan(place(first - row_offset), place(last - first))));
    }
    return Ok();
  }

 private:
  struct Slice {
    std::int64_t row_offset = 0;
    std::int64_t rows = 0;
    const VerifiedFile* file = nullptr;
    std::uint64_t begin = 0;
  };
  struct Tensor {
    std::vector<std::int64_t> shape;
    std::int64_t rows = 0;
    std::uint64_t row_bytes = 0;
    std::vector<Slice> slices;
  };

  static Result<SafetensorsHeader> HeaderOf(const VerifiedFile& file, const std::string& path) {
    std::array<std::byte, 8> prefix;
    if (file.size() < prefix.size()) return DataLoss("{}: only {} bytes", path, file.size());
    MUSTER_TRY(file.Read(0, prefix));
    const Result<std::uint64_t> size = ParseHeaderSize(prefix, file.size());
    if (!size.ok()) return Annotate(size.status(), path);
    std::vector<std::byte> json(*size);
    MUSTER_TRY(file.Read(prefix.size(), json));
    Result<SafetensorsHeader> header = ParseHeader(json, file.size());
    if (!header.ok()) return Annotate(header.status(), path);
    return header;
  }

  Status Add(const v1::TensorSlice& slice, const TensorEntry& entry, const std::string& directory) {
    std::vector<std::int64_t> shape(slice.shape().begin(), slice.shape().end());
    std::vector<std::int64_t> expected = shape;
    if (!expected.empty()) expected[0] = slice.rows();
    if (entry.shape != expected || static_cast<int>(entry.dtype) != slice.dtype()) {
      return DataLoss("{}/{}: tensor {} has another shape or dtype than the manifest says",
                      directory, slice.file(), slice.key());
    }
    Tensor& tensor = tensors_[slice.name()];
    tensor.rows = shape.empty() ? 1 : shape[0];
    tensor.row_bytes = (entry.end - entry.begin) /
                       static_cast<std::uint64_t>(std::max<std::int64_t>(1, slice.rows()));
    tensor.shape = std::move(shape);
    tensor.slices.push_back(
        {slice.row_offset(), slice.rows(), files_.at(slice.file()).get(), entry.begin});
    return Ok();
  }

  const v1::CheckpointManifest manifest_;
  std::map<std::string, std::unique_ptr<VerifiedFile>> files_;
  std::map<std::string, Tensor> tensors_;
};

Result<std::unique_ptr<Opened>> OpenAll(FileSystem& files, const std::string& directory,
                                        v1::CheckpointManifest manifest) {
  auto opened = std::make_unique<Opened>(std::move(manifest));
  MUSTER_TRY(opened->Load(files, directory));
  return opened;
}

Status WriteManifest(FileSystem& files, const std::string& staged, const std::string& text) {
  MUSTER_TRY_ASSIGN(const auto file, files.Create(staged));
  MUSTER_TRY(file->Append(std::as_bytes(std::span(text))));
  MUSTER_TRY(file->Sync());
  return file->Close();
}

// A writer that wakes up late finds its file gone, and cannot rename it over one that counts.
Status RemoveTemporaries(FileSystem& files, const std::string& directory) {
  MUSTER_TRY_ASSIGN(const std::vector<std::string> names, files.List(directory));
  for (const std::string& name : names) {
    if (name.ends_with(".tmp")) MUSTER_TRY(files.Remove(JoinPath(directory, name)));
  }
  return Ok();
}

// Parameters in the order of their names, with their shapes.
Result<std::vector<TensorDeclaration>> Parameters(const Checkpoint& checkpoint) {
  std::map<std::string, TensorDeclaration> tensors;
  for (const v1::TensorSlice& slice : checkpoint.manifest().slices()) {
    if (IsSlotName(slice.name())) continue;
    MUSTER_TRY_ASSIGN(std::vector<std::int64_t> shape, checkpoint.Shape(slice.name()));
    tensors[slice.name()] = {slice.name(), static_cast<DType>(slice.dtype()), std::move(shape)};
  }
  std::vector<TensorDeclaration> sorted;
  for (auto& [name, tensor] : tensors) sorted.push_back(std::move(tensor));
  return sorted;
}

// Copies a tensor by pieces of about one chunk; a row larger than that is a piece of its own.
Status CopyTensor(const Checkpoint& checkpoint, const TensorDeclaration& tensor,
                  SafetensorsWriter& writer, std::vector<std::byte>& buffer) {
  const std::int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  if (rows == 0) return Ok();
  MUSTER_TRY_ASSIGN(const std::uint64_t bytes, TensorBytes(tensor.dtype, tensor.shape));
  const std::uint64_t row_bytes = bytes / static_cast<std::uint64_t>(rows);
  const auto step = static_cast<std::int64_t>(
      std::max<std::uint64_t>(1, kChunkBytes / std::max<std::uint64_t>(1, row_bytes)));
  for (std::int64_t row = 0; row < rows; row += step) {
    const std::int64_t count = std::min(step, rows - row);
    buffer.resize(static_cast<std::uint64_t>(count) * row_bytes);
    MUSTER_TRY(checkpoint.ReadRows(tensor.key, row, count, buffer));
    MUSTER_TRY(writer.Append(buffer));
  }
  return Ok();
}

}  // namespace

Result<v1::CheckpointFile> WriteSafetensors(const std::string& directory, const std::string& name,
                                            std::span<const TensorToWrite> tensors,
                                            FileSystem& files) {
  std::vector<TensorDeclaration> declarations;
  for (const TensorToWrite& tensor : tensors) {
    MUSTER_TRY_ASSIGN(const std::uint64_t bytes, TensorBytes(tensor.dtype, tensor.shape));
    if (bytes != tensor.data.size()) {
      return InvalidArgument("tensor {}: {} bytes given, its shape has {}", tensor.key,
                             tensor.data.size(), bytes);
    }
    declarations.push_back({tensor.key, tensor.dtype, tensor.shape});
  }
  MUSTER_TRY(files.MakeFolders(directory));
  MUSTER_TRY_ASSIGN(const auto writer,
                    SafetensorsWriter::Create(files, JoinPath(directory, name), declarations));
  for (const TensorToWrite& tensor : tensors) MUSTER_TRY(writer->Append(tensor.data));
  return writer->Finish();
}

Status Commit(const std::string& directory, v1::CheckpointManifest manifest, FileSystem& files) {
  if (const Status sound = CheckSlices(manifest); !sound.ok()) return Annotate(sound, directory);
  MUSTER_TRY(RemoveTemporaries(files, directory));
  MUSTER_TRY_ASSIGN(const auto opened, OpenAll(files, directory, manifest));
  MUSTER_TRY(opened->VerifyAll());
  MUSTER_TRY_ASSIGN(const std::string text, EncodeManifest(std::move(manifest)));
  // Nobody could go on from it, and older ones would make room for it.
  if (text.size() > kMaxManifestBytes) {
    return InvalidArgument(
        "{}: a manifest of {} bytes, limit {}: save fewer tensors, or on fewer parameter servers",
        directory, text.size(), kMaxManifestBytes);
  }

  const std::string path = JoinPath(directory, kManifestName);
  const std::string staged = TemporaryName(path);
  MUSTER_TRY_ASSIGN(const bool replaces, files.Exists(path));
  Status status = WriteManifest(files, staged, text);
  if (status.ok()) status = files.Rename(staged, path);
  if (!status.ok()) {
    (void)files.Remove(staged);
    return status;
  }
  status = files.SyncFolder(directory);
  if (status.ok()) status = files.SyncFolder(ParentOf(directory));
  // It might be gone after a crash: then it never was. In the place of another one it stays, as
  // that one cannot come back: after a crash the new one is there or the old one, both whole.
  if (!status.ok() && !replaces) (void)files.Remove(path);
  return status;
}

Result<v1::CheckpointManifest> ReadManifest(const std::string& directory, FileSystem& files) {
  const std::string path = JoinPath(directory, kManifestName);
  Result<std::unique_ptr<ReadableFile>> file = files.Open(path);
  if (file.status().code() == StatusCode::kNotFound) {
    return NotFound("{} is no checkpoint: it has no {}", directory, kManifestName);
  }
  if (!file.ok()) return file.status();
  if ((*file)->size() > kMaxManifestBytes) {
    return DataLoss("{}: {} bytes, limit {}", path, (*file)->size(), kMaxManifestBytes);
  }
  std::string text((*file)->size(), '\0');
  MUSTER_TRY((*file)->Read(0, std::as_writable_bytes(std::span(text))));
  Result<v1::CheckpointManifest> manifest = DecodeManifest(std::move(text));
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  if (const Status sound = CheckSlices(*manifest); !sound.ok()) {
    return DataLoss("{}: {}", path, Message(sound));
  }
  return manifest;
}

Status Verify(const std::string& directory, FileSystem& files) {
  MUSTER_TRY_ASSIGN(v1::CheckpointManifest manifest, ReadManifest(directory, files));
  MUSTER_TRY_ASSIGN(const auto opened, OpenAll(files, directory, std::move(manifest)));
  return opened->VerifyAll();
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& directory,
                                                     FileSystem& files) {
  MUSTER_TRY_ASSIGN(v1::CheckpointManifest manifest, ReadManifest(directory, files));
  MUSTER_TRY_ASSIGN(std::unique_ptr<Checkpoint> opened,
                    OpenAll(files, directory, std::move(manifest)));
  return opened;
}

Status Export(const std::string& directory, const std::string& file, FileSystem& files) {
  MUSTER_TRY_ASSIGN(const auto checkpoint, Checkpoint::Open(directory, files));
  MUSTER_TRY_ASSIGN(const auto tensors, Parameters(*checkpoint));
  MUSTER_TRY_ASSIGN(const auto writer, SafetensorsWriter::Create(files, file, tensors));
  std::vector<std::byte> buffer;
  for (const TensorDeclaration& tensor : tensors) {
    MUSTER_TRY(CopyTensor(*checkpoint, tensor, *writer, buffer));
  }
  return writer->Finish().status();
}

std::string SlotName(const std::string& name, const std::string& slot) {
  return fmt::format("{}{}{}", name, kSlotInfix, slot);
}

bool IsSlotName(const std::string& name) { return name.find(kSlotInfix) != std::string::npos; }

}  // namespace muster::storage
