#include "common/storage/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/words.h"
#include "common/storage/hash.h"
#include "muster/v1/checkpoint.pb.h"

namespace muster::storage {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::size_t kPrefixBytes = 8;
static_assert(std::endian::native == std::endian::little, "tensors are written as they lie");

constexpr std::pair<DType, const char*> kTypes[] = {
    {DType::kFloat32, "F32"},   {DType::kFloat64, "F64"}, {DType::kFloat16, "F16"},
    {DType::kBfloat16, "BF16"}, {DType::kInt64, "I64"},   {DType::kInt32, "I32"},
    {DType::kInt16, "I16"},     {DType::kInt8, "I8"},     {DType::kUint8, "U8"},
    {DType::kBool, "BOOL"},
};

// Notices what a DOM hides: repeated keys, and nesting that no header has.
class Watch {
 public:
  bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > 4) problem_ = "is nested too deeply";
    if (event == Json::parse_event_t::object_start) {
      keys_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) problem_ = fmt::format("has the key {} twice", key);
    }
    return problem_.empty();  // false drops the value, which keeps hostile input small
  }
  const std::string& problem() const { return problem_; }

 private:
  std::vector<std::set<std::string>> keys_;
  std::string problem_;
};

std::optional<std::uint64_t> AsCount(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto count = value.get<std::uint64_t>();
  if (count > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
  return count;
}

// `offsets` still relative to the end of the header.
Result<TensorEntry> ParseTensor(const std::string& key, const Json& json) {
  const auto damaged = [&](std::string_view what) {
    return DataLoss("safetensors header: tensor {} {}", key, what);
  };
  if (!json.is_object()) return damaged("is no object");
  const auto dtype = json.find("dtype");
  const auto shape = json.find("shape");
  const auto offsets = json.find("data_offsets");
  if (dtype == json.end() || shape == json.end() || offsets == json.end() || json.size() != 3) {
    return damaged("must have dtype, shape and data_offsets, and nothing else");
  }
  TensorEntry entry;
  const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& known) {
    return dtype->is_string() && dtype->get_ref<const std::string&>() == known.second;
  });
  if (type == std::end(kTypes)) return damaged("has a dtype that this version does not know");
  entry.dtype = type->first;
  if (!shape->is_array()) return damaged("has a shape that is no list");
  for (const Json& dimension : *shape) {
    const auto count = AsCount(dimension);
    if (!count) return damaged("has an impossible shape");
    entry.shape.push_back(static_cast<std::int64_t>(*count));
  }
  if (!offsets->is_array() || offsets->size() != 2) return damaged("needs two data_offsets");
  const auto begin = AsCount((*offsets)[0]);
  const auto end = AsCount((*offsets)[1]);
  if (!begin || !end || *begin > *end) return damaged("has impossible data_offsets");
  entry.begin = *begin;
  entry.end = *end;
  const Result<std::uint64_t> bytes = TensorBytes(entry.dtype, entry.shape);
  if (!bytes.ok()) return damaged(Message(bytes.status()));
  if (*bytes != entry.end - entry.begin) {
    return damaged(fmt::format("has a shape of {} bytes and data_offsets of {}", *bytes,
                               entry.end - entry.begin));
  }
  return entry;
}

// The tensors must cover the data exactly once.
Status CheckTiling(const SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::vector<std::pair<const std::string*, const TensorEntry*>> order;
  for (const auto& [key, entry] : header.tensors) order.emplace_back(&key, &entry);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  std::uint64_t at = 0;
  for (const auto& [key, entry] : order) {
    if (entry->begin != at) {
      return DataLoss("safetensors header: tensor {} begins at byte {} of the data, {} {}", *key,
                      entry->begin,
                      entry->begin < at ? "inside another that ends at" : "after a hole from", at);
    }
    at = entry->end;
  }
  if (at != data_bytes) {
    return DataLoss("safetensors header: the tensors have {} bytes, the file has {}", at,
                    data_bytes);
  }
  return Ok();
}

Result<std::string> EncodeHeader(std::span<const TensorDeclaration> tensors,
                                 std::uint64_t& data_bytes) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  std::set<std::string_view> keys;
  data_bytes = 0;
  for (const TensorDeclaration& tensor : tensors) {
    if (!keys.insert(tensor.key).second || tensor.key == kMetadataKey) {
      return InvalidArgument("tensor {} is to be written twice", tensor.key);
    }
    const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const auto& known) { return known.first == tensor.dtype; });
    const Result<std::uint64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok() || type == std::end(kTypes)) {
      return InvalidArgument("tensor {}, {}: {}", tensor.key, NameOf(tensor.dtype),
                             bytes.ok() ? "cannot be written" : Message(bytes.status()));
    }
    if (*bytes > static_cast<std::uint64_t>(INT64_MAX) - data_bytes) {
      return InvalidArgument("tensor {}: the file would have more than 2^63 bytes", tensor.key);
    }
    try {
      text += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          Json(tensor.key).dump(), type->second, fmt::join(tensor.shape, ","),
                          data_bytes, data_bytes + *bytes);
    } catch (const std::exception&) {
      return InvalidArgument("tensor {}: the name is not UTF-8", tensor.key);
    }
    data_bytes += *bytes;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return InvalidArgument("the names of {} tensors need a header of {} bytes, limit {}",
                           tensors.size(), text.size(), kMaxHeaderBytes);
  }
  return text;
}

class Writer : public SafetensorsWriter {
 public:
  Writer(FileSystem& files, std::string path)
      : files_(files), path_(std::move(path)), staged_(TemporaryName(path_)) {}

  ~Writer() override {
    file_.reset();
    if (!finished_) (void)files_.Remove(staged_);
  }

  Status Begin(std::span<const TensorDeclaration> tensors) {
    MUSTER_TRY_ASSIGN(const std::string header, EncodeHeader(tensors, left_));
    MUSTER_TRY_ASSIGN(file_, files_.Create(staged_));
    left_ += kPrefixBytes + header.size();
    MUSTER_TRY(file_->Reserve(left_));
    const std::uint64_t size = header.size();
    MUSTER_TRY(Append(std::as_bytes(std::span(&size, 1))));
    return Append(std::as_bytes(std::span(header)));
  }

  Status Append(std::span<const std::byte> bytes) override {
    if (bytes.size() > left_) {
      return InvalidArgument("{}: {} bytes more than were declared", path_, bytes.size() - left_);
    }
    left_ -= bytes.size();
    // By chunks, so that what is hashed is written while it is in the cache.
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min<std::size_t>(bytes.size(), hasher_.LeftInChunk()));
      hasher_.Update(piece);
      MUSTER_TRY(file_->Append(piece));
      bytes = bytes.subspan(piece.size());
    }
    return Ok();
  }

  Result<v1::CheckpointFile> Finish() override {
    if (left_ != 0)
      return InvalidArgument("{}: {} bytes were declared and not written", path_, left_);
    MUSTER_TRY(file_->Sync());
    MUSTER_TRY(file_->Close());
    MUSTER_TRY_ASSIGN(const bool replaces, files_.Exists(path_));
    MUSTER_TRY(files_.Rename(staged_, path_));
    finished_ = true;
    if (const Status synced = files_.SyncFolder(ParentOf(path_)); !synced.ok()) {
      // The file that was there cannot come back: whatever a crash leaves, it is a whole one.
      if (!replaces) (void)files_.Remove(path_);
      return synced;
    }
    v1::CheckpointFile report;
    report.set_name(path_.substr(path_.rfind('/') + 1));
    report.set_bytes(hasher_.bytes());
    for (std::string& chunk : hasher_.Finish()) report.add_chunks(std::move(chunk));
    return report;
  }

 private:
  FileSystem& files_;
  const std::string path_;
  const std::string staged_;
  std::unique_ptr<WritableFile> file_;
  ChunkHasher hasher_;
  std::uint64_t left_ = 0;
  bool finished_ = false;
};

}  // namespace

Result<std::uint64_t> TensorBytes(DType dtype, std::span<const std::int64_t> shape) {
  std::uint64_t bytes = SizeOf(dtype);
  if (bytes == 0) return InvalidArgument("{} has no fixed size", WithArticle(NameOf(dtype)));
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return InvalidArgument("dimension {} is negative", dimension);
    if (dimension != 0 && bytes > static_cast<std::uint64_t>(INT64_MAX / dimension)) {
      return InvalidArgument("the shape has more than 2^63 bytes");
    }
    bytes *= static_cast<std::uint64_t>(dimension);
  }
  return bytes;
}

Result<std::uint64_t> ParseHeaderSize(std::span<const std::byte, 8> prefix,
                                      std::uint64_t file_bytes) {
  std::uint64_t size = 0;
  std::memcpy(&size, prefix.data(), sizeof(size));
  if (size > kMaxHeaderBytes) {
    return DataLoss("safetensors: a header of {} bytes, limit {}", size, kMaxHeaderBytes);
  }
  if (file_bytes < kPrefixBytes || size > file_bytes - kPrefixBytes) {
    return DataLoss("safetensors: a header of {} bytes in a file of {}", size, file_bytes);
  }
  return size;
}

Result<SafetensorsHeader> ParseHeader(std::span<const std::byte> json, std::uint64_t file_bytes) {
  const auto* text = reinterpret_cast<const char*>(json.data());
  if (json.empty() || text[0] != '{') return DataLoss("safetensors: the header is no JSON object");
  Watch watch;
  const Json parsed = Json::parse(text, text + json.size(), std::ref(watch), false);
  if (!watch.problem().empty()) return DataLoss("safetensors: the header {}", watch.problem());
  if (!parsed.is_object()) return DataLoss("safetensors: the header is no JSON object");

  SafetensorsHeader header;
  for (const auto& [key, value] : parsed.items()) {
    if (key == kMetadataKey) {
      if (!value.is_object()) return DataLoss("safetensors: __metadata__ is no object");
      for (const auto& [name, note] : value.items()) {
        if (!note.is_string()) return DataLoss("safetensors: __metadata__ {} is no string", name);
        header.metadata[name] = note.get<std::string>();
      }
      continue;
    }
    MUSTER_TRY_ASSIGN(header.tensors[key], ParseTensor(key, value));
  }
  const std::uint64_t data = kPrefixBytes + json.size();
  MUSTER_TRY(CheckTiling(header, file_bytes - data));
  for (auto& [key, entry] : header.tensors) {
    entry.begin += data;
    entry.end += data;
  }
  return header;
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    FileSystem& files, const std::string& path, std::span<const TensorDeclaration> tensors) {
  auto writer = std::make_unique<Writer>(files, path);
  MUSTER_TRY(writer->Begin(tensors));
  return writer;
}

}  // namespace muster::storage
