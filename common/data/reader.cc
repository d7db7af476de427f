#include "common/data/reader.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <xxhash.h>

#include "common/data/batch_source.h"
#include "common/data/record_format.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::data {
namespace {

constexpr std::size_t kAlignment = 64;
// Raised when a parser changes its mind about what a good record is: older indexes are not used.
constexpr std::uint64_t kParserVersion = 2;

std::size_t Aligned(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

// Hash of all that decides which records a file has and what they become: the reader and its
// settings.
std::uint64_t Fingerprint(v1::DataSpec spec) {
  if (spec.has_csv()) spec.mutable_csv()->clear_files();
  if (spec.has_criteo()) spec.mutable_criteo()->clear_files();
  if (spec.has_tfrecord()) spec.mutable_tfrecord()->clear_files();
  if (spec.has_text()) spec.mutable_text()->clear_files();
  spec.clear_shuffle();
  spec.clear_drop_remainder();
  spec.clear_bad_records();
  spec.clear_cache_bytes();
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);  // maps have no order of their own
    spec.SerializeToCodedStream(&coded);
  }
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), kParserVersion);
}

}  // namespace

std::size_t RowBytes(const ColumnInfo& column) {
  std::size_t bytes = SizeOf(column.dtype);
  for (std::size_t d = 1; d < column.shape.size(); ++d) {
    bytes *= static_cast<std::size_t>(column.shape[d]);
  }
  return bytes;
}

Result<Element> AllocateBatch(const std::vector<ColumnInfo>& columns, std::size_t rows) {
  std::size_t total = kAlignment;
  for (const ColumnInfo& column : columns) total += Aligned(RowBytes(column) * rows);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, total));
  if (memory == nullptr) return ResourceExhausted("no memory for a batch of {} bytes", total);
  const std::shared_ptr<const void> owner(memory, [](void* p) { std::free(p); });

  Element element;
  std::byte* next = memory;
  for (const ColumnInfo& info : columns) {
    Column column{.info = info, .owner = owner, .data = next};
    column.info.shape.front() = static_cast<std::int64_t>(rows);
    next += Aligned(column.bytes());
    element.columns.push_back(std::move(column));
  }
  return element;
}

std::string NameRecords(std::span<const std::uint64_t> records,
                        std::span<const std::uint64_t> starts, std::span<const std::string> paths) {
  constexpr int kMostRuns = 24;  // a message, not a table
  std::vector<std::uint64_t> sorted(records.begin(), records.end());
  std::sort(sorted.begin(), sorted.end());
  std::string text;
  std::size_t at = 0;
  for (std::size_t file = 0; file < paths.size(); ++file) {
    std::string runs;
    int count = 0;
    const std::size_t begin = at;
    while (at < sorted.size() && sorted[at] < starts[file + 1]) {
      const std::uint64_t first = sorted[at] - starts[file] + 1;
      std::uint64_t last = first;
      while (++at < sorted.size() && sorted[at] < starts[file + 1] &&
             sorted[at] - starts[file] + 1 <= last + 1) {
        last = sorted[at] - starts[file] + 1;
      }
      if (++count > kMostRuns) continue;
      runs += fmt::format("{}{}", runs.empty() ? "" : ", ", first);
      if (last > first) runs += fmt::format("-{}", last);
    }
    if (at == begin) continue;
    if (count > kMostRuns) runs += fmt::format(" and others, {} in all,", at - begin);
    text += fmt::format("{}record{} {} of {}", text.empty() ? "" : "; ", at - begin == 1 ? "" : "s",
                        runs, paths[file]);
  }
  return text;
}

Result<std::unique_ptr<Reader>> OpenReader(const v1::DataSpec& spec, const Cache& cache) {
  MUSTER_TRY_ASSIGN(std::vector<ColumnInfo> columns, DeclaredColumns(spec));
  if (spec.has_idx()) return OpenIdx(spec.idx(), cache);
  IndexedOptions options{
      .files = {}, .fingerprint = Fingerprint(spec), .skip_up_to = spec.bad_records().skip_up_to()};
  const auto open = [&](const auto& files, std::unique_ptr<RecordFormat> format) {
    options.files.assign(files.begin(), files.end());
    return OpenIndexed(std::move(format), options, cache);
  };
  if (spec.has_csv()) {
    return open(spec.csv().files(), MakeCsvFormat(spec.csv(), std::move(columns)));
  }
  if (spec.has_criteo()) {
    return open(spec.criteo().files(), MakeCriteoFormat(spec.criteo(), std::move(columns)));
  }
  if (spec.has_tfrecord()) {
    return open(spec.tfrecord().files(), MakeTfRecordFormat(spec.tfrecord(), std::move(columns)));
  }
  return open(spec.text().files(), MakeTextFormat(spec.text(), std::move(columns)));
}

}  // namespace muster::data
