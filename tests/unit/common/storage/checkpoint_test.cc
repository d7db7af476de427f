#include "common/storage/checkpoint.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/storage/hash.h"
#include "common/storage/manifest.h"
#include "common/storage/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/fake_file_system.h"
#include "tests/unit/common/storage/support.h"

namespace muster::storage {
namespace {

using Catch::Matchers::Contains;

constexpr char kDirectory[] = "root/step-000000000007";

struct Fixture {
  FakeFileSystem files;
  Fixture() { REQUIRE(WriteSample("root", 7, files).ok()); }

  std::vector<float> Rows(const std::string& name, std::int64_t offset, std::int64_t rows,
                          std::size_t floats) {
    const auto checkpoint = Checkpoint::Open(kDirectory, files).value();
    std::vector<float> values(floats);
    const Status read =
        checkpoint->ReadRows(name, offset, rows, std::as_writable_bytes(std::span(values)));
    INFO(ToString(read));
    REQUIRE(read.ok());
    return values;
  }
};

TEST_CASE_METHOD(Fixture, "rows are read whatever slices they were saved in",
                 "[storage][unit][spec][SHV-20]") {
  CHECK(Rows("w", 0, 5, 10) == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(Rows("w", 2, 2, 4) == std::vector<float>{4, 5, 6, 7});
  CHECK(Rows("w", 4, 1, 2) == std::vector<float>{8, 9});
  CHECK(Rows("w/slot/sum", 2, 2, 4) == std::vector<float>{9, 9, 8, 8});
  CHECK(Rows("scale", 0, 1, 1) == std::vector<float>{2.5});
  const auto checkpoint = Checkpoint::Open(kDirectory, files).value();
  CHECK(checkpoint->manifest().step() == 7);
  CHECK(checkpoint->Shape("w").value() == std::vector<std::int64_t>{5, 2});
  CHECK(checkpoint->Shape("v").status().code() == StatusCode::kNotFound);
  std::vector<std::byte> small(4);
  CHECK(checkpoint->ReadRows("w", 0, 1, small).code() == StatusCode::kInvalidArgument);
  CHECK(checkpoint->ReadRows("w", 5, 1, small).code() == StatusCode::kInvalidArgument);
  CHECK(checkpoint->ReadRows("w", INT64_MAX, 1, small).code() == StatusCode::kInvalidArgument);
}

TEST_CASE_METHOD(Fixture, "any flipped byte of any file is found", "[storage][unit]") {
  for (const std::string& path : files.Files()) {
    std::vector<std::byte>& bytes = *files.Find(path);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] ^= std::byte{0x10};
      const Status status = Verify(kDirectory, files);
      INFO(path << " byte " << i << ": " << ToString(status));
      REQUIRE(status.code() == StatusCode::kDataLoss);
      REQUIRE_THAT(Message(status), Contains(path));
      bytes[i] ^= std::byte{0x10};
    }
  }
  CHECK(Verify(kDirectory, files).ok());
}

TEST_CASE_METHOD(Fixture, "a truncated or missing file is named with its sizes",
                 "[storage][unit]") {
  const std::string shard = std::string(kDirectory) + "/ps-1-of-2.safetensors";
  files.Find(shard)->pop_back();
  for (const Status& status :
       {Verify(kDirectory, files), Checkpoint::Open(kDirectory, files).status()}) {
    CHECK(status.code() == StatusCode::kDataLoss);
    CHECK_THAT(Message(status), Contains("ps-1-of-2.safetensors has") && Contains("reported"));
  }
  REQUIRE(files.Remove(shard).ok());
  CHECK_THAT(Message(Verify(kDirectory, files)), Contains("ps-1-of-2.safetensors is missing"));
}

TEST_CASE_METHOD(Fixture, "without a manifest there is no checkpoint", "[storage][unit]") {
  REQUIRE(files.Remove(std::string(kDirectory) + "/MANIFEST.json").ok());

  CHECK(ReadManifest(kDirectory, files).status().code() == StatusCode::kNotFound);
  CHECK(Verify(kDirectory, files).code() == StatusCode::kNotFound);
  CHECK(ListCheckpoints("root", files).value().empty());
  CHECK(ListCheckpoints("nowhere", files).value().empty());
}

TEST_CASE_METHOD(Fixture, "a commit refuses files that are not what was reported",
                 "[storage][unit]") {
  auto manifest = ReadManifest(kDirectory, files).value();
  REQUIRE(Commit(kDirectory, manifest, files).ok());

  files.Find(std::string(kDirectory) + "/ps-0-of-2.safetensors")->back() ^= std::byte{1};

  CHECK(Commit(kDirectory, manifest, files).code() == StatusCode::kDataLoss);
}

TEST_CASE_METHOD(Fixture, "a commit refuses slices that leave rows out or have them twice",
                 "[storage][unit]") {
  const auto manifest = ReadManifest(kDirectory, files).value();
  auto missing = manifest;
  missing.mutable_slices()->DeleteSubrange(2, 1);
  const Status refused = Commit(kDirectory, missing, files);
  CHECK(refused.code() == StatusCode::kInvalidArgument);
  CHECK_THAT(Message(refused), Contains("w of 5 rows: nobody reported the rows from 3"));
  auto twice = manifest;
  *twice.add_slices() = manifest.slices(0);
  CHECK(Commit(kDirectory, twice, files).code() == StatusCode::kInvalidArgument);
  auto elsewhere = manifest;
  elsewhere.mutable_files(0)->set_name("../ps-0-of-2.safetensors");
  CHECK(Commit(kDirectory, elsewhere, files).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("a checkpoint whose manifest nobody could read is not made", "[storage][unit]") {
  FakeFileSystem files;
  REQUIRE(WriteSample("root", 1, files).ok());
  REQUIRE(files.MakeFolders(CheckpointDirectory("root", 2)).ok());
  v1::CheckpointManifest manifest;
  manifest.set_step(2);
  manifest.set_job_name(std::string(65 << 20, 'n'));

  const Status status = Commit(CheckpointDirectory("root", 2), std::move(manifest), files);

  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(Message(status).find("limit 67108864") != std::string::npos);
  CHECK(ListCheckpoints("root", files).value() ==
        std::vector<std::string>{CheckpointDirectory("root", 1)});
}

TEST_CASE("the worked example of docs/formats/checkpoint.md is what is written",
          "[storage][unit]") {
  FakeFileSystem files;
  const float values[] = {1, -2};
  const TensorToWrite tensor{"b", DType::kFloat32, {2}, std::as_bytes(std::span(values))};
  v1::CheckpointManifest manifest;
  const std::string name = "ps-0-of-1.safetensors";
  *manifest.add_files() = WriteSafetensors("c", name, {&tensor, 1}, files).value();
  v1::TensorSlice* slice = manifest.add_slices();
  slice->set_name("b");
  slice->set_dtype(v1::DTYPE_FLOAT32);
  slice->add_shape(2);
  slice->set_rows(2);
  slice->set_file(name);
  slice->set_key("b");
  manifest.set_job_id("job-1");
  manifest.set_job_name("tiny");
  manifest.set_step(40);
  manifest.set_spec_hash("8f3c2a1d00b4e596");
  manifest.set_created_at("2026-01-02T03:04:05Z");

  REQUIRE(Commit("c", manifest, files).ok());

  const auto& bytes = *files.Find("c/" + name);
  const std::string expected = std::string("\x58\0\0\0\0\0\0\0", 8) +
                               R"({"__metadata__":{"format":"pt"},)"
                               R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   )" +
                               std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0", 8);
  CHECK(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == expected);
  const auto written = ReadManifest("c", files).value();
  CHECK(written.files(0).chunks(0) == "e807d04389c0aa24");
  CHECK(written.hash() == "e9ccfb57a3abf3bb");
}

TEST_CASE("a manifest of a newer format says so, however that computes its hash",
          "[storage][unit]") {
  v1::CheckpointManifest manifest;
  manifest.set_job_id("j");
  std::string text = EncodeManifest(manifest).value();
  const std::size_t at = text.find("\"format_version\": 1");
  REQUIRE(at != std::string::npos);
  CHECK(DecodeManifest(text)->job_id() == "j");
  text[at + 18] = '2';
  const Status newer = DecodeManifest(text).status();
  CHECK(newer.code() == StatusCode::kFailedPrecondition);
  CHECK_THAT(Message(newer), Contains("format version 2"));
  // No version at all is none that any program has written.
  text.erase(at, 20);
  const std::size_t hash = text.rfind("\"hash\": \"") + 9;
  text.replace(hash, 16, HashHex(std::string(text).erase(hash, 16)));
  CHECK(Message(DecodeManifest(text).status()) == "it has no format version");
  for (const char* bad : {"", "{}", "\"hash\"", "\"hash\": \"", "\"hash\": \"0000000000000000"}) {
    CHECK(DecodeManifest(bad).status().code() == StatusCode::kDataLoss);
  }
}

TEST_CASE_METHOD(Fixture, "an export holds whole parameters and no slots",
                 "[storage][unit][spec][SHV-25]") {
  REQUIRE(files.MakeFolders("out").ok());

  REQUIRE(Export(kDirectory, "out/model.safetensors", files).ok());

  const auto file = files.Open("out/model.safetensors").value();
  const auto header = ReadHeader(*file).value();
  REQUIRE(header.tensors.size() == 2);
  const TensorEntry& w = header.tensors.at("w");
  CHECK(w.shape == std::vector<std::int64_t>{5, 2});
  std::vector<float> values(10);
  REQUIRE(file->Read(w.begin, std::as_writable_bytes(std::span(values))).ok());
  CHECK(values == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(header.tensors.at("scale").shape.empty());
}

TEST_CASE("tensors larger than a chunk are verified, cut and exported in pieces",
          "[storage][unit]") {
  FakeFileSystem files;
  constexpr std::int64_t kRows = 3000;
  constexpr std::int64_t kColumns = 701;  // 8.4 MB, no row at a chunk's edge
  std::vector<float> values(kRows * kColumns);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 100'003);
  const auto half = values.begin() + 1234 * kColumns;
  v1::CheckpointManifest manifest;
  manifest.set_step(1);
  REQUIRE(
      WritePieces("c", "a", {{"w", {kRows, kColumns}, 0, {values.begin(), half}}}, manifest, files)
          .ok());
  REQUIRE(
      WritePieces("c", "b", {{"w", {kRows, kColumns}, 1234, {half, values.end()}}}, manifest, files)
          .ok());
  REQUIRE(Commit("c", manifest, files).ok());
  REQUIRE(files.Find("c/b")->size() > kChunkBytes);

  const auto checkpoint = Checkpoint::Open("c", files).value();
  std::vector<float> rows(2000 * kColumns);
  REQUIRE(checkpoint->ReadRows("w", 500, 2000, std::as_writable_bytes(std::span(rows))).ok());
  CHECK(std::equal(rows.begin(), rows.end(), values.begin() + 500 * kColumns));
  REQUIRE(Export("c", "c/out", files).ok());
  const auto file = files.Open("c/out").value();
  const auto header = ReadHeader(*file).value();
  std::vector<float> exported(values.size());
  REQUIRE(
      file->Read(header.tensors.at("w").begin, std::as_writable_bytes(std::span(exported))).ok());
  CHECK(exported == values);

  (*files.Find("c/b"))[kChunkBytes + 5] ^= std::byte{1};
  const Status damaged =
      checkpoint->ReadRows("w", 0, kRows, std::as_writable_bytes(std::span(exported)));
  CHECK(damaged.code() == StatusCode::kDataLoss);
  CHECK_THAT(Message(damaged), Contains("c/b: chunk 1 "));
}

TEST_CASE("collecting keeps the newest and what it is told to", "[storage][unit]") {
  FakeFileSystem files;
  for (const std::uint64_t step : {5, 10, 20, 1'000})
    REQUIRE(WriteSample("root", step, files).ok());
  REQUIRE(files.MakeFolders("root/step-000000000030").ok());
  REQUIRE(files.MakeFolders("root/notes").ok());
  REQUIRE(files.MakeFolders("root/step-000000000040").ok());
  const auto listed = ListCheckpoints("root", files).value();
  CHECK(listed == std::vector<std::string>{
                      CheckpointDirectory("root", 1'000), CheckpointDirectory("root", 20),
                      CheckpointDirectory("root", 10), CheckpointDirectory("root", 5)});

  REQUIRE(Collect("root", 2, CheckpointDirectory("root", 5), files).ok());

  CHECK(ListCheckpoints("root", files).value() ==
        std::vector<std::string>{listed[0], listed[1], listed[3]});
  CHECK_FALSE(files.Exists("root/step-000000000030").value());
  CHECK(files.Exists("root/notes").value());
  REQUIRE(files.MakeFolders("root/step-000000000050").ok());
  REQUIRE(Collect("root", 9, "root/step-000000000050", files).ok());
  CHECK(files.Exists("root/step-000000000050").value());
}

TEST_CASE("what a user called like a checkpoint's folder is not collected", "[storage][unit]") {
  FakeFileSystem files;
  const std::string names[] = {"root/step-7", "root/step-0000000000007", "root/step-00000000000x"};
  for (const std::string& name : names) REQUIRE(files.MakeFolders(name).ok());
  REQUIRE(WriteSample("root", 7, files).ok());

  REQUIRE(Collect("root", 1, "", files).ok());

  for (const std::string& name : names) CHECK(files.Exists(name).value());
  CHECK(StepOfDirectory("root/step-0000000000007/") == 7);
  CHECK(StepOfDirectory("step-7") == 7);
  CHECK_FALSE(StepOfDirectory("root/step-00000000000x").has_value());
  CHECK_FALSE(StepOfDirectory("7").has_value());
}

}  // namespace
}  // namespace muster::storage
