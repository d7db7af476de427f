// TFRecord frames, and the tf.Example in them. Checksums keep nearly all inputs out, so the input
// is read as an Example of its own, too.
#include <array>

#include "common/data/example_wire.h"
#include "muster/v1/job_spec.pb.h"
#include "tests/fuzz/records.h"

namespace {

muster::v1::DataSpec Spec() {
  using namespace muster::v1;
  DataSpec spec;
  spec.mutable_tfrecord()->add_files("input");
  auto& features = *spec.mutable_tfrecord()->mutable_features();
  features["image"].set_dtype(DTYPE_UINT8);
  features["image"].add_shape(2);
  features["image"].add_shape(3);
  features["weight"].set_dtype(DTYPE_FLOAT32);
  features["pair"].set_dtype(DTYPE_INT64);
  features["pair"].add_shape(2);
  features["ids"].set_dtype(DTYPE_INT64);
  features["ids"].set_length(3);
  return spec;
}

void ReadOneExample(std::string_view text) {
  using muster::DType;
  static const std::vector<muster::data::FeaturePlan> plans = {
      {"image", DType::kUint8, 6},
      {"weight", DType::kFloat32, 1},
      {"pair", DType::kInt64, 2},
      {"ids", DType::kInt64, 3, /*padded=*/true}};
  const auto image = std::make_unique<std::byte[]>(6);
  const auto weight = std::make_unique<std::byte[]>(4);
  const auto pair = std::make_unique<std::byte[]>(16);
  const auto ids = std::make_unique<std::byte[]>(24);
  const std::array<std::byte*, 4> rows = {image.get(), weight.get(), pair.get(), ids.get()};
  (void)muster::data::ReadExample(text, plans, rows);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace muster;
  static const v1::DataSpec spec = Spec();
  static const auto format = data::MakeTfRecordFormat(spec.tfrecord(), fuzz::Columns(spec));
  fuzz::ParseRecords(*format, fuzz::Text(data, size));
  ReadOneExample(fuzz::Text(data, size));
  return 0;
}
