// IDX: two zero bytes, a type, the number of dimensions, each dimension as a big-endian uint32,
// then the values, big-endian. The first dimension counts the records.
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include <xxhash.h>

#include "common/base/host_name.h"
#include "common/base/words.h"
#include "common/data/reader.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::data {
namespace {

std::uint32_t BigEndian32(const std::byte* p) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(p[i]);
  return value;
}

DType DTypeOf(std::byte code) {
  switch (std::to_integer<int>(code)) {
    case 0x08:
      return DType::kUint8;
    case 0x09:
      return DType::kInt8;
    case 0x0B:
      return DType::kInt16;
    case 0x0C:
      return DType::kInt32;
    case 0x0D:
      return DType::kFloat32;
    case 0x0E:
      return DType::kFloat64;
    default:
      return DType::kUnspecified;
  }
}

// Turns big-endian values of `width` bytes into this machine's order.
void SwapBytes(std::byte* data, std::size_t size, std::size_t width) {
  const auto swap = [&]<class T>(T (*swapped)(T)) {
    for (std::size_t i = 0; i < size; i += sizeof(T)) {
      T value;
      std::memcpy(&value, data + i, sizeof(T));
      value = swapped(value);
      std::memcpy(data + i, &value, sizeof(T));
    }
  };
  if (width == 2) swap(+[](std::uint16_t v) { return __builtin_bswap16(v); });
  if (width == 4) swap(+[](std::uint32_t v) { return __builtin_bswap32(v); });
  if (width == 8) swap(+[](std::uint64_t v) { return __builtin_bswap64(v); });
}

struct IdxFile {
  SourceFile source;
  Mapping mapping;
  const std::byte* values = nullptr;
  std::uint64_t rows = 0;
  DType dtype = DType::kUnspecified;
  std::vector<std::int64_t> row_shape;
};

std::string Describe(const IdxFile& file) {
  std::string text = fmt::format("{} [", NameOf(file.dtype));
  for (const std::int64_t size : file.row_shape) text += fmt::format("{},", size);
  if (text.back() == ',') text.pop_back();
  return text + "]";
}

// `at` names the file and the host in every message.
Status ParseIdx(const std::string& at, IdxFile& file) {
  const std::span<const std::byte> bytes = file.mapping.bytes();
  if (bytes.size() < 4) {
    return DataLoss("{}: cut short: {}, an IDX file begins with 4 bytes of magic", at,
                    Counted(bytes.size(), "byte"));
  }
  file.dtype = DTypeOf(bytes[2]);
  const auto dimensions = std::to_integer<std::size_t>(bytes[3]);
  if (bytes[0] != std::byte{0} || bytes[1] != std::byte{0} || file.dtype == DType::kUnspecified ||
      dimensions == 0) {
    return DataLoss("{}: not an IDX file: it begins with {:02x} {:02x} {:02x} {:02x}", at,
                    std::to_integer<int>(bytes[0]), std::to_integer<int>(bytes[1]),
                    std::to_integer<int>(bytes[2]), std::to_integer<int>(bytes[3]));
  }
  const std::size_t header = 4 + 4 * dimensions;
  if (bytes.size() < header) {
    return DataLoss("{}: cut short within its header: {} bytes, {} {} {}", at, bytes.size(),
                    Counted(dimensions, "dimension"), Agreeing(dimensions, "needs", "need"),
                    header);
  }
  file.rows = BigEndian32(&bytes[4]);
  std::uint64_t expected = SizeOf(file.dtype) * file.rows;
  for (std::size_t d = 1; d < dimensions; ++d) {
    const std::uint32_t size = BigEndian32(&bytes[4 + 4 * d]);
    file.row_shape.push_back(size);
    // The file chose these numbers: their product must not wrap around.
    if (size != 0 && expected > std::numeric_limits<std::uint64_t>::max() / 2 / size) {
      return DataLoss("{}: its header claims more values than any file can hold", at);
    }
    expected *= size;
  }
  if (bytes.size() - header != expected) {
    return DataLoss("{}: {}: {} of values after its header, {} of {} {} {}", at,
                    bytes.size() - header < expected ? "cut short" : "too long",
                    Counted(bytes.size() - header, "byte"), Counted(file.rows, "record"),
                    Describe(file), Agreeing(file.rows, "needs", "need"), expected);
  }
  file.values = bytes.data() + header;
  return Ok();
}

// One column: its files, one after another.
struct IdxColumn {
  std::vector<IdxFile> files;
  // starts[i]: number of the first record of files[i]; one more at the end.
  std::vector<std::uint64_t> starts = {0};
  std::size_t row_bytes = 0;
  std::optional<FileWatch> watch;

  //   kDataLoss: FileWatch::Look()'s.
  Result<const std::byte*> Row(std::uint64_t record, TimePoint now) const {
    std::size_t i = 0;
    if (files.size() > 1) {
      const auto it = std::upper_bound(starts.begin(), starts.end(), record);
      i = static_cast<std::size_t>(it - starts.begin()) - 1;
    }
    MUSTER_TRY(watch->Look(i, now));
    return files[i].values + (record - starts[i]) * row_bytes;
  }
};

class IdxReader final : public Reader {
 public:
  std::uint64_t records() const override { return records_; }
  const std::vector<ColumnInfo>& columns() const override { return infos_; }
  std::uint64_t bad_records() const override { return 0; }
  std::vector<std::string> BadRecordPlaces(std::size_t) const override { return {}; }

  // Opens the files of one column; nothing is added when they do not fit each other, or have not as
  // many records as the columns before.
  Status Add(const std::string& name, const v1::FileList& list, const Cache& cache) {
    const std::vector<std::string> patterns(list.files().begin(), list.files().end());
    MUSTER_TRY_ASSIGN(const std::vector<SourceFile> sources, FindFiles(patterns));
    IdxColumn column;
    column.files.resize(sources.size());
    const auto prepare = [&](std::size_t i) -> Status {
      MUSTER_TRY_ASSIGN(column.files[i].mapping, cache.Content(sources[i]));
      column.files[i].source = sources[i];
      return ParseIdx(fmt::format("{} on host {}", sources[i].path, HostName()), column.files[i]);
    };
    MUSTER_TRY(cache.ForEachLocked(sources, prepare));
    const IdxFile& first = column.files.front();
    for (const IdxFile& file : column.files) {
      if (file.dtype != first.dtype || file.row_shape != first.row_shape) {
        return InvalidArgument("column {}: {} holds {}, but {} holds {}", name, first.source.path,
                               Describe(first), file.source.path, Describe(file));
      }
      column.starts.push_back(column.starts.back() + file.rows);
    }
    ColumnInfo info{.name = name, .dtype = first.dtype, .shape = {-1}};
    info.shape.insert(info.shape.end(), first.row_shape.begin(), first.row_shape.end());
    column.row_bytes = RowBytes(info);
    if (!columns_.empty() && column.starts.back() != records_) {
      return InvalidArgument(
          "column {} has {}, column {} has {}: all columns must have as many (host {})",
          infos_.front().name, Counted(records_, "record"), name, column.starts.back(), HostName());
    }
    column.watch.emplace(sources);
    records_ = column.starts.back();
    infos_.push_back(std::move(info));
    columns_.push_back(std::move(column));
    return Ok();
  }

  std::vector<FileState> files() const override {
    std::vector<FileState> states;
    for (const IdxColumn& column : columns_) {
      for (const IdxFile& file : column.files) {
        const std::span<const std::byte> bytes = file.mapping.bytes();
        const auto header = static_cast<std::size_t>(file.values - bytes.data());
        states.push_back({.path = file.source.path,
                          .size = file.source.size,
                          .mtime_ns = file.source.mtime_ns,
                          .records = file.rows,
                          .index_hash = XXH3_64bits(bytes.data(), header)});
      }
    }
    return states;
  }
  std::string Name(std::span<const std::uint64_t> records) const override {
    std::string text;
    for (const IdxColumn& column : columns_) {
      std::vector<std::string> paths;
      for (const IdxFile& file : column.files) paths.push_back(file.source.path);
      text += (text.empty() ? "" : "; ") + NameRecords(records, column.starts, paths);
    }
    return text;
  }

  Result<Element> Read(std::span<const std::uint64_t> records) const override {
    MUSTER_TRY_ASSIGN(Element element, AllocateBatch(infos_, records.size()));
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const IdxColumn& column = columns_[c];
      std::byte* const begin = Writable(element.columns[c]);
      std::byte* out = begin;
      const TimePoint now = column.watch->Now();
      for (const std::uint64_t record : records) {
        MUSTER_TRY_ASSIGN(const std::byte* row, column.Row(record, now));
        std::memcpy(out, row, column.row_bytes);
        out += column.row_bytes;
      }
      const std::size_t width = SizeOf(infos_[c].dtype);
      if (width > 1) SwapBytes(begin, static_cast<std::size_t>(out - begin), width);
    }
    return element;
  }

 private:
  std::uint64_t records_ = 0;
  std::vector<ColumnInfo> infos_;
  std::vector<IdxColumn> columns_;
};

}  // namespace

Result<std::unique_ptr<Reader>> OpenIdx(const v1::IdxData& spec, const Cache& cache) {
  std::vector<std::string> names;  // a map's own order differs between processes
  for (const auto& [name, list] : spec.columns()) names.push_back(name);
  std::sort(names.begin(), names.end());
  auto reader = std::make_unique<IdxReader>();
  for (const std::string& name : names) {
    MUSTER_TRY(reader->Add(name, spec.columns().at(name), cache));
  }
  return std::unique_ptr<Reader>(std::move(reader));
}

}  // namespace muster::data
