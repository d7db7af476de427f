// CSV with a header: numbers of each type, a default, a hash.
#include "muster/v1/job_spec.pb.h"
#include "tests/fuzz/records.h"

namespace {

muster::v1::DataSpec Spec() {
  using namespace muster::v1;
  DataSpec spec;
  spec.mutable_csv()->add_files("input");
  auto& columns = *spec.mutable_csv()->mutable_columns();
  columns["a"].set_dtype(DTYPE_FLOAT32);
  columns["b"].set_dtype(DTYPE_INT64);
  columns["c"].set_dtype(DTYPE_FLOAT64);
  columns["c"].set_missing(-1);
  columns["d"].set_dtype(DTYPE_INT64);
  columns["d"].set_hash_buckets(1000);
  return spec;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  static const v1::DataSpec spec = Spec();
  static const auto format = data::MakeCsvFormat(spec.csv(), fuzz::Columns(spec));
  fuzz::ParseRecords(*format, fuzz::Text(data, size));
  return 0;
}
