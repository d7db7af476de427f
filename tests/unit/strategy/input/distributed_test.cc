#include <algorithm>
#include <atomic>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

#include "common/telemetry/log.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/input/input_support.h"

namespace muster::testing {
namespace {

Dataset<> counted(std::atomic<int>& read, std::int64_t cardinality = kUnknownCardinality) {
  return dataset::from_generator(
      [&read] {
        return [&read, n = std::int64_t{0}]() mutable -> std::optional<torch::Tensor> {
          ++read;
          return torch::scalar_tensor(n++, torch::kLong);
        };
      },
      cardinality);
}

bool reaches(const std::atomic<int>& count, int value) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (count < value) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_CASE("an input context in the program's words", "[spec][INP-01]") {
  const InputContext context(2, 1, 6);

  CHECK(context.num_input_pipelines() == 2);
  CHECK(context.input_pipeline_id() == 1);
  CHECK(context.num_replicas_in_sync() == 6);
  CHECK(context.get_per_replica_batch_size(12) == 2);
  CHECK(throws(kInvalid, "not divisible", [&] { context.get_per_replica_batch_size(13); }));
  CHECK(code_of([] { InputContext(2, 2, 1); }) == kInvalid);
}

TEST_CASE("an input context as text", "[spec][INP-02]") {
  CHECK(InputContext(3, 1, 1).to_string() ==
        "tf.distribute.InputContext(input pipeline id 1, total: 3)");
}

TEST_CASE("next() belongs outside of replica functions", "[spec][INP-03]") {
  MirroredStrategy strategy(cpus(2));
  auto iterator = experimental_distribute_dataset(strategy, dataset::range(10).batch(2)).iterator();

  CHECK(throws(kInvalid, "should be called from outside of replica_fn",
               [&] { strategy.run([&] { iterator.get_next(); }); }));
  CHECK(step_of(iterator.get_next()) == Step{{0}, {1}});
}

TEST_CASE("at the end: out of range, and iterating again starts over", "[spec][INP-04]") {
  MirroredStrategy strategy(cpus(2));
  const auto data = experimental_distribute_dataset(strategy, dataset::range(4).batch(2));
  auto iterator = data.iterator();

  CHECK(step_of(iterator.get_next()) == Step{{0}, {1}});
  CHECK(step_of(iterator.get_next()) == Step{{2}, {3}});
  CHECK(code_of([&] { iterator.get_next(); }) == ErrorCode::kOutOfRange);
  CHECK(code_of([&] { iterator.get_next(); }) == ErrorCode::kOutOfRange);
  for (int pass = 0; pass < 2; ++pass) {
    Steps steps;
    for (const PerReplica<torch::Tensor>& step : data) steps.push_back(step_of(step));
    CHECK(steps == Steps{{{0}, {1}}, {{2}, {3}}});
  }
}

TEST_CASE("the position after a failed step is before all of its elements", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  std::atomic<bool> fails{true};
  const auto data = distribute_datasets_from_function(strategy, [&](const InputContext&) {
    return dataset::range(6).map([&](const torch::Tensor& x) {
      if (fails && x.item<int>() == 3) raise(ErrorCode::kUnavailable, "the disk is away");
      return x;
    });
  });
  auto iterator = data.iterator();
  CHECK(step_of(iterator.get_next()) == Step{{0}, {1}});
  // The first replica's element is there.
  CHECK(code_of([&] { iterator.get_next(); }) == ErrorCode::kUnavailable);
  const std::string position = iterator.save_position();

  fails = false;
  auto restored = data.iterator(position);
  CHECK(rest_of(restored) == Steps{{{2}, {3}}, {{4}, {5}}});
}

TEST_CASE("a position of two replicas goes on with three whose elements lie on their devices",
          "[strategy][unit]") {
  const auto of = [](int replicas) {
    MirroredStrategy strategy(cpus(replicas));
    return distribute_datasets_from_function(strategy,
                                             [](const InputContext&) { return dataset::range(8); });
  };
  auto iterator = of(2).iterator();
  (void)iterator.get_next();

  auto restored = of(3).iterator(iterator.save_position());
  const auto step = restored.get_next();
  CHECK(step_of(step) == Step{{2}, {3}, {4}});
  for (int r = 0; r < 3; ++r) CHECK(muster::device_of(step[r]) == cpu(r + 1));
}

TEST_CASE("an optional is empty at the end", "[spec][INP-05]") {
  MirroredStrategy strategy(cpus(2));
  auto iterator = experimental_distribute_dataset(strategy, dataset::range(2).batch(2)).iterator();

  const auto first = iterator.get_next_as_optional();
  const auto second = iterator.get_next_as_optional();

  CHECK(first.has_value());
  CHECK(step_of(first.get_value()) == Step{{0}, {1}});
  CHECK_FALSE(second.has_value());
  CHECK(code_of([&] { second.get_value(); }) == kInvalid);
}

TEST_CASE("each replica gets its part of a global batch", "[spec][INP-06]") {
  MirroredStrategy strategy(cpus(2));
  const auto data = experimental_distribute_dataset(strategy, dataset::range(100).batch(10));

  const Steps steps = steps_of(data);

  REQUIRE(steps.size() == 10);
  for (std::int64_t i = 0; i < 10; ++i) {
    CHECK(steps[static_cast<std::size_t>(i)] ==
          Step{sequence(10 * i, 10 * i + 5), sequence(10 * i + 5, 10 * i + 10)});
  }
  // run() takes such a step as it is.
  auto iterator = data.iterator();
  const auto sums =
      strategy.run([](const torch::Tensor& x) { return x.sum(); }, iterator.get_next());
  CHECK(sums[0].item<int>() == 10);
  CHECK(sums[1].item<int>() == 35);
}

TEST_CASE("from a function each replica takes one whole batch", "[spec][INP-07]") {
  MirroredStrategy strategy(cpus(2));
  const auto data = distribute_datasets_from_function(strategy, [](const InputContext& context) {
    CHECK(context.num_replicas_in_sync() == 2);
    CHECK(context.num_input_pipelines() == 1);
    return dataset::range(100).batch(10);
  });

  const Steps steps = steps_of(data);

  REQUIRE(steps.size() == 5);
  CHECK(steps[0] == Step{sequence(0, 10), sequence(10, 20)});
  CHECK(steps[4] == Step{sequence(80, 90), sequence(90, 100)});
}

TEST_CASE("a replica without data gets an empty batch of the right shape and type",
          "[spec][INP-08]") {
  MirroredStrategy strategy(cpus(2));
  const auto data = distribute_datasets_from_function(
      strategy, [](const InputContext&) { return dataset::range(9).batch(2); });
  const auto wide = distribute_datasets_from_function(strategy, [](const InputContext&) {
    return dataset::range(9)
        .map([](const torch::Tensor& n) {
          return torch::full({3, 2}, n.item<double>(), torch::kFloat);
        })
        .batch(2);
  });

  CHECK(steps_of(data) == Steps{{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}, {{8}, {}}});
  auto iterator = wide.iterator();
  (void)iterator.get_next();
  (void)iterator.get_next();
  const auto last = iterator.get_next();
  CHECK(last[0].sizes().vec() == std::vector<std::int64_t>{1, 3, 2});
  CHECK(last[1].sizes().vec() == std::vector<std::int64_t>{0, 3, 2});
  CHECK(last[1].scalar_type() == torch::kFloat);
  CHECK(last[1].sum().item<float>() == 0);
  // It lies where the others do.
  CHECK(muster::device_of(last[0]) == cpu(1));
  CHECK(muster::device_of(last[1]) == cpu(2));
}

TEST_CASE("without the remainder there is no such step", "[spec][INP-09]") {
  MirroredStrategy strategy(cpus(2));
  const auto of = [&](std::int64_t count) {
    return steps_of(distribute_datasets_from_function(
        strategy, [count](const InputContext&) { return dataset::range(count).batch(2, true); }));
  };

  CHECK(of(9) == Steps{{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}});
  // Three whole batches: who wants equal shapes gets no empty one either.
  CHECK(of(7) == Steps{{{0, 1}, {2, 3}}});
}

TEST_CASE("explicit sharding of a distributed dataset", "[spec][INP-23]") {
  MirroredStrategy strategy(cpus(2));
  const auto data = experimental_distribute_dataset(strategy, dataset::range(10).batch(1));

  CHECK(steps_of(data.auto_shard(2, 0)) == Steps{{{0}, {2}}, {{4}, {6}}, {{8}, {}}});
  CHECK(steps_of(data.auto_shard(2, 1)) == Steps{{{1}, {3}}, {{5}, {7}}, {{9}, {}}});
  CHECK(code_of([&] { data.auto_shard(2, 2); }) == kInvalid);
  // A shard of a shard: every other element of 0 2 4 6 8.
  CHECK(steps_of(data.auto_shard(2, 0).auto_shard(2, 1)) == Steps{{{2}, {6}}});
  // AUTO falls back to data here, too.
  CHECK(data.warnings().empty());
  CHECK(data.auto_shard(2, 0).warnings().size() == 1);
  CHECK(data.auto_shard(1, 0).warnings().empty());
}

TEST_CASE("each pass over distributed data has an order of its own unless it is kept",
          "[spec][INP-21][INP-22]") {
  MirroredStrategy strategy(cpus(2));
  const auto passes_of = [&](const Dataset<>& dataset) {
    const auto data = experimental_distribute_dataset(strategy, dataset.batch(20));
    const Steps first = steps_of(data);
    return std::pair(first, steps_of(data));
  };
  const auto shuffled = dataset::range(100).shuffle(100);

  const auto [first, second] = passes_of(shuffled);
  CHECK(first.size() == 5);
  CHECK(first != second);
  const auto [kept, again] = passes_of(shuffled.cache());
  CHECK(kept == again);
  const auto [fixed, same] = passes_of(dataset::range(100).shuffle(100, std::nullopt, false));
  CHECK(fixed == same);
}

TEST_CASE("the batch dimension is known where no step differs", "[spec][INP-24]") {
  MirroredStrategy strategy(cpus(2));
  const auto rows = [&](const Dataset<>& dataset) {
    const auto data = experimental_distribute_dataset(strategy, dataset);
    CHECK(data.element_spec() == data.iterator().element_spec());
    return data.element_spec()->at(0).shape.at(0);
  };

  CHECK(rows(dataset::range(20).batch(8)) == -1);
  CHECK(rows(dataset::range(20).repeat().batch(8)) == 4);
  CHECK(rows(dataset::range(20).repeat().batch(7)) == -1);
}

TEST_CASE("batches are fetched to the replicas' devices, unless told not to", "[spec][INP-25]") {
  MirroredStrategy strategy(cpus(2));
  const auto devices = [&](std::optional<bool> fetch) {
    auto iterator = experimental_distribute_dataset(strategy, dataset::range(8).batch(4),
                                                    {.experimental_fetch_to_device = fetch})
                        .iterator();
    const auto step = iterator.get_next();
    CHECK(step_of(step) == Step{{0, 1}, {2, 3}});
    return std::vector{muster::device_of(step[0]), muster::device_of(step[1])};
  };

  CHECK(devices(std::nullopt) == std::vector{cpu(1), cpu(2)});
  CHECK(devices(true) == std::vector{cpu(1), cpu(2)});
  CHECK(devices(false) == std::vector{cpu(0), cpu(0)});
}

Dataset<> times_id(const InputContext& context) {
  const int factor = context.input_pipeline_id() + 1;
  return dataset::range(1, 10).map([factor](const torch::Tensor& n) { return n * factor; });
}

TEST_CASE("a dataset for each replica", "[spec][INP-26]") {
  MirroredStrategy strategy(cpus(2));
  const auto data = distribute_datasets_from_function(
      strategy, times_id, {.experimental_replication_mode = InputReplicationMode::kPerReplica});

  const Steps steps = steps_of(data);

  REQUIRE(steps.size() == 9);
  for (std::int64_t n = 1; n <= 9; ++n) {
    CHECK(steps[static_cast<std::size_t>(n - 1)] == Step{{n}, {2 * n}});
  }
}

TEST_CASE("one dataset whose elements go to the replicas in turn", "[spec][INP-27]") {
  MirroredStrategy strategy(cpus(2));
  const auto data = distribute_datasets_from_function(
      strategy,
      [](const InputContext&) {
        return dataset::from_tensor_slices(torch::arange(1, 11, torch::kLong).reshape({2, 5}));
      },
      {.experimental_replication_mode = InputReplicationMode::kPerWorker});

  CHECK(steps_of(data) == Steps{{{1, 2, 3, 4, 5}, {6, 7, 8, 9, 10}}});
}

TEST_CASE("options that contradict each other", "[spec][INP-28]") {
  MirroredStrategy strategy(cpus(2));
  const auto with = [&](InputReplicationMode mode, bool place, std::optional<bool> fetch) {
    return code_of([&] {
      distribute_datasets_from_function(strategy, times_id,
                                        {.experimental_fetch_to_device = fetch,
                                         .experimental_replication_mode = mode,
                                         .experimental_place_dataset_on_device = place});
    });
  };
  using Mode = InputReplicationMode;

  CHECK(with(Mode::kPerWorker, true, std::nullopt) == kInvalid);
  CHECK(with(Mode::kPerReplica, true, true) == kInvalid);
  CHECK(with(Mode::kPerReplica, true, false) == kInvalid);
  CHECK(with(Mode::kPerReplica, true, std::nullopt) == ErrorCode::kOk);
  CHECK(with(Mode::kPerReplica, false, std::nullopt) == ErrorCode::kOk);
}

TEST_CASE("the structure of elements is kept", "[spec][INP-29]") {
  using Pair = std::tuple<torch::Tensor, torch::Tensor>;
  using Dict = std::map<std::string, torch::Tensor>;
  MirroredStrategy strategy(cpus(2));
  const auto pairs = distribute_datasets_from_function(strategy, [](const InputContext&) {
    return dataset::zip(dataset::range(10),
                        dataset::range(10).map([](const torch::Tensor& n) { return n * n; }));
  });
  const auto dicts = experimental_distribute_dataset(
      strategy, dataset::range(10)
                    .map([](const torch::Tensor& n) { return Dict{{"n", n}, {"square", n * n}}; })
                    .batch(2));

  std::int64_t n = 0;
  for (const PerReplica<Pair>& step : pairs) {
    for (const auto& [x, y] : step.values()) {
      CHECK(x.item<std::int64_t>() == n);
      CHECK(y.item<std::int64_t>() == n * n);
      ++n;
    }
  }
  CHECK(n == 10);
  n = 0;
  for (const PerReplica<Dict>& step : dicts) {
    for (const Dict& dict : step.values()) {
      CHECK(numbers(dict.at("n")) == Numbers{n});
      CHECK(numbers(dict.at("square")) == Numbers{n * n});
      ++n;
    }
  }
  CHECK(n == 10);
}

TEST_CASE("input without a batch step cannot be split", "[spec][INP-30]") {
  MirroredStrategy strategy(cpus(3));
  const std::string text =
      "Call the batch method on the input Dataset in order to be able to split your input across "
      "N replicas";
  const auto same = [](const torch::Tensor& n) { return n; };

  CHECK(throws(kInvalid, text,
               [&] { experimental_distribute_dataset(strategy, dataset::range(10)); }));
  auto behind_map =
      experimental_distribute_dataset(strategy, dataset::range(10).map(same)).iterator();
  CHECK(throws(kInvalid, text, [&] { behind_map.get_next(); }));
}

TEST_CASE("means of a batch that does not divide", "[spec][INP-32]") {
  MirroredStrategy strategy(cpus(2));
  auto iterator =
      experimental_distribute_dataset(
          strategy, dataset::from_tensor_slices(torch::tensor({5.0, 6.0, 7.0})).batch(4))
          .iterator();

  const auto means =
      strategy.run([](const torch::Tensor& x) { return x.mean(); }, iterator.get_next());

  CHECK(means[0].item<double>() == 5.5);
  CHECK(means[1].item<double>() == 7);
}

TEST_CASE("the spec of what a replica gets", "[spec][INP-34]") {
  MirroredStrategy strategy(cpus(2));
  const auto rows = dataset::from_tensor_slices(torch::zeros({12, 3})).batch(6, true);
  InputWorkers two;
  two.count = 2;
  two.link = InputLink::in_memory(2);
  const auto finite = [&](const InputWorkers& workers) {
    return experimental_distribute_dataset(strategy, rows, {}, workers).element_spec();
  };
  const auto spec = [](std::int64_t first) {
    return std::vector<TensorSpec>{{.name = "value", .dtype = torch::kFloat, .shape = {first, 3}}};
  };

  CHECK(finite({}) == spec(3));
  CHECK(finite(two) == spec(-1));
  CHECK(experimental_distribute_dataset(
            strategy, dataset::from_tensor_slices(torch::zeros({12, 3})).repeat().batch(8), {}, two)
            .element_spec() == spec(2));
}

TEST_CASE("how much is read ahead of the step", "[spec][INP-37]") {
  MirroredStrategy strategy(cpus(2));
  const auto options = [](int buffer, std::optional<bool> fetch) {
    return InputOptions{.experimental_fetch_to_device = fetch,
                        .experimental_per_replica_buffer_size = buffer};
  };
  for (const std::optional<bool> fetch : {std::optional<bool>(), std::optional(false)}) {
    std::atomic<int> read = 0;
    const auto from = [&](int buffer) {
      read = 0;
      return distribute_datasets_from_function(
          strategy, [&](const InputContext&) { return counted(read); }, options(buffer, fetch));
    };
    const auto nothing_ahead = from(0);
    auto lazy = nothing_ahead.iterator();
    CHECK(read == 0);
    CHECK(step_of(lazy.get_next()) == Step{{0}, {1}});
    CHECK(read == 2);
    for (const int buffer : {1, 3}) {
      const auto ahead = from(buffer);
      auto iterator = ahead.iterator();
      CHECK(read == 0);
      for (int step = 1; step <= 10; ++step) {
        (void)iterator.get_next();
        CHECK(read <= 2 * (step + buffer));
      }
      // It does come to be that far ahead.
      CHECK(reaches(read, 2 * (10 + buffer)));
    }
  }
  CHECK(InputOptions{}.experimental_per_replica_buffer_size == 1);
  CHECK(code_of([&] {
          experimental_distribute_dataset(strategy, dataset::range(4).batch(2),
                                          options(-1, std::nullopt));
        }) == kInvalid);
}

TEST_CASE("AUTO that falls back to data warns once", "[spec][INP-38]") {
  const int file = ::memfd_create("log", 0);
  REQUIRE(file >= 0);
  log::Configure({.format = log::Format::kText, .descriptor = file});
  MirroredStrategy strategy(cpus(1));
  InputWorkers workers;
  workers.count = 2;
  workers.link = InputLink::in_memory(2);
  const auto distributed = [&](const Dataset<>& dataset) {
    return experimental_distribute_dataset(strategy, dataset, {}, workers);
  };

  const auto fallen = distributed(dataset::range(64).repeat().batch(2));
  for (int i = 0; i < 3; ++i) (void)fallen.iterator().get_next();
  const auto told = distributed(dataset::range(64).repeat().batch(2).with_options(
      {.auto_shard_policy = AutoShardPolicy::kData}));
  log::Configure({});

  std::string text(65536, '\0');
  text.resize(static_cast<std::size_t>(::pread(file, text.data(), text.size(), 0)));
  ::close(file);
  CHECK(fallen.warnings().size() == 1);
  CHECK(told.warnings().empty());
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  CHECK(text.find("auto-sharding a dataset by data") != std::string::npos);
}

TEST_CASE("one device: every element, and the same again", "[spec][ONE-05]") {
  OneDeviceStrategy strategy("CPU:1");
  const auto data = experimental_distribute_dataset(strategy, dataset::range(10));

  for (int pass = 0; pass < 2; ++pass) {
    const Steps steps = steps_of(data);
    REQUIRE(steps.size() == 10);
    for (std::int64_t n = 0; n < 10; ++n) CHECK(steps[static_cast<std::size_t>(n)] == Step{{n}});
  }
  int calls = 0;
  const auto own = distribute_datasets_from_function(strategy, [&](const InputContext& context) {
    ++calls;
    CHECK(context.num_input_pipelines() == 1);
    CHECK(context.input_pipeline_id() == 0);
    CHECK(context.num_replicas_in_sync() == 1);
    return dataset::range(3);
  });
  CHECK(steps_of(own) == Steps{{{0}}, {{1}}, {{2}}});
  CHECK(calls == 1);
}

TEST_CASE("one device: input lies there before the step", "[spec][ONE-02]") {
  OneDeviceStrategy strategy("CPU:3");
  std::atomic<int> read = 0;
  auto iterator = experimental_distribute_dataset(strategy, counted(read)).iterator();

  const auto step = iterator.get_next();
  CHECK(muster::device_of(step[0]) == cpu(3));
  // The next one comes without being asked for.
  CHECK(reaches(read, 2));
  CHECK(muster::device_of(iterator.get_next()[0]) == cpu(3));
}

TEST_CASE("one device: fetched there, or left with the host", "[spec][ONE-06]") {
  OneDeviceStrategy strategy("CPU:1");
  const auto device = [&](bool fetch) {
    const InputOptions options{.experimental_fetch_to_device = fetch};
    auto whole = experimental_distribute_dataset(strategy, dataset::range(10), options).iterator();
    auto from_function =
        distribute_datasets_from_function(
            strategy, [](const InputContext&) { return dataset::range(10); }, options)
            .iterator();
    const std::string name = muster::device_of(whole.get_next()[0]);
    CHECK(muster::device_of(from_function.get_next()[0]) == name);
    return name;
  };

  CHECK(device(true) == cpu(1));
  CHECK(device(false) == cpu(0));
}

TEST_CASE("two mirrored devices", "[spec][MIR-25]") {
  MirroredStrategy strategy(cpus(2));
  const auto with = [&](const InputOptions& options) {
    return distribute_datasets_from_function(
        strategy,
        [](const InputContext& context) {
          CHECK(context.num_input_pipelines() == 1);
          CHECK(context.input_pipeline_id() == 0);
          CHECK(context.num_replicas_in_sync() == 2);
          return dataset::range(10);
        },
        options);
  };

  CHECK(steps_of(with({})) == Steps{{{0}, {1}}, {{2}, {3}}, {{4}, {5}}, {{6}, {7}}, {{8}, {9}}});
  for (const auto& step : with({.experimental_fetch_to_device = false})) {
    CHECK(muster::device_of(step[0]) == cpu(0));
    CHECK(muster::device_of(step[1]) == cpu(0));
  }
  auto fetched = with({}).iterator();
  CHECK(muster::device_of(fetched.get_next()[1]) == cpu(2));
}

TEST_CASE("the default strategy in full", "[spec][LIB-26]") {
  auto& strategy = default_strategy();
  const torch::Tensor x = torch::tensor({1.0, 2.0});

  CHECK(strategy.num_replicas_in_sync() == 1);
  const auto doubled = strategy.run([](const torch::Tensor& v) { return v * 2; }, x);
  CHECK(torch::equal(doubled[0], x * 2));
  CHECK(strategy.reduce(ReduceOp::kSum, PerReplica<torch::Tensor>({x})).is_same(x));
  CHECK(torch::equal(strategy.reduce(ReduceOp::kMean, x), x));
  CHECK(torch::equal(strategy.gather(PerReplica<torch::Tensor>({x}), 0), x));
  const auto data = dataset::range(4);
  CHECK(experimental_distribute_dataset(strategy, data) == data);
  CHECK_FALSE(experimental_distribute_dataset(strategy, data) == dataset::range(4));
  const auto own = distribute_datasets_from_function(strategy, [&](const InputContext& context) {
    CHECK(context.num_input_pipelines() == 1);
    CHECK(context.input_pipeline_id() == 0);
    CHECK(context.num_replicas_in_sync() == 1);
    return data;
  });
  CHECK(own == data);
  const std::string value =
      strategy.distribute_values_from_function([](const ValueContext& context) {
        CHECK(context.replica_id_in_sync_group == 0);
        CHECK(context.num_replicas_in_sync == 1);
        return std::string("bare");
      });
  CHECK(value == "bare");
  // Code that does not know which strategy it has gets one value a step.
  Strategy& any = strategy;
  CHECK(steps_of(experimental_distribute_dataset(any, data)) == Steps{{{0}}, {{1}}, {{2}}, {{3}}});
}

TEST_CASE("central storage with two compute devices", "[spec][CEN-06]") {
  CentralStorageStrategy strategy({"CPU:1", "CPU:2"});
  const auto data = distribute_datasets_from_function(
      strategy, [](const InputContext&) { return dataset::range(10); });

  CHECK(steps_of(data) == Steps{{{0}, {1}}, {{2}, {3}}, {{4}, {5}}, {{6}, {7}}, {{8}, {9}}});
}

TEST_CASE("central storage has no input of its own for each replica", "[spec][CEN-08]") {
  CentralStorageStrategy strategy({"CPU:1", "CPU:2"});
  const InputOptions options{.experimental_replication_mode = InputReplicationMode::kPerReplica};

  CHECK(code_of([&] {
          experimental_distribute_dataset(strategy, dataset::range(4).batch(2), options);
        }) == ErrorCode::kUnimplemented);
}

TEST_CASE("seven elements on four replicas", "[input][unit]") {
  MirroredStrategy strategy(cpus(4));
  const auto data = experimental_distribute_dataset(strategy, dataset::range(17).batch(7));

  CHECK(steps_of(data) == Steps{{{0, 1}, {2, 3}, {4, 5}, {6}},
                                {{7, 8}, {9, 10}, {11, 12}, {13}},
                                {{14, 15}, {16}, {}, {}}});
}

}  // namespace
}  // namespace muster::testing
