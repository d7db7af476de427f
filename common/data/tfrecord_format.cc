// TFRecord: a little-endian uint64 length, its masked CRC-32C, the data, their masked CRC-32C.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "common/base/crc32c.h"
#include "common/base/words.h"
#include "common/data/example_wire.h"
#include "common/data/record_format.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::data {
namespace {

constexpr std::uint64_t kHeader = 12;
constexpr std::uint64_t kTrailer = 4;

std::uint32_t Masked(std::string_view bytes) {
  return MaskedCrc32c(std::as_bytes(std::span(bytes)));
}

template <class T>
T Load(std::string_view bytes, std::uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

bool LengthHolds(std::string_view content, std::uint64_t offset) {
  return Masked(content.substr(offset, 8)) == Load<std::uint32_t>(content, offset + 8);
}

// RFC 1950's two bytes: deflate, a window of at most 32 KiB, divisible by 31. A plain file can
// begin so, too; then its first length has its checksum or, where it is damaged, zeros at its end.
bool LooksLikeZlib(std::string_view content) {
  if (content.size() < 2) return false;
  const auto first = static_cast<unsigned char>(content[0]);
  const auto second = static_cast<unsigned char>(content[1]);
  const bool zlib = (first & 0x0F) == 8 && first >> 4 <= 7 && (first << 8 | second) % 31 == 0;
  if (!zlib || content.size() < kHeader) return zlib;
  return Load<std::uint32_t>(content, 4) != 0 && !LengthHolds(content, 0);
}

class TfRecordParser final : public RecordParser {
 public:
  TfRecordParser(std::string_view content, std::span<const FeaturePlan> plans)
      : content_(content), plans_(plans) {}

  Parsed Parse(std::uint64_t offset, std::span<std::byte* const> rows) const override {
    const std::uint64_t left = content_.size() - offset;
    if (left < kHeader) {
      return Parsed::Bad(content_.size(), fmt::format("cut short: {}, a record begins with {}",
                                                      Counted(left, "byte"), kHeader));
    }
    if (!LengthHolds(content_, offset)) {
      return Parsed::Bad(NextRecord(offset + 1), "a record's length fails its checksum");
    }
    const auto length = Load<std::uint64_t>(content_, offset);
    if (length > left - kHeader || left - kHeader - length < kTrailer) {
      return Parsed::Bad(content_.size(), fmt::format("cut short: a record of {}, {} left",
                                                      Counted(length, "byte"), left - kHeader));
    }
    const std::uint64_t next = offset + kHeader + length + kTrailer;
    if (!DataHolds(offset, length)) {
      return Parsed::Bad(next,
                         fmt::format("a record of {} fails its checksum", Counted(length, "byte")));
    }
    std::string problem = ReadExample(content_.substr(offset + kHeader, length), plans_, rows);
    if (!problem.empty()) return Parsed::Bad(next, std::move(problem));
    return Parsed::Record(next);
  }

 private:
  bool DataHolds(std::uint64_t offset, std::uint64_t length) const {
    return Masked(content_.substr(offset + kHeader, length)) ==
           Load<std::uint32_t>(content_, offset + kHeader + length);
  }

  // A damaged length says nothing about where the next record begins: looks for one whose both
  // checksums hold. The end of the file if there is none.
  std::uint64_t NextRecord(std::uint64_t from) const {
    for (std::uint64_t at = from; at + kHeader + kTrailer <= content_.size(); ++at) {
      if (!LengthHolds(content_, at)) continue;
      const auto length = Load<std::uint64_t>(content_, at);
      if (length <= content_.size() - at - kHeader - kTrailer && DataHolds(at, length)) return at;
    }
    return content_.size();
  }

  std::string_view content_;
  std::span<const FeaturePlan> plans_;
};

class TfRecordFormat final : public RecordFormat {
 public:
  TfRecordFormat(const v1::TfRecordData& spec, std::vector<ColumnInfo> columns)
      : columns_(std::move(columns)) {
    for (const ColumnInfo& column : columns_) {
      plans_.push_back({.name = column.name,
                        .dtype = column.dtype,
                        .values = RowBytes(column) / SizeOf(column.dtype),
                        .padded = spec.features().at(column.name).length() > 0});
    }
  }

  const std::vector<ColumnInfo>& columns() const override { return columns_; }
  bool lines() const override { return false; }
  Result<std::unique_ptr<RecordParser>> Begin(const std::string&, const std::string& at,
                                              std::string_view content) const override {
    if (LooksLikeZlib(content)) {
      return InvalidArgument(
          "{}: this is a ZLIB stream (TFRecordOptions(\"ZLIB\")), which is not read: write it "
          "with \"GZIP\", or without compression",
          at);
    }
    return std::unique_ptr<RecordParser>(std::make_unique<TfRecordParser>(content, plans_));
  }

 private:
  std::vector<ColumnInfo> columns_;
  std::vector<FeaturePlan> plans_;
};

}  // namespace

std::unique_ptr<RecordFormat> MakeTfRecordFormat(const v1::TfRecordData& spec,
                                                 std::vector<ColumnInfo> columns) {
  return std::make_unique<TfRecordFormat>(spec, std::move(columns));
}

}  // namespace muster::data
