#include <algorithm>
#include <atomic>

#include "strategy/variables/variable.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/input/input_support.h"

// Several workers as threads of this process, which agree over a link in memory.

namespace muster::testing {
namespace {

TEST_CASE("two workers of one replica", "[spec][INP-10]") {
  const auto steps = steps_on_workers(2, 1, dataset::range(9).batch(2));

  CHECK(of_replica(steps[0], 0) == std::vector<Numbers>{{0}, {2}, {4}, {6}, {8}});
  CHECK(of_replica(steps[1], 0) == std::vector<Numbers>{{1}, {3}, {5}, {7}, {}});
}

TEST_CASE("two workers of two replicas", "[spec][INP-11]") {
  const auto steps = steps_on_workers(2, 2, dataset::range(15).batch(4));

  CHECK(steps[0] == Steps{{{0}, {2}}, {{4}, {6}}, {{8}, {10}}, {{12}, {14}}});
  CHECK(steps[1] == Steps{{{1}, {3}}, {{5}, {7}}, {{9}, {11}}, {{13}, {}}});
}

TEST_CASE("a worker with less data takes part to the end with empty batches", "[spec][INP-12]") {
  const auto steps = on_workers<Steps>(2, 1, [](Strategy& strategy, const InputWorkers& workers) {
    return steps_of(distribute_datasets_from_function(
        strategy,
        [](const InputContext& context) {
          return dataset::range(8 + context.input_pipeline_id()).batch(2);
        },
        {}, workers));
  });

  CHECK(of_replica(steps[0], 0) == std::vector<Numbers>{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {}});
  CHECK(of_replica(steps[1], 0) == std::vector<Numbers>{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8}});
}

TEST_CASE("a worker without any data learns from the others what an empty batch is",
          "[input][unit]") {
  struct Seen {
    std::vector<std::int64_t> shape;
    torch::ScalarType dtype = torch::kLong;
    bool more = true;
  };
  const auto seen = on_workers<Seen>(2, 1, [](Strategy& strategy, const InputWorkers& workers) {
    const auto data = distribute_datasets_from_function(
        strategy,
        [](const InputContext& context) {
          return dataset::range(2 * context.input_pipeline_id())
              .map([](const torch::Tensor&) { return torch::zeros({5}); })
              .batch(2);
        },
        {}, workers);
    auto iterator = data.iterator();
    const auto step = iterator.get_next();
    return Seen{.shape = step[0].sizes().vec(),
                .dtype = step[0].scalar_type(),
                .more = iterator.get_next_as_optional().has_value()};
  });

  CHECK(seen[0].shape == std::vector<std::int64_t>{0, 5});
  CHECK(seen[1].shape == std::vector<std::int64_t>{2, 5});
  for (const Seen& worker : seen) {
    CHECK(worker.dtype == torch::kFloat);
    CHECK_FALSE(worker.more);
  }
}

TEST_CASE("the last, short batch is split evenly over two workers", "[spec][INP-13]") {
  const auto steps = steps_on_workers(2, 1, dataset::range(14).batch(8));

  CHECK(steps[0].at(1) == Step{{8, 9, 10}});
  CHECK(steps[1].at(1) == Step{{11, 12, 13}});
}

TEST_CASE("from a function that shards by itself nothing is split", "[spec][INP-14]") {
  const auto steps = on_workers<Steps>(2, 1, [](Strategy& strategy, const InputWorkers& workers) {
    return steps_of(distribute_datasets_from_function(
        strategy,
        [](const InputContext& context) {
          return dataset::range(14)
              .batch(context.get_per_replica_batch_size(8))
              .shard(context.num_input_pipelines(), context.input_pipeline_id());
        },
        {}, workers));
  });

  CHECK(steps[0].at(1) == Step{{8, 9, 10, 11}});
  CHECK(steps[1].at(1) == Step{{12, 13}});
}

TEST_CASE("sums of the first step of two workers", "[spec][INP-15]") {
  const auto sums =
      on_workers<std::int64_t>(2, 1, [](Strategy& strategy, const InputWorkers& workers) {
        auto iterator =
            distribute_datasets_from_function(
                strategy,
                [](const InputContext& context) {
                  return dataset::range(100).batch(5).shard(2, context.input_pipeline_id());
                },
                {}, workers)
                .iterator();
        const auto step = iterator.get_next();
        const auto sum = strategy.run([](const torch::Tensor& x) { return x.sum(); }, step);
        return strategy.reduce(ReduceOp::kSum, sum).item<std::int64_t>();
      });

  CHECK(sums == std::vector<std::int64_t>{10, 35});
}

TEST_CASE("batches that two workers cannot halve", "[spec][INP-16]") {
  for (const auto policy : {AutoShardPolicy::kAuto, AutoShardPolicy::kData}) {
    const auto steps = steps_on_workers(
        2, 1, dataset::range(8).batch(3).with_options({.auto_shard_policy = policy}));
    CHECK(of_replica(steps[0], 0) == std::vector<Numbers>{{0, 1}, {3, 4}, {6}});
    CHECK(of_replica(steps[1], 0) == std::vector<Numbers>{{2}, {5}, {7}});
  }
}

TEST_CASE("policy OFF: every worker sees everything, in pieces", "[spec][INP-17]") {
  const auto steps = steps_on_workers(
      2, 1, dataset::range(12).batch(8).with_options({.auto_shard_policy = AutoShardPolicy::kOff}));

  for (const Steps& worker : steps) {
    CHECK(of_replica(worker, 0) ==
          std::vector<Numbers>{sequence(0, 4), sequence(4, 8), sequence(8, 12)});
  }
}

TEST_CASE("policy OFF with a batch size that is not known", "[spec][INP-18]") {
  const auto batches = dataset::from_elements<torch::Tensor>(
                           {torch::arange(8, torch::kLong), torch::arange(8, 12, torch::kLong)})
                           .with_options({.auto_shard_policy = AutoShardPolicy::kOff});

  for (const Steps& worker : steps_on_workers(2, 1, batches)) {
    CHECK(of_replica(worker, 0) ==
          std::vector<Numbers>{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}, {10, 11}});
  }
}

TEST_CASE("elements that are not split", "[spec][INP-19]") {
  const auto with = [](AutoShardPolicy policy) {
    return steps_on_workers(2, 1, dataset::range(4).with_options({.auto_shard_policy = policy}),
                            /*split=*/false);
  };

  const auto sharded = with(AutoShardPolicy::kAuto);
  CHECK(of_replica(sharded[0], 0) == std::vector<Numbers>{{0}, {2}});
  CHECK(of_replica(sharded[1], 0) == std::vector<Numbers>{{1}, {3}});
  for (const Steps& worker : with(AutoShardPolicy::kOff)) {
    CHECK(of_replica(worker, 0) == std::vector<Numbers>{{0}, {1}, {2}, {3}});
  }
  // A worker that has no further scalar gets a list of none.
  const auto odd = steps_on_workers(2, 1, dataset::range(5), /*split=*/false);
  CHECK(of_replica(odd[0], 0) == std::vector<Numbers>{{0}, {2}, {4}});
  CHECK(of_replica(odd[1], 0) == std::vector<Numbers>{{1}, {3}, {}});
}

TEST_CASE("a dataset for each replica of each worker", "[spec][INP-26]") {
  const auto steps = on_workers<Steps>(2, 2, [](Strategy& strategy, const InputWorkers& workers) {
    return steps_of(distribute_datasets_from_function(
        strategy,
        [](const InputContext& context) {
          const int factor = context.input_pipeline_id() + 1;
          return dataset::range(1, 4).map([factor](const torch::Tensor& n) { return n * factor; });
        },
        {.experimental_replication_mode = InputReplicationMode::kPerReplica}, workers));
  });

  CHECK(steps[0] == Steps{{{1}, {2}}, {{2}, {4}}, {{3}, {6}}});
  CHECK(steps[1] == Steps{{{3}, {4}}, {{6}, {8}}, {{9}, {12}}});
}

TEST_CASE("a loop to the end uses every element once", "[spec][INP-20]") {
  for (const int replicas : {1, 2}) {
    const auto sums =
        on_workers<std::int64_t>(2, replicas, [](Strategy& strategy, const InputWorkers& workers) {
          const auto data =
              experimental_distribute_dataset(strategy, dataset::range(10).batch(4), {}, workers);
          Variable sum;
          {
            const auto scope = strategy.scope();
            sum = Variable::create("sum", torch::zeros({}, torch::kLong),
                                   {.synchronization = VariableSynchronization::kOnRead,
                                    .aggregation = VariableAggregation::kSum});
          }
          for (const auto& step : data) {
            strategy.run([&](const torch::Tensor& x) { sum.assign_add((x * x).sum()); }, step);
          }
          return sum.value().item<std::int64_t>();
        });
    CHECK(sums[0] + sums[1] == 285);
  }
}

TEST_CASE("workers need equally many replicas", "[spec][INP-31]") {
  MirroredStrategy strategy(cpus(2));
  const auto with = [&](int count, int replicas, int index) {
    InputWorkers workers;
    workers.count = count;
    workers.replicas = replicas;
    workers.index = index;
    workers.link = InputLink::in_memory(std::max(1, count));
    experimental_distribute_dataset(strategy, dataset::range(10).batch(4), {}, workers);
  };

  CHECK(
      throws(kInvalid, "every worker to have the same number of replicas", [&] { with(2, 5, 0); }));
  CHECK(code_of([&] { with(2, 6, 0); }) == kInvalid);  // three here, and the strategy has two
  CHECK(code_of([&] { with(2, 4, 2); }) == kInvalid);
  CHECK(code_of([&] { with(0, 4, 0); }) == kInvalid);
  CHECK(code_of([&] { with(2, 4, 1); }) == ErrorCode::kOk);
  CHECK(code_of([&] { with(2, 0, 1); }) == ErrorCode::kOk);
}

TEST_CASE("infinite data needs no agreement, finite data one a step", "[spec][INP-36]") {
  const auto rounds = [](const Dataset<>& dataset, std::size_t steps) {
    const auto count = std::make_shared<std::atomic<std::int64_t>>(0);
    on_workers<int>(
        2, 1,
        [&](Strategy& strategy, const InputWorkers& workers) {
          auto iterator =
              experimental_distribute_dataset(strategy, dataset, {}, workers).iterator();
          return static_cast<int>(testing::rest_of(iterator, steps).size());
        },
        InputLink::in_memory(2, count));
    return count->load();
  };

  CHECK(rounds(dataset::range(10).repeat().batch(4), 20) == 0);
  CHECK(rounds(dataset::range(10).batch(4), 20) == 3 + 1);  // and one about the end
  CHECK(rounds(dataset::range(10).batch(2), 20) == 5 + 1);
}

TEST_CASE("workers may wait for each other without an end", "[input][unit]") {
  const auto steps = on_workers<Steps>(2, 1, [](Strategy& strategy, const InputWorkers& workers) {
    InputWorkers patient = workers;
    patient.patience = std::chrono::milliseconds::max();
    return steps_of(
        experimental_distribute_dataset(strategy, dataset::range(4).batch(2), {}, patient));
  });

  CHECK(of_replica(steps[0], 0) == std::vector<Numbers>{{0}, {2}});
  CHECK(of_replica(steps[1], 0) == std::vector<Numbers>{{1}, {3}});
}

TEST_CASE("every element goes to one replica, whatever their number", "[input][unit]") {
  for (const int count : {1, 2, 3}) {
    for (const int replicas : {1, 2, 3}) {
      for (const std::int64_t elements : {0, 1, 7, 29}) {
        if (elements > 0 && elements < count) continue;  // refused: fewer elements than workers
        for (const std::int64_t batch : {1, 4, 13}) {
          INFO(count << " workers of " << replicas << ", " << elements << " by " << batch);
          const auto workers =
              steps_on_workers(count, replicas, dataset::range(elements).batch(batch));
          Numbers seen;
          for (const Steps& steps : workers) {
            CHECK(steps.size() == workers[0].size());
            for (const Step& step : steps) {
              CHECK(step.size() == static_cast<std::size_t>(replicas));
              for (const Numbers& one : step) seen.insert(seen.end(), one.begin(), one.end());
            }
          }
          std::sort(seen.begin(), seen.end());
          CHECK(seen == sequence(0, elements));
        }
      }
    }
  }
}

TEST_CASE("workers share out one order in each pass and each pass has its own", "[spec][INP-22]") {
  const auto seen =
      on_workers<std::vector<Numbers>>(2, 1, [](Strategy& strategy, const InputWorkers& workers) {
        const auto data = experimental_distribute_dataset(
            strategy, dataset::range(40).shuffle(40, 5).batch(4), {}, workers);
        std::vector<Numbers> passes(2);
        for (Numbers& own : passes) {
          for (const Step& step : steps_of(data)) {
            own.insert(own.end(), step[0].begin(), step[0].end());
          }
        }
        return passes;
      });

  CHECK(seen[0][0] != seen[0][1]);
  for (std::size_t pass = 0; pass < 2; ++pass) {
    Numbers both = seen[0][pass];
    both.insert(both.end(), seen[1][pass].begin(), seen[1][pass].end());
    std::sort(both.begin(), both.end());
    CHECK(both == sequence(0, 40));
  }
}

TEST_CASE("workers that go on from their positions do the steps that were left", "[input][unit]") {
  const auto data = dataset::range(31).shuffle(31, 5).batch(6);
  const auto read = [&](const std::vector<std::string>& from, std::size_t steps) {
    return on_workers<std::pair<Steps, std::string>>(
        2, 2, [&](Strategy& strategy, const InputWorkers& workers) {
          std::optional<std::string> position;
          if (!from.empty()) position = from[static_cast<std::size_t>(workers.index)];
          auto iterator =
              experimental_distribute_dataset(strategy, data, {}, workers).iterator(position);
          Steps taken = testing::rest_of(iterator, steps);
          return std::pair(std::move(taken), iterator.save_position());
        });
  };

  const auto whole = read({}, 100);
  const auto begun = read({}, 2);
  const auto rest = read({begun[0].second, begun[1].second}, 100);

  for (std::size_t worker = 0; worker < 2; ++worker) {
    Steps joined = begun[worker].first;
    joined.insert(joined.end(), rest[worker].first.begin(), rest[worker].first.end());
    CHECK(joined == whole[worker].first);
    CHECK(rest[worker].first.size() >= 3);
  }
}

}  // namespace
}  // namespace muster::testing
