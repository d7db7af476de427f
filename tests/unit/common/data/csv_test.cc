#include <cmath>
#include <filesystem>
#include <limits>

#include "common/base/host_name.h"
#include "common/data/source_file.h"
#include "common/data/text_fields.h"
#include "tests/support/catch.h"
#include "tests/unit/common/data/temp_files.h"

namespace muster::data::testing {
namespace {

struct Columns {
  explicit Columns(const std::string& path) {
    spec.set_shuffle(false);
    spec.mutable_csv()->add_files(path);
  }
  v1::CsvColumn& Add(const std::string& name, v1::DType dtype = v1::DTYPE_UNSPECIFIED) {
    v1::CsvColumn& column = (*spec.mutable_csv()->mutable_columns())[name];
    column.set_dtype(dtype);
    return column;
  }
  v1::DataSpec spec;
};

TEST_CASE("CSV columns are found by name, quoted, with LF and CRLF", "[data][unit]") {
  const TempFiles files;
  Columns csv(files.Write("a.csv",
                          "\xef\xbb\xbfid,\"a \"\"b\"\", c\",y\r\n"
                          "7,\"1.5\",x\r\n"
                          "-8, +2.5e1 ,\"two\nlines, \"\"quoted\"\"\"\n"
                          "\n"
                          "9,\"-0.25\",z"));
  csv.Add("id", v1::DTYPE_INT64);
  csv.Add("a \"b\", c", v1::DTYPE_FLOAT64);
  csv.Add("y", v1::DTYPE_INT64).set_hash_buckets(1000);

  const auto source = MustOpen(csv.spec, files.Options(3));

  CHECK(source->examples() == 3);
  CHECK(Values<std::int64_t>(*source, 1, "id") == std::vector<std::int64_t>{7, -8, 9});
  CHECK(Values<double>(*source, 1, "a \"b\", c") == std::vector<double>{1.5, 25, -0.25});
  CHECK(Values<std::int64_t>(*source, 1, "y") ==
        std::vector<std::int64_t>{HashBucket("x", 0, 1000),
                                  HashBucket("two\nlines, \"quoted\"", 0, 1000),
                                  HashBucket("z", 0, 1000)});
}

TEST_CASE("each CSV file has its own header, a .tsv is separated by tabs", "[data][unit]") {
  const TempFiles files;
  files.Write("1.tsv", "a\tb\n1\t2\n");
  files.Write("2.tsv.gz", testing::Gzip("b\tc\ta\n20\t0\t10\n"));
  files.Write("3.tsv.zst", testing::Zstd("a\tb\n100\t200\n"));
  Columns csv(files.Path("?.tsv*"));
  csv.Add("a");
  csv.Add("b");

  const auto source = MustOpen(csv.spec, files.Options(3));

  CHECK(Values<float>(*source, 1, "a") == std::vector<float>{1, 10, 100});
  CHECK(Values<float>(*source, 1, "b") == std::vector<float>{2, 20, 200});
}

TEST_CASE("CSV files without a header are read by column number", "[data][unit]") {
  const TempFiles files;
  Columns csv(files.Write("a.txt", "1;2;3\n4;5;6\n"));
  csv.spec.mutable_csv()->set_header(false);
  csv.spec.mutable_csv()->set_delimiter(";");
  v1::CsvColumn& column = csv.Add("x");

  CHECK(Contains(OpenError(csv.spec, files), "data.csv.columns.x: without a header its `index`"));
  column.set_index(3);
  CHECK(Contains(OpenError(csv.spec, files), "column x has index 3, but the first line has 3"));
  column.set_index(2);
  CHECK(Values<float>(*MustOpen(csv.spec, files.Options(2)), 1, "x") == std::vector<float>{3, 6});
}

TEST_CASE("an empty CSV field is the missing value, or bad without one", "[data][unit]") {
  const TempFiles files;
  Columns csv(files.Write("a.csv", "a,b\n1,2\n,4\n"));
  csv.Add("b");
  v1::CsvColumn& column = csv.Add("a", v1::DTYPE_INT64);

  CHECK(Contains(OpenError(csv.spec, files),
                 files.Path("a.csv") + ":3 on host " + HostName() +
                     ": field 1 (a): is empty, and the spec gives no `missing` value"));
  column.set_missing(-1);
  CHECK(Values<std::int64_t>(*MustOpen(csv.spec, files.Options(2)), 1, "a") ==
        std::vector<std::int64_t>{1, -1});
  column.set_missing(0.5);
  CHECK(Contains(OpenError(csv.spec, files), "data.csv.columns.a.missing: 0.5 is no int64"));
  column.set_missing(10);
  column.set_hash_buckets(10);
  CHECK(Contains(OpenError(csv.spec, files),
                 "data.csv.columns.a.missing: 10 is not below hash_buckets, 10"));
  column.clear_hash_buckets();
  column.set_dtype(v1::DTYPE_FLOAT32);
  column.set_missing(1e300);
  CHECK(Contains(OpenError(csv.spec, files),
                 "data.csv.columns.a.missing: 1e+300 is no finite float32"));
  column.set_missing(3.4028235e38);
  CHECK(Values<float>(*MustOpen(csv.spec, files.Options(2)), 1, "a").back() ==
        std::numeric_limits<float>::max());
}

TEST_CASE("a bad CSV row fails the job with file and line, whatever is wrong", "[data][unit]") {
  const TempFiles files;
  const auto error = [&](std::string_view rows) {
    Columns csv(files.Write("a.csv", "a,b\n1,\"line\nbreak\"\n" + std::string(rows)));
    csv.Add("a");
    const std::string text = OpenError(csv.spec, files);
    CHECK(Contains(text, "DATA_LOSS"));
    CHECK(Contains(text, files.Path("a.csv") + ":4 on host " + HostName()));
    return text;
  };

  CHECK(Contains(error("2\n3,4\n"), "1 field, 2 are needed; to skip such records, set"));
  CHECK(Contains(error("2,3,4\n"), "3 fields, 2 are needed"));
  CHECK(Contains(error("two,3\n"), "field 1 (a): 'two' is not a float32 number"));
  CHECK(Contains(error("nan,3\n"), "field 1 (a): 'nan' is not a float32 number"));
  CHECK(Contains(error("1e99,3\n"), "field 1 (a): '1e99' is not a float32 number"));
  CHECK(Contains(error("1 2,3\n"), "field 1 (a): '1 2' is not a float32 number"));
  CHECK(Contains(error("2,\"open\n3,4\n"), "field 2: a quote that is not closed"));
  CHECK(Contains(error("2,\"a\"b\n"), "field 2: text after a closing quote"));
}

TEST_CASE("a number too small for its type is 0, one too large is refused", "[data][unit]") {
  const TempFiles files;
  Columns csv(files.Write("a.csv",
                          "f,d\n1e-46,1e-400\n-1e-46,-1e-400\n0.0000001E-45,1e-99999999999\n"
                          "1e-45,5e-324\n"));
  csv.Add("f");
  csv.Add("d", v1::DTYPE_FLOAT64);

  const auto source = MustOpen(csv.spec, files.Options(4));

  const std::vector<float> floats = Values<float>(*source, 1, "f");
  CHECK(floats == std::vector<float>{0, 0, 0, 1e-45F});
  CHECK(std::signbit(floats[1]));
  const std::vector<double> doubles = Values<double>(*source, 1, "d");
  CHECK(doubles == std::vector<double>{0, 0, 0, 5e-324});
  CHECK(std::signbit(doubles[1]));
  for (const std::string large :
       {"1e39", "-1e39", "10e9223372036854775807", "1e99999999999", "10000e35", "inf"}) {
    Columns refused(files.Write("b.csv", "f\n" + large + "\n"));
    refused.Add("f");
    CHECK(Contains(OpenError(refused.spec, files), "'" + large + "' is not a float32 number"));
  }
}

TEST_CASE("a quoted field that does not end in time says how long it may be", "[data][unit]") {
  const TempFiles files;
  const std::string most(1 << 20, 'x');
  Columns longest(files.Write("a.csv", "a,b\n1,\"" + most.substr(10) + "\"\n"));
  longest.Add("a");
  CHECK(MustOpen(longest.spec, files.Options(1))->examples() == 1);

  Columns csv(files.Write("b.csv", "a,b\n1,\"" + most + "\"\n"));
  csv.Add("a");
  CHECK(Contains(OpenError(csv.spec, files),
                 files.Path("b.csv") + ":2 on host " + HostName() +
                     ": field 2: a quote that is not closed within 1 MiB, the most that a record "
                     "with quotes may have"));
}

TEST_CASE("blank lines before a CSV header are passed over", "[data][unit]") {
  const TempFiles files;
  Columns csv(files.Write("a.csv", "\xef\xbb\xbf\n\r\n\na,b\n1,2\n"));
  csv.Add("b");
  CHECK(Values<float>(*MustOpen(csv.spec, files.Options(1)), 1, "b") == std::vector<float>{2});

  Columns headless(files.Write("b.csv", "\n\n1,2\n3,4\n"));
  headless.spec.mutable_csv()->set_header(false);
  headless.Add("b").set_index(1);
  CHECK(Values<float>(*MustOpen(headless.spec, files.Options(2)), 1, "b") ==
        std::vector<float>{2, 4});

  Columns broken(files.Write("c.csv", "\n\n\"a\"x,b\n1,2\n"));
  broken.Add("b");
  CHECK(Contains(OpenError(broken.spec, files), ", line 3: field 1: text after a closing quote"));
}

TEST_CASE("what a file says in another character set is escaped, and UTF-16 is named",
          "[data][unit]") {
  const TempFiles files;
  Columns latin(files.Write("a.csv", "pre\xE7o,b\n1,2\n"));
  latin.Add("a");
  CHECK(Contains(OpenError(latin.spec, files), "its first line names pre\\xe7o, b"));

  Columns number(files.Write("\xFF.csv", "a\n1\xFF\n"));
  number.spec.mutable_csv()->clear_files();
  number.spec.mutable_csv()->add_files(files.Path("?.csv"));
  number.Add("a");
  std::filesystem::remove(files.Path("a.csv"));
  CHECK(Contains(OpenError(number.spec, files), "/\\xff.csv:2 on host"));
  CHECK(Contains(OpenError(number.spec, files), "'1\\xff' is not a float32 number"));

  Columns wide(files.Write("b.csv", std::string_view("\xFF\xFE"
                                                     "a\0\n\0",
                                                     6)));
  wide.Add("a");
  CHECK(Contains(OpenError(wide.spec, files), "this is UTF-16 text; write it as UTF-8"));
}

TEST_CASE("what a message shows of a field ends with a whole character", "[data][unit]") {
  const std::string euros = std::string(38, 'x') + "\xE2\x82\xAC\xE2\x82\xAC";
  CHECK(Shown(euros) == std::string(38, 'x'));
  CHECK(Shown(std::string(41, 'x')).size() == 40);
  CHECK(Shown(std::string(50, '\x80')).size() == 37);
}

TEST_CASE("up to N bad rows are skipped, counted and located", "[data][unit]") {
  const TempFiles files;
  Columns csv(files.Write("1.csv", "a,b\n1,1\nbad,1\n2,1\n3\n4,\"open\n5,1\n"));
  csv.spec.mutable_csv()->add_files(files.Write("2.csv", "a,b\n6,1\n7,1,1\n"));
  csv.Add("a");

  csv.spec.mutable_bad_records()->set_skip_up_to(3);
  CHECK(Contains(OpenError(csv.spec, files), files.Path("2.csv") + ":3 on host"));
  CHECK(Contains(OpenError(csv.spec, files), "more than the 3 bad records"));
  csv.spec.mutable_bad_records()->set_skip_up_to(2);
  CHECK(Contains(OpenError(csv.spec, files), files.Path("1.csv") + ":6 on host"));

  csv.spec.mutable_bad_records()->set_skip_up_to(4);
  for (int again = 0; again < 2; ++again) {  // built, then from the cache
    const auto source = MustOpen(csv.spec, files.Options(10));
    CHECK(source->examples() == 4);
    CHECK(source->bad_records() == 4);
    CHECK(Values<float>(*source, 1, "a") == std::vector<float>{1, 2, 5, 6});
    const std::vector<std::string> places = source->BadRecordPlaces(10);
    REQUIRE(places.size() == 4);
    CHECK(Contains(places[0], files.Path("1.csv") + ":3 on host"));
    CHECK(Contains(places[1], files.Path("1.csv") + ":5 on host"));
    CHECK(Contains(places[2], "a quote that is not closed"));
    CHECK(Contains(places[3], "3 fields, 2 are needed"));
    CHECK(source->BadRecordPlaces(1).size() == 1);
  }

  // Indexes made under a larger budget do not loosen a smaller one.
  csv.spec.mutable_bad_records()->set_skip_up_to(0);
  CHECK(Contains(OpenError(csv.spec, files), files.Path("1.csv") + ":3 on host"));
}

TEST_CASE("CSV specs and headers that do not fit are refused by name", "[data][unit]") {
  const TempFiles files;
  Columns csv(files.Write("a.csv", "a,b,b\n1,2,3\n"));
  csv.Add("a");
  csv.Add("age");
  CHECK(Contains(OpenError(csv.spec, files), "INVALID_ARGUMENT: " + files.Path("a.csv") +
                                                 " on host " + HostName() +
                                                 ": no column age; its first line names a, b, b"));

  Columns twice(files.Path("a.csv"));
  twice.Add("b");
  CHECK(Contains(OpenError(twice.spec, files), "names column b twice"));

  Columns dtype(files.Path("a.csv"));
  dtype.Add("a", v1::DTYPE_UINT8);
  CHECK(Contains(OpenError(dtype.spec, files), "data.csv.columns.a.dtype: uint8"));

  Columns hashed(files.Path("a.csv"));
  hashed.Add("a").set_hash_buckets(10);
  CHECK(Contains(OpenError(hashed.spec, files), "hash_buckets needs dtype int64"));

  Columns delimiter(files.Path("a.csv"));
  delimiter.Add("a");
  delimiter.spec.mutable_csv()->set_delimiter("ab");
  CHECK(Contains(OpenError(delimiter.spec, files), "data.csv.delimiter: one character"));

  Columns empty(files.Write("empty.csv", ""));
  empty.Add("a");
  CHECK(Contains(OpenError(empty.spec, files), "its first line should name the columns"));
  Columns only_header(files.Write("header.csv", "a,b\n"));
  only_header.Add("a");
  CHECK(Contains(OpenError(only_header.spec, files), "the files have no records"));
}

}  // namespace
}  // namespace muster::data::testing
