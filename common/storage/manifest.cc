#include "common/storage/manifest.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <google/protobuf/util/json_util.h>

#include "common/storage/hash.h"

namespace muster::storage {
namespace {

constexpr std::string_view kNoHash = "0000000000000000";

// Where the 16 digits of the hash stand: in the last field of the last line. npos: nowhere.
std::size_t FindHash(std::string_view text) {
  constexpr std::string_view kKey = "\"hash\"";
  std::size_t at = text.rfind(kKey);
  if (at == std::string_view::npos) return at;
  at = text.find('"', at + kKey.size());
  if (at == std::string_view::npos || text.size() - at <= kNoHash.size() + 1 ||
      text[at + 1 + kNoHash.size()] != '"') {
    return std::string_view::npos;
  }
  return at + 1;
}

// Leaves out the 16 digits: any other byte that changes shows, also in a field that this version
// does not know.
std::string HashWithoutHash(std::string text, std::size_t at) {
  return HashHex(std::string_view(text.erase(at, kNoHash.size())));
}

std::int64_t RowsOf(const v1::TensorSlice& slice) {
  return slice.shape_size() == 0 ? 1 : slice.shape(0);
}

Status CheckTensor(const std::string& name, std::vector<const v1::TensorSlice*>& slices) {
  std::sort(slices.begin(), slices.end(),
            [](const auto* a, const auto* b) { return a->row_offset() < b->row_offset(); });
  std::int64_t at = 0;
  for (const v1::TensorSlice* slice : slices) {
    if (slice->dtype() != slices[0]->dtype() ||
        !std::equal(slice->shape().begin(), slice->shape().end(), slices[0]->shape().begin(),
                    slices[0]->shape().end())) {
      return InvalidArgument("tensor {}: its slices differ in dtype or shape", name);
    }
    const bool empty = slice->rows() == 0 && RowsOf(*slice) == 0;
    if ((slice->rows() < 1 && !empty) || slice->row_offset() != at ||
        slice->rows() > RowsOf(*slice) - at) {
      return InvalidArgument(
          "tensor {} of {} rows: a slice has {} rows from {}, after others to {}", name,
          RowsOf(*slice), slice->rows(), slice->row_offset(), at);
    }
    at += slice->rows();
  }
  if (at != RowsOf(*slices[0])) {
    return InvalidArgument("tensor {} of {} rows: nobody reported the rows from {}", name,
                           RowsOf(*slices[0]), at);
  }
  return Ok();
}

}  // namespace

Result<std::string> EncodeManifest(v1::CheckpointManifest manifest) {
  manifest.set_format_version(kFormatVersion);
  manifest.set_hash(std::string(kNoHash));
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto printed = google::protobuf::util::MessageToJsonString(manifest, &text, options);
  const std::size_t at = printed.ok() ? FindHash(text) : std::string::npos;
  if (at == std::string::npos) {
    return InvalidArgument("the manifest cannot be written as JSON: {}", printed.ToString());
  }
  text.replace(at, kNoHash.size(), HashWithoutHash(text, at));
  return text;
}

Result<v1::CheckpointManifest> DecodeManifest(std::string text) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  v1::CheckpointManifest manifest;
  const auto parsed = google::protobuf::util::JsonStringToMessage(text, &manifest, options);
  // Before the hash: a newer format may compute that in another way, and is no damage.
  if (parsed.ok() && manifest.format_version() > kFormatVersion) {
    return FailedPrecondition("it has format version {}; this program reads version {}",
                              manifest.format_version(), kFormatVersion);
  }
  const std::size_t at = FindHash(text);
  if (at == std::string::npos) return DataLoss("it has no hash");
  const std::string written = text.substr(at, kNoHash.size());
  const std::string computed = HashWithoutHash(text, at);
  if (written != computed) {
    return DataLoss("its hash is {}; the one it carries is {}", computed, written);
  }
  if (!parsed.ok()) return DataLoss("{}", parsed.ToString());
  if (manifest.format_version() != kFormatVersion) return DataLoss("it has no format version");
  return manifest;
}

Status CheckSlices(const v1::CheckpointManifest& manifest) {
  std::set<std::string_view> files;
  for (const auto& file : manifest.files()) {
    if (file.name().empty() || file.name().find('/') != std::string::npos) {
      return InvalidArgument("file \"{}\": a name within the folder is required", file.name());
    }
    if (!files.insert(file.name()).second) {
      return InvalidArgument("file {} is listed twice", file.name());
    }
  }
  std::map<std::string, std::vector<const v1::TensorSlice*>> tensors;
  for (const auto& slice : manifest.slices()) {
    if (!files.contains(slice.file())) {
      return InvalidArgument("tensor {}: its file {} is not listed", slice.name(), slice.file());
    }
    tensors[slice.name()].push_back(&slice);
  }
  for (auto& [name, slices] : tensors) MUSTER_TRY(CheckTensor(name, slices));
  return Ok();
}

}  // namespace muster::storage
