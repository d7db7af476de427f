#include <cmath>
#include <set>
#include <string>

#include "common/base/host_name.h"
#include "common/data/source_file.h"
#include "common/data/text_fields.h"
#include "tests/support/catch.h"
#include "tests/unit/common/data/temp_files.h"

namespace muster::data::testing {
namespace {

std::string ClickRow(const std::string& label, const std::string& first_number,
                     const std::string& first_category) {
  std::string row = label + "\t" + first_number;
  for (int i = 1; i < 13; ++i) row += "\t" + std::to_string(i);
  row += "\t" + first_category;
  for (int i = 1; i < 26; ++i) row += i == 3 ? "\t" : "\t68fd1e64";
  return row + "\n";
}

v1::DataSpec Criteo(const std::string& path) {
  v1::DataSpec spec;
  spec.set_shuffle(false);
  spec.mutable_criteo()->add_files(path);
  return spec;
}

TEST_CASE("Criteo rows become label, 13 logarithms and 26 hashed categories", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec = Criteo(
      files.Write("day.zst", testing::Zstd(ClickRow("1", "9", "05db9164") + ClickRow("0", "", "") +
                                           ClickRow("0", "-3", "05db9164"))));

  const auto source = MustOpen(spec, files.Options(3));
  const auto batch = source->Batch(1);

  REQUIRE(batch.ok());
  REQUIRE(source->columns().size() == 3);
  CHECK(source->columns()[1].shape == std::vector<std::int64_t>{-1, 13});
  CHECK(batch->Find("cat")->info.shape == std::vector<std::int64_t>{3, 26});
  CHECK(Values<float>(*source, 1, "label") == std::vector<float>{1, 0, 0});
  const auto* const dense = batch->Find("dense")->as<float>();
  CHECK(dense[0] == Approx(std::log(10.0)));
  CHECK(dense[12] == Approx(std::log(13.0)));
  CHECK(dense[13] == 0);  // empty
  CHECK(dense[26] == 0);  // below 0
  const auto* const cat = batch->Find("cat")->as<std::int64_t>();
  CHECK(cat[0] == HashBucket("05db9164", 0, 1'000'003));
  CHECK(cat[26] == HashBucket("", 0, 1'000'003));
  CHECK(cat[1] != cat[2]);  // the same text in another field

  spec.mutable_criteo()->set_log1p(false);
  spec.mutable_criteo()->set_hash_buckets(10);
  const auto raw = MustOpen(spec, files.Options(3));
  CHECK(Values<float>(*raw, 1, "dense")[26] == -3);
  for (const std::int64_t id : Values<std::int64_t>(*raw, 1, "cat")) CHECK((id >= 0 && id < 10));
}

TEST_CASE("category ids are the ones that earlier versions made", "[data][unit]") {
  // What a trained embedding means depends on them. Also from Python's xxhash:
  // xxhash.xxh3_64(b"05db9164", seed=0).intdigest() % 1000003.
  CHECK(HashBucket("05db9164", 0, 1'000'003) == 987711);
  CHECK(HashBucket("68fd1e64", 25, 1'000'003) == 30947);
}

TEST_CASE("a bad Criteo row is named by file, line and field", "[data][unit]") {
  const TempFiles files;
  const auto error = [&](const std::string& row) {
    return OpenError(Criteo(files.Write("day.tsv", ClickRow("1", "1", "a") + "\n" + row)), files);
  };

  const std::string place = files.Path("day.tsv") + ":3 on host " + HostName() + ": ";
  CHECK(Contains(error("1\t2\t3\n"), place + "3 fields, 40 are needed"));
  CHECK(Contains(error("x" + ClickRow("1", "1", "a")), place + "field 1 (the label): 'x1'"));
  CHECK(Contains(error(ClickRow("1", "ff", "a")), place + "field 2 (number 1): 'ff'"));
  CHECK(Contains(error("1\t" + ClickRow("1", "1", "a")), place + "41 fields"));
}

TEST_CASE("a Criteo number that no float32 can hold is bad where it is not made small",
          "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec = Criteo(files.Write("day.tsv", ClickRow("1", "1e39", "a")));
  CHECK(MustOpen(spec, files.Options(1))->examples() == 1);

  spec.mutable_criteo()->set_log1p(false);

  CHECK(Contains(OpenError(spec, files), "field 2 (number 1): '1e39' is not a finite number"));
}

TEST_CASE("lines of text are padded with 0, longer ones are bad", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec;
  spec.set_shuffle(false);
  spec.mutable_text()->add_files(files.Write("a.txt", "ab\r\n\nabcd\nabcde\nx"));
  spec.mutable_text()->set_length(4);

  CHECK(Contains(OpenError(spec, files), files.Path("a.txt") + ":4 on host " + HostName() +
                                             ": a line of 5 bytes, data.text.length is 4"));
  spec.mutable_bad_records()->set_skip_up_to(1);
  const auto source = MustOpen(spec, files.Options(9));
  const std::vector<std::uint8_t> bytes = Values<std::uint8_t>(*source, 1, "line");
  CHECK(source->examples() == 4);
  CHECK(std::string(bytes.begin(), bytes.end()) == std::string("ab\0\0\0\0\0\0abcdx\0\0\0", 16));
}

TEST_CASE("every row of many files is used once in an epoch", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec;
  for (int file = 0; file < 5; ++file) {
    std::string text;
    for (int i = 0; i < 100 + file; ++i) text += std::to_string(1000 * file + i) + "\n";
    spec.mutable_text()->add_files(
        files.Write("part" + std::to_string(file) + ".gz", testing::Gzip(text)));
  }
  spec.mutable_text()->set_length(8);

  const auto source = MustOpen(spec, files.Options(16, 3));
  std::set<std::string> seen;
  for (std::uint64_t closure = 1; closure <= source->batches_per_epoch(); ++closure) {
    const std::vector<std::uint8_t> bytes = Values<std::uint8_t>(*source, closure, "line");
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
      CHECK(seen.insert(std::string(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                                    bytes.begin() + static_cast<std::ptrdiff_t>(at + 8)))
                .second);
    }
  }

  CHECK(seen.size() == 510);
  CHECK(source->examples() == 510);
}

TEST_CASE("a file that changes while the job runs is an error, not wrong data", "[data][unit]") {
  const TempFiles files;
  const v1::DataSpec spec = Criteo(files.Write("day.tsv", ClickRow("1", "1", "a")));
  const auto source = MustOpen(spec, files.Options(1));
  files.Write("other.tsv", std::string(ClickRow("1", "1", "a").size(), '\t'));
  std::filesystem::copy_file(files.Path("other.tsv"), files.Path("day.tsv"),
                             std::filesystem::copy_options::overwrite_existing);

  const auto batch = source->Batch(1);

  CHECK(batch.status().code() == StatusCode::kDataLoss);
  CHECK(Contains(Message(batch.status()), "was changed after the job opened it"));
}

}  // namespace
}  // namespace muster::data::testing
