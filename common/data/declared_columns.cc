#include "common/data/declared_columns.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/data/formats.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::data {
namespace {

// Values of one record in one column. Batches are bounded by memory; this only stops absurd specs.
constexpr std::int64_t kMostRowValues = std::int64_t{1} << 26;

template <class Map>
std::vector<std::string> SortedKeys(const Map& map) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : map) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  return keys;
}

template <class Files>
Status CheckFiles(std::string_view where, const Files& files) {
  if (files.empty()) return InvalidArgument("{}: no files given", where);
  for (const std::string& path : files) {
    if (path.empty()) return InvalidArgument("{}: an empty path", where);
  }
  return Ok();
}

Result<std::vector<ColumnInfo>> IdxColumns(const v1::IdxData& spec) {
  if (spec.columns().empty()) return InvalidArgument("data.idx.columns: no column given");
  std::vector<ColumnInfo> columns;
  for (const std::string& name : SortedKeys(spec.columns())) {
    const auto& files = spec.columns().at(name).files();
    MUSTER_TRY(CheckFiles(fmt::format("data.idx.columns.{}", name), files));
    columns.push_back({.name = name, .dtype = DType::kUnspecified, .shape = {-1}});
  }
  return columns;
}

bool IsInt64(double value) {
  return value >= -0x1p63 && value < 0x1p63 && std::trunc(value) == value;
}

// What stands for an empty field is a value of its column. Of hashed ones it is a bucket, or below
// 0, which is padding.
Status CheckMissing(const std::string& where, DType dtype, const v1::CsvColumn& column) {
  const double missing = column.missing();
  if (dtype == DType::kInt64) {
    if (!IsInt64(missing)) return InvalidArgument("{}.missing: {} is no int64", where, missing);
    if (column.hash_buckets() > 0 && missing >= static_cast<double>(column.hash_buckets())) {
      return InvalidArgument("{}.missing: {} is not below hash_buckets, {}", where, missing,
                             column.hash_buckets());
    }
    return Ok();
  }
  // The greatest float32 is written 3.4028235e38, which is more, and rounds to it.
  if (std::isfinite(dtype == DType::kFloat64 ? missing : static_cast<float>(missing))) return Ok();
  return InvalidArgument("{}.missing: {} is no finite {}", where, missing, NameOf(dtype));
}

Result<DType> CsvDType(const std::string& where, const v1::CsvColumn& column) {
  const DType dtype = column.dtype() == v1::DTYPE_UNSPECIFIED ? DType::kFloat32
                                                              : static_cast<DType>(column.dtype());
  if (dtype != DType::kFloat32 && dtype != DType::kFloat64 && dtype != DType::kInt64) {
    return InvalidArgument("{}.dtype: {}, allowed are float32, float64 and int64", where,
                           NameOf(dtype));
  }
  return dtype;
}

Result<std::vector<ColumnInfo>> CsvColumns(const v1::CsvData& spec) {
  MUSTER_TRY(CheckFiles("data.csv.files", spec.files()));
  if (spec.delimiter().size() > 1 ||
      spec.delimiter().find_first_of("\"\r\n") != std::string::npos) {
    return InvalidArgument("data.csv.delimiter: one character that is no quote and no line end");
  }
  if (spec.columns().empty()) return InvalidArgument("data.csv.columns: no column given");
  const bool header = !spec.has_header() || spec.header();
  std::vector<ColumnInfo> columns;
  for (const std::string& name : SortedKeys(spec.columns())) {
    const v1::CsvColumn& column = spec.columns().at(name);
    const std::string where = fmt::format("data.csv.columns.{}", name);
    MUSTER_TRY_ASSIGN(const DType dtype, CsvDType(where, column));
    if (!header && !column.has_index()) {
      return InvalidArgument("{}: without a header its `index` (column number from 0) is needed",
                             where);
    }
    if (column.hash_buckets() < 0) {
      return InvalidArgument("{}.hash_buckets: {}, must be above 0", where, column.hash_buckets());
    }
    if (column.hash_buckets() > 0 && dtype != DType::kInt64) {
      return InvalidArgument("{}: hash_buckets needs dtype int64, it has {}", where, NameOf(dtype));
    }
    if (column.has_missing()) MUSTER_TRY(CheckMissing(where, dtype, column));
    columns.push_back({.name = name, .dtype = dtype, .shape = {-1}});
  }
  return columns;
}

Result<std::vector<ColumnInfo>> CriteoColumns(const v1::CriteoData& spec) {
  MUSTER_TRY(CheckFiles("data.criteo.files", spec.files()));
  if (spec.hash_buckets() < 0) {
    return InvalidArgument("data.criteo.hash_buckets: {}, must be above 0", spec.hash_buckets());
  }
  return std::vector<ColumnInfo>{
      {.name = "label", .dtype = DType::kFloat32, .shape = {-1}},
      {.name = "dense", .dtype = DType::kFloat32, .shape = {-1, kCriteoNumbers}},
      {.name = "cat", .dtype = DType::kInt64, .shape = {-1, kCriteoCategories}}};
}

Result<std::vector<ColumnInfo>> TfRecordColumns(const v1::TfRecordData& spec) {
  MUSTER_TRY(CheckFiles("data.tfrecord.files", spec.files()));
  if (spec.features().empty()) return InvalidArgument("data.tfrecord.features: no feature given");
  std::vector<ColumnInfo> columns;
  for (const std::string& name : SortedKeys(spec.features())) {
    const v1::FeatureSpec& feature = spec.features().at(name);
    const std::string where = fmt::format("data.tfrecord.features.{}", name);
    ColumnInfo column{.name = name, .dtype = static_cast<DType>(feature.dtype()), .shape = {-1}};
    if (column.dtype != DType::kFloat32 && column.dtype != DType::kInt64 &&
        column.dtype != DType::kUint8) {
      return InvalidArgument("{}.dtype: {}, needed is one of float32, int64 and uint8", where,
                             NameOf(column.dtype));
    }
    std::int64_t values = 1;
    for (const std::int64_t size : feature.shape()) {
      if (size < 1 || size > kMostRowValues / values) {
        return InvalidArgument("{}.shape: a size of {} is out of range", where, size);
      }
      values *= size;
      if (feature.length() == 0) column.shape.push_back(size);
    }
    if (feature.length() > kMostRowValues) {
      return InvalidArgument("{}.length: {}, at most {}", where, feature.length(), kMostRowValues);
    }
    if (feature.length() > 0) column.shape.push_back(feature.length());
    columns.push_back(std::move(column));
  }
  return columns;
}

Result<std::vector<ColumnInfo>> TextColumns(const v1::TextData& spec) {
  MUSTER_TRY(CheckFiles("data.text.files", spec.files()));
  const std::int64_t length = spec.length() == 0 ? kDefaultTextLength : spec.length();
  if (length > kMostRowValues) {
    return InvalidArgument("data.text.length: {}, at most {}", length, kMostRowValues);
  }
  return std::vector<ColumnInfo>{{.name = "line", .dtype = DType::kUint8, .shape = {-1, length}}};
}

}  // namespace

Result<std::vector<ColumnInfo>> DeclaredColumns(const v1::DataSpec& spec) {
  const int readers = int{spec.has_idx()} + int{spec.has_csv()} + int{spec.has_criteo()} +
                      int{spec.has_tfrecord()} + int{spec.has_text()};
  if (readers != 1) {
    return InvalidArgument(
        "data: {} readers given, needed is one of idx, csv, criteo, tfrecord, text", readers);
  }
  if (spec.has_idx()) return IdxColumns(spec.idx());
  if (spec.has_csv()) return CsvColumns(spec.csv());
  if (spec.has_criteo()) return CriteoColumns(spec.criteo());
  if (spec.has_tfrecord()) return TfRecordColumns(spec.tfrecord());
  return TextColumns(spec.text());
}

}  // namespace muster::data
