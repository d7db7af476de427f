#include <atomic>
#include <cstring>
#include <set>
#include <stdexcept>

#include "common/data/reader.h"
#include "muster/v1/job_spec.pb.h"
#include "tests/support/catch.h"
#include "tests/unit/common/data/pipeline/pipelines.h"
#include "tests/unit/common/data/temp_files.h"

namespace muster::data::testing {
namespace {

FilterFunction Odd() {
  return [](const Element& element) -> Result<bool> { return Number(element) % 2 == 1; };
}

TEST_CASE("a range counts up or down to its stop", "[pipeline][unit]") {
  CHECK(AllNumbers(Range(4)) == Numbers{0, 1, 2, 3});
  CHECK(AllNumbers(Pipeline::Range(5, 12, 3)) == Numbers{5, 8, 11});
  CHECK(AllNumbers(Pipeline::Range(5, -2, -3)) == Numbers{5, 2, -1});
  CHECK(AllNumbers(Pipeline::Range(3, 3)).empty());
  CHECK(Pipeline::Range(5, 12, 3).node()->cardinality() == 3);
  CHECK(Pipeline::Range(5, -2, -3).node()->cardinality() == 3);
}

TEST_CASE("batches hold rows, and the last one what is left", "[pipeline][unit]") {
  CHECK(All(Range(5).Batch(2)) == Batches{{0, 1}, {2, 3}, {4}});
  CHECK(All(Range(5).Batch(2, true)) == Batches{{0, 1}, {2, 3}});
  CHECK(All(Range(4).Batch(2)) == Batches{{0, 1}, {2, 3}});
  CHECK(All(Range(8).Batch(2).Batch(2)) == Batches{{0, 1, 2, 3}, {4, 5, 6, 7}});
}

TEST_CASE("elements of different shapes make no batch, and the error names both",
          "[pipeline][unit]") {
  const Status error = ErrorOf(Range(5).Batch(2).Batch(3));

  CHECK(error.code() == StatusCode::kInvalidArgument);
  CHECK(Mentions(error, "value int64 [1] after value int64 [2]"));
}

TEST_CASE("rows of buffers are elements, and batches of them are copies", "[pipeline][unit]") {
  const Pipeline slices =
      Pipeline::Slices({.columns = {MakeColumn<float>("x", {3, 2}, {1, 2, 3, 4, 5, 6}),
                                    MakeColumn<std::int64_t>("y", {3}, {7, 8, 9})}});

  auto iterator = Open(slices.Batch(2));
  const Element batch = **iterator->Next();
  auto rows = Open(slices);
  const Element row = **rows->Next();

  REQUIRE(batch.columns.size() == 2);
  CHECK(batch.columns[0].info.shape == std::vector<std::int64_t>{2, 2});
  CHECK(batch.columns[0].as<float>()[3] == 4);
  CHECK(batch.columns[1].as<std::int64_t>()[1] == 8);
  CHECK(row.columns[0].info.shape == std::vector<std::int64_t>{2});
  CHECK(row.columns[1].info.shape.empty());
  CHECK(batch.columns[0].data != row.columns[0].data);
  CHECK(slices.node()->cardinality() == 3);
  CHECK(ErrorOf(Pipeline::Slices(Scalar<float>(1))).code() == StatusCode::kInvalidArgument);
}

TEST_CASE("strings go through a pipeline like numbers", "[pipeline][unit]") {
  auto iterator = Open(Pipeline::FileNames({"a", "b", "c"}).Batch(2));
  const Element first = **iterator->Next();

  CHECK(first.columns[0].info.dtype == DType::kString);
  CHECK(first.columns[0].as<std::string>()[1] == "b");
}

TEST_CASE("map, filter, take, skip, concatenate and repeat", "[pipeline][unit]") {
  CHECK(AllNumbers(Range(4).Map(Times(10))) == Numbers{0, 10, 20, 30});
  CHECK(AllNumbers(Range(7).Filter(Odd())) == Numbers{1, 3, 5});
  CHECK(AllNumbers(Range(9).Take(2)) == Numbers{0, 1});
  CHECK(AllNumbers(Range(2).Take(5)) == Numbers{0, 1});
  CHECK(AllNumbers(Range(5).Skip(3)) == Numbers{3, 4});
  CHECK(AllNumbers(Range(5).Skip(7)).empty());
  CHECK(AllNumbers(Range(2).Concatenate(Pipeline::Range(7, 9))) == Numbers{0, 1, 7, 8});
  CHECK(AllNumbers(Range(2).Repeat(3)) == Numbers{0, 1, 0, 1, 0, 1});
  CHECK(AllNumbers(Range(2).Repeat(0)).empty());
  CHECK(AllNumbers(Range(2).Repeat().Take(5)) == Numbers{0, 1, 0, 1, 0});
}

TEST_CASE("repeating nothing for ever is nothing", "[pipeline][unit]") {
  CHECK(AllNumbers(Range(0).Repeat()).empty());
  CHECK(AllNumbers(Range(5).Filter([](const Element&) -> Result<bool> { return false; }).Repeat())
            .empty());
}

TEST_CASE("zip ends with its shortest input and numbers its columns", "[pipeline][unit]") {
  auto iterator = Open(Pipeline::Zip({Range(3), Range(5).Map(Times(2)), Range(9)}));
  const Element first = **iterator->Next();
  const Element second = **iterator->Next();

  REQUIRE(second.columns.size() == 3);
  CHECK(second.columns[1].info.name == "1");
  CHECK(*second.columns[1].as<std::int64_t>() == 2);
  CHECK(testing::Rest(*iterator).size() == 1);
}

TEST_CASE("flat_map and interleave expand elements in order", "[pipeline][unit]") {
  const ExpandFunction three = [](const Element& element) -> Result<Pipeline> {
    return Pipeline::Range(3 * Number(element) + 1, 3 * Number(element) + 4);
  };
  Pipeline::InterleaveOptions two;
  two.cycle_length = 2;
  Pipeline::InterleaveOptions blocks = two;
  blocks.block_length = 2;
  Pipeline::InterleaveOptions parallel = blocks;
  parallel.parallel = true;

  CHECK(AllNumbers(Range(3).FlatMap(three)) == Sequence(1, 10));
  CHECK(AllNumbers(Range(3).Interleave(three, two)) == Numbers{1, 4, 2, 5, 3, 6, 7, 8, 9});
  CHECK(AllNumbers(Range(3).Interleave(three, blocks)) == Numbers{1, 2, 4, 5, 3, 6, 7, 8, 9});
  CHECK(AllNumbers(Range(3).Interleave(three, parallel)) ==
        AllNumbers(Range(3).Interleave(three, blocks)));
}

TEST_CASE("a shuffle gives each element once, in another order", "[pipeline][unit]") {
  const Numbers shuffled = AllNumbers(Range(1000).Shuffle(100, Seeded(7)));

  CHECK(shuffled != Sequence(0, 1000));
  CHECK(std::set<std::int64_t>(shuffled.begin(), shuffled.end()).size() == 1000);
  CHECK(AllNumbers(Range(1000).Shuffle(100, Seeded(7))) == shuffled);
  CHECK(AllNumbers(Range(1000).Shuffle(100, Seeded(8))) != shuffled);
  CHECK(AllNumbers(Range(1000).Shuffle(100)) != AllNumbers(Range(1000).Shuffle(100)));
  // An element cannot come before the buffer has reached it.
  for (std::size_t i = 0; i < shuffled.size(); ++i) {
    CHECK(shuffled[i] < static_cast<std::int64_t>(i) + 100);
  }
}

TEST_CASE("the order of a shuffle is part of saved positions: it never changes",
          "[pipeline][unit]") {
  CHECK(AllNumbers(Range(10).Shuffle(5, Seeded(42, false))) ==
        Numbers{1, 5, 2, 0, 3, 7, 9, 6, 8, 4});
}

TEST_CASE("shuffle reshuffles each pass, unless told not to", "[pipeline][unit][spec][INP-22]") {
  const auto epochs = [](const Pipeline& pipeline) {
    const Numbers both = AllNumbers(pipeline.Repeat(2));
    return std::pair(Numbers(both.begin(), both.begin() + 100),
                     Numbers(both.begin() + 100, both.end()));
  };
  const auto [first, second] = epochs(Range(100).Shuffle(100));
  const auto [same, again] =
      epochs(Range(100).Shuffle(100, {.seed = {}, .reshuffle_each_iteration = false}));

  CHECK(first != second);
  CHECK(same == again);
  // The same of two iterations of one dataset.
  const Pipeline reshuffled = Range(100).Shuffle(100);
  CHECK(AllNumbers(reshuffled, {.pass = 0}) != AllNumbers(reshuffled, {.pass = 1}));
  const Pipeline fixed = Range(100).Shuffle(100, Seeded(3, false));
  CHECK(AllNumbers(fixed, {.pass = 0}) == AllNumbers(fixed, {.pass = 1}));
}

TEST_CASE("a cache after a shuffle: identical epochs", "[pipeline][unit][spec][INP-21]") {
  const Pipeline cached = Range(50).Shuffle(50).Cache();
  const Numbers both = AllNumbers(cached.Repeat(2));

  REQUIRE(both.size() == 100);
  CHECK(Numbers(both.begin(), both.begin() + 50) == Numbers(both.begin() + 50, both.end()));
  CHECK(Numbers(both.begin(), both.begin() + 50) == AllNumbers(cached, {.pass = 5}));
}

TEST_CASE("a cache that each opening fills with another order keeps the last ones",
          "[pipeline][unit]") {
  std::vector<std::weak_ptr<const void>> made;
  const Pipeline inner = Range(3)
                             .Shuffle(3)
                             .Map([&](const Element& element, const std::stop_token&) {
                               Element own = element;
                               Column& column = own.columns[0];
                               const auto number =
                                   std::make_shared<const std::int64_t>(*column.as<std::int64_t>());
                               column.data = reinterpret_cast<const std::byte*>(number.get());
                               column.owner = number;
                               made.push_back(number);
                               return Result<Element>(own);
                             })
                             .Cache();
  const Pipeline outer = Range(20).FlatMap([&](const Element&) { return inner; });

  CHECK(AllNumbers(outer).size() == 60);

  const auto held =
      std::count_if(made.begin(), made.end(), [](const auto& number) { return !number.expired(); });
  CHECK(held > 0);
  CHECK(held <= 6);
}

TEST_CASE("what is done to an element does not reach what a cache holds", "[pipeline][unit]") {
  const Pipeline cached = Range(6).Batch(2).Cache();
  for (int pass = 0; pass < 3; ++pass) {
    auto iterator = Open(cached);
    Batches seen;
    for (Item item = iterator->Next(); item.ok() && item->has_value(); item = iterator->Next()) {
      seen.push_back(RowsOf(**item));
      Column& column = (*item)->columns.at(0);
      std::memset(Writable(column), 0xff, column.bytes());
    }
    CHECK(seen == Batches{{0, 1}, {2, 3}, {4, 5}});
  }

  // The same where a later step takes several at a time.
  CHECK(All(Range(5).Cache().Batch(4).Repeat(2)) == Batches{{0, 1, 2, 3}, {4}, {0, 1, 2, 3}, {4}});
}

TEST_CASE("what a cache holds is computed once", "[pipeline][unit]") {
  std::atomic<int> calls = 0;
  const Pipeline cached = Range(10)
                              .Map([&](const Element& element, const std::stop_token&) {
                                ++calls;
                                return Result<Element>(element);
                              })
                              .Cache();

  CHECK(AllNumbers(cached.Repeat(3)).size() == 30);
  CHECK(AllNumbers(cached).size() == 10);
  CHECK(calls == 10);
  // Half a pass is not kept.
  const Pipeline other = Range(10).Cache();
  (void)AllNumbers(other.Take(5));
  CHECK(AllNumbers(other) == Sequence(0, 10));
}

TEST_CASE("a parallel map keeps the order, whoever is ready first", "[pipeline][unit]") {
  // Even elements finish only after the odd one that follows has begun.
  std::atomic<int> begun = 0;
  const auto map = [&](const Element& element, const std::stop_token&) -> Result<Element> {
    const int number = static_cast<int>(Number(element));
    ++begun;
    if (number % 2 == 0 && number < 198) {
      while (begun.load() < number + 2) std::this_thread::yield();
    }
    return Scalar<std::int64_t>(number * 3);
  };

  CHECK(AllNumbers(Range(200).Map(map, Parallel(4))) == Sequence(0, 600, 3));
}

TEST_CASE("errors and exceptions of functions reach the consumer at their place",
          "[pipeline][unit]") {
  const auto fails_at_5 = [](bool throws) {
    return [throws](const Element& element, const std::stop_token&) -> Result<Element> {
      if (Number(element) == 5 && throws) throw std::runtime_error("no five");
      if (Number(element) == 5) return NotFound("no five");
      return element;
    };
  };
  for (const int threads : {1, 4}) {
    for (const bool throws : {false, true}) {
      auto iterator = Open(Range(9).Map(fails_at_5(throws), Parallel(threads)).Prefetch(2));

      for (std::int64_t i = 0; i < 5; ++i) CHECK(testing::NextOf(*iterator) == Numbers{i});
      const Status error = iterator->Next().status();
      CHECK(error.code() == (throws ? StatusCode::kUnknown : StatusCode::kNotFound));
      CHECK(Mentions(error, "no five"));
      CHECK(iterator->Next().status() == error);
      CHECK(iterator->taken() == 5);
    }
  }
}

TEST_CASE("other functions that fail", "[pipeline][unit]") {
  CHECK(ErrorOf(Range(3).Filter([](const Element&) -> Result<bool> {
          throw std::invalid_argument("bad");
        })).code() == StatusCode::kInvalidArgument);
  CHECK(ErrorOf(Range(3).FlatMap([](const Element&) -> Result<Pipeline> {
          return Pipeline::Range(1).Batch(0);
        })).code() == StatusCode::kInvalidArgument);
  CHECK(ErrorOf(Pipeline::Generator([] {
          return [](const std::stop_token&) -> Item { throw 5; };
        })).code() == StatusCode::kUnknown);
}

TEST_CASE("arguments that cannot be are remembered and reported", "[pipeline][unit]") {
  for (const Pipeline& bad :
       {Range(3).Batch(0), Range(3).Batch(-1), Range(3).Shuffle(0), Range(3).Prefetch(0),
        Range(3).Take(-1), Range(3).Skip(-2), Range(3).Repeat(-1), Range(3).Shard(0, 0),
        Range(3).Shard(2, 2), Range(3).Shard(2, -1), Pipeline::Range(0, 5, 0),
        Range(3).Map(Times(1), Parallel(0)), Pipeline::Zip({}), Range(3).Rebatch({}),
        Range(3).Rebatch({0, 0}), Range(3).Rebatch({2, -1}), Range(3).EvenRebatch(0),
        Range(3).Map(nullptr), Range(3).Batch(0).Map(Times(2)).Take(1)}) {
    CHECK(bad.status().code() == StatusCode::kInvalidArgument);
    CHECK(Iterator::Make(bad).status().code() == StatusCode::kInvalidArgument);
  }
}

TEST_CASE("the end comes again and again, and a new iterator begins anew", "[pipeline][unit]") {
  const Pipeline pipeline = Range(3).Batch(2).Prefetch(1);
  auto iterator = Open(pipeline);

  CHECK(testing::Rest(*iterator) == Batches{{0, 1}, {2}});
  CHECK_FALSE(testing::NextOf(*iterator).has_value());
  CHECK_FALSE(testing::NextOf(*iterator).has_value());
  CHECK(All(pipeline) == Batches{{0, 1}, {2}});
}

TEST_CASE("nothing is read before it is asked for", "[pipeline][unit]") {
  std::atomic<int> read = 0;
  const Pipeline source = Pipeline::Generator([&] {
    return [&, n = std::int64_t{0}](const std::stop_token&) mutable -> Item {
      ++read;
      return Scalar<std::int64_t>(n++);
    };
  });

  auto iterator = Open(source.Batch(3).Rebatch({2, 1}));
  CHECK(read == 0);
  CHECK(testing::NextOf(*iterator) == Numbers{0, 1});
  CHECK(read == 3);
  CHECK(testing::NextOf(*iterator) == Numbers{2});
  CHECK(read == 3);
}

TEST_CASE("records of files are elements", "[pipeline][unit]") {
  const testing::TempFiles files;
  std::string text = "id\n";
  for (int i = 0; i < 200; ++i) text += std::to_string(i) + "\n";
  v1::DataSpec spec;
  spec.mutable_csv()->add_files(files.Write("numbers.csv", text));
  (*spec.mutable_csv()->mutable_columns())["id"].set_dtype(v1::DTYPE_INT64);
  const Pipeline records = Pipeline::Records(spec, files.CacheDirectory());

  REQUIRE(records.status().ok());
  CHECK(records.node()->cardinality() == 200);
  CHECK(AllNumbers(records) == Sequence(0, 200));
  CHECK(All(records.Batch(150))[1] == Sequence(150, 200));
  CHECK(AllNumbers(records.Skip(190)) == Sequence(190, 200));
  spec.mutable_csv()->set_files(0, files.Path("none.csv"));
  CHECK(ErrorOf(Pipeline::Records(spec, files.CacheDirectory())).code() == StatusCode::kNotFound);
  CHECK(ErrorOf(Pipeline::ListFiles({files.Path("*.none")})).code() == StatusCode::kNotFound);
}

TEST_CASE("files are listed whatever is in them: who reads them may know more forms",
          "[pipeline][unit]") {
  using namespace std::string_view_literals;
  const testing::TempFiles files;
  const std::vector<std::string> paths = {files.Write("a.pt", "PK\x03\x04\x14\0\0\0\x08\0"sv),
                                          files.Write("b.xz", "\xFD\x37zXZ\0\0\x04\xe6"sv),
                                          files.Write("c.gz", "a name is free")};
  const Pipeline listed = Pipeline::ListFiles({files.Path("?.*")});

  REQUIRE(listed.status().ok());
  auto names = testing::Open(listed);
  for (const std::string& path : paths) {
    const Item name = names->Next();
    REQUIRE((name.ok() && name->has_value()));
    CHECK(*(*name)->columns[0].as<std::string>() == path);
  }
  // The readers here refuse them as before.
  v1::DataSpec spec;
  spec.mutable_text()->add_files(files.Path("a.pt"));
  CHECK(Mentions(ErrorOf(Pipeline::Records(spec, files.CacheDirectory())), "zip archive"));
}

TEST_CASE("how many elements there are, where that is known", "[pipeline][unit]") {
  const auto count = [](const Pipeline& pipeline) { return pipeline.node()->cardinality(); };

  CHECK(count(Range(10).Batch(4)) == 3);
  CHECK(count(Range(10).Batch(4, true)) == 2);
  CHECK(count(Range(10).Repeat(3)) == 30);
  CHECK(count(Range(10).Repeat()) == kInfinite);
  CHECK(count(Range(0).Repeat()) == 0);
  CHECK(count(Range(10).Repeat().Take(7)) == 7);
  CHECK(count(Range(10).Filter(Odd())) == kUnknownCardinality);
  CHECK(count(Range(10).Shard(3, 0)) == 4);
  CHECK(count(Range(10).Shard(3, 1)) == 3);
  CHECK(count(Range(10).Skip(4).Concatenate(Range(3))) == 9);
  CHECK(count(Pipeline::Zip({Range(10).Repeat(), Range(3)})) == 3);
  CHECK(count(Range(10).Batch(5, true).EvenRebatch(2)) == 4);
}

TEST_CASE("a graph can be read, and its fingerprint says what matters", "[pipeline][unit]") {
  const Pipeline pipeline = Range(10).Map(Times(2), Parallel(3)).Shuffle(5, Seeded(1)).Batch(2);

  CHECK(ToText(*pipeline.node()) ==
        "batch(2)\n  shuffle(5, seed=1)\n    map(map) parallel=3\n      range(0, 10, 1)\n");
  const auto print = [](const Pipeline& one) { return Fingerprint(*one.node()); };
  CHECK(print(pipeline) ==
        print(Range(10).Map(Times(3)).Shuffle(5, Seeded(1)).Batch(2).Prefetch(3)));
  CHECK(print(pipeline) != print(Range(10).Map(Times(2)).Shuffle(5, Seeded(2)).Batch(2)));
  CHECK(print(pipeline) != print(Range(11).Map(Times(2)).Shuffle(5, Seeded(1)).Batch(2)));
  CHECK(print(Range(3).Shuffle(2)) == print(Range(3).Shuffle(2)));
}

TEST_CASE("a step of the user's own", "[pipeline][unit]") {
  class Twice final : public NodeIterator {
   public:
    explicit Twice(std::unique_ptr<NodeIterator> input) : input_(std::move(input)) {}
    Item Next() override {
      if (held_) return std::exchange(held_, std::nullopt);
      MUSTER_TRY_ASSIGN(held_, input_->Next());
      return held_;
    }

   private:
    std::unique_ptr<NodeIterator> input_;
    std::optional<Element> held_;
  };
  const Pipeline twice =
      Range(2).Custom("twice",
                      [](std::unique_ptr<NodeIterator> input,
                         const IteratorContext&) -> Result<std::unique_ptr<NodeIterator>> {
                        return std::make_unique<Twice>(std::move(input));
                      },
                      {});

  CHECK(AllNumbers(twice) == Numbers{0, 0, 1, 1});
}

}  // namespace
}  // namespace muster::data::testing
