#include "common/data/rebatch.h"

#include <numeric>
#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace muster::data {
namespace {

// The numbers are those of the behaviours of distributed input (INP, SHD). A row whose behaviour is
// a whole pipeline's carries its tag where that pipeline is tested; here only its arithmetic is.

using Sizes = std::vector<std::int64_t>;
using Lists = std::vector<Sizes>;  // elements of each piece

Lists Elements(const std::vector<Piece>& pieces) {
  Lists lists;
  for (const Piece& piece : pieces) {
    Sizes list(static_cast<std::size_t>(piece.size()));
    std::iota(list.begin(), list.end(), piece.begin);
    lists.push_back(std::move(list));
  }
  return lists;
}

Sizes Rebatched(std::int64_t batch, int workers, int replicas, int index) {
  return RebatchSizes(batch, {.workers = workers, .index = index}, replicas).value();
}

// Sharding by data: every batch split evenly over all replicas, each workers-th piece to this one.
Lists ByData(const Sizes& batches, int workers, int replicas, int index) {
  const std::vector<Piece> pieces = CutEvenly(batches, workers * replicas).value();
  return Elements(TakeShard(pieces, {.workers = workers, .index = index}).value());
}

TEST_CASE("an input context knows its place and its share", "[data][unit][spec][INP-01]") {
  const InputContext context = InputContext::Create(2, 1, 6).value();

  CHECK(context.num_pipelines() == 2);
  CHECK(context.pipeline_id() == 1);
  CHECK(context.num_replicas_in_sync() == 6);
  CHECK(context.PerReplicaBatchSize(12).value() == 2);
  CHECK(context.PerReplicaBatchSize(600).value() == 100);
  const Status status = context.PerReplicaBatchSize(13).status();
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(Message(status).find("13 is not divisible by 6") != std::string::npos);
}

TEST_CASE("one worker and one replica are told of in the singular", "[data][unit]") {
  CHECK(Message(RebatchSizes(8, {.workers = 1}, 0).status()) ==
        "replicas_per_worker is 0 on 1 worker; 1 to 1048576 in all are allowed");
  CHECK(Message(InputContext::Create(1, 0, 1)->PerReplicaBatchSize(-3).status()) ==
        "a global batch of -3 is not divisible by 1 replica in sync");
}

TEST_CASE("an input context as text", "[data][unit][spec][INP-02]") {
  CHECK(InputContext::Create(3, 1, 1).value().ToString() ==
        "tf.distribute.InputContext(input pipeline id 1, total: 3)");
  CHECK(InputContext::Create(7, 0, 1).value().ToString() ==
        "tf.distribute.InputContext(input pipeline id 0, total: 7)");
}

TEST_CASE("rebatch sizes begin with the worker's own replicas", "[data][unit]") {
  CHECK(Rebatched(7, 2, 2, 0) == Sizes{2, 2, 2, 1});
  CHECK(Rebatched(7, 2, 2, 1) == Sizes{2, 1, 2, 2});
  CHECK(Rebatched(4, 3, 1, 0) == Sizes{2, 1, 1});
  CHECK(Rebatched(4, 3, 1, 1) == Sizes{1, 1, 2});
  CHECK(Rebatched(4, 3, 1, 2) == Sizes{1, 2, 1});
  CHECK(Rebatched(4, 1, 5, 0) == Sizes{1, 1, 1, 1, 0});
}

TEST_CASE("in each step all replicas take one batch together, evenly", "[data][unit]") {
  for (std::int64_t batch = 1; batch <= 20; ++batch) {
    for (int workers = 1; workers <= 4; ++workers) {
      for (int replicas = 1; replicas <= 3; ++replicas) {
        const int all = workers * replicas;
        for (int step = 0; step < workers; ++step) {
          std::int64_t sum = 0;
          for (int worker = 0; worker < workers; ++worker) {
            const Sizes sizes = Rebatched(batch, workers, replicas, worker);
            for (int r = 0; r < replicas; ++r) {
              const std::int64_t size =
                  sizes[static_cast<std::size_t>((step * replicas + r) % all)];
              CHECK((size == batch / all || size == batch / all + 1));
              sum += size;
            }
          }
          CHECK(sum == batch);
        }
      }
    }
  }
}

TEST_CASE("rebatching crosses the borders of input batches", "[data][unit]") {
  CHECK(Elements(CutCyclically(5, Rebatched(4, 1, 2, 0))) == Lists{{0, 1}, {2, 3}, {4}});
  CHECK(Elements(CutCyclically(12, {6})) == Lists{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}});
  CHECK(Elements(CutCyclically(6, Rebatched(4, 1, 5, 0))) ==
        Lists{{0}, {1}, {2}, {3}, {}, {4}, {5}});
  CHECK(CutCyclically(0, {3}).empty());
  CHECK(CutCyclically(5, {0, 0}).empty());
  CHECK(CutCyclically(5, {}).empty());
}

TEST_CASE("two replicas take halves of each batch", "[data][unit]") {
  const auto steps = IntoSteps(CutCyclically(100, Rebatched(10, 1, 2, 0)), 2);

  REQUIRE(steps.size() == 10);
  CHECK(Elements(steps[0]) == Lists{{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}});
  CHECK(Elements(steps[9]) == Lists{{90, 91, 92, 93, 94}, {95, 96, 97, 98, 99}});
}

TEST_CASE("a replica with nothing left takes an empty piece", "[data][unit]") {
  const auto steps = IntoSteps(CutCyclically(9, Rebatched(2, 1, 2, 0)), 2);

  REQUIRE(steps.size() == 5);
  CHECK(Elements(steps[3]) == Lists{{6}, {7}});
  CHECK(Elements(steps[4]) == Lists{{8}, {}});
}

TEST_CASE("two workers with one replica each, by data", "[data][unit]") {
  const Sizes batches = {2, 2, 2, 2, 1};  // range(9).batch(2)

  CHECK(ByData(batches, 2, 1, 0) == Lists{{0}, {2}, {4}, {6}, {8}});
  CHECK(ByData(batches, 2, 1, 1) == Lists{{1}, {3}, {5}, {7}, {}});
}

TEST_CASE("two workers with two replicas each, by data", "[data][unit]") {
  const Sizes batches = {4, 4, 4, 3};  // range(15).batch(4)

  CHECK(ByData(batches, 2, 2, 0) == Lists{{0}, {2}, {4}, {6}, {8}, {10}, {12}, {14}});
  CHECK(ByData(batches, 2, 2, 1) == Lists{{1}, {3}, {5}, {7}, {9}, {11}, {13}, {}});
}

TEST_CASE("the last, short batch is split evenly", "[data][unit]") {
  const Sizes batches = {8, 6};  // range(14).batch(8)

  CHECK(ByData(batches, 2, 1, 0)[1] == Sizes{8, 9, 10});
  CHECK(ByData(batches, 2, 1, 1)[1] == Sizes{11, 12, 13});
}

TEST_CASE("batches that do not divide, by data", "[data][unit]") {
  const Sizes batches = {3, 3, 2};  // range(8).batch(3)

  CHECK(ByData(batches, 2, 1, 0) == Lists{{0, 1}, {3, 4}, {6}});
  CHECK(ByData(batches, 2, 1, 1) == Lists{{2}, {5}, {7}});
}

TEST_CASE("without sharding both workers see everything, rebatched", "[data][unit]") {
  const Lists all = {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}};

  CHECK(Elements(CutCyclically(12, Rebatched(8, 2, 1, 0))) == all);
  CHECK(Elements(CutCyclically(12, Rebatched(8, 2, 1, 1))) == all);
}

TEST_CASE("a batch size that is not known is split batch by batch", "[data][unit]") {
  CHECK(Elements(CutEvenly({8, 4}, 2).value()) ==
        Lists{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}, {10, 11}});
  CHECK(EvenSplit(4, 3).value() == Sizes{2, 2, 0});
  CHECK(EvenSplit(7, 4).value() == Sizes{2, 2, 2, 1});
  CHECK(EvenSplit(1, 2).value() == Sizes{1, 0});
  CHECK(EvenSplit(0, 2).value() == Sizes{0, 0});
  CHECK(EvenSplit(5, 0).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("files go round the workers", "[data][unit]") {
  std::vector<int> files(10);
  std::iota(files.begin(), files.end(), 0);

  CHECK(TakeShard(files, {.workers = 5, .index = 3}).value() == std::vector<int>{3, 8});
  CHECK(TakeShard(files, {.workers = 4, .index = 1}).value() == std::vector<int>{1, 5, 9});
}

TEST_CASE("sharding by file needs files", "[data][unit]") {
  const Shard shard{.workers = 2, .index = 0};

  CHECK(ChooseSharding(AutoShardPolicy::kFile, shard, {}).status().code() == StatusCode::kNotFound);
  CHECK(ChooseSharding(AutoShardPolicy::kFile, shard, {.has_file_names = true}).value().by ==
        ShardBy::kFile);
}

TEST_CASE("AUTO is by file where there are files, else by data", "[data][unit]") {
  const Shard shard{.workers = 2, .index = 0};
  const ShardChoice without = ChooseSharding(AutoShardPolicy::kAuto, shard, {}).value();
  const ShardChoice with =
      ChooseSharding(AutoShardPolicy::kAuto, shard, {.has_file_names = true}).value();
  std::vector<int> numbers(1024);
  std::iota(numbers.begin(), numbers.end(), 0);

  CHECK(without.by == ShardBy::kData);
  CHECK(without.fell_back);
  CHECK(with.by == ShardBy::kFile);
  CHECK_FALSE(with.fell_back);
  const std::vector<int> even = TakeShard(numbers, shard).value();
  CHECK(even.size() == 512);
  CHECK(even[1] == 2);
  CHECK(even.back() == 1022);
}

TEST_CASE("how long a shard is", "[data][unit]") {
  for (std::int64_t elements = 0; elements < 12; ++elements) {
    std::int64_t sum = 0;
    for (int index = 0; index < 3; ++index) {
      const Shard shard{.workers = 3, .index = index};
      const std::vector<int> sequence(static_cast<std::size_t>(elements));
      const std::int64_t length = ShardLength(elements, shard).value();
      CHECK(length == static_cast<std::int64_t>(TakeShard(sequence, shard).value().size()));
      sum += length;
    }
    CHECK(sum == elements);
  }
}

TEST_CASE("OFF shards nothing, and neither does a single worker", "[data][unit]") {
  const PipelineFacts files{.has_file_names = true};

  CHECK(ChooseSharding(AutoShardPolicy::kOff, {.workers = 3, .index = 1}, files).value().by ==
        ShardBy::kNothing);
  for (const auto policy : {AutoShardPolicy::kFile, AutoShardPolicy::kAuto}) {
    CHECK(ChooseSharding(policy, {}, files).value().by == ShardBy::kNothing);
  }
  CHECK(ChooseSharding(AutoShardPolicy::kFile, {}, {}).value().by == ShardBy::kNothing);
}

TEST_CASE("HINT fills in a placeholder where there is one", "[data][unit]") {
  const Shard shard{.workers = 10, .index = 0};
  std::vector<int> numbers(100);
  std::iota(numbers.begin(), numbers.end(), 0);

  CHECK(ChooseSharding(AutoShardPolicy::kHint, shard, {.has_placeholder = true}).value().by ==
        ShardBy::kPlaceholder);
  CHECK(ChooseSharding(AutoShardPolicy::kHint, shard, {}).value().by == ShardBy::kNothing);
  CHECK(TakeShard(numbers, shard).value() ==
        std::vector<int>{0, 10, 20, 30, 40, 50, 60, 70, 80, 90});
}

TEST_CASE("more workers than files is an empty stream, than elements an error", "[data][unit]") {
  const std::vector<int> files = {0, 1, 2};

  CHECK(TakeShard(files, {.workers = 5, .index = 4}).value().empty());
  const Status status = CheckEnoughElements(3, {.workers = 5, .index = 0});
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(Message(status).find("aren't enough elements") != std::string::npos);
  CHECK(CheckEnoughElements(5, {.workers = 5, .index = 0}).ok());
}

TEST_CASE("no data is no error", "[data][unit]") {
  CHECK(CheckEnoughElements(0, {.workers = 5, .index = 0}).ok());
  CHECK(ShardLength(0, {.workers = 5, .index = 0}).value() == 0);
  CHECK(IntoSteps({}, 2).empty());
}

TEST_CASE("numbers that cannot be are refused", "[data][unit][spec][SHD-12]") {
  for (const Shard bad : {Shard{.workers = 2, .index = 2}, Shard{.workers = 0, .index = 0},
                          Shard{.workers = 2, .index = -1}, Shard{.workers = -1, .index = 0}}) {
    CHECK(CheckShard(bad).code() == StatusCode::kInvalidArgument);
    CHECK_FALSE(RebatchSizes(4, bad, 1).ok());
    CHECK_FALSE(ChooseSharding(AutoShardPolicy::kOff, bad, {}).ok());
  }
  CHECK_FALSE(RebatchSizes(4, {}, -1).ok());
  CHECK_FALSE(RebatchSizes(4, {}, 0).ok());
  CHECK_FALSE(RebatchSizes(0, {}, 1).ok());
  CHECK_FALSE(RebatchSizes(4, {.workers = 2'000'000'000, .index = 0}, 2'000'000'000).ok());
  CHECK_FALSE(InputContext::Create(2, 1, -1).ok());
  CHECK_FALSE(InputContext::Create(2, 2, 1).ok());
  CHECK_FALSE(InputContext::Create(1, 0, 0).value().PerReplicaBatchSize(4).ok());
}

TEST_CASE("a worker's own file is cut by its own list", "[data][unit]") {
  const Sizes sizes = Rebatched(5, 3, 1, 1);

  CHECK(sizes == Sizes{2, 1, 2});
  CHECK(Elements(CutCyclically(5, sizes)) == Lists{{0, 1}, {2}, {3, 4}});
}

TEST_CASE("sharding by data splits evenly", "[data][unit]") {
  const Sizes batches = {4, 4};  // range(8).batch(4)

  CHECK(ByData(batches, 3, 1, 0) == Lists{{0, 1}, {4, 5}});
  CHECK(ByData(batches, 3, 1, 1) == Lists{{2, 3}, {6, 7}});
  CHECK(ByData(batches, 3, 1, 2) == Lists{{}, {}});
}

}  // namespace
}  // namespace muster::data
