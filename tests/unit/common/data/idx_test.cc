#include <algorithm>
#include <cstring>
#include <set>

#include "common/base/host_name.h"
#include "common/data/source_file.h"
#include "tests/support/catch.h"
#include "tests/unit/common/data/temp_files.h"

namespace muster::data::testing {
namespace {

v1::DataSpec OneColumn(const std::string& path) {
  v1::DataSpec spec;
  (*spec.mutable_idx()->mutable_columns())["x"].add_files(path);
  return spec;
}

std::vector<std::int32_t> Numbers(BatchSource& source, std::uint64_t closure) {
  return testing::Values<std::int32_t>(source, closure, "x");
}

TEST_CASE("each example is used exactly once in an epoch, in batches by closure number",
          "[data][unit]") {
  const TempFiles files;
  const auto source =
      MustOpen(OneColumn(files.Write("x.idx", IdxNumbers(1003))), files.Options(50));
  REQUIRE(source->examples() == 1003);
  REQUIRE(source->batches_per_epoch() == 21);

  std::vector<std::vector<std::int32_t>> epochs(2);
  for (std::uint64_t closure = 1; closure <= 42; ++closure) {
    for (const std::int32_t n : Numbers(*source, closure)) {
      epochs[(closure - 1) / 21].push_back(n);
    }
  }

  CHECK(epochs[0] != epochs[1]);
  for (auto& epoch : epochs) {
    CHECK(epoch.size() == 1003);
    CHECK(std::set<std::int32_t>(epoch.begin(), epoch.end()).size() == 1003);
    CHECK(*std::max_element(epoch.begin(), epoch.end()) == 1002);
  }
}

TEST_CASE("a batch is the same when its source is opened again and asked in another order",
          "[data][unit]") {
  const TempFiles files;
  const v1::DataSpec spec = OneColumn(files.Write("x.idx.gz", Gzip(IdxNumbers(500))));
  const auto first = MustOpen(spec, files.Options(32, 7));
  const auto second = MustOpen(spec, files.Options(32, 7));
  const auto other = MustOpen(spec, files.Options(32, 8));

  std::vector<std::vector<std::int32_t>> forward(1);
  for (std::uint64_t closure = 1; closure <= 40; ++closure) {
    forward.push_back(Numbers(*first, closure));
  }
  bool same = true;
  for (std::uint64_t closure = 40; closure >= 1; --closure) {
    same = same && Numbers(*second, closure) == forward[closure];
  }

  CHECK(same);
  CHECK(Numbers(*other, 23) != forward[23]);
}

TEST_CASE("the last batch is short, or dropped with drop_remainder", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec = OneColumn(files.Write("x.idx", IdxNumbers(10)));
  const auto whole = MustOpen(spec, files.Options(4));
  spec.set_drop_remainder(true);
  const auto dropped = MustOpen(spec, files.Options(4));

  CHECK(whole->batches_per_epoch() == 3);
  CHECK(Numbers(*whole, 3).size() == 2);
  CHECK(dropped->batches_per_epoch() == 2);
  CHECK(Numbers(*dropped, 3).size() == 4);
}

TEST_CASE("shuffle in the spec overrules the option, and without it files come in order",
          "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec;
  auto& list = (*spec.mutable_idx()->mutable_columns())["x"];
  files.Write("part-10.idx", IdxNumbers(3, 3));
  files.Write("part-09.idx", IdxNumbers(3, 0));
  files.Write("other.idx", IdxNumbers(3, 100));
  list.add_files(files.Path("part-??.i*"));
  spec.set_shuffle(false);

  const auto source = MustOpen(spec, files.Options(6));

  CHECK(Numbers(*source, 1) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("IDX columns have the types and shapes that the files declare", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec;
  auto& columns = *spec.mutable_idx()->mutable_columns();
  columns["image"].add_files(files.Write("image", Idx(0x08, {2, 2, 3}, "abcdefghijkl")));
  columns["short"].add_files(
      files.Write("short", Idx(0x0B, {2}, std::string("\x01\x02\xff\xfe", 4))));
  columns["float"].add_files(
      files.Write("float", Idx(0x0D, {2}, std::string("\x3f\x80\0\0\xc0\0\0\0", 8))));
  columns["double"].add_files(files.Write(
      "double", Idx(0x0E, {2}, std::string("\x3f\xf0\0\0\0\0\0\0\xc0\0\0\0\0\0\0\0", 16))));
  spec.set_shuffle(false);

  const auto source = MustOpen(spec, files.Options(2));
  const auto batch = source->Batch(1);

  REQUIRE(batch.ok());
  CHECK(source->columns().size() == 4);
  CHECK(batch->Find("image")->info.shape == std::vector<std::int64_t>{2, 2, 3});
  CHECK(std::memcmp(batch->Find("image")->data, "abcdefghijkl", 12) == 0);
  CHECK(batch->Find("short")->as<std::int16_t>()[0] == 0x0102);
  CHECK(batch->Find("short")->as<std::int16_t>()[1] == -2);
  CHECK(batch->Find("float")->as<float>()[1] == -2.0F);
  CHECK(batch->Find("double")->as<double>()[0] == 1.0);
  CHECK(source->columns()[1].shape == std::vector<std::int64_t>{-1});
}

TEST_CASE("a damaged or missing IDX file is named with its host and what is wrong",
          "[data][unit]") {
  const TempFiles files;
  const std::string numbers = IdxNumbers(10);

  const std::string cut = OpenError(OneColumn(files.Write("cut", numbers.substr(0, 30))), files);
  CHECK(Contains(cut, "DATA_LOSS"));
  CHECK(Contains(cut, files.Path("cut") + " on host " + HostName() + ": cut short: 22 bytes"));

  CHECK(Contains(OpenError(OneColumn(files.Write("long", numbers + "x")), files), "too long"));
  CHECK(Contains(OpenError(OneColumn(files.Write("head", numbers.substr(0, 6))), files),
                 "cut short within its header"));
  CHECK(Contains(OpenError(OneColumn(files.Write("text", "a,b,c\n")), files), "not an IDX file"));
  CHECK(Contains(OpenError(OneColumn(files.Write("empty", "")), files), "0 bytes"));
  CHECK(Contains(
      OpenError(OneColumn(files.Write("huge", Idx(0x0E, {~0U, ~0U, ~0U, ~0U}, ""))), files),
      "more values than any file"));

  const std::string missing = OpenError(OneColumn(files.Path("none.gz")), files);
  CHECK(Contains(missing, "NOT_FOUND"));
  CHECK(Contains(missing, files.Path("none.gz") + " on host " + HostName()));
  CHECK(Contains(OpenError(OneColumn(files.Path("no*")), files), "no file matches"));
  CHECK(Contains(OpenError(OneColumn(files.Path("")), files), "a folder"));
}

TEST_CASE("a damaged compressed file is named with the place", "[data][unit]") {
  const TempFiles files;
  const std::string gzip = Gzip(IdxNumbers(5000));
  const std::string zstd = testing::Zstd(IdxNumbers(5000));
  std::string flipped = gzip;
  flipped[gzip.size() / 2] ^= 0x10;

  CHECK(Contains(OpenError(OneColumn(files.Write("a.gz", gzip.substr(0, 2000))), files),
                 "cut short: its gzip stream"));
  CHECK(Contains(OpenError(OneColumn(files.Write("b.gz", flipped)), files), "damaged gzip stream"));
  CHECK(Contains(OpenError(OneColumn(files.Write("c.zst", zstd.substr(0, zstd.size() - 7))), files),
                 "cut short: its zstd stream"));
  CHECK(Contains(OpenError(OneColumn(files.Write("d.gz", "hello")), files),
                 "does not begin as gzip"));
  // Nothing half decoded may be taken for the real thing later.
  CHECK(Contains(OpenError(OneColumn(files.Path("a.gz")), files), "cut short: its gzip stream"));
}

// A zstd frame that tells no content size and asks for a window of 2^`window_log` bytes, with
// `content` as one raw block.
std::string FrameWithWindow(int window_log, std::string_view content) {
  std::string frame{"\x28\xb5\x2f\xfd", 4};
  frame.push_back('\0');
  frame.push_back(static_cast<char>((window_log - 10) << 3));
  const std::size_t block = content.size() << 3 | 1;
  for (int shift = 0; shift < 24; shift += 8) frame.push_back(static_cast<char>(block >> shift));
  return frame.append(content);
}

TEST_CASE("zstd's skippable frames and its largest windows are read", "[data][unit]") {
  const TempFiles files;
  const auto skippable = [](char nibble, std::string_view content) {
    std::string frame{nibble, 0x2A, 0x4D, 0x18};
    for (int shift = 0; shift < 32; shift += 8) {
      frame.push_back(static_cast<char>(content.size() >> shift));
    }
    return frame.append(content);
  };
  // As pzstd writes it: the size of each frame before it.
  const std::string first = testing::Zstd(IdxNumbers(20).substr(0, 30));
  const std::string second = testing::Zstd(IdxNumbers(20).substr(30));
  const std::string pzstd = skippable(0x50, "size") + first + skippable(0x5F, "") + second;

  for (const std::string& packed :
       {pzstd, skippable(0x50, "") + pzstd, FrameWithWindow(31, IdxNumbers(20))}) {
    const auto source = MustOpen(OneColumn(files.Write("x.zst", packed)), files.Options(20));
    CHECK(source->examples() == 20);
    std::filesystem::remove_all(files.CacheDirectory());
  }
  CHECK(
      Contains(OpenError(OneColumn(files.Write("y.zst", skippable(0x50, "zzzz") + "plain")), files),
               "does not begin as zstd"));
  // 8 bytes and this size are 0 in 32 bits, where the next frame would be the same.
  const std::string endless = "\x50\x2A\x4D\x18\xF8\xFF\xFF\xFF";
  CHECK(Contains(OpenError(OneColumn(files.Write("z.zst", endless)), files),
                 "does not begin as zstd"));
}

TEST_CASE("files packed in what is not read are named for what they are", "[data][unit]") {
  using namespace std::string_view_literals;
  const TempFiles files;
  const std::pair<std::string_view, std::string_view> packed[] = {
      {"\xFD\x37zXZ\0\0\x04\xe6\xd6\xb4\x46"sv, "this is an xz file; decompress it first (xz -d)"},
      {"BZh91AY&SY\x01\x02\x03"sv, "this is a bzip2 file; decompress it first (bzip2 -d)"},
      {"PK\x03\x04\x14\0\0\0\x08\0"sv, "this is a zip archive; decompress it first (unzip)"},
  };
  for (const auto& [bytes, message] : packed) {
    const std::string path = files.Write("x.gz", bytes);
    CHECK(Contains(OpenError(OneColumn(path), files),
                   "INVALID_ARGUMENT: " + path + " on host " + HostName() + ": "));
    CHECK(Contains(OpenError(OneColumn(path), files), message));
  }
  // What only begins alike is data.
  v1::DataSpec text;
  text.mutable_text()->add_files(files.Write("a", "BZh9 is how bzip2 files begin\n"));
  text.mutable_text()->add_files(files.Write("b", "PK\x03\x04\0\0\0\0\n"sv));
  CHECK(MustOpen(text, files.Options(2))->examples() == 2);
}

TEST_CASE("an error of the data is placed in the section that it is about", "[data][unit]") {
  CHECK(InSection("data", "data.csv.files: no files given") == "data.csv.files: no files given");
  CHECK(InSection("evaluation.data", "data.csv.files: no files given") ==
        "evaluation.data.csv.files: no files given");
  CHECK(InSection("evaluation.data", "data: 0 readers given") ==
        "evaluation.data: 0 readers given");
  CHECK(InSection("data", "/data.csv on host h: empty") == "data: /data.csv on host h: empty");
}

TEST_CASE("columns of different lengths are refused", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec = OneColumn(files.Write("x", IdxNumbers(10)));
  (*spec.mutable_idx()->mutable_columns())["y"].add_files(files.Write("y", IdxNumbers(9)));

  CHECK(Contains(OpenError(spec, files), "column x has 10 records, column y has 9"));
}

TEST_CASE("specs that cannot be read say what they need", "[data][unit]") {
  const TempFiles files;
  const std::string path = files.Write("x", IdxNumbers(3));
  v1::DataSpec both = OneColumn(path);
  both.mutable_text()->add_files(path);
  v1::DataSpec twice = OneColumn(path);
  (*twice.mutable_idx()->mutable_columns())["x"].add_files(path);
  v1::DataSpec few = OneColumn(path);
  few.set_drop_remainder(true);

  CHECK(Contains(OpenError(v1::DataSpec(), files), "0 readers given"));
  CHECK(Contains(OpenError(both, files), "2 readers given"));
  CHECK(Contains(OpenError(twice, files), "named twice"));
  CHECK(BatchSource::Open(few, files.Options(4)).status().code() == StatusCode::kInvalidArgument);
  CHECK(MustOpen(OneColumn(path), files.Options(1))->Batch(0).status().code() ==
        StatusCode::kOutOfRange);
}

TEST_CASE("a link to a file that is read already is refused, by both names", "[data][unit]") {
  const TempFiles files;
  const std::string path = files.Write("day-1.idx", IdxNumbers(3));
  const std::string link = files.Path("day-latest.idx");
  std::filesystem::create_symlink("day-1.idx", link);
  const std::string folder = files.Path("same");
  std::filesystem::create_directory_symlink(".", folder);

  CHECK(Contains(
      OpenError(OneColumn(files.Path("day-*.idx")), files),
      link + " is the same file as " + path + "; its records would be used twice in an epoch"));
  v1::DataSpec through = OneColumn(path);
  (*through.mutable_idx()->mutable_columns())["x"].add_files(folder + "/day-1.idx");
  CHECK(Contains(OpenError(through, files), "is the same file as " + path));
  // A link alone is a file like others.
  CHECK(MustOpen(OneColumn(link), files.Options(1))->examples() == 3);
}

}  // namespace
}  // namespace muster::data::testing
