// Who is who in a cluster of workers, how they join, and what happens when one is lost.
#include <atomic>
#include <cstdlib>
#include <type_traits>

#include <fmt/format.h>

#include "strategy/core/context.h"
#include "strategy/input/distributed_dataset.h"
#include "strategy/train/checkpoint.h"
#include "strategy/train/module.h"
#include "strategy/variables/variable.h"
#include "tests/support/environment_variables.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/logged.h"
#include "tests/unit/strategy/multi_worker_mirrored/workers.h"
#include "tests/unit/strategy/replicas.h"
#include "tests/unit/strategy/tpu/cores.h"

namespace muster::testing {
namespace {

static_assert(!std::is_copy_constructible_v<MultiWorkerMirroredStrategy>);

MultiWorkerMirroredOptions told(const ClusterSpec& spec, const ClusterTask& task) {
  return {.cluster_resolver = std::make_shared<SimpleClusterResolver>(
              spec, SimpleClusterResolver::Options{.task = task}),
          .join_within = std::chrono::seconds(60)};
}

ErrorCode made_with(const MultiWorkerMirroredOptions& options, const std::string& part) {
  const auto error = error_of([&] { const MultiWorkerMirroredStrategy strategy(options); });
  REQUIRE(error.has_value());
  CAPTURE(error->message());
  CHECK(error->message().find(part) != std::string::npos);
  return error->code();
}

struct Place {
  int id = 0, workers = 0, replicas = 0, first = 0;
  bool chief = false, checkpoints = false, summaries = false;
  std::vector<std::string> devices;
};

Place place_of(MultiWorkerMirroredStrategy& strategy) {
  return {.id = strategy.id_in_cluster(),
          .workers = strategy.num_workers(),
          .replicas = strategy.num_replicas_in_sync(),
          .first = strategy.first_replica(),
          .chief = strategy.is_chief(),
          .checkpoints = strategy.should_checkpoint(),
          .summaries = strategy.should_save_summary(),
          .devices = strategy.worker_devices()};
}

// What worker `id` of two devices is told where the cluster has an evaluator, too.
MultiWorkerMirroredOptions beside_evaluator(const Cluster& cluster, int id) {
  MultiWorkerMirroredOptions options = cluster.options(id, 2);
  std::map<std::string, std::vector<std::string>> jobs{{"evaluator", {"127.0.0.1:1"}}};
  for (const auto& [job, tasks] : cluster.spec().as_map()) {
    for (const auto& [index, address] : tasks) jobs[job].push_back(address);
  }
  ClusterResolver& worker = *options.cluster_resolver;
  options.cluster_resolver = std::make_shared<SimpleClusterResolver>(
      ClusterSpec::dense(jobs),
      SimpleClusterResolver::Options{
          .task = {.task_type = worker.task_type(), .task_id = worker.task_id()},
          .num_accelerators = {{"CPU", 2}}});
  return options;
}

TEST_CASE("three workers of two devices are six replicas, and the chief comes first",
          "[spec][MWM-01][MWM-08][MWM-13][MWM-18]") {
  const bool job = GENERATE(true, false);  // without a chief worker:0 is it
  const Cluster cluster(3, job);
  const auto places = in_threads<Place>(3, [&](int id) {
    MultiWorkerMirroredStrategy strategy(beside_evaluator(cluster, id));
    return place_of(strategy);
  });

  for (int id = 0; id < 3; ++id) {
    const Place& one = places[static_cast<std::size_t>(id)];
    CHECK(one.id == id);
    CHECK(one.workers == 3);
    CHECK(one.replicas == 6);
    CHECK(one.first == 2 * id);
    CHECK(one.chief == (id == 0));
    CHECK(one.checkpoints == (id == 0));
    CHECK(one.summaries == (id == 0));
    CHECK(one.devices == std::vector<std::string>{cpu(0), cpu(1)});
  }
}

TEST_CASE("without a cluster a strategy is one worker and its own chief", "[spec][MWM-02]") {
  MultiWorkerMirroredStrategy strategy(MultiWorkerMirroredOptions{.devices = {"CPU:0", "CPU:1"}});
  CHECK(strategy.num_workers() == 1);
  CHECK(strategy.is_chief());
  CHECK(strategy.id_in_cluster() == 0);
  CHECK(strategy.task_id() == 0);
  CHECK(strategy.num_replicas_in_sync() == 2);
  CHECK(strategy.collectives() == nullptr);
  // A cluster without tasks is none, whatever task it is said to be.
  MultiWorkerMirroredStrategy empty(told(ClusterSpec(), {.task_type = "worker", .task_id = 3}));
  CHECK(empty.num_workers() == 1);
  CHECK(empty.is_chief());
  CHECK(empty.id_in_cluster() == 0);
  CHECK(empty.task_id() == 0);
  CHECK(empty.collectives() == nullptr);
}

TEST_CASE("a cluster of one worker needs nobody", "[strategy][unit]") {
  MultiWorkerMirroredStrategy strategy(
      told(ClusterSpec::dense({{"worker", {"nowhere:1"}}}), {.task_type = "worker", .task_id = 0}));
  CHECK(strategy.num_workers() == 1);
  CHECK(strategy.is_chief());
}

TEST_CASE("a cluster needs a task, workers, one chief at most, and no devices beside it",
          "[spec][MWM-03][MWM-04][MWM-05]") {
  const ClusterSpec two = ClusterSpec::dense({{"worker", {"a:1", "b:1"}}});
  // MWM-03
  for (const ClusterTask& task :
       {ClusterTask{}, ClusterTask{.task_type = "worker"}, ClusterTask{.task_id = 0},
        ClusterTask{.task_type = "", .task_id = 0}}) {
    CHECK(made_with(told(two, task), "you must also specify task_type and task_id") ==
          ErrorCode::kInvalidArgument);
  }
  // MWM-04
  MultiWorkerMirroredOptions both = told(two, {.task_type = "worker", .task_id = 0});
  both.devices = {"CPU:0"};
  CHECK(made_with(both, "cannot be set at the same time") == ErrorCode::kInvalidArgument);
  // MWM-05
  CHECK(made_with(told(ClusterSpec::dense({{"ps", {"a:1"}}}), {.task_type = "ps", .task_id = 0}),
                  "no worker, chief or evaluator") == ErrorCode::kInvalidArgument);
  const ClusterSpec chiefs = ClusterSpec::dense({{"chief", {"a:1", "b:1"}}, {"worker", {"c:1"}}});
  CHECK(made_with(told(chiefs, {.task_type = "worker", .task_id = 0}), "chief") ==
        ErrorCode::kInvalidArgument);
  CHECK(made_with(told(two, {.task_type = "worker", .task_id = 2}), "2") ==
        ErrorCode::kInvalidArgument);
}

TEST_CASE(
    "workers that nobody could find or that share an address are refused before anybody waits",
    "[strategy][unit]") {
  const auto refused = [](const std::vector<std::string>& addresses, const std::string& why) {
    // In an elastic run the two would each train alone.
    for (const bool elastic : {false, true}) {
      MultiWorkerMirroredOptions options =
          told(ClusterSpec::dense({{"worker", addresses}}), {.task_type = "worker", .task_id = 0});
      options.elastic = elastic;
      CHECK(made_with(options, why) == ErrorCode::kInvalidArgument);
    }
  };
  for (const std::string none : {"127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1", "", "a:b"}) {
    refused({"127.0.0.1:1", none},
            "\"" + none + "\", where worker:1 is to be found, is no address");
  }
  refused({"a:1", "b:1", "a:1"}, "worker:0 and worker:2 have one address, a:1: each needs its own");
}

TEST_CASE("devices are those that the resolver counts: GPUs, else TPU cores, else CPUs, or one",
          "[spec][MWM-07]") {
  const ClusterSpec one = ClusterSpec::dense({{"worker", {"a:1"}}});
  MultiWorkerMirroredStrategy plain(told(one, {.task_type = "worker", .task_id = 0}));
  CHECK(plain.worker_devices().size() == 1);
  MultiWorkerMirroredStrategy counted(MultiWorkerMirroredOptions{
      .cluster_resolver = std::make_shared<SimpleClusterResolver>(
          one, SimpleClusterResolver::Options{.task = {.task_type = "worker", .task_id = 0},
                                              .num_accelerators = {{"CPU", 3}}})});
  CHECK(counted.worker_devices().size() == 3);

  const auto on_cores = [&](int cores) {
    return MultiWorkerMirroredOptions{
        .cluster_resolver = std::make_shared<SimpleClusterResolver>(
            one, SimpleClusterResolver::Options{.task = {.task_type = "worker", .task_id = 0},
                                                .num_accelerators = {{"TPU", cores}, {"CPU", 3}}})};
  };
  CHECK(made_with(on_cores(2), "no TPU cores are up") == ErrorCode::kInvalidArgument);
  // More than any machine has: the first that is not there is named.
  const MultiWorkerMirroredOptions on_cards{
      .cluster_resolver = std::make_shared<SimpleClusterResolver>(
          one, SimpleClusterResolver::Options{
                   .task = {.task_type = "worker", .task_id = 0},
                   .num_accelerators = {{"GPU", 64}, {"TPU", 2}, {"CPU", 3}}})};
  CHECK(made_with(on_cards, "device GPU:") == ErrorCode::kInvalidArgument);
  const Cores cores("1x1x1x2");
  MultiWorkerMirroredStrategy strategy(on_cores(2));
  CHECK(strategy.worker_devices() == std::vector<std::string>{tpu(0), tpu(1)});
  const auto sums = strategy.run(
      [] { return replica_context().all_reduce(ReduceOp::kSum, torch::full({2}, 3.0)); });
  CHECK(sums[1].equal(torch::full({2}, 6.0)));
  CHECK(made_with(on_cores(3), "there are 2 TPU cores") == ErrorCode::kInvalidArgument);
}

TEST_CASE("what TF_CONFIG's resolver counts is no device of the strategy", "[spec][MWM-07]") {
  const EnvironmentVariables variables(EnvironmentVariables::Values{
      {"TF_CONFIG",
       R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})"}});
  // More than any machine has: the strategy could not be made on them.
  std::vector<std::string> cards;
  for (int gpu = 0; gpu < 64; ++gpu) {
    cards.push_back("/job:worker/replica:0/task:0/device:GPU:" + std::to_string(gpu));
  }
  const auto resolver = std::make_shared<TFConfigClusterResolver>(
      TFConfigClusterResolver::Options{.list_devices = [&](const std::string&) { return cards; }});
  REQUIRE(resolver->num_accelerators() == AcceleratorCounts{{"GPU", 64}});

  MultiWorkerMirroredStrategy strategy(MultiWorkerMirroredOptions{.cluster_resolver = resolver});

  MultiWorkerMirroredStrategy plain(MultiWorkerMirroredOptions{});
  CHECK(strategy.worker_devices() == plain.worker_devices());
}

TEST_CASE("an evaluator is alone beside the workers, and its own chief", "[spec][MWM-12]") {
  const ClusterSpec spec = ClusterSpec::dense({{"worker", {"a:1", "b:1"}}, {"evaluator", {"c:1"}}});
  MultiWorkerMirroredStrategy strategy(told(spec, {.task_type = "evaluator", .task_id = 0}));
  CHECK(strategy.num_workers() == 1);
  CHECK(strategy.num_replicas_in_sync() == 1);
  CHECK(strategy.is_chief());
  CHECK(strategy.collectives() == nullptr);
  CHECK(strategy.reduce(ReduceOp::kSum, 1.0).item<double>() == 1.0);
}

TEST_CASE("who waits for the cluster in vain is told for whom", "[spec][MWM-14]") {
  const Cluster cluster(2);
  MultiWorkerMirroredOptions options = cluster.options(0);
  options.join_within = std::chrono::milliseconds(50);
  CHECK(made_with(options, "Timeout waiting for the cluster") == ErrorCode::kFailedPrecondition);
  CHECK(made_with(options, "worker:1 (127.0.0.1:") == ErrorCode::kFailedPrecondition);
}

TEST_CASE("no time to join or to call in is refused before anybody is waited for",
          "[strategy][unit]") {
  const Cluster cluster(2);
  const std::chrono::milliseconds within(GENERATE(0, -5));
  const auto says = [&](const std::string& option) {
    return fmt::format("{} is {} ms: more than 0 is needed", option, within.count());
  };
  MultiWorkerMirroredOptions join = cluster.options(0);
  join.join_within = within;
  CHECK(made_with(join, says("join_within")) == ErrorCode::kInvalidArgument);
  MultiWorkerMirroredOptions call = cluster.options(0);
  call.call_within = within;
  CHECK(made_with(call, says("call_within")) == ErrorCode::kInvalidArgument);
}

TEST_CASE("a worker that was given another cluster is told so, and who waits for it sees why",
          "[strategy][unit]") {
  const Cluster cluster(2);
  // With one worker more.
  const auto address = [&](int id) { return cluster.spec().task_address("worker", id); };
  const auto other = ClusterSpec::dense({{"worker", {address(0), address(1), "127.0.0.1:1"}}});
  MultiWorkerMirroredOptions waits = cluster.options(0);
  waits.join_within = std::chrono::seconds(2);
  std::vector<std::string> errors;
  const std::string said = log_of([&] {
    errors = in_threads<std::string>(2, [&](int id) {
      const auto error = error_of([&] {
        const MultiWorkerMirroredStrategy strategy(
            id == 0 ? waits : told(other, {.task_type = "worker", .task_id = 1}));
      });
      return error ? to_string(error->code()) + error->message() : "";
    });
  });
  CAPTURE(errors[0], errors[1], said);
  CHECK(errors[1].find("INVALID_ARGUMENT") == 0);
  CHECK(errors[1].find("another cluster than worker:1, to which belong worker:0 at " +
                       address(0)) != std::string::npos);
  CHECK(errors[0].find("worker:1 (127.0.0.1:") != std::string::npos);
  CHECK(said.find("worker:0 refuses who wants to join it") != std::string::npos);
}

TEST_CASE("workers of different numbers of devices are told whose differ", "[spec][COL-11]") {
  const Cluster cluster(2);
  const auto errors = in_threads<std::string>(2, [&](int id) {
    const auto error =
        error_of([&] { const MultiWorkerMirroredStrategy strategy(cluster.options(id, id + 1)); });
    return error ? to_string(error->code()) + error->message() : "";
  });
  for (const std::string& error : errors) {
    CHECK(error.find("INVALID_ARGUMENT") == 0);
    CHECK(error.find("worker:1 has 2 devices, worker:0 1") != std::string::npos);
  }
}

TEST_CASE("NCCL without GPUs is said, and training goes on", "[spec][MWM-19]") {
  const Cluster cluster(2);
  std::vector<double> sums;
  const std::string said = log_of([&] {
    sums = in_threads<double>(2, [&](int id) {
      MultiWorkerMirroredOptions options = cluster.options(id);
      options.implementation = "nccl";
      MultiWorkerMirroredStrategy strategy(options);
      return strategy.reduce(ReduceOp::kSum, 1.0).item<double>();
    });
  });
  CHECK(sums == std::vector<double>{2, 2});
  CAPTURE(said);
  CHECK(said.find("NCCL is for GPUs, and CPU:0 is none: RING is used") != std::string::npos);
}

TEST_CASE("a strategy is one object, and has a name of old", "[spec][MWM-20][MWM-22]") {
  CHECK_FALSE(std::is_copy_constructible_v<MultiWorkerMirroredStrategy>);
  CHECK_FALSE(std::is_copy_assignable_v<MultiWorkerMirroredStrategy>);
  CHECK(std::is_same_v<experimental::MultiWorkerMirroredStrategy, MultiWorkerMirroredStrategy>);
}

TEST_CASE("datasets for each replica are not supported", "[spec][MWM-21]") {
  MultiWorkerMirroredStrategy strategy(MultiWorkerMirroredOptions{.devices = {"CPU:0", "CPU:1"}});
  CHECK(code_of([&] {
          distribute_datasets_from_function(
              strategy, [](const InputContext&) { return dataset::range(4).batch(2); },
              {.experimental_replication_mode = InputReplicationMode::kPerReplica});
        }) == ErrorCode::kUnimplemented);
}

TEST_CASE("a worker that goes is an error of the others, which names it", "[spec][MWM-15]") {
  for (const bool creates : {true, false}) {
    const Cluster cluster(3);
    const auto errors = in_threads<std::string>(3, [&](int id) {
      MultiWorkerMirroredStrategy strategy(cluster.options(id));
      if (id == 1) return std::string("gone");
      const auto error = error_of([&] {
        const auto scope = strategy.scope();
        if (creates) (void)Variable::create("w", torch::ones({2}));
        if (!creates) (void)strategy.reduce(ReduceOp::kSum, 1.0);
      });
      return error ? to_string(error->code()) + error->message() : "";
    });
    for (const std::size_t id : {0U, 2U}) {
      CAPTURE(errors[id]);
      CHECK(errors[id].find("UNAVAILABLE") == 0);
      CHECK(errors[id].find("worker:1") != std::string::npos);
    }
  }
}

TEST_CASE("a worker that goes before any of the calls is an error of that call",
          "[strategy][unit][MWM-15]") {
  using Call = std::function<void(Strategy&)>;
  const std::vector<Call> calls{
      [](Strategy& strategy) { (void)strategy.distribute(torch::nn::Linear(2, 1)); },
      [](Strategy& strategy) {
        strategy.run([] { replica_context().all_reduce(ReduceOp::kSum, torch::ones({3000})); });
      },
      [](Strategy& strategy) {
        (void)strategy.gather(strategy.run([] { return torch::ones({2}); }), 0);
      },
      [](Strategy& strategy) {
        for (const auto& step :
             experimental_distribute_dataset(strategy, dataset::range(8).batch(2))) {
          (void)step;
        }
      },
      [](Strategy& strategy) {
        const auto scope = strategy.scope();
        Checkpoint checkpoint;
        checkpoint.create("w", torch::ones({2}));
        checkpoint.save("/nowhere/that/is/written", 1);
      }};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto errors =
        on_cluster<std::string>(2, 1, [&](MultiWorkerMirroredStrategy& strategy) -> std::string {
          if (!strategy.is_chief()) return "gone";
          const auto error = error_of([&] { calls[i](strategy); });
          return error ? to_string(error->code()) + error->message() : "";
        });
    CAPTURE(i, errors[0]);
    CHECK(errors[0].find("UNAVAILABLE") == 0);
    CHECK(errors[0].find("worker:1") != std::string::npos);
  }
}

TEST_CASE("after a loss all may join anew, and a worker may be back before the others know",
          "[spec][MWM-16][MWM-17]") {
  const Cluster cluster(2);
  std::atomic<bool> lost{false};
  const auto sums = in_threads<torch::Tensor>(2, [&](int id) {
    if (id == 1) {
      // Joins, goes, and is back at once.
      {
        const MultiWorkerMirroredStrategy first(cluster.options(id));
      }
    } else {
      MultiWorkerMirroredStrategy first(cluster.options(id));
      lost = code_of([&] {
               while (true) (void)first.reduce(ReduceOp::kSum, 1.0);
             }) == ErrorCode::kUnavailable;
    }
    MultiWorkerMirroredStrategy again(cluster.options(id));
    const auto scope = again.scope();
    const Variable w = Variable::create("w", torch::full({1}, 7.0 * (1 + id)));
    return again.reduce(ReduceOp::kSum, w.value());
  });
  CHECK(lost);
  for (const torch::Tensor& sum : sums) CHECK(sum.equal(torch::full({1}, 14.0)));
}

TEST_CASE("strategies one after the other never meet each other's calls", "[spec][COL-18]") {
  const Cluster cluster(3);
  const auto right = in_threads<int>(3, [&](int id) {
    int count = 0;
    for (int round = 0; round < 20; ++round) {
      MultiWorkerMirroredStrategy strategy(cluster.options(id));
      const torch::Tensor mean =
          strategy.reduce(ReduceOp::kMean, torch::full({2, 2}, static_cast<float>(id)));
      count += mean.equal(torch::ones({2, 2})) ? 1 : 0;
    }
    return count;
  });
  CHECK(right == std::vector<int>{20, 20, 20});
}

TEST_CASE("other shapes, types or calls are an error of all workers, which names one",
          "[strategy][unit]") {
  const auto calls = std::vector<std::function<void(Strategy&, int)>>{
      [](Strategy& strategy, int id) {
        strategy.run([&] { replica_context().all_reduce(ReduceOp::kSum, torch::ones({2 + id})); });
      },
      [](Strategy& strategy, int id) {
        strategy.run([&] {
          replica_context().all_reduce(ReduceOp::kSum,
                                       torch::ones({2}, id == 0 ? torch::kFloat : torch::kDouble));
        });
      },
      [](Strategy& strategy, int id) {
        if (id == 0) (void)strategy.reduce(ReduceOp::kSum, 1.0);
        strategy.run([&] { replica_context().all_reduce(ReduceOp::kSum, torch::ones({2})); });
      },
      [](Strategy& strategy, int id) {
        const auto scope = strategy.scope();
        (void)Variable::create("w", torch::ones({2, 2 + id}));
      },
      [](Strategy& strategy, int id) {
        const auto scope = strategy.scope();
        (void)Variable::create(id == 0 ? "w" : "v", torch::ones({2}));
      }};
  for (const auto& call : calls) {
    const auto errors =
        on_cluster<std::string>(2, 1, [&](MultiWorkerMirroredStrategy& strategy) -> std::string {
          const auto error = error_of([&] { call(strategy, strategy.id_in_cluster()); });
          return error ? to_string(error->code()) + error->message() : "";
        });
    for (const std::string& error : errors) {
      CAPTURE(error);
      CHECK(error.find("INVALID_ARGUMENT") == 0);
      CHECK(error.find("worker:1") != std::string::npos);
    }
  }
}

TEST_CASE("that one worker cannot make a variable the others hear and all go on",
          "[strategy][unit]") {
  using Said = std::pair<std::string, bool>;
  const auto heard = on_cluster<Said>(2, 1, [](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    const auto error = error_of([&] {
      const auto mode =
          strategy.is_chief() ? VariableSynchronization::kAuto : VariableSynchronization::kNone;
      (void)Variable::create("w", torch::ones({2}), {.synchronization = mode});
    });
    const Variable next = Variable::create("w", torch::full({2}, strategy.is_chief() ? 3.0 : 4.0));
    return Said(error ? error->message() : "", next.value().equal(torch::full({2}, 3.0)));
  });

  CAPTURE(heard[0].first, heard[1].first);
  CHECK(heard[0].first.find("worker:1 has nothing, worker:0 Float[2]") != std::string::npos);
  CHECK(heard[1].first.find("NONE variable synchronization mode") != std::string::npos);
  for (const auto& [error, goes_on] : heard) CHECK(goes_on);
}

struct NeverSavedImpl : torch::nn::Cloneable<NeverSavedImpl> {
  void reset() override {}
  void save(torch::serialize::OutputArchive&) const override { throw 5; }
};

TEST_CASE("what the chief throws while the others wait they throw too whatever it is",
          "[strategy][unit]") {
  const TempFolder folder;
  const auto heard =
      on_cluster<std::string>(2, 1, [&](MultiWorkerMirroredStrategy& strategy) -> std::string {
        const auto net = strategy.distribute(std::make_shared<NeverSavedImpl>());
        const auto error = error_of([&] { net.save(folder / "net.pt"); });
        return error ? error->message() : "";
      });
  CHECK(heard == std::vector<std::string>(2, "an exception of an unknown type"));
}

// An elastic run of three steps, and its error. All workers are there when it begins.
std::optional<Error> run_three_steps(MultiWorkerMirroredStrategy& strategy,
                                     const std::function<void(std::uint64_t)>& step) {
  const auto scope = strategy.scope();
  Checkpoint state({{"w", Variable::create("w", torch::zeros({1}))}});
  return error_of([&] {
    strategy.run_elastic(state, [&](const ElasticStep& one) { step(one.number()); },
                         {.steps = 3, .start_within = std::chrono::seconds(60)});
  });
}

TEST_CASE("who has left an elastic run is no chief and who goes on alone is one",
          "[strategy][unit]") {
  const Cluster cluster(2);
  using End = std::pair<std::string, bool>;
  const auto ends = in_threads<End>(2, [&](int worker) {
    MultiWorkerMirroredOptions options = cluster.options(worker);
    options.elastic = true;
    MultiWorkerMirroredStrategy strategy(options);
    const auto error = run_three_steps(strategy, [&](std::uint64_t number) {
      if (worker == 1 && number == 2) raise(ErrorCode::kNotFound, "no data");
    });
    return End(error ? error->message() : "", strategy.is_chief());
  });

  CHECK(ends[0] == End("", true));
  CHECK(ends[1] == End("no data", false));
}

TEST_CASE("a dataset of workers of whom one is gone has to be distributed again",
          "[strategy][unit]") {
  const Cluster cluster(2);
  const auto errors = in_threads<std::string>(2, [&](int worker) -> std::string {
    MultiWorkerMirroredOptions options = cluster.options(worker);
    options.elastic = true;
    MultiWorkerMirroredStrategy strategy(options);
    std::optional<DistributedDataset<torch::Tensor>> data;
    const auto error = run_three_steps(strategy, [&](std::uint64_t number) {
      if (!data) data = experimental_distribute_dataset(strategy, dataset::range(16).batch(4));
      (void)data->iterator().next();
      if (worker == 1 && number == 2) raise(ErrorCode::kNotFound, "no data");
    });
    return error ? error->message() : "";
  });

  CAPTURE(errors[0]);
  CHECK(errors[0].find("distributed over 2 workers, and now there is 1") != std::string::npos);
  CHECK(errors[1] == "no data");
}

TEST_CASE("a worker that does not come in time is named with the call and the time",
          "[strategy][unit]") {
  std::atomic<bool> late{false};
  const auto errors =
      on_cluster<std::string>(2, 1, [&](MultiWorkerMirroredStrategy& strategy) -> std::string {
        const bool first = strategy.is_chief();
        if (!first) late.wait(false);
        const CommunicationOptions options{.timeout = std::chrono::milliseconds(200)};
        // The late worker may still meet what the first had sent; then its next call says it.
        const auto error = error_of([&] {
          do {
            strategy.run(
                [&] { replica_context().all_reduce(ReduceOp::kSum, torch::ones({2}), options); });
          } while (!first);
        });
        late = true;
        late.notify_all();
        return error ? to_string(error->code()) + error->message() : "";
      });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("DEADLINE_EXCEEDED") == 0);
    CHECK(error.find("all_reduce SUM of float32[2]") != std::string::npos);
    CHECK(error.find("waited 200 ms for worker:1") != std::string::npos);
  }
}

}  // namespace
}  // namespace muster::testing
