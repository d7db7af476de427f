// Files that are not what they were when the job was checked; records by name.
#include <filesystem>

#include "common/base/scheduler.h"
#include "common/data/open_reader.h"
#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"
#include "tests/unit/common/data/temp_files.h"

namespace muster::data::testing {
namespace {

v1::DataSpec Csv(const std::vector<std::string>& paths) {
  v1::DataSpec spec;
  for (const std::string& path : paths) spec.mutable_csv()->add_files(path);
  (*spec.mutable_csv()->mutable_columns())["a"].set_dtype(v1::DTYPE_FLOAT32);
  spec.set_shuffle(false);
  return spec;
}

struct Opened {
  TempFiles files;
  std::string path = files.Write("a.csv", "a\n1\n2\n3\n");
  v1::DataSpec spec = Csv({path});
  std::vector<FileState> then = MustOpen(spec, files.Options(2))->files();

  std::string Again() const {
    BatchSource::Options options = files.Options(2);
    options.expected = then;
    return ToString(BatchSource::Open(spec, options).status());
  }
  // The time that it had, as `cp -p` and `touch -r` give it.
  void KeepTime(const std::string& text) const {
    const auto time = std::filesystem::last_write_time(path);
    (void)files.Write("a.csv", text);
    std::filesystem::last_write_time(path, time);
  }
};

TEST_CASE_METHOD(Opened, "a file that is what it was is opened again", "[data][unit]") {
  REQUIRE(then.size() == 1);
  CHECK(then[0].path == path);
  CHECK(then[0].size == 8);
  CHECK(then[0].records == 3);
  CHECK(Again() == "OK");
  std::filesystem::remove_all(files.CacheDirectory());  // found anew, not remembered
  CHECK(Again() == "OK");
}

TEST_CASE_METHOD(Opened, "a file that has changed is data loss that says what changed",
                 "[data][unit]") {
  SECTION("its size") {
    (void)files.Write("a.csv", "a\n1\n2\n3\n4\n");
    CHECK(Contains(Again(), "DATA_LOSS: " + path + " on host"));
    CHECK(Contains(Again(), "10 bytes, 8 then"));
  }
  SECTION("its time alone: the bytes may be others") {
    std::filesystem::last_write_time(
        path, std::filesystem::last_write_time(path) + std::chrono::nanoseconds(1));
    CHECK(Contains(Again(), "DATA_LOSS: " + path + " on host"));
    CHECK(Contains(Again(), "last written 20"));
  }
  SECTION("how many records it has") {
    KeepTime("a\n1\n234\n");
    std::filesystem::remove_all(files.CacheDirectory());
    CHECK(Contains(Again(), "2 good records, 3 then"));
  }
  SECTION("where they begin") {
    KeepTime("a\n12\n3\n4");
    std::filesystem::remove_all(files.CacheDirectory());
    CHECK(Contains(Again(), "its records begin at other places"));
  }
  SECTION("a file that is damaged now is one that has changed") {
    (void)files.Write("a.csv", "a\n1,2,3,4\n");
    CHECK(Contains(Again(), "8 then"));
  }
}

TEST_CASE_METHOD(Opened, "a file that is gone is not there, not changed", "[data][unit]") {
  std::filesystem::remove(path);
  CHECK(Contains(Again(), "NOT_FOUND"));
}

TEST_CASE("other files than before are data loss", "[data][unit]") {
  const TempFiles files;
  (void)files.Write("a1.csv", "a\n1\n");
  const v1::DataSpec spec = Csv({files.Path("a*.csv")});
  BatchSource::Options options = files.Options(2);
  options.expected = MustOpen(spec, options)->files();
  const std::string more = files.Write("a2.csv", "a\n1\n");
  const Status status = BatchSource::Open(spec, options).status();
  CHECK(status.code() == StatusCode::kDataLoss);
  CHECK(Contains(Message(status), more));
  CHECK(Contains(Message(status), "2 files, 1 then"));
}

TEST_CASE("IDX files are compared too, without a time where it is not known", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec;
  const std::string path = files.Write("x", IdxNumbers(5));
  (*spec.mutable_idx()->mutable_columns())["x"].add_files(path);
  BatchSource::Options options = files.Options(2);
  options.expected = MustOpen(spec, options)->files();
  REQUIRE(options.expected.size() == 1);
  CHECK(options.expected[0].records == 5);
  options.expected[0].mtime_ns = 0;
  CHECK(BatchSource::Open(spec, options).ok());
  options.expected[0].mtime_ns = 1;
  CHECK(BatchSource::Open(spec, options).status().code() == StatusCode::kDataLoss);
}

TEST_CASE("a file that is changed in place while it is open is data loss at the next look",
          "[data][unit]") {
  const TempFiles files;
  const std::string path = files.Write("a.csv", "a\n1\n2\n3\n");
  const auto reader = OpenReader(Csv({path}), *Cache::Open({.directory = files.CacheDirectory()}));
  REQUIRE(reader.ok());
  const std::vector<std::uint64_t> first = {0};

  // It keeps its size, so that every record parses.
  const auto time = std::filesystem::last_write_time(path);
  (void)files.Write("a.csv", "a\n7\n8\n9\n");
  std::filesystem::last_write_time(path, time + std::chrono::seconds(1));  // clocks tick coarsely
  const Status status = (*reader)->Read(first).status();

  CHECK(status.code() == StatusCode::kDataLoss);
  CHECK(Contains(Message(status), path + " on host"));
  CHECK(Contains(Message(status), "last written 20"));
}

TEST_CASE("an IDX file that is changed in place while it is open is data loss", "[data][unit]") {
  const TempFiles files;
  v1::DataSpec spec;
  const std::string path = files.Write("x", IdxNumbers(5));
  (*spec.mutable_idx()->mutable_columns())["x"].add_files(path);
  const auto reader = OpenReader(spec, *Cache::Open({.directory = files.CacheDirectory()}));
  REQUIRE(reader.ok());
  const std::vector<std::uint64_t> first = {0};

  (void)files.Write("x", IdxNumbers(6));

  CHECK(Contains(Message((*reader)->Read(first).status()), "bytes, "));
}

TEST_CASE("an open file is looked at every two seconds, one that was moved over it is not it",
          "[data][unit]") {
  const TempFiles files;
  const std::string path = files.Write("a.csv", "a\n1\n");
  FakeScheduler clock;
  const std::vector<std::string> patterns = {path};
  const FileWatch watch(*FindFiles(patterns), clock);

  REQUIRE(watch.Look(0, watch.Now()).ok());
  SECTION("written to in place") {
    (void)files.Write("a.csv", "a\n1\n2\n");
    clock.Advance(Millis(1'999));
    CHECK(watch.Look(0, watch.Now()).ok());
    clock.Advance(Millis(1));
    CHECK(watch.Look(0, watch.Now()).code() == StatusCode::kDataLoss);
    // Whoever asks next is not told that all is well.
    CHECK(watch.Look(0, watch.Now()).code() == StatusCode::kDataLoss);
  }
  SECTION("replaced") {
    std::filesystem::rename(files.Write("b.csv", "a\n1\n2\n"), path);
    clock.Advance(FileWatch::kEvery);
    CHECK(watch.Look(0, watch.Now()).ok());
  }
}

TEST_CASE("the records of a batch are named by file and number", "[data][unit]") {
  const TempFiles files;
  const std::string a = files.Write("a.csv", "a\n1\n2\n3\n");
  const std::string b = files.Write("b.csv", "a\n4\n5\n6\n7\n");
  const auto in_order = MustOpen(Csv({a, b}), files.Options(4));
  CHECK(in_order->RecordsOf(1) == fmt::format("records 1-3 of {}; record 1 of {}", a, b));
  CHECK(in_order->RecordsOf(2) == fmt::format("records 2-4 of {}", b));
  CHECK(in_order->RecordsOf(3) == in_order->RecordsOf(1));  // the next epoch

  // What is named is what is read.
  v1::DataSpec shuffled = Csv({a});
  shuffled.set_shuffle(true);
  const auto source = MustOpen(shuffled, files.Options(1));
  for (std::uint64_t closure = 1; closure <= 3; ++closure) {
    const float value = testing::Values<float>(*source, closure, "a").at(0);
    CHECK(source->RecordsOf(closure) == fmt::format("record {} of {}", value, a));
  }
}

TEST_CASE("long lists of records are cut", "[data][unit]") {
  std::vector<std::uint64_t> every_other;
  for (std::uint64_t i = 0; i < 1'000; i += 2) every_other.push_back(i);
  const std::uint64_t starts[] = {0, 1'000};
  const std::string path = "/x";
  const std::string text = NameRecords(every_other, starts, std::span(&path, 1));
  CHECK(text.size() < 300);
  CHECK(text.ends_with("45, 47 and others, 500 in all, of /x"));
}

}  // namespace
}  // namespace muster::data::testing
