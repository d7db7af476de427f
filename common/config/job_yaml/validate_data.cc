#include <cmath>
#include <limits>
#include <set>

#include <fmt/core.h>

#include "common/base/job_limits.h"
#include "common/config/job_yaml/validate_job.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::config {
namespace {

constexpr std::uint32_t kLongestTextLine = 1 << 20;

class DataCheck {
 public:
  DataCheck(std::string path, Problems& problems) : path_(std::move(path)), problems_(problems) {}

  void Run(const v1::DataSpec& data);

 private:
  template <class... Args>
  void Report(const std::string& field, fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back({field.empty() ? path_ : path_ + "." + field,
                         fmt::format(text, std::forward<Args>(args)...)});
  }

  template <class Files>
  void CheckFiles(const std::string& field, const Files& files) {
    if (files.empty()) return Report(field, "at least one file is needed");
    for (int i = 0; i < files.size(); ++i) {
      const std::string at = files.size() == 1 ? field : fmt::format("{}.{}", field, i);
      if (files[i].empty()) Report(at, "the path is empty");
      if (files[i].find('\0') != std::string::npos) Report(at, "the path has a zero byte");
    }
  }

  void CheckColumnName(const std::string& field, const std::string& name) {
    if (!IsIdentifier(name)) {
      Report(field, "'{}' cannot be a column's name: letters, digits and '_', at most {}", name,
             job_limits::kLongestName);
    }
  }

  void Idx(const v1::IdxData& idx);
  void Csv(const v1::CsvData& csv);
  void CsvColumn(const std::string& field, bool header, const v1::CsvColumn& column);
  void CsvMissing(const std::string& field, const v1::CsvColumn& column);
  void TfRecord(const v1::TfRecordData& tfrecord);

  const std::string path_;
  Problems& problems_;
};

void DataCheck::Run(const v1::DataSpec& data) {
  const int readers =
      data.has_idx() + data.has_csv() + data.has_criteo() + data.has_tfrecord() + data.has_text();
  if (readers != 1) {
    Report("", "exactly one reader of idx, csv, criteo, tfrecord, text; given {}", readers);
    if (readers > 0) return;
    for (const char* reader : {"idx", "csv", "criteo", "tfrecord", "text"}) {
      problems_.back().lacks.push_back(path_ + "." + reader);
    }
    return;
  }
  if (data.has_idx()) Idx(data.idx());
  if (data.has_csv()) Csv(data.csv());
  if (data.has_criteo()) {
    CheckFiles("criteo.files", data.criteo().files());
    if (data.criteo().hash_buckets() < 0) {
      Report("criteo.hash_buckets", "must be above 0; given {}", data.criteo().hash_buckets());
    }
  }
  if (data.has_tfrecord()) TfRecord(data.tfrecord());
  if (data.has_text()) {
    CheckFiles("text.files", data.text().files());
    if (data.text().length() > kLongestTextLine) {
      Report("text.length", "at most {}; given {}", kLongestTextLine, data.text().length());
    }
  }
}

void DataCheck::Idx(const v1::IdxData& idx) {
  if (idx.columns().empty()) Report("idx.columns", "at least one column is needed");
  for (const auto& [name, list] : idx.columns()) {
    CheckColumnName("idx.columns." + name, name);
    CheckFiles("idx.columns." + name, list.files());
  }
}

void DataCheck::Csv(const v1::CsvData& csv) {
  CheckFiles("csv.files", csv.files());
  const std::string& delimiter = csv.delimiter();
  if (delimiter.size() > 1) {
    Report("csv.delimiter", "must be one character; given '{}'", delimiter);
  } else if (delimiter == "\"" || delimiter == "\n" || delimiter == "\r") {
    Report("csv.delimiter", "cannot be a quote or the end of a line");
  }
  if (csv.columns().empty()) Report("csv.columns", "at least one column is needed");
  const bool header = !csv.has_header() || csv.header();
  std::map<std::uint32_t, std::string> taken;
  for (const auto& [name, column] : csv.columns()) {
    const std::string field = "csv.columns." + name;
    CheckColumnName(field, name);
    CsvColumn(field, header, column);
    if (!column.has_index()) continue;
    const auto [other, fresh] = taken.emplace(column.index(), name);
    if (!fresh) {
      Report(field + ".index", "{} is the index of {} too", column.index(), other->second);
    }
  }
}

void DataCheck::CsvColumn(const std::string& field, bool header, const v1::CsvColumn& column) {
  const v1::DType dtype = column.dtype();
  if (dtype != v1::DTYPE_UNSPECIFIED && dtype != v1::DTYPE_FLOAT32 && dtype != v1::DTYPE_FLOAT64 &&
      dtype != v1::DTYPE_INT64) {
    Report(field + ".dtype", "must be float32, float64 or int64");
  }
  if (header && column.has_index()) {
    Report(field + ".index", "only for files without a header (header: false)");
  }
  if (!header && !column.has_index()) {
    Report(field, "index is required, because the files have no header");
  }
  if (column.hash_buckets() < 0) {
    Report(field + ".hash_buckets", "must be above 0; given {}", column.hash_buckets());
  }
  if (column.hash_buckets() > 0 && dtype != v1::DTYPE_INT64) {
    Report(field + ".hash_buckets", "needs dtype: int64");
  }
  if (column.has_missing()) CsvMissing(field + ".missing", column);
}

// It becomes a value of the column, so it is one.
void DataCheck::CsvMissing(const std::string& field, const v1::CsvColumn& column) {
  const double missing = column.missing();
  if (column.dtype() == v1::DTYPE_INT64) {
    if (!(missing >= -0x1p63 && missing < 0x1p63) || std::trunc(missing) != missing) {
      Report(field, "must be a whole number of 64 bits; given {}", missing);
    } else if (column.hash_buckets() > 0 && missing >= static_cast<double>(column.hash_buckets())) {
      // Below 0 it is padding.
      Report(field, "must be below hash_buckets, {}; given {}", column.hash_buckets(), missing);
    }
    return;
  }
  const bool wide = column.dtype() == v1::DTYPE_FLOAT64;
  // The greatest float32 is written 3.4028235e38, which is more, and rounds to it.
  if (!std::isfinite(wide ? missing : static_cast<float>(missing))) {
    Report(field, "must be a finite {}; given {}", wide ? "float64" : "float32", missing);
  }
}

void DataCheck::TfRecord(const v1::TfRecordData& tfrecord) {
  CheckFiles("tfrecord.files", tfrecord.files());
  if (tfrecord.features().empty()) Report("tfrecord.features", "at least one feature is needed");
  for (const auto& [name, feature] : tfrecord.features()) {
    const std::string field = "tfrecord.features." + name;
    CheckColumnName(field, name);
    const v1::DType dtype = feature.dtype();
    if (dtype != v1::DTYPE_FLOAT32 && dtype != v1::DTYPE_INT64 && dtype != v1::DTYPE_UINT8) {
      Report(field + ".dtype", "required: float32, int64 or uint8");
    }
    if (feature.shape_size() > job_limits::kMostDimensions) {
      Report(field + ".shape", "at most {} dimensions; given {}", job_limits::kMostDimensions,
             feature.shape_size());
    }
    for (const std::int64_t size : feature.shape()) {
      if (size <= 0) Report(field + ".shape", "every dimension must be above 0; given {}", size);
    }
    if (feature.length() > 0 && feature.shape_size() > 0) {
      Report(field + ".length", "a list of variable length has no shape; give one of the two");
    }
    if (feature.length() > 0 && dtype == v1::DTYPE_UINT8) {
      Report(field + ".length", "is for int64 and float32 lists only");
    }
  }
}

}  // namespace

void ValidateData(const std::string& path, const v1::DataSpec& data, Problems& problems) {
  DataCheck(path, problems).Run(data);
}

std::vector<std::string> DeclaredColumns(const v1::DataSpec& data) {
  std::set<std::string> names;
  for (const auto& [name, files] : data.idx().columns()) names.insert(name);
  for (const auto& [name, column] : data.csv().columns()) names.insert(name);
  for (const auto& [name, feature] : data.tfrecord().features()) names.insert(name);
  if (data.has_criteo()) names.insert({"label", "dense", "cat"});
  if (data.has_text()) names.insert("line");
  return {names.begin(), names.end()};
}

}  // namespace muster::config
