#include "common/storage/safetensors.h"

#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "muster/v1/checkpoint.pb.h"
#include "tests/support/catch.h"
#include "tests/support/fake_file_system.h"
#include "tests/unit/common/storage/support.h"

namespace muster::storage {
namespace {

using Catch::Matchers::Contains;

Result<SafetensorsHeader> Parse(const std::string& json, std::uint64_t data_bytes) {
  return ParseHeader(Bytes(json), 8 + json.size() + data_bytes);
}

std::string Refused(const std::string& json, std::uint64_t data_bytes = 8) {
  const auto parsed = Parse(json, data_bytes);
  CHECK(parsed.status().code() == StatusCode::kDataLoss);
  return Message(parsed.status());
}

TEST_CASE("a file that Python's safetensors made is read", "[storage][unit]") {
  const auto file =
      RealFileSystem().Open(MUSTER_FIXTURES "/safetensors/python.safetensors").value();

  const auto header = ReadHeader(*file).value();

  CHECK(header.tensors.size() == 7);
  CHECK(header.metadata.at("made_by") == "safetensors for Python");
  const TensorEntry& weight = header.tensors.at("weight");
  CHECK(weight.dtype == DType::kFloat32);
  CHECK(weight.shape == std::vector<std::int64_t>{2, 3});
  std::array<float, 6> values{};
  REQUIRE(file->Read(weight.begin, std::as_writable_bytes(std::span(values))).ok());
  CHECK(values == std::array<float, 6>{0, 0.25, 0.5, 0.75, 1, 1.25});
  const TensorEntry& ids = header.tensors.at("ids");
  std::array<std::int64_t, 2> numbers{};
  REQUIRE(file->Read(ids.begin, std::as_writable_bytes(std::span(numbers))).ok());
  CHECK(numbers == std::array<std::int64_t, 2>{-1, std::int64_t{1} << 40});
  CHECK(header.tensors.at("scalar").shape.empty());
  CHECK(header.tensors.at("none").begin == header.tensors.at("none").end);
  CHECK(header.tensors.at("mask").dtype == DType::kBool);
  CHECK(header.tensors.at("half").dtype == DType::kFloat16);
}

TEST_CASE("what is written is read back, its header padded to 8", "[storage][unit]") {
  FakeFileSystem files;
  REQUIRE(files.MakeFolders("d").ok());
  const TensorDeclaration tensors[] = {{"a\"\n", DType::kUint8, {3}}, {"b", DType::kFloat32, {}}};

  const auto writer = SafetensorsWriter::Create(files, "d/f", tensors).value();
  REQUIRE(writer->Append(Bytes("abc")).ok());
  REQUIRE(writer->Append(Bytes("12")).ok());
  REQUIRE(writer->Append(Bytes("34")).ok());
  const auto report = writer->Finish().value();

  const auto file = files.Open("d/f").value();
  const auto header = ReadHeader(*file).value();
  CHECK(header.tensors.at("a\"\n").begin % 8 == 0);
  CHECK(header.tensors.at("b").begin == header.tensors.at("a\"\n").end);
  CHECK(report.name() == "f");
  CHECK(report.bytes() == file->size());
  CHECK(report.chunks_size() == 1);
}

TEST_CASE("a writer refuses too much, too little and repeated names", "[storage][unit]") {
  FakeFileSystem files;
  REQUIRE(files.MakeFolders("d").ok());
  const TensorDeclaration one[] = {{"a", DType::kUint8, {3}}};
  const TensorDeclaration twice[] = {{"a", DType::kUint8, {3}}, {"a", DType::kUint8, {3}}};
  const TensorDeclaration no_text[] = {{"\xff", DType::kUint8, {3}}};
  const TensorDeclaration reserved[] = {{"__metadata__", DType::kUint8, {3}}};

  CHECK(SafetensorsWriter::Create(files, "d/f", twice).status().code() ==
        StatusCode::kInvalidArgument);
  CHECK_FALSE(SafetensorsWriter::Create(files, "d/f", no_text).ok());
  CHECK_FALSE(SafetensorsWriter::Create(files, "d/f", reserved).ok());
  {
    const auto writer = SafetensorsWriter::Create(files, "d/f", one).value();
    CHECK_FALSE(writer->Append(Bytes("abcd")).ok());
    CHECK_FALSE(writer->Finish().ok());
  }
  CHECK(files.Files().empty());
}

TEST_CASE("a header that is not sound is refused with its reason", "[storage][unit]") {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  REQUIRE(Parse(good, 8).ok());

  CHECK_THAT(Refused(good, 12), Contains("8 bytes, the file has 12"));
  CHECK_THAT(Refused(good, 4), Contains("8 bytes, the file has 4"));
  CHECK_THAT(Refused(""), Contains("no JSON object"));
  CHECK_THAT(Refused(" {}"), Contains("no JSON object"));
  CHECK_THAT(Refused("{\"a\":"), Contains("no JSON object"));
  CHECK_THAT(Refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                     R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
             Contains("key a twice"));
  CHECK_THAT(Refused(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
             Contains("key dtype twice"));
  CHECK_THAT(Refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                     R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
             Contains("inside another"));
  CHECK_THAT(Refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"),
             Contains("after a hole"));
  CHECK_THAT(Refused(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})"),
             Contains("shape of 12 bytes and data_offsets of 8"));
  CHECK_THAT(Refused(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})"),
             Contains("impossible shape"));
  CHECK_THAT(Refused(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],)"
                     R"("data_offsets":[0,8]}})"),
             Contains("more than 2^63"));
  CHECK_THAT(Refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})"),
             Contains("impossible data_offsets"));
  CHECK_THAT(Refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,1e3]}})"),
             Contains("impossible data_offsets"));
  CHECK_THAT(Refused(R"({"a":{"dtype":"X9","shape":[2],"data_offsets":[0,8]}})"),
             Contains("dtype that this version does not know"));
  CHECK_THAT(Refused(R"({"a":{"dtype":"F32","shape":[2]}})"), Contains("must have"));
  CHECK_THAT(Refused(R"({"a":[1]})"), Contains("is no object"));
  CHECK_THAT(Refused(R"({"__metadata__":{"a":1}})"), Contains("is no string"));
  CHECK_THAT(Refused(R"({"__metadata__":[]})"), Contains("is no object"));
  CHECK_THAT(Refused("{\"a\":" + std::string(100'000, '[') + "}"), Contains("nested too deeply"));
}

TEST_CASE("a header's size is checked before it sizes anything", "[storage][unit]") {
  const auto parse = [](std::uint64_t size, std::uint64_t file) {
    std::array<std::byte, 8> prefix;
    std::memcpy(prefix.data(), &size, sizeof(size));
    return ParseHeaderSize(prefix, file);
  };
  CHECK(parse(2, 10).value() == 2);
  CHECK_THAT(Message(parse(3, 10).status()), Contains("header of 3 bytes in a file of 10"));
  CHECK_THAT(Message(parse(UINT64_MAX, UINT64_MAX).status()), Contains("limit"));
}

TEST_CASE("no changed byte of a header makes the parser fail badly", "[storage][unit]") {
  const std::string good =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = good;
      changed[i] = static_cast<char>(byte);
      const auto parsed = Parse(changed, 8);
      if (!parsed.ok()) REQUIRE(parsed.status().code() == StatusCode::kDataLoss);
    }
    REQUIRE_FALSE(Parse(good.substr(0, i), 8).ok());
  }
}

}  // namespace
}  // namespace muster::storage
