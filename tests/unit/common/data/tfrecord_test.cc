#include <cstring>
#include <fstream>
#include <sstream>

#include "common/base/host_name.h"
#include "common/base/split_mix.h"
#include "common/data/example_wire.h"
#include "common/data/source_file.h"
#include "tests/support/catch.h"
#include "tests/unit/common/data/temp_files.h"

namespace muster::data::testing {
namespace {

// Made by TensorFlow: tests/fixtures/tfrecord/make.py says what they hold.
std::string Fixture(const std::string& name) {
  return std::string(MUSTER_FIXTURES) + "/tfrecord/" + name;
}

std::string Content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

v1::DataSpec Examples(const std::string& path) {
  v1::DataSpec spec;
  spec.set_shuffle(false);
  spec.mutable_tfrecord()->add_files(path);
  auto& features = *spec.mutable_tfrecord()->mutable_features();
  features["image"].set_dtype(v1::DTYPE_UINT8);
  features["image"].add_shape(2);
  features["image"].add_shape(3);
  features["weight"].set_dtype(v1::DTYPE_FLOAT32);
  features["pair"].set_dtype(v1::DTYPE_INT64);
  features["pair"].add_shape(2);
  features["ids"].set_dtype(v1::DTYPE_INT64);
  features["ids"].set_length(3);
  return spec;
}

TEST_CASE("TensorFlow's records are read, plain and gzip", "[data][unit]") {
  const TempFiles files;
  const std::string name = GENERATE("examples.tfrecord-*", "examples.tfrecord.gz");

  const auto source = MustOpen(Examples(Fixture(name)), files.Options(20));
  const auto batch = source->Batch(1);

  REQUIRE(batch.ok());
  REQUIRE(source->examples() == 20);
  CHECK(batch->Find("image")->info.shape == std::vector<std::int64_t>{20, 2, 3});
  CHECK(batch->Find("weight")->info.shape == std::vector<std::int64_t>{20});
  for (std::int64_t i = 0; i < 20; ++i) {
    CHECK(batch->Find("weight")->as<float>()[i] == static_cast<float>(i) + 0.5F);
    CHECK(batch->Find("pair")->as<std::int64_t>()[2 * i] == i);
    CHECK(batch->Find("pair")->as<std::int64_t>()[2 * i + 1] == -i);
    for (std::int64_t k = 0; k < 6; ++k) {
      CHECK(batch->Find("image")->as<std::uint8_t>()[6 * i + k] == i + k);
    }
    for (std::int64_t k = 0; k < 3; ++k) {
      CHECK(batch->Find("ids")->as<std::int64_t>()[3 * i + k] == (k < i % 4 ? 100 * i + k : -1));
    }
  }
}

TEST_CASE("a ZLIB stream is named as one", "[data][unit]") {
  const TempFiles files;
  const std::string plain = Content(Fixture("examples.tfrecord-00001-of-00002"));
  for (const int level : {1, 6, 9}) {
    std::string packed(compressBound(plain.size()), '\0');
    uLongf size = packed.size();
    REQUIRE(compress2(reinterpret_cast<Bytef*>(packed.data()), &size,
                      reinterpret_cast<const Bytef*>(plain.data()), plain.size(), level) == Z_OK);
    packed.resize(size);
    CHECK(Contains(OpenError(Examples(files.Write("packed", packed)), files),
                   "packed on host " + HostName() + ": this is a ZLIB stream"));
  }
}

TEST_CASE("a flipped bit anywhere in a TFRecord file is found and located", "[data][unit]") {
  const TempFiles files;
  const std::string good = Content(Fixture("examples.tfrecord-00001-of-00002"));
  REQUIRE(good.size() > 100);
  const auto error_with_flip = [&](std::size_t at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    return OpenError(Examples(files.Write("bad", bad)), files);
  };

  for (std::size_t at = 0; at < good.size(); at += 13) {
    CHECK(Contains(error_with_flip(at), "DATA_LOSS: " + files.Path("bad") + " on host"));
  }
  const std::string where = files.Path("bad") + " on host " + HostName() + ", byte 0: ";
  CHECK(Contains(error_with_flip(0), where + "a record's length fails its checksum"));
  CHECK(Contains(error_with_flip(9), where + "a record's length fails its checksum"));
  CHECK(Contains(error_with_flip(40), "fails its checksum; to skip such records"));
}

TEST_CASE("damaged TFRecords are skipped up to the budget, even when a length is lost",
          "[data][unit]") {
  const TempFiles files;
  std::string bad = Content(Fixture("examples.tfrecord-00001-of-00002"));
  std::uint64_t first = 0;
  std::memcpy(&first, bad.data(), sizeof(first));
  bad[first + 16] = static_cast<char>(bad[first + 16] ^ 1);  // the second record's length
  bad.resize(bad.size() - 3);                                // the last one's checksum
  v1::DataSpec spec = Examples(files.Write("bad", bad));

  spec.mutable_bad_records()->set_skip_up_to(1);
  CHECK(Contains(OpenError(spec, files), "cut short"));
  spec.mutable_bad_records()->set_skip_up_to(2);
  const auto source = MustOpen(spec, files.Options(20));

  CHECK(source->bad_records() == 2);
  CHECK(Values<float>(*source, 1, "weight") ==
        std::vector<float>{12.5, 14.5, 15.5, 16.5, 17.5, 18.5});
}

TEST_CASE("features that do not fit the spec are named", "[data][unit]") {
  const TempFiles files;
  const auto error = [&](const std::string& name, v1::DType dtype, std::uint32_t length) {
    v1::DataSpec spec = Examples(Fixture("examples.tfrecord.gz"));
    v1::FeatureSpec& feature = (*spec.mutable_tfrecord()->mutable_features())[name];
    feature.Clear();
    feature.set_dtype(dtype);
    feature.set_length(length);
    return OpenError(spec, files);
  };

  CHECK(
      Contains(error("weight", v1::DTYPE_INT64, 0),
               "byte 0 of its decoded content: feature 'weight' holds float, int64 was expected"));
  CHECK(Contains(error("age", v1::DTYPE_INT64, 0), "feature 'age' is missing"));
  CHECK(Contains(error("pair", v1::DTYPE_INT64, 0), "holds 2 values, 1 was expected"));
  CHECK(Contains(error("ids", v1::DTYPE_INT64, 2), "holds 3 values, at most 2 were expected"));
  CHECK(Contains(error("ids", v1::DTYPE_FLOAT64, 2), "data.tfrecord.features.ids.dtype: float64"));
}

TEST_CASE("no bytes at all make the tf.Example reader read or write out of bounds",
          "[data][unit]") {
  // The address sanitizer watches: the message and the row are exactly as large as they may be.
  const std::string good = Content(Fixture("examples.tfrecord-00000-of-00002"));
  std::uint64_t length = 0;
  std::memcpy(&length, good.data(), sizeof(length));
  const FeaturePlan plans[] = {{.name = "ids", .dtype = DType::kInt64, .values = 1, .padded = true},
                               {.name = "image", .dtype = DType::kUint8, .values = 6},
                               {.name = "weight", .dtype = DType::kFloat32, .values = 1}};
  SplitMix64 random(1);
  int broken = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<char> message(good.begin() + 12,
                              good.begin() + 12 + static_cast<std::ptrdiff_t>(length));
    for (std::uint64_t flips = 1 + random.Below(4); flips > 0; --flips) {
      message[random.Below(message.size())] = static_cast<char>(random.Next());
    }
    message.resize(message.size() - random.Below(3));
    message.shrink_to_fit();
    std::vector<std::byte> ids(8);
    std::vector<std::byte> image(6);
    std::vector<std::byte> weight(4);
    std::byte* const rows[] = {ids.data(), image.data(), weight.data()};
    broken += ReadExample({message.data(), message.size()}, plans, rows).empty() ? 0 : 1;
  }
  CHECK(broken > 5000);
}

}  // namespace
}  // namespace muster::data::testing
