#include <map>
#include <numeric>
#include <set>

#include "muster/v1/job_spec.pb.h"
#include "tests/support/catch.h"
#include "tests/unit/common/data/pipeline/pipelines.h"
#include "tests/unit/common/data/temp_files.h"

namespace muster::data::testing {
namespace {

constexpr auto kAuto = AutoShardPolicy::kAuto;
constexpr auto kFile = AutoShardPolicy::kFile;
constexpr auto kData = AutoShardPolicy::kData;
constexpr auto kOff = AutoShardPolicy::kOff;
constexpr auto kHint = AutoShardPolicy::kHint;

Pipeline Sharded(const Pipeline& pipeline, int workers, int index,
                 std::optional<AutoShardPolicy> policy = std::nullopt) {
  auto sharded = AutoShard(pipeline, {.workers = workers, .index = index}, policy);
  INFO(ToString(sharded.status()));
  REQUIRE(sharded.ok());
  return sharded->pipeline;
}

StatusCode CodeOf(const Pipeline& pipeline, int workers, int index, AutoShardPolicy policy) {
  return AutoShard(pipeline, {.workers = workers, .index = index}, policy).status().code();
}

// 10 CSV files of 10 records; record r of file f is 10 f + r.
struct TenFiles {
  testing::TempFiles files;
  v1::DataSpec spec;
  TenFiles() {
    for (int f = 0; f < 10; ++f) {
      std::string text = "id\n";
      for (int r = 0; r < 10; ++r) text += std::to_string(10 * f + r) + "\n";
      spec.mutable_csv()->add_files(files.Write("part-" + std::to_string(f) + ".csv", text));
    }
    (*spec.mutable_csv()->mutable_columns())["id"].set_dtype(v1::DTYPE_INT64);
  }
  ExpandFunction Reader() const {
    return [this](const Element& name) -> Result<Pipeline> {
      v1::DataSpec one = spec;
      one.mutable_csv()->clear_files();
      one.mutable_csv()->add_files(*name.columns[0].as<std::string>());
      return Pipeline::Records(one, files.CacheDirectory());
    };
  }
};

TEST_CASE("listed files read by flat_map are shared out whole", "[pipeline][unit][spec][SHD-01]") {
  const TenFiles ten;
  const Pipeline batches =
      Pipeline::ListFiles({ten.files.Path("part-*.csv")}).FlatMap(ten.Reader()).Batch(5);

  const Batches seen = All(Sharded(batches, 5, 3));

  CHECK(seen == Batches{Sequence(30, 35), Sequence(35, 40), Sequence(80, 85), Sequence(85, 90)});
  CHECK(All(Sharded(batches, 4, 1)).size() == 6);  // files 1, 5, 9
}

TEST_CASE("file names that are a dataset are sharded, a reader's own are not",
          "[pipeline][unit][spec][SHD-02]") {
  const TenFiles ten;
  const std::vector<std::string> names(ten.spec.csv().files().begin(),
                                       ten.spec.csv().files().end());
  Numbers files_0_and_5 = Sequence(0, 10);
  for (const std::int64_t n : Sequence(50, 60)) files_0_and_5.push_back(n);

  CHECK(AllNumbers(Sharded(Pipeline::FileNames(names).FlatMap(ten.Reader()), 5, 0)) ==
        files_0_and_5);
  const auto direct = AutoShard(Pipeline::Records(ten.spec, ten.files.CacheDirectory()),
                                {.workers = 5, .index = 0});
  REQUIRE(direct.ok());
  CHECK(direct->choice.by == ShardBy::kData);
  CHECK(AllNumbers(direct->pipeline) == Sequence(0, 100, 5));  // records 0 and 5 of every file
}

TEST_CASE("interleaved files are shared out, then interleaved", "[pipeline][unit][spec][SHD-03]") {
  const ExpandFunction three = [](const Element& element) -> Result<Pipeline> {
    const std::int64_t file = std::stoll(*element.columns[0].as<std::string>());
    return Pipeline::Range(3 * file + 1, 3 * file + 4);
  };

  CHECK(AllNumbers(Sharded(Files(3).Interleave(three, {}), 2, 0)) == Numbers{1, 7, 2, 8, 3, 9});
  CHECK(AllNumbers(Sharded(Files(3).Interleave(three, {}), 2, 1)) == Numbers{4, 5, 6});
}

TEST_CASE("both branches of a zip or concatenation are sharded by file",
          "[pipeline][unit][spec][SHD-04]") {
  const Pipeline reader = Files(10).FlatMap(ReadFile());
  Numbers own = Sequence(30, 40);
  for (const std::int64_t n : Sequence(80, 90)) own.push_back(n);
  Numbers twice = own;
  twice.insert(twice.end(), own.begin(), own.end());

  auto zipped = testing::Open(Sharded(Pipeline::Zip({reader, reader.Map(Times(2))}), 5, 3));
  std::size_t count = 0;
  for (; count < own.size(); ++count) {
    const Item item = zipped->Next();
    REQUIRE((item.ok() && item->has_value()));
    CHECK(*(*item)->columns[0].as<std::int64_t>() == own[count]);
    CHECK(*(*item)->columns[1].as<std::int64_t>() == 2 * own[count]);
  }
  CHECK_FALSE(testing::NextOf(*zipped).has_value());
  CHECK(AllNumbers(Sharded(reader.Concatenate(reader), 5, 3)) == twice);
  // A branch without files: by data.
  CHECK(AllNumbers(Sharded(Pipeline::Zip({reader, Range(100)}), 5, 3)) == Sequence(3, 100, 5));
}

TEST_CASE("FILE without a reader is not found", "[pipeline][unit][spec][SHD-05]") {
  CHECK(CodeOf(Range(10), 2, 0, kFile) == StatusCode::kNotFound);
  CHECK(CodeOf(Range(10).Batch(2).Prefetch(1), 3, 1, kFile) == StatusCode::kNotFound);
}

TEST_CASE("files are shared out below a custom step only where it says that they may be",
          "[pipeline][unit]") {
  const Pipeline reader = Files(10).FlatMap(ReadFile());
  const auto same = [](std::unique_ptr<NodeIterator> input,
                       const IteratorContext&) -> Result<std::unique_ptr<NodeIterator>> {
    return input;
  };
  const Pipeline open = reader.Custom("pairs", same, {.spec = {}, .passes_files = true});
  const Pipeline hidden = reader.Custom("until", same, {.spec = {}}).Batch(10);

  CHECK(AllNumbers(Sharded(open, 5, 3, kFile)) == AllNumbers(Sharded(reader, 5, 3, kFile)));
  const Status refused = AutoShard(hidden, {.workers = 2, .index = 0}, kFile).status();
  CHECK(refused.code() == StatusCode::kNotFound);
  CHECK(Mentions(refused, "sharding by file over 2 workers is not possible through custom(until)"));
  const auto fallen = AutoShard(hidden, {.workers = 2, .index = 0}, kAuto);
  REQUIRE(fallen.ok());
  CHECK(fallen->choice.fell_back);
  CHECK(fallen->choice.hider_of_files == "custom(until)");
}

TEST_CASE("AUTO without a reader is by data", "[pipeline][unit][spec][SHD-06]") {
  const auto sharded = AutoShard(Range(1024), {.workers = 2, .index = 0}, kAuto);

  REQUIRE(sharded.ok());
  CHECK(AllNumbers(sharded->pipeline) == Sequence(0, 1024, 2));
  CHECK(sharded->choice.fell_back);
}

TEST_CASE("DATA takes every workers-th record, and stands before a trailing prefetch",
          "[pipeline][unit][spec][SHD-07]") {
  const Pipeline stream = Files(10).FlatMap(ReadFile()).Prefetch(4);
  const Pipeline sharded = Sharded(stream, 3, 1, kData);

  CHECK(AllNumbers(sharded) == Sequence(1, 100, 3));
  CHECK(sharded.node()->kind() == NodeKind::kPrefetch);
  CHECK(sharded.node()->inputs()[0]->kind() == NodeKind::kShard);
  CHECK(sharded.node()->inputs()[0]->inputs()[0]->kind() == NodeKind::kFlatMap);
  CHECK(Sharded(Range(9).Batch(2), 3, 1, kData).node()->kind() == NodeKind::kShard);
}

TEST_CASE("OFF leaves everything to everybody", "[pipeline][unit][spec][SHD-08]") {
  const Pipeline reader = Files(10).FlatMap(ReadFile());

  for (int worker = 0; worker < 3; ++worker) {
    CHECK(AllNumbers(Sharded(reader, 3, worker, kOff)) == Sequence(0, 100));
    CHECK(AllNumbers(Sharded(reader.WithPolicy(kOff), 3, worker)) == Sequence(0, 100));
  }
}

TEST_CASE("HINT fills in the placeholder, and only that", "[pipeline][unit][spec][SHD-09]") {
  const Pipeline hinted = Range(100).ShardPlaceholder();

  CHECK(AllNumbers(Sharded(hinted, 10, 0, kHint)) == Sequence(0, 100, 10));
  CHECK(AllNumbers(Sharded(hinted.Map(Times(2)), 10, 3, kHint)) == Sequence(6, 200, 20));
  CHECK(AllNumbers(Sharded(Range(100), 10, 0, kHint)) == Sequence(0, 100));
  CHECK(ErrorOf(hinted).code() == StatusCode::kInvalidArgument);
  CHECK(Mentions(ErrorOf(hinted), "HINT"));
}

TEST_CASE("more workers than files is an empty stream, than elements an error",
          "[pipeline][unit][spec][SHD-10]") {
  const Pipeline reader = Files(3).FlatMap(ReadFile());

  CHECK(AllNumbers(Sharded(reader, 5, 4, kFile)).empty());
  CHECK(AllNumbers(Sharded(reader, 5, 2, kFile)) == Sequence(20, 30));
  for (int worker = 0; worker < 5; ++worker) {
    const Status error = ErrorOf(Sharded(Range(3), 5, worker, kData));
    CHECK(error.code() == StatusCode::kInvalidArgument);
    CHECK(Mentions(error, "aren't enough elements"));
  }
  CHECK(AllNumbers(Sharded(Range(5), 5, 4, kData)) == Numbers{4});
}

TEST_CASE("the files of a pipeline are counted where they are shared out",
          "[pipeline][unit][spec][SHD-10]") {
  const auto files = [](const Pipeline& pipeline) {
    return AutoShard(pipeline, {.workers = 4, .index = 3}, kFile).value().choice.files;
  };
  const Pipeline three = Files(3).FlatMap(ReadFile());
  const Pipeline two = Files(2).FlatMap(ReadFile());

  CHECK(files(three.Batch(2)) == 3);
  CHECK(files(Files(3).Shuffle(3).Repeat().FlatMap(ReadFile())) == 3);
  // The names of two lists are one stream: worker 3 reads the fourth of them.
  const Pipeline joined = Files(3).Concatenate(Files(2)).FlatMap(ReadFile());
  CHECK(files(joined) == 5);
  CHECK(AllNumbers(Sharded(joined, 4, 3)) == Sequence(0, 10));
  CHECK(files(Files(9).Take(1).FlatMap(ReadFile())) == 1);
  CHECK(files(Files(9).Skip(7).FlatMap(ReadFile())) == 2);
  const FilterFunction any = [](const Element&) -> Result<bool> { return true; };
  CHECK(files(Files(9).Filter(any).FlatMap(ReadFile())) == -1);
  // With two readers a worker has some where one of them has; with a zip only where both have.
  CHECK(files(two.Concatenate(three)) == 3);
  CHECK(AllNumbers(Sharded(two.Concatenate(three), 3, 2)) == Sequence(20, 30));
  CHECK(files(Pipeline::Zip({three, two})) == 2);
}

TEST_CASE("empty data ends, it is no error", "[pipeline][unit][spec][SHD-11]") {
  CHECK(AllNumbers(Sharded(Range(0), 5, 2, kAuto)).empty());
  CHECK(AllNumbers(Sharded(Range(0).Batch(4), 5, 2, kData)).empty());
  CHECK(AllNumbers(Sharded(Files(10).FlatMap(ReadFile(0)), 5, 2, kFile)).empty());
}

TEST_CASE("a worker that is none of them is refused", "[pipeline][unit][spec][SHD-12]") {
  for (const auto policy : {kAuto, kFile, kData, kOff, kHint}) {
    CHECK(CodeOf(Range(9), 2, 2, policy) == StatusCode::kInvalidArgument);
    CHECK(CodeOf(Range(9), 0, 0, policy) == StatusCode::kInvalidArgument);
    CHECK(CodeOf(Range(9), -1, 0, policy) == StatusCode::kInvalidArgument);
    CHECK(CodeOf(Range(9), 2, -1, policy) == StatusCode::kInvalidArgument);
  }
  CHECK(RebatchForReplicas(Range(9).Batch(3), {.workers = 2, .index = 0}, -1).status().code() ==
        StatusCode::kInvalidArgument);
}

TEST_CASE("behind an unknown step the shard stands at the end", "[pipeline][unit][spec][SHD-13]") {
  const Pipeline unknown =
      Files(10)
          .FlatMap(ReadFile())
          .Custom("mine",
                  [](std::unique_ptr<NodeIterator> input, const IteratorContext&) {
                    return Result<std::unique_ptr<NodeIterator>>(std::move(input));
                  },
                  {});

  const auto sharded = AutoShard(unknown.Map(Times(1)), {.workers = 2, .index = 1}, kAuto);
  REQUIRE(sharded.ok());
  CHECK(sharded->pipeline.node()->kind() == NodeKind::kShard);
  CHECK(AllNumbers(sharded->pipeline) == Sequence(1, 100, 2));
  CHECK(CodeOf(unknown, 2, 1, kFile) == StatusCode::kNotFound);
}

TEST_CASE("sharded by file, each worker cuts its own files by its own list",
          "[pipeline][unit][spec][SHD-14]") {
  // One file of five records for each of three workers.
  const Pipeline batches = Files(3).FlatMap(ReadFile(5)).Batch(5);
  const auto rebatched = RebatchForReplicas(batches, {.workers = 3, .index = 1}, 1);
  REQUIRE(rebatched.ok());

  const Batches pieces = All(Sharded(*rebatched, 3, 1));

  CHECK(pieces == Batches{{5, 6}, {7}, {8, 9}});
  CHECK(pieces[0].size() == 2);
  CHECK(pieces[1].size() == 1);
  CHECK(pieces[2].size() == 2);
}

TEST_CASE("sharded by data, batches are split evenly", "[pipeline][unit][spec][SHD-15]") {
  const auto of_worker = [](int index) {
    return All(Sharded(*RebatchForReplicas(Range(8).Batch(4), {.workers = 3, .index = index}, 1), 3,
                       index, kData));
  };

  CHECK(of_worker(0) == Batches{{0, 1}, {4, 5}});
  CHECK(of_worker(1) == Batches{{2, 3}, {6, 7}});
  CHECK(of_worker(2) == Batches{{}, {}});
}

TEST_CASE("the shards of two workers have nothing in common", "[pipeline][unit][spec][SHD-16]") {
  // Each worker builds the pipeline by itself, so their shuffles draw seeds of their own.
  const auto of_worker = [](int index, AutoShardPolicy policy, bool shuffled_names) {
    Pipeline names = Files(10);
    if (shuffled_names) names = names.Shuffle(10);
    return AllNumbers(Sharded(names.FlatMap(ReadFile()).Batch(3), 2, index, policy));
  };
  for (const auto policy : {kData, kFile}) {
    Numbers both = of_worker(0, policy, policy == kFile);
    const Numbers second = of_worker(1, policy, policy == kFile);
    CHECK((both.size() > 40 && second.size() > 40));
    both.insert(both.end(), second.begin(), second.end());
    CHECK(both.size() == 100);
    CHECK(std::set<std::int64_t>(both.begin(), both.end()).size() == 100);
  }
}

TEST_CASE("an order that was drawn below the shard is told: no worker has another's",
          "[pipeline][unit]") {
  const auto drawn = [](const Pipeline& pipeline, AutoShardPolicy policy, int workers = 2) {
    return AutoShard(pipeline, {.workers = workers, .index = 0}, policy).value().drawn_order;
  };
  const Pipeline shuffled = Files(10).Shuffle(10);
  const Pipeline sampled = Pipeline::Sample({Range(4), Range(5)}, {.weights = {1, 1}});

  CHECK(drawn(Range(9).Shuffle(4).Batch(2).Prefetch(1), kData) == "shuffle(4)");
  CHECK(drawn(Range(9).Shuffle(4), kAuto) == "shuffle(4)");
  CHECK(drawn(sampled, kData) == "sample(weights=[1, 1])");
  CHECK(drawn(shuffled.FlatMap(ReadFile()), kData) == "shuffle(10)");
  CHECK(drawn(shuffled.Take(4).FlatMap(ReadFile()), kFile) == "shuffle(10)");
  CHECK(drawn(Range(9).Shuffle(4, Seeded(1)), kData).empty());
  CHECK(drawn(Range(9).Batch(2), kData).empty());
  // Each worker orders what is its own.
  CHECK(drawn(shuffled.FlatMap(ReadFile()).Shuffle(7), kFile).empty());
  // Nothing is shared out.
  CHECK(drawn(Range(9).Shuffle(4), kOff).empty());
  CHECK(drawn(Range(9).Shuffle(4), kData, 1).empty());
}

TEST_CASE("one worker by file: nothing is changed", "[pipeline][unit][spec][SHD-17]") {
  const Pipeline plain = Range(10).Batch(3);
  const Pipeline reader = Files(4).FlatMap(ReadFile());

  CHECK(Sharded(plain, 1, 0, kFile).node() == plain.node());
  CHECK(Sharded(reader, 1, 0, kFile).node() == reader.node());
  CHECK(AllNumbers(Sharded(reader, 1, 0, kFile)) == Sequence(0, 40));
}

TEST_CASE("a shuffle of file names stays above the shard", "[pipeline][unit]") {
  const Pipeline sharded = Sharded(
      Files(10)
          .Shuffle(10, Seeded(1))
          .Map([](const Element& name, const std::stop_token&) { return Result<Element>(name); })
          .FlatMap(ReadFile()),
      2, 0);

  CHECK(ToText(*sharded.node()).find("      shuffle(10, seed=1)") == std::string::npos);
  CHECK(ToText(*sharded.node())
            .find("    shuffle(10, seed=1)\n      shard(2, 0)\n        file_names") !=
        std::string::npos);
}

TEST_CASE("the policy that a pipeline carries counts when none is given", "[pipeline][unit]") {
  const Pipeline reader = Files(10).FlatMap(ReadFile());

  CHECK(AllNumbers(Sharded(reader.WithPolicy(kData).Prefetch(1), 5, 0)) == Sequence(0, 100, 5));
  CHECK(CodeOf(Range(9).WithPolicy(kFile), 2, 0, kAuto) == StatusCode::kOk);
  CHECK(AutoShard(Range(9).WithPolicy(kFile), {.workers = 2, .index = 0}).status().code() ==
        StatusCode::kNotFound);
}

TEST_CASE("shards of any length add up to the whole", "[pipeline][unit]") {
  for (const std::int64_t count : {0, 1, 2, 5, 6, 7}) {
    for (const int workers : {1, 2, 3}) {
      std::map<std::int64_t, int> seen;
      for (int worker = 0; worker < workers; ++worker) {
        for (const std::int64_t n : AllNumbers(Range(count).Shard(workers, worker))) ++seen[n];
      }
      CHECK(seen.size() == static_cast<std::size_t>(count));
      for (const auto& [n, times] : seen) CHECK(times == 1);
    }
  }
}

}  // namespace
}  // namespace muster::data::testing
