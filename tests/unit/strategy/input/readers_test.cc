#include "strategy/input/readers.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "tests/support/catch.h"
#include "tests/unit/common/data/temp_files.h"
#include "tests/unit/strategy/input/input_support.h"

namespace muster {

struct Digit {
  torch::Tensor label;
  torch::Tensor image;
};
template <>
struct NestFields<Digit> {
  static auto tie(auto& value) { return std::tie(value.label, value.image); }
};

namespace {

using data::testing::Gzip;
using data::testing::Idx;
using data::testing::TempFiles;
using testing::all;
using testing::code_of;
using testing::cpus;
using testing::kInvalid;
using testing::numbers;
using testing::Numbers;
using testing::on_workers;
using testing::sequence;
using testing::Steps;
using testing::throws;
using Pair = std::tuple<torch::Tensor, torch::Tensor>;

// While it lives, readers that name no cache folder use one in `files`.
class CacheIn {
 public:
  explicit CacheIn(const TempFiles& files) {
    ::setenv("MUSTER_DATA_CACHE", files.CacheDirectory().c_str(), 1);
  }
  CacheIn(const CacheIn&) = delete;
  CacheIn& operator=(const CacheIn&) = delete;
  ~CacheIn() { ::unsetenv("MUSTER_DATA_CACHE"); }
};

ReaderOptions reader(const TempFiles& files) { return {.cache_directory = files.CacheDirectory()}; }

// Image n is 2 x 2 bytes of n, label n is n mod 10.
std::string images(const TempFiles& files, std::uint32_t count) {
  std::string bytes;
  for (std::uint32_t n = 0; n < count; ++n) bytes.append(4, static_cast<char>(n));
  return files.Write("images.gz", Gzip(Idx(0x08, {count, 2, 2}, bytes)));
}
std::string labels(const TempFiles& files, std::uint32_t count) {
  std::string bytes;
  for (std::uint32_t n = 0; n < count; ++n) bytes.push_back(static_cast<char>(n % 10));
  return files.Write("labels", Idx(0x08, {count}, bytes));
}

TEST_CASE("images and labels, shuffled and in batches", "[input][unit]") {
  const TempFiles files;
  const CacheIn cache(files);
  const auto data = dataset::idx(images(files, 100), labels(files, 100));
  static_assert(std::is_same_v<decltype(data), const Dataset<Pair>>);

  CHECK(data.cardinality() == 100);
  CHECK(data.element_spec() ==
        std::vector<TensorSpec>{{.name = "0", .dtype = torch::kByte, .shape = {2, 2}},
                                {.name = "1", .dtype = torch::kByte, .shape = {}}});
  const auto batches = all(data.shuffle(100, 7).batch(32));
  REQUIRE(batches.size() == 4);
  std::set<std::int64_t> seen;
  for (const auto& [image, label] : batches) {
    CHECK(image.dim() == 3);
    for (std::int64_t row = 0; row < image.size(0); ++row) {
      const Numbers pixels = numbers(image[row]);
      CHECK(pixels == Numbers(4, pixels[0]));
      CHECK(label[row].item<std::int64_t>() == pixels[0] % 10);
      seen.insert(pixels[0]);
    }
  }
  CHECK(seen.size() == 100);
  CHECK(numbers(std::get<1>(batches[0])) != numbers(std::get<1>(all(data.batch(32))[0])));
}

TEST_CASE("columns by name, or as the program's own type has them", "[input][unit]") {
  const TempFiles files;
  const IdxOptions options{
      .columns = {{.name = "label", .files = labels(files, 20)},
                  {.name = "image", .files = images(files, 20)}},
      .reader = reader(files),
  };

  const Record record = all(dataset::idx(options).batch(20)).at(0);
  CHECK(record.size() == 2);
  CHECK(numbers(record.at("label")).at(13) == 3);
  CHECK(record.at("image").sizes().vec() == std::vector<std::int64_t>{20, 2, 2});
  const Digit digit = all(dataset::idx<Digit>(options).skip(13)).at(0);
  CHECK(digit.label.item<int>() == 3);
  CHECK(numbers(digit.image) == Numbers{13, 13, 13, 13});
  // What a map makes is like what was read.
  const auto mapped = dataset::idx(options).map([](const Record& one) { return one; });
  CHECK(all(dataset::idx(options).concatenate(mapped).batch(40)).size() == 1);
  const auto refused = testing::error_of([&] { dataset::idx<torch::Tensor>(options); });
  REQUIRE(refused);
  CHECK(refused->code() == kInvalid);
  CHECK(refused->message() == "dataset::idx: 2 columns for an element type of 1 tensor");
}

TEST_CASE("records of CSV files", "[input][unit]") {
  const TempFiles files;
  files.Write("a-1.csv", "city,price,age\nRome,1.5,30\nOslo,2.5,\n");
  files.Write("a-2.csv", "age,price,city\n40,3.5,Rome\n");
  const CsvOptions options{
      .files = files.Path("a-*.csv"),
      .columns = {{.name = "price", .dtype = torch::kDouble},
                  {.name = "city", .dtype = torch::kLong, .hash_buckets = 1000},
                  {.name = "age", .dtype = torch::kLong, .missing = -1}},
      .reader = reader(files)};

  const Record batch = all(dataset::csv(options).batch(10)).at(0);
  CHECK(torch::equal(batch.at("price"), torch::tensor({1.5, 2.5, 3.5}, torch::kDouble)));
  CHECK(numbers(batch.at("age")) == Numbers{30, -1, 40});
  CHECK(numbers(batch.at("city")).at(0) == numbers(batch.at("city")).at(2));
  using Row = std::tuple<torch::Tensor, torch::Tensor, torch::Tensor>;
  const auto [price, city, age] = all(dataset::csv<Row>(options)).at(2);
  CHECK(price.item<double>() == 3.5);
  CHECK(city.item<std::int64_t>() == numbers(batch.at("city")).at(0));
  CHECK(age.item<std::int64_t>() == 40);

  const std::string bare = files.Write("bare.txt", "1;x;2\n3;y;4\n");
  const auto second = dataset::csv<torch::Tensor>({.files = {bare},
                                                   .columns = {{.name = "b", .index = 2}},
                                                   .delimiter = ';',
                                                   .header = false,
                                                   .reader = reader(files)});
  CHECK(numbers(all(second.batch(2)).at(0)) == Numbers{2, 4});
}

TEST_CASE("records of TFRecord files", "[input][unit]") {
  const TempFiles files;
  const auto data =
      dataset::tfrecord({.files = std::string(MUSTER_FIXTURES) + "/tfrecord/examples.tfrecord.gz",
                         .features = {{.name = "image", .dtype = torch::kByte, .shape = {2, 3}},
                                      {.name = "weight"},
                                      {.name = "ids", .dtype = torch::kLong, .length = 3}},
                         .reader = reader(files)});

  CHECK(data.cardinality() == 20);
  const Record batch = all(data.skip(5).batch(2)).at(0);
  CHECK(batch.at("image").sizes().vec() == std::vector<std::int64_t>{2, 2, 3});
  CHECK(numbers(batch.at("image")[0]) == sequence(5, 11));
  CHECK(batch.at("weight")[1].item<float>() == 6.5F);
  CHECK(numbers(batch.at("ids")[0]) == Numbers{500, -1, -1});
}

TEST_CASE("records of click logs", "[input][unit]") {
  const TempFiles files;
  std::string line = "1";
  for (int i = 0; i < 13; ++i) line += "\t" + std::to_string(i);
  for (int i = 0; i < 26; ++i) line += "\tabc";
  const std::string path = files.Write("day", line + "\n");

  const auto of = [&](bool log1p) {
    return all(dataset::criteo(
                   {.files = path, .hash_buckets = 50, .log1p = log1p, .reader = reader(files)}))
        .at(0);
  };

  CHECK(of(false).at("label").item<float>() == 1);
  CHECK(numbers(of(false).at("dense")) == sequence(0, 13));
  CHECK(of(true).at("dense")[1].item<float>() == Approx(std::log(2.0)));
  CHECK(of(false).at("cat").numel() == 26);
  CHECK(of(false).at("cat").max().item<std::int64_t>() < 50);
  CHECK(code_of([&] { dataset::criteo({.files = path, .hash_buckets = 0}); }) == kInvalid);
}

TEST_CASE("lines of text", "[input][unit]") {
  const TempFiles files;
  const std::string path = files.Write("book.txt", "one\n\na longer line\nlast");
  const TextOptions options{.files = path, .length = 20, .reader = reader(files)};

  CHECK(all(dataset::text_lines(options)) ==
        std::vector<std::string>{"one", "", "a longer line", "last"});
  CHECK(all(dataset::text_lines(options).map([](const std::string& s) {
          return static_cast<std::int64_t>(s.size());
        })) == std::vector<std::int64_t>{3, 0, 13, 4});
  CHECK(dataset::text_lines(options).cardinality() == 4);
  const auto batches = all(dataset::text(options).batch(4));
  REQUIRE(batches.size() == 1);
  CHECK(batches[0].sizes().vec() == std::vector<std::int64_t>{4, 20});
  CHECK(batches[0][0][0].item<int>() == 'o');
  CHECK(batches[0][0][3].item<int>() == 0);
}

TEST_CASE("records that are broken, and files that are not there", "[input][unit]") {
  const TempFiles files;
  const std::string path = files.Write("short.txt", "one\nmuch too long\ntwo\n");
  const auto lines = [&](std::uint64_t skip) {
    return dataset::text_lines(
        {.files = path,
         .length = 5,
         .reader = {.skip_up_to = skip, .cache_directory = files.CacheDirectory()}});
  };
  const CsvOptions twice{.files = path, .columns = {{.name = "a"}, {.name = "a"}}};
  const CsvOptions half{.files = path, .columns = {{.name = "a", .dtype = torch::kHalf}}};

  CHECK(throws(ErrorCode::kDataLoss, "short.txt:2", [&] { lines(0); }));
  CHECK(all(lines(1)) == std::vector<std::string>{"one", "two"});
  CHECK(throws(ErrorCode::kNotFound, "nothing.idx", [&] {
    dataset::idx(
        {.columns = {{.name = "x", .files = files.Path("nothing.idx")}}, .reader = reader(files)});
  }));
  CHECK(throws(kInvalid, "column a is named twice", [&] { dataset::csv(twice); }));
  CHECK(throws(kInvalid, "float16", [&] { dataset::csv(half); }));
  CHECK(code_of([&] { dataset::idx(IdxOptions{.reader = reader(files)}); }) == kInvalid);
}

TEST_CASE("a place among records is found again", "[input][unit]") {
  const TempFiles files;
  const CacheIn cache(files);
  const auto make = [path = labels(files, 200)] {
    return dataset::idx(path).shuffle(50).repeat(2).batch(30);
  };
  auto iterator = make().iterator();
  for (int i = 0; i < 5; ++i) (void)iterator.next();
  auto restored = make().iterator(iterator.save_position());

  int batches = 5;
  while (const auto expected = iterator.next()) {
    const auto got = restored.next();
    REQUIRE(got.has_value());
    CHECK(numbers(*got) == numbers(*expected));
    ++batches;
  }
  CHECK(batches == 14);
  CHECK_FALSE(restored.next().has_value());
}

TEST_CASE("workers read files of their own, or elements of their own", "[input][unit]") {
  const TempFiles files;
  for (const char* name : {"1", "2", "3"}) {
    std::string rows = "x\n";
    for (int i = 0; i < 4; ++i) rows += std::string(name) + std::to_string(i) + "\n";
    files.Write(std::string("part-") + name + ".csv", rows);
  }
  const auto rows_of = [&](const std::string& name) {
    return dataset::csv<torch::Tensor>(
        {.files = name, .columns = {{.name = "x"}}, .reader = reader(files)});
  };
  const std::string pattern = files.Path("part-*.csv");
  const auto read = [&](const Dataset<>& dataset) {
    return testing::steps_on_workers(2, 1, dataset);
  };

  const auto by_file = read(dataset::list_files({pattern}).flat_map(rows_of).batch(2));
  CHECK(testing::of_replica(by_file[0], 0) ==
        std::vector<Numbers>{{10}, {11}, {12}, {13}, {30}, {31}, {32}, {33}});
  CHECK(testing::of_replica(by_file[1], 0) ==
        std::vector<Numbers>{{20}, {21}, {22}, {23}, {}, {}, {}, {}});
  const auto by_element = read(rows_of(pattern).batch(6));
  CHECK(testing::of_replica(by_element[0], 0) == std::vector<Numbers>{{10, 11, 12}, {22, 23, 30}});
  CHECK(testing::of_replica(by_element[1], 0) == std::vector<Numbers>{{13, 20, 21}, {31, 32, 33}});
}

TEST_CASE("Fashion-MNIST over two replicas", "[input][unit]") {
  const std::string folder = "/usr/share/datasets/fashion-mnist/";
  if (!std::filesystem::exists(folder)) {
    WARN("the package dataset-fashion-mnist is not installed");
    return;
  }
  const TempFiles files;
  const CacheIn cache(files);
  MirroredStrategy strategy(cpus(2));
  const auto examples =
      dataset::idx(folder + "t10k-images-idx3-ubyte.gz", folder + "t10k-labels-idx1-ubyte.gz")
          .shuffle(10'000, 1)
          .batch(128);

  std::vector<torch::Tensor> labels;
  std::int64_t steps = 0;
  for (const PerReplica<Pair>& step : experimental_distribute_dataset(strategy, examples)) {
    ++steps;
    for (const auto& [image, label] : step.values()) {
      REQUIRE(image.sizes().vec() == std::vector<std::int64_t>{label.size(0), 28, 28});
      labels.push_back(label);
    }
  }

  CHECK(steps == 79);
  CHECK(numbers(torch::bincount(torch::cat(labels))) == Numbers(10, 1000));
}

}  // namespace
}  // namespace muster
