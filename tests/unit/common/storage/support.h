// Small checkpoints for tests of common/storage.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/storage/checkpoint.h"
#include "common/storage/safetensors.h"
#include "muster/v1/checkpoint.pb.h"

namespace muster::storage {

inline std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The header of a whole file, as another program would read it.
inline Result<SafetensorsHeader> ReadHeader(const ReadableFile& file) {
  std::array<std::byte, 8> prefix{};
  MUSTER_TRY(file.Read(0, prefix));
  MUSTER_TRY_ASSIGN(const std::uint64_t size, ParseHeaderSize(prefix, file.size()));
  std::vector<std::byte> json(size);
  MUSTER_TRY(file.Read(prefix.size(), json));
  return ParseHeader(json, file.size());
}

struct Piece {
  std::string name;
  std::vector<std::int64_t> shape;  // of the whole tensor
  std::int64_t row_offset = 0;
  std::vector<float> values;  // whole rows
};

// Writes one server's file and adds it to the manifest.
inline Status WritePieces(const std::string& directory, const std::string& file,
                          const std::vector<Piece>& pieces, v1::CheckpointManifest& manifest,
                          FileSystem& files) {
  std::vector<TensorToWrite> tensors;
  for (const Piece& piece : pieces) {
    std::int64_t row = 1;
    for (std::size_t axis = 1; axis < piece.shape.size(); ++axis) row *= piece.shape[axis];
    v1::TensorSlice* slice = manifest.add_slices();
    slice->set_name(piece.name);
    slice->set_dtype(v1::DTYPE_FLOAT32);
    slice->mutable_shape()->Assign(piece.shape.begin(), piece.shape.end());
    slice->set_row_offset(piece.row_offset);
    slice->set_rows(static_cast<std::int64_t>(piece.values.size()) / row);
    slice->set_file(file);
    slice->set_key(fmt::format("{}@{}", piece.name, piece.row_offset));
    std::vector<std::int64_t> shape = piece.shape;
    if (!shape.empty()) shape[0] = slice->rows();
    tensors.push_back(
        {slice->key(), DType::kFloat32, shape, std::as_bytes(std::span(piece.values))});
  }
  MUSTER_TRY_ASSIGN(*manifest.add_files(), WriteSafetensors(directory, file, tensors, files));
  return Ok();
}

// w [5, 2] = 0..9 over two files, its slot, and a scalar.
inline Status WriteSample(const std::string& root, std::uint64_t step, FileSystem& files,
                          float first = 0) {
  const std::string directory = CheckpointDirectory(root, step);
  v1::CheckpointManifest manifest;
  manifest.set_job_id("job-1");
  manifest.set_job_name("a \"hash\": \"0123456789abcdef\" in a name");
  manifest.set_step(step);
  MUSTER_TRY(WritePieces(directory, "ps-0-of-2.safetensors",
                         {{"w", {5, 2}, 0, {first, 1, 2, 3, 4, 5}},
                          {SlotName("w", "sum"), {5, 2}, 0, {9, 9, 9, 9, 9, 9}}},
                         manifest, files));
  MUSTER_TRY(WritePieces(directory, "ps-1-of-2.safetensors",
                         {{"w", {5, 2}, 3, {6, 7, 8, 9}},
                          {SlotName("w", "sum"), {5, 2}, 3, {8, 8, 8, 8}},
                          {"scale", {}, 0, {2.5}}},
                         manifest, files));
  return Commit(directory, manifest, files);
}

}  // namespace muster::storage
