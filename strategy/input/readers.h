// Datasets of the records of files: IDX, CSV, TFRecord files of tf.Example, Criteo's logs, text.
//
//   auto train = dataset::idx("train-images.gz", "train-labels.gz").shuffle(60'000).batch(128);
//   for (const auto& [image, label] : train) ...
//
//   auto sales = dataset::csv({.files = "sales-*.csv.gz",
//                              .columns = {{.name = "price"}, {.name = "age", .missing = 0}}});
//   for (const Record& batch : sales.batch(64)) batch.at("price") ...
//
// Files may be plain, gzip or zstd. They are found, checked and indexed when the dataset is made;
// records are read when they are asked for, and passed over without reading. docs/data.md has the
// formats, and what becomes of records that are broken.
//
// T: Record, columns by name, or a tuple or aggregate of tensors, columns in the order in which the
// options name them.
//
// Errors of all: NOT_FOUND, a pattern matches nothing; DATA_LOSS, a file or record is damaged (file
// and place named); INVALID_ARGUMENT, options that cannot be, or a T of another number of tensors.
//
// Threading: any thread makes a dataset; dataset.h says who may use it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "strategy/base/torch.h"
#include "strategy/input/dataset.h"
#include "strategy/input/element_codec.h"

namespace muster {

// A record, or a batch of them.
using Record = std::map<std::string, torch::Tensor>;

// One path or several; `*` and `?` match within a folder.
class Files {
 public:
  Files() = default;
  Files(const char* path) : paths_{std::string(path)} {}               // NOLINT
  Files(std::string path) : paths_{std::move(path)} {}                 // NOLINT
  Files(std::vector<std::string> paths) : paths_(std::move(paths)) {}  // NOLINT
  Files(std::initializer_list<std::string> paths) : paths_(paths) {}
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  std::vector<std::string> paths_;
};

struct ReaderOptions {
  // Up to so many broken records of all files together are left out; one more is an error.
  std::uint64_t skip_up_to = 0;
  // For decoded copies of compressed files and for indexes, shared by all programs of this user.
  // Empty: $MUSTER_DATA_CACHE, $XDG_CACHE_HOME/muster/data or ~/.cache/muster/data.
  std::string cache_directory = "";
  // Most disk that decoded copies take.
  std::uint64_t cache_bytes = std::uint64_t{8} << 30;
};

struct IdxColumn {
  std::string name = "";
  Files files = {};
};
struct IdxOptions {
  std::vector<IdxColumn> columns = {};
  ReaderOptions reader = {};
};

struct CsvColumn {
  std::string name = "";
  // Float, Double or Long.
  torch::ScalarType dtype = torch::kFloat;
  // From 0; needed without a header.
  std::optional<std::uint32_t> index = std::nullopt;
  // The value of an empty field, which is a broken record otherwise.
  std::optional<double> missing = std::nullopt;
  // Above 0, for Long: text is hashed into [0, hash_buckets).
  std::int64_t hash_buckets = 0;
};
struct CsvOptions {
  Files files = {};
  std::vector<CsvColumn> columns = {};
  // 0: a comma, for .tsv files a tab.
  char delimiter = 0;
  bool header = true;
  ReaderOptions reader = {};
};

struct Feature {
  std::string name = "";
  // Float, Long, or Byte: one byte string.
  torch::ScalarType dtype = torch::kFloat;
  std::vector<std::int64_t> shape = {};
  // Above 0: at most so many values, padded with -1 (Long) or 0.
  std::uint32_t length = 0;
};
struct TfRecordOptions {
  Files files = {};
  std::vector<Feature> features = {};
  ReaderOptions reader = {};
};

// Columns label Float [], dense Float [13], cat Long [26].
struct CriteoOptions {
  Files files = {};
  std::int64_t hash_buckets = 1'000'003;
  // dense = log(1 + max(x, 0)).
  bool log1p = true;
  ReaderOptions reader = {};
};

struct TextOptions {
  Files files = {};
  // Bytes of the longest line; a longer one is a broken record.
  std::uint32_t length = 256;
  ReaderOptions reader = {};
};

namespace internal {

// `names`: the columns' new ones, in the options' order; none: they keep theirs, sorted.
Graph open_records(const IdxOptions& options, const LeafPaths& names);
Graph open_records(const CsvOptions& options, const LeafPaths& names);
Graph open_records(const TfRecordOptions& options, const LeafPaths& names);
Graph open_records(const CriteoOptions& options, const LeafPaths& names);
Graph open_records(const TextOptions& options, const LeafPaths& names);
Graph open_lines(const TextOptions& options);

}  // namespace internal

namespace dataset {

template <class T = Record>
Dataset<T> idx(const IdxOptions& options) {
  return Dataset<T>(internal::open_records(options, internal::leaf_paths<T>()));
}
// A tuple of one tensor for each column: idx(images, labels). Of one column: Dataset<Tensor>.
template <class... F>
  requires(sizeof...(F) > 0 && (std::is_convertible_v<const F&, Files> && ...))
auto idx(const F&... files) {
  using T = std::conditional_t<sizeof...(F) == 1, torch::Tensor,
                               std::tuple<std::conditional_t<true, torch::Tensor, F>...>>;
  IdxOptions options;
  (options.columns.push_back({.name = std::to_string(options.columns.size()), .files = files}),
   ...);
  return idx<T>(options);
}
template <class T = Record>
Dataset<T> csv(const CsvOptions& options) {
  return Dataset<T>(internal::open_records(options, internal::leaf_paths<T>()));
}
template <class T = Record>
Dataset<T> tfrecord(const TfRecordOptions& options) {
  return Dataset<T>(internal::open_records(options, internal::leaf_paths<T>()));
}
template <class T = Record>
Dataset<T> criteo(const CriteoOptions& options) {
  return Dataset<T>(internal::open_records(options, internal::leaf_paths<T>()));
}
// Lines as Byte [length], padded with 0: they can be batched.
inline Dataset<torch::Tensor> text(const TextOptions& options) {
  return Dataset<torch::Tensor>(
      internal::open_records(options, internal::leaf_paths<torch::Tensor>()));
}
// Lines as they are, without zeros at their end.
inline Dataset<std::string> text_lines(const TextOptions& options) {
  return Dataset<std::string>(internal::open_lines(options));
}

}  // namespace dataset
}  // namespace muster
