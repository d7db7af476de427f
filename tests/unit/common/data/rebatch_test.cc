#include "common/data/rebatch.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

namespace muster::data {
namespace {

// The numbers are those of the behaviours of distributed input (INP, SHD). A row whose behaviour is
// a whole pipeline's carries its tag where that pipeline is tested; here only its arithmetic is.

using Sizes = std::vector<std::int64_t>;
Sizes Rebatched(std::int64_t batch, int workers, int replicas, int index) {
  return RebatchSizes(batch, {.workers = workers, .index = index}, replicas).value();
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

TEST_CASE("a batch of its own is split evenly with the last pieces short or empty",
          "[data][unit]") {
  CHECK(EvenSplit(8, 2).value() == Sizes{4, 4});
  CHECK(EvenSplit(3, 4).value() == Sizes{1, 1, 1, 0});
  CHECK(EvenSplit(7, 3).value() == Sizes{3, 3, 1});
  CHECK(EvenSplit(0, 2).value() == Sizes{0, 0});
  CHECK_FALSE(EvenSplit(-1, 2).ok());
  CHECK_FALSE(EvenSplit(1, 0).ok());
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

  CHECK(without.by == ShardBy::kData);
  CHECK(without.fell_back);
  CHECK(with.by == ShardBy::kFile);
  CHECK_FALSE(with.fell_back);
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

  CHECK(ChooseSharding(AutoShardPolicy::kHint, shard, {.has_placeholder = true}).value().by ==
        ShardBy::kPlaceholder);
  CHECK(ChooseSharding(AutoShardPolicy::kHint, shard, {}).value().by == ShardBy::kNothing);
}

TEST_CASE("more workers than elements is an error and no elements at all is none", "[data][unit]") {
  const Status status = CheckEnoughElements(3, {.workers = 5, .index = 0});
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(Message(status).find("aren't enough elements") != std::string::npos);
  CHECK(CheckEnoughElements(5, {.workers = 5, .index = 0}).ok());
  CHECK(CheckEnoughElements(0, {.workers = 5, .index = 0}).ok());
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

}  // namespace
}  // namespace muster::data
