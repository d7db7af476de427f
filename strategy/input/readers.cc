#include "strategy/input/readers.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "common/base/status.h"
#include "common/base/words.h"
#include "common/data/cache.h"
#include "common/data/open_reader.h"
#include "common/data/pipeline/element_ops.h"
#include "common/data/pipeline/pipeline.h"
#include "common/torch/dtypes.h"
#include "muster/v1/job_spec.pb.h"
#include "strategy/base/internal/raise.h"
#include "strategy/input/internal/pipelines.h"

namespace muster::internal {
namespace {

// The columns of another reader in another order, under other names.
class Picked final : public data::Reader {
 public:
  // `order`: for each column its place in `reader`.
  Picked(std::unique_ptr<const data::Reader> reader, std::vector<std::size_t> order,
         std::vector<std::string> names)
      : reader_(std::move(reader)), order_(std::move(order)), names_(std::move(names)) {
    for (std::size_t c = 0; c < order_.size(); ++c) {
      columns_.push_back(reader_->columns()[order_[c]]);
      columns_.back().name = names_[c];
    }
  }

  std::uint64_t records() const override { return reader_->records(); }
  const std::vector<data::ColumnInfo>& columns() const override { return columns_; }
  std::uint64_t bad_records() const override { return reader_->bad_records(); }
  std::vector<std::string> BadRecordPlaces(std::size_t limit) const override {
    return reader_->BadRecordPlaces(limit);
  }
  std::vector<data::FileState> files() const override { return reader_->files(); }
  std::string Name(std::span<const std::uint64_t> records) const override {
    return reader_->Name(records);
  }
  Result<data::Element> Read(std::span<const std::uint64_t> records) const override {
    MUSTER_TRY_ASSIGN(const data::Element read, reader_->Read(records));
    data::Element picked;
    for (std::size_t c = 0; c < order_.size(); ++c) {
      picked.columns.push_back(read.columns[order_[c]]);
      picked.columns.back().info.name = names_[c];
    }
    return picked;
  }

 private:
  const std::unique_ptr<const data::Reader> reader_;
  const std::vector<std::size_t> order_;
  const std::vector<std::string> names_;
  std::vector<data::ColumnInfo> columns_;
};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string cache_directory(const ReaderOptions& options) {
  if (!options.cache_directory.empty()) return options.cache_directory;
  if (std::string set = variable(data::kCacheVariable); !set.empty()) return set;
  if (const std::string base = variable("XDG_CACHE_HOME"); !base.empty()) {
    return base + "/muster/data";
  }
  if (const std::string home = variable("HOME"); !home.empty()) {
    return home + "/.cache/muster/data";
  }
  raise(
      InvalidArgument("no folder for decoded files and indexes: set ReaderOptions.cache_directory, "
                      "or {} in the environment",
                      data::kCacheVariable));
}

// The numbers of `columns` by name as `wanted` has them.
std::vector<std::size_t> places(const std::vector<data::ColumnInfo>& columns,
                                const std::vector<std::string>& wanted) {
  std::vector<std::size_t> order;
  for (const std::string& name : wanted) {
    const auto found = std::find_if(columns.begin(), columns.end(),
                                    [&](const auto& info) { return info.name == name; });
    MUSTER_INVARIANT(found != columns.end());
    order.push_back(static_cast<std::size_t>(found - columns.begin()));
  }
  return order;
}

// `wanted`: the columns in the options' order.
Graph open(const char* format, v1::DataSpec spec, const ReaderOptions& options,
           std::vector<std::string> wanted, const LeafPaths& names) {
  if (!names) std::sort(wanted.begin(), wanted.end());
  std::vector<std::string> sorted = wanted;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    raise(InvalidArgument("dataset::{}: column {} is named twice", format, *twice));
  }
  if (names && names->size() != wanted.size()) {
    raise(InvalidArgument("dataset::{}: {} for an element type of {}", format,
                          Counted(wanted.size(), "column"), Counted(names->size(), "tensor")));
  }
  spec.mutable_bad_records()->set_skip_up_to(options.skip_up_to);
  const data::Cache cache = value_of(data::Cache::Open(
      {.directory = cache_directory(options), .limit_bytes = options.cache_bytes}));
  std::unique_ptr<data::Reader> reader = value_of(data::OpenReader(spec, cache));
  std::vector<std::size_t> order = places(reader->columns(), wanted);
  return Graph(data::Pipeline::Records(
      std::make_shared<const Picked>(std::move(reader), std::move(order), names.value_or(wanted)),
      format));
}

template <class Repeated>
void add_files(const Files& files, Repeated& repeated) {
  for (const std::string& path : files.paths()) repeated.Add()->assign(path);
}

v1::DType dtype_of(const std::string& column, torch::ScalarType type) {
  const DType dtype = DTypeOf(type);
  if (dtype == DType::kUnspecified) {
    raise(
        InvalidArgument("column {}: no reader makes tensors of {}", column, torch::toString(type)));
  }
  return static_cast<v1::DType>(dtype);
}

}  // namespace

Graph open_records(const IdxOptions& options, const LeafPaths& names) {
  v1::DataSpec spec;
  std::vector<std::string> wanted;
  auto& columns = *spec.mutable_idx()->mutable_columns();
  for (const IdxColumn& column : options.columns) {
    wanted.push_back(column.name);
    add_files(column.files, *columns[column.name].mutable_files());
  }
  return open("idx", std::move(spec), options.reader, std::move(wanted), names);
}

Graph open_records(const CsvOptions& options, const LeafPaths& names) {
  v1::DataSpec spec;
  std::vector<std::string> wanted;
  v1::CsvData& csv = *spec.mutable_csv();
  add_files(options.files, *csv.mutable_files());
  if (options.delimiter != 0) csv.set_delimiter(std::string(1, options.delimiter));
  csv.set_header(options.header);
  for (const CsvColumn& column : options.columns) {
    wanted.push_back(column.name);
    v1::CsvColumn& wire = (*csv.mutable_columns())[column.name];
    wire.set_dtype(dtype_of(column.name, column.dtype));
    if (column.index) wire.set_index(*column.index);
    if (column.missing) wire.set_missing(*column.missing);
    wire.set_hash_buckets(column.hash_buckets);
  }
  return open("csv", std::move(spec), options.reader, std::move(wanted), names);
}

Graph open_records(const TfRecordOptions& options, const LeafPaths& names) {
  v1::DataSpec spec;
  std::vector<std::string> wanted;
  v1::TfRecordData& records = *spec.mutable_tfrecord();
  add_files(options.files, *records.mutable_files());
  for (const Feature& feature : options.features) {
    wanted.push_back(feature.name);
    v1::FeatureSpec& wire = (*records.mutable_features())[feature.name];
    wire.set_dtype(dtype_of(feature.name, feature.dtype));
    for (const std::int64_t size : feature.shape) wire.add_shape(size);
    wire.set_length(feature.length);
  }
  return open("tfrecord", std::move(spec), options.reader, std::move(wanted), names);
}

Graph open_records(const CriteoOptions& options, const LeafPaths& names) {
  if (options.hash_buckets < 1) {
    raise(InvalidArgument("dataset::criteo: hash_buckets is {}, must be above 0",
                          options.hash_buckets));
  }
  v1::DataSpec spec;
  add_files(options.files, *spec.mutable_criteo()->mutable_files());
  spec.mutable_criteo()->set_hash_buckets(options.hash_buckets);
  spec.mutable_criteo()->set_log1p(options.log1p);
  return open("criteo", std::move(spec), options.reader, {"label", "dense", "cat"}, names);
}

Graph open_records(const TextOptions& options, const LeafPaths& names) {
  if (options.length < 1) raise(InvalidArgument("dataset::text: length is 0, must be above 0"));
  v1::DataSpec spec;
  add_files(options.files, *spec.mutable_text()->mutable_files());
  spec.mutable_text()->set_length(options.length);
  return open("text", std::move(spec), options.reader, {"line"}, names);
}

Graph open_lines(const TextOptions& options) {
  const Graph padded = open_records(options, LeafPaths(std::vector<std::string>{kOnlyColumn}));
  data::Pipeline::MapOptions map;
  map.name = "line";
  map.spec =
      std::vector<data::ColumnInfo>{{.name = kOnlyColumn, .dtype = DType::kString, .shape = {}}};
  return Graph(padded.pipeline().Map(
      [](const data::Element& element, const std::stop_token&) -> Result<data::Element> {
        const data::Column& column = element.columns.front();
        std::string_view line(column.as<char>(), column.bytes());
        line = line.substr(0, line.find_last_not_of('\0') + 1);
        return data::Scalar<std::string>(std::string(line));
      },
      std::move(map)));
}

}  // namespace muster::internal
