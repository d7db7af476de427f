#include "common/data/open_reader.h"

#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <xxhash.h>

#include "common/data/declared_columns.h"
#include "common/data/record_format.h"
#include "muster/v1/job_spec.pb.h"

namespace muster::data {
namespace {

// Raised when a parser changes its mind about what a good record is: older indexes are not used.
constexpr std::uint64_t kParserVersion = 3;

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
