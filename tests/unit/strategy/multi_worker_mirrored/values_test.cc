// Values, variables, metrics and training over the workers of a cluster, compared with one process.
#include <filesystem>
#include <fstream>

#include "strategy/core/context.h"
#include "strategy/train/checkpoint.h"
#include "strategy/train/metrics.h"
#include "strategy/values/sparse.h"
#include "strategy/variables/extended.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/input/input_support.h"
#include "tests/unit/strategy/multi_worker_mirrored/workers.h"
#include "tests/unit/strategy/train/nets.h"

namespace muster::testing {
namespace {

using Tensors = std::vector<torch::Tensor>;

TEST_CASE("replica ids count on over the workers", "[spec][MWM-06][VAL-11]") {
  const auto gathered =
      on_cluster<Tensors>(2, 2, [](MultiWorkerMirroredStrategy& strategy) -> Tensors {
        const auto ids = strategy.run([] { return torch::full({1}, id()); });
        const auto local =
            strategy.run([] { return torch::full({1}, replica_context().local_replica_id()); });
        Numbers asked;  // for which replicas, here
        const auto told =
            strategy.distribute_values_from_function([&](const ValueContext& context) {
              asked.push_back(context.replica_id_in_sync_group);
              return torch::full(
                  {1}, 10 * context.num_replicas_in_sync + context.replica_id_in_sync_group);
            });
        return {strategy.gather(ids, 0), strategy.gather(local, 0), strategy.gather(told, 0),
                torch::tensor(asked)};
      });

  CHECK(numbers(gathered[0][3]) == Numbers{0, 1});
  CHECK(numbers(gathered[1][3]) == Numbers{2, 3});
  for (const Tensors& one : gathered) {
    CHECK(numbers(one[0]) == Numbers{0, 1, 2, 3});
    CHECK(numbers(one[1]) == Numbers{0, 1, 0, 1});
    CHECK(numbers(one[2]) == Numbers{40, 41, 42, 43});
  }
}

TEST_CASE("plain values of workers are reduced", "[spec][MWM-10][MWM-11]") {
  const int devices = GENERATE(1, 2);
  CAPTURE(devices);
  const auto reduced = on_cluster<Tensors>(2, devices, [](MultiWorkerMirroredStrategy& strategy) {
    const auto one = static_cast<double>(strategy.id_in_cluster() + 1);
    const std::vector<torch::Tensor> mine(static_cast<std::size_t>(strategy.num_local_replicas()),
                                          torch::full({}, one));
    const auto batch = strategy.extended().batch_reduce_to<double>(
        ReduceOp::kSum, {{1.0, Destinations("CPU:0")}, {1.0, Destinations("CPU:0")}});
    const IndexedSlices row{torch::full({1, 2}, one), torch::tensor({std::int64_t{0}}),
                            std::vector<std::int64_t>{3, 2}};
    return Tensors{strategy.reduce(ReduceOp::kSum, 1.0),
                   strategy.extended().reduce_to(ReduceOp::kSum, 1.0, "CPU:0")[0], batch[0][0],
                   batch[1][0], strategy.reduce(ReduceOp::kMean, Mirrored<torch::Tensor>(mine)),
                   strategy.reduce(ReduceOp::kSum, strategy.is_chief() ? 0.0 : 5.0),
                   strategy.reduce(ReduceOp::kMean, one),
                   // More than travels as it is, from each worker to each.
                   strategy.reduce(ReduceOp::kMean, torch::full({20'000}, one)),
                   to_dense(strategy.reduce(ReduceOp::kSum, row))};
  });

  for (std::size_t worker = 0; worker < reduced.size(); ++worker) {
    const Tensors& all = reduced[worker];
    for (const std::size_t sum : {0U, 1U, 2U, 3U}) CHECK(all[sum].item<double>() == 2.0);
    CHECK(all[4].item<double>() == static_cast<double>(worker + 1));
    CHECK(all[5].item<double>() == 5.0);
    CHECK(all[6].item<double>() == 1.5);
    CHECK(all[7].equal(torch::full({20'000}, 1.5)));
    CHECK(all[8][0].equal(torch::full({2}, 3.0)));
  }
}

TEST_CASE("one tensor that all replicas of a worker return has a mean over workers and no sum",
          "[spec][RED-20]") {
  using MeanAndError = std::pair<torch::Tensor, std::string>;
  const auto reduced = on_cluster<MeanAndError>(2, 2, [](MultiWorkerMirroredStrategy& strategy) {
    const torch::Tensor mine = torch::full({2}, strategy.is_chief() ? 1.0 : 2.0);
    const auto same = strategy.run([&] { return mine; });
    std::string error;
    try {
      strategy.reduce(ReduceOp::kSum, same);
    } catch (const Error& refused) {
      error = refused.message();
    }
    return MeanAndError(strategy.reduce(ReduceOp::kMean, same), error);
  });

  for (const auto& [mean, error] : reduced) {
    CHECK(mean.equal(torch::full({2}, 1.5)));
    CHECK(error.find("every replica holds this one object") != std::string::npos);
  }
}

TEST_CASE("that one worker has given a variable no value is told to all who read it",
          "[spec][VAR-37]") {
  using Said = std::vector<std::string>;
  const int who = GENERATE(0, 1);
  CAPTURE(who);
  const auto told = on_cluster<Said>(2, 1, [&](MultiWorkerMirroredStrategy& strategy) {
    Said said;
    for (const auto aggregation : {VariableAggregation::kSum, VariableAggregation::kMean,
                                   VariableAggregation::kOnlyFirstReplica}) {
      const auto scope = strategy.scope();
      const Variable late = Variable::create("late", 0.0,
                                             {.synchronization = VariableSynchronization::kOnRead,
                                              .aggregation = aggregation,
                                              .initialize = false});
      strategy.run([&] {
        if (id() == who) late.assign(3.0);
      });
      said.emplace_back();
      try {
        (void)late.value();
      } catch (const Error& error) {
        said.back() = error.message();
      }
    }
    return said;
  });

  for (const Said& said : told) {
    CAPTURE(said);
    for (const std::size_t one : {0U, 1U}) {
      CHECK(said[one].find(who == 0 ? "replica 1 has given it no value yet"
                                    : "replica 0 has given it no value yet") != std::string::npos);
    }
    CHECK(said[2].find("nothing") != std::string::npos);
  }
}

TEST_CASE("reductions over workers are those of one process, bit for bit",
          "[strategy][unit][GAT-04][GAT-09][GAT-13]") {
  const auto value = [](int replica, std::int64_t rows) {
    return torch::sin(torch::arange(rows * 5, torch::kFloat).reshape({rows, 5}) +
                      static_cast<double>(replica));
  };
  const auto compute = [&](Strategy& strategy) -> Tensors {
    const auto large = strategy.run([&] { return value(id(), 8'000); });
    const auto small = strategy.run([&] { return value(id(), 3); });
    const auto ragged = strategy.run([&] { return value(id(), 1 + id()); });
    const auto half = strategy.run([&] { return value(id(), 3).to(torch::kHalf); });
    const auto rows = strategy.run([&] {
      return to_sparse(
          {value(id(), 1), torch::tensor({std::int64_t{id()}}), std::vector<std::int64_t>{9, 5}});
    });
    Tensors results{strategy.reduce(ReduceOp::kSum, large),
                    strategy.reduce(ReduceOp::kMean, small),
                    strategy.reduce(ReduceOp::kMean, ragged, Axes({0})),
                    strategy.reduce(ReduceOp::kSum, half),
                    strategy.reduce(ReduceOp::kMean, rows).to_dense(),
                    strategy.gather(ragged, 0)};
    const auto in_replicas = strategy.run([&] {
      ReplicaContext& here = replica_context();
      const torch::Tensor x = value(id(), 2).requires_grad_();
      const torch::Tensor mine = value(id(), 1 + id()).requires_grad_();
      const torch::Tensor joined = here.all_gather(mine, 0);
      const torch::Tensor pieces = here.all_gather(x, 0);
      ((pieces * pieces).sum() + (joined * joined).sum()).backward();
      const auto whole = here.all_reduce(ReduceOp::kMean, std::make_pair(x.detach(), rows.get()));
      const torch::Tensor flags = here.all_reduce(
          ReduceOp::kSum, torch::complex(torch::ones({2}), torch::full({2}, 1.0 * id())));
      return torch::cat({joined.detach().reshape({-1}), x.grad().reshape({-1}),
                         mine.grad().reshape({-1}), whole.first.reshape({-1}),
                         whole.second.to_dense().reshape({-1}), torch::real(flags),
                         torch::imag(flags)});
    });
    results.push_back(strategy.gather(in_replicas, 0));
    return results;
  };
  MirroredStrategy alone({"CPU:0", "CPU:1", "CPU:2", "CPU:3"});
  const Tensors wanted = compute(alone);

  for (const auto& [workers, devices] : std::vector<std::pair<int, int>>{{4, 1}, {2, 2}}) {
    const auto all = on_cluster<Tensors>(
        workers, devices, [&](MultiWorkerMirroredStrategy& strategy) { return compute(strategy); });
    for (const Tensors& one : all) {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        CAPTURE(workers, i);
        // Sums of replicas of a process, then of processes, are added in another order.
        const bool bits = workers == 4 || (i != 0 && i + 1 != wanted.size());
        CHECK((bits ? one[i].equal(wanted[i]) : one[i].allclose(wanted[i], 1e-5, 1e-6)));
      }
    }
  }
}

TEST_CASE("variables begin with the chief's values everywhere", "[spec][MWM-09]") {
  const auto values = on_cluster<Tensors>(3, 2, [](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable w = Variable::create("w", torch::full({2, 3}, 1.0 + strategy.id_in_cluster()));
    const Variable late =
        Variable::create("late", [&] { return torch::full({2}, 4.0 + strategy.id_in_cluster()); },
                         {.initialize = false});
    late.initialize();
    Net net = float64_net();
    {
      const torch::NoGradGuard no_grad;
      net->first->weight.fill_(strategy.id_in_cluster());
    }
    const auto module = strategy.distribute(net);
    Tensors all{late.value()};
    for (const Variable& component : w.components()) all.push_back(component.value());
    for (const Variable& component : module.parameters()[0].components()) {
      all.push_back(component.value().detach());
    }
    return all;
  });
  for (const Tensors& one : values) {
    CHECK(one[0].equal(torch::full({2}, 4.0)));
    CHECK(one[1].equal(torch::full({2, 3}, 1.0)));
    CHECK(one[2].equal(torch::full({2, 3}, 1.0)));
    CHECK(one[3].equal(torch::zeros_like(one[3])));
    CHECK(one[4].equal(torch::zeros_like(one[4])));
  }
}

TEST_CASE("writes in replicas are combined over all workers", "[strategy][unit]") {
  const auto compute = [](Strategy& strategy) -> Tensors {
    const auto scope = strategy.scope();
    Tensors results;
    for (const VariableAggregation aggregation :
         {VariableAggregation::kSum, VariableAggregation::kMean,
          VariableAggregation::kOnlyFirstReplica}) {
      const Variable w = Variable::create("w", torch::zeros({4, 2}), {.aggregation = aggregation});
      strategy.run([&] {
        w.assign_add(torch::full({4, 2}, 1.0F + static_cast<float>(id())), false);
        w.scatter_add({torch::full({1, 2}, 10.0F + static_cast<float>(id())),
                       torch::tensor({std::int64_t{id() % 3}})},
                      false);
        if (aggregation == VariableAggregation::kMean) w.assign_add(5.0, false);
      });
      for (const Variable& component : w.components()) results.push_back(component.value());
    }
    return results;
  };
  MirroredStrategy alone({"CPU:0", "CPU:1", "CPU:2", "CPU:3"});
  const Tensors wanted = compute(alone);
  const auto all = on_cluster<Tensors>(
      2, 2, [&](MultiWorkerMirroredStrategy& strategy) { return compute(strategy); });
  for (const Tensors& one : all) {
    for (std::size_t i = 0; i < one.size(); ++i) {
      CAPTURE(i);
      CHECK(one[i].equal(wanted[i / 2 * 4]));
    }
  }
}

TEST_CASE("what one worker cannot give a variable is an error of all workers", "[strategy][unit]") {
  using Body = std::function<void(MultiWorkerMirroredStrategy&, bool)>;
  // Each ends the group, but for the value that is undefined: the others hear of that one.
  const std::vector<std::pair<Body, std::string>> bodies{
      {[](MultiWorkerMirroredStrategy&, bool bad) {
         (void)Variable::create("v", [bad]() -> torch::Tensor {
           if (bad) raise(ErrorCode::kNotFound, "no such file");
           return torch::ones({2});
         });
       },
       "no such file"},
      {[](MultiWorkerMirroredStrategy&, bool bad) {
         const auto make = [bad]() -> torch::Tensor {
           if (bad) raise(ErrorCode::kNotFound, "no such file");
           return torch::ones({2});
         };
         Variable::create("v", make, {.initialize = false}).initialize();
       },
       "no such file"},
      {[](MultiWorkerMirroredStrategy&, bool bad) {
         (void)Variable::create("v", bad ? torch::Tensor() : torch::ones({2}));
       },
       "has nothing"},
      {[](MultiWorkerMirroredStrategy& strategy, bool bad) {
         strategy.run(
             [&] { (void)Variable::create(bad && id() == 3 ? "other" : "v", torch::ones({2})); });
       },
       "replica 2 creates \"v\" and replica 3 \"other\""},
      {[](MultiWorkerMirroredStrategy& strategy, bool) {
         const Variable v =
             Variable::create("v", torch::ones({2}), {.aggregation = VariableAggregation::kSum});
         strategy.run([&] { v.assign_add(id() == 2 ? torch::Tensor() : torch::ones({2})); });
       },
       "cannot be assigned no tensor"},
      {[](MultiWorkerMirroredStrategy& strategy, bool) {
         const Variable v =
             Variable::create("v", torch::ones({2}), {.aggregation = VariableAggregation::kSum});
         const torch::Tensor first = torch::tensor({std::int64_t{0}});
         strategy.run([&] {
           v.scatter_add({id() == 2 ? torch::Tensor() : torch::ones({1}), first}, false);
         });
       },
       "no values"}};
  for (const auto& [body, text] : bodies) {
    const Cluster cluster(2);
    const auto told = in_threads<std::string>(2, [&, &run = body](int worker) -> std::string {
      MultiWorkerMirroredOptions options = cluster.options(worker, 2);
      options.call_within = std::chrono::seconds(60);
      MultiWorkerMirroredStrategy strategy(options);
      const auto scope = strategy.scope();
      const auto error = error_of([&] { run(strategy, worker == 1); });
      return error ? error->message() : "";
    });
    for (const std::string& one : told) {
      CAPTURE(text, one);
      CHECK(one.find(text) != std::string::npos);
    }
  }
}

TEST_CASE("ON_READ variables and metrics are of all workers", "[strategy][unit]") {
  const auto compute = [](Strategy& strategy) {
    const auto scope = strategy.scope();
    const auto on_read = [](const char* name, const torch::Tensor& value,
                            VariableAggregation aggregation) {
      return Variable::create(
          name, value,
          {.synchronization = VariableSynchronization::kOnRead, .aggregation = aggregation});
    };
    const Variable sum = on_read("sum", torch::zeros({2}), VariableAggregation::kSum);
    const Variable whole =
        on_read("whole", torch::tensor(std::int64_t{0}), VariableAggregation::kSum);
    const Variable mean = on_read("mean", torch::zeros({2}), VariableAggregation::kMean);
    const Variable first =
        on_read("first", torch::zeros({2}), VariableAggregation::kOnlyFirstReplica);
    whole.assign(std::int64_t{7}, false);
    Mean loss("loss");
    const auto seen = strategy.run([&] {
      const torch::Tensor mine = torch::full({2}, 1.0F + static_cast<float>(id()));
      sum.assign_add(mine, false);
      mean.assign(mine, false);
      first.assign(mine, false);
      loss.update(static_cast<double>(id()));
      return torch::full({1}, loss.result());
    });
    return Tensors{sum.value(),
                   whole.value(),
                   mean.value(),
                   first.value(),
                   strategy.gather(seen, 0)[0].reshape({1}),
                   torch::full({1}, loss.result())};
  };
  MirroredStrategy alone({"CPU:0", "CPU:1", "CPU:2", "CPU:3"});
  const Tensors wanted = compute(alone);
  CHECK(wanted[0].equal(torch::full({2}, 10.0F)));
  for (const auto& [workers, devices] : std::vector<std::pair<int, int>>{{4, 1}, {2, 2}}) {
    const auto all = on_cluster<Tensors>(
        workers, devices, [&](MultiWorkerMirroredStrategy& strategy) { return compute(strategy); });
    for (const Tensors& one : all) {
      for (std::size_t i = 0; i < one.size(); ++i) {
        CAPTURE(workers, i);
        CHECK(one[i].equal(wanted[i]));
      }
    }
  }
}

// Losses and last parameters of 30 steps.
Tensors train(Strategy& strategy, int replicas) {
  const auto scope = strategy.scope();
  const auto net = strategy.distribute(float64_net());
  const auto optimizer =
      strategy.optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.01));
  Tensors results;
  for (std::int64_t step = 0; step < 30; ++step) {
    const Batch batch = [&] {
      const torch::Tensor x =
          torch::sin(torch::arange(24 * 6, torch::kFloat64).reshape({24, 6}) + step);
      return Batch{x, torch::cos(x.narrow(1, 0, 3))};
    }();
    const auto loss = strategy.run([&] {
      const std::int64_t rows = 24 / replicas;
      const Batch mine = batch.part(id() * rows, rows);
      optimizer.zero_grad();
      const torch::Tensor value =
          compute_average_loss(squares(net->forward(mine.x), mine.y), std::int64_t{24});
      value.backward();
      optimizer.step();
      return value.detach();
    });
    results.push_back(strategy.reduce(ReduceOp::kSum, loss));
  }
  for (const Variable& parameter : net.parameters()) {
    results.push_back(parameter.component(0).value().detach().clone());
  }
  return results;
}

TEST_CASE("training over workers gives what one process gives", "[strategy][unit]") {
  MirroredStrategy one({"CPU:0"});
  const Tensors single = train(one, 1);
  MirroredStrategy four({"CPU:0", "CPU:1", "CPU:2", "CPU:3"});
  const Tensors mirrored = train(four, 4);

  const auto all = on_cluster<Tensors>(
      4, 1, [&](MultiWorkerMirroredStrategy& strategy) { return train(strategy, 4); });
  for (const Tensors& worker : all) {
    for (std::size_t i = 0; i < worker.size(); ++i) {
      CAPTURE(i);
      CHECK(worker[i].equal(mirrored[i]));
      CHECK(worker[i].allclose(single[i], 1e-9, 1e-9));
    }
  }
}

TEST_CASE("workers read parts of one dataset, for the same number of steps", "[strategy][unit]") {
  const auto steps = on_cluster<Steps>(2, 2, [](MultiWorkerMirroredStrategy& strategy) {
    return steps_of(experimental_distribute_dataset(strategy, dataset::range(15).batch(4)));
  });
  CHECK(steps[0] == Steps{{{0}, {2}}, {{4}, {6}}, {{8}, {10}}, {{12}, {14}}});
  CHECK(steps[1] == Steps{{{1}, {3}}, {{5}, {7}}, {{9}, {11}}, {{13}, {}}});

  const auto uneven = on_cluster<Steps>(2, 1, [](MultiWorkerMirroredStrategy& strategy) {
    return steps_of(distribute_datasets_from_function(strategy, [](const InputContext& context) {
      return dataset::range(6 * context.input_pipeline_id()).batch(4);
    }));
  });
  CHECK(of_replica(uneven[0], 0) == std::vector<Numbers>{{}, {}});
  CHECK(of_replica(uneven[1], 0) == std::vector<Numbers>{{0, 1, 2, 3}, {4, 5}});
}

TEST_CASE("a worker whose input fails fails all, and is named", "[strategy][unit]") {
  const bool chief = GENERATE(false, true);
  const Cluster cluster(2, chief);
  const auto errors = in_threads<std::string>(2, [&](int worker) -> std::string {
    MultiWorkerMirroredStrategy strategy(cluster.options(worker));
    const auto data = distribute_datasets_from_function(strategy, [](const InputContext& context) {
      return dataset::range(4)
          .map([id = context.input_pipeline_id()](const torch::Tensor& x) {
            if (id == 1 && x.item<std::int64_t>() == 2) {
              raise(ErrorCode::kOutOfRange, "record 2 is broken");
            }
            return x;
          })
          .batch(1);
    });
    const auto error = error_of([&] { (void)steps_of(data); });
    return error ? error->message() : "";
  });
  // Behind a chief the second process is worker 0.
  CHECK(errors[0].find(chief ? "worker:0: " : "worker:1: ") != std::string::npos);
  CHECK(errors[0].find("record 2 is broken") != std::string::npos);
  CHECK(errors[1].find("record 2 is broken") != std::string::npos);
}

TEST_CASE("fewer files than workers is an error that names both numbers", "[strategy][unit]") {
  const auto errors =
      on_cluster<std::string>(2, 1, [](MultiWorkerMirroredStrategy& strategy) -> std::string {
        const auto records = dataset::file_names({"only"}).flat_map(
            [](const std::string&) { return dataset::range(4); });
        const auto error =
            error_of([&] { (void)experimental_distribute_dataset(strategy, records.batch(2)); });
        return error ? to_string(error->code()) + error->message() : "";
      });
  for (const std::string& error : errors) {
    CAPTURE(error);
    CHECK(error.find("INVALID_ARGUMENT") == 0);
    CHECK(error.find("1 file for 2 workers") != std::string::npos);
  }
}

TEST_CASE("a worker that sees fewer files than there are workers is named to the others",
          "[strategy][unit]") {
  const auto errors =
      on_cluster<std::string>(2, 1, [](MultiWorkerMirroredStrategy& strategy) -> std::string {
        const std::vector<std::string> files = strategy.is_chief()
                                                   ? std::vector<std::string>{"a", "b"}
                                                   : std::vector<std::string>{"a"};
        const auto records = dataset::file_names(files).flat_map(
            [](const std::string&) { return dataset::range(4); });
        const auto error = error_of(
            [&] { (void)steps_of(experimental_distribute_dataset(strategy, records.batch(2))); });
        return error ? to_string(error->code()) + error->message() : "";
      });
  CAPTURE(errors[0], errors[1]);
  CHECK(errors[1].find("INVALID_ARGUMENT") == 0);
  CHECK(errors[1].find("1 file for 2 workers") != std::string::npos);
  CHECK(errors[0].find("UNAVAILABLE") == 0);
  CHECK(errors[0].find("worker:1 has left") != std::string::npos);
}

TEST_CASE("the chief writes checkpoints, the others take part, and all restore them",
          "[spec][CKP-08]") {
  const TempFolder folder;
  const auto seen = on_cluster<Tensors>(2, 2, [&](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable total = Variable::create("total", torch::zeros({2}),
                                            {.synchronization = VariableSynchronization::kOnRead,
                                             .aggregation = VariableAggregation::kSum});
    strategy.run([&] { total.assign_add(torch::full({2}, 1.0F), false); });
    Checkpoint checkpoint({{"total", total}});
    // Each worker names a folder: the chief's alone is written.
    const std::string mine = folder / std::to_string(strategy.id_in_cluster());
    CheckpointManager manager(checkpoint, mine, 2);
    (void)manager.save(1);
    const bool other_wrote = std::filesystem::exists(folder / "1");
    total.assign(torch::zeros({2}), false);
    CheckpointManager chiefs(checkpoint, folder / "0", 2);
    (void)chiefs.restore_latest();
    checkpoint.save_async(folder / "0/step-000000000002", 2);
    checkpoint.wait();
    return Tensors{total.value(), total.component(0).value(),
                   torch::full({1}, other_wrote ? 1.0 : 0.0),
                   torch::full({1}, static_cast<double>(chiefs.checkpoints().size()))};
  });
  for (const Tensors& one : seen) {
    CHECK(one[0].equal(torch::full({2}, 4.0F)));
    CHECK(one[1].equal(torch::full({2}, 1.0F)));
    CHECK(one[2].item<double>() == 0);
    CHECK(one[3].item<double>() == 2);
  }
}

TEST_CASE("a checkpoint that holds optimizers alone is the chief's to write as well",
          "[strategy][unit]") {
  const TempFolder folder;
  const auto wrote = on_cluster<int>(2, 1, [&](MultiWorkerMirroredStrategy& strategy) {
    const auto net = strategy.distribute(float64_net());
    const auto optimizer =
        strategy.optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.1));
    Checkpoint checkpoint;
    checkpoint.track(optimizer);
    const std::string mine = folder / std::to_string(strategy.id_in_cluster());
    checkpoint.save(mine, 1);
    return std::filesystem::exists(mine) ? 1 : 0;
  });
  CHECK(wrote == std::vector<int>{1, 0});
}

TEST_CASE("the chief alone looks for the newest checkpoint", "[strategy][unit]") {
  const TempFolder folder;
  std::ofstream(folder / "file") << "no folder";
  const auto restore = [&](bool chief_can) {
    return on_cluster<std::string>(2, 1, [&](MultiWorkerMirroredStrategy& strategy) {
      const auto scope = strategy.scope();
      Checkpoint checkpoint({{"w", Variable::create("w", torch::zeros({2}))}});
      (void)CheckpointManager(checkpoint, folder / "saved", 2).save(1);
      const bool can = chief_can == (strategy.id_in_cluster() == 0);
      CheckpointManager manager(checkpoint, folder / (can ? "saved" : "file"), 2);
      const auto error = error_of([&] { (void)manager.restore_latest(); });
      return error ? error->message() : "";
    });
  };
  const auto of_chief = restore(true);
  CHECK(of_chief[1].find("worker:1: ") == 0);
  CHECK(of_chief[1].find("file/step-000000000001") != std::string::npos);
  CHECK(of_chief[0] == of_chief[1]);
  // What the chief cannot read is every worker's error.
  const auto of_none = restore(false);
  CHECK(of_none[0].find(folder / "file") != std::string::npos);
  CHECK(of_none[1] == of_none[0]);
}

TEST_CASE("a checkpoint that the chief cannot write is every worker's error", "[strategy][unit]") {
  const TempFolder folder;
  std::ofstream(folder / "file") << "no folder";
  const auto codes = on_cluster<ErrorCode>(2, 1, [&](MultiWorkerMirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    Checkpoint checkpoint({{"w", Variable::create("w", torch::zeros({2}))}});
    return code_of([&] { checkpoint.save(folder / "file/step", 1); });
  });
  CHECK(codes[0] != ErrorCode::kOk);
  CHECK(codes[1] == codes[0]);
}

TEST_CASE("the chief writes a module's file", "[strategy][unit]") {
  const TempFolder folder;
  const auto there = on_cluster<int>(2, 1, [&](MultiWorkerMirroredStrategy& strategy) {
    const auto net = strategy.distribute(float64_net());
    net.save(folder / "net.pt");
    net.load(folder / "net.pt");
    return std::filesystem::exists(folder / "net.pt") ? 1 : 0;
  });
  CHECK(there == std::vector<int>{1, 1});
}

TEST_CASE("conjugate and negative views go to other workers as what they show",
          "[strategy][unit]") {
  const auto joined = on_cluster<Tensors>(2, 1, [](MultiWorkerMirroredStrategy& strategy) {
    const auto z = strategy.run([] {
      return torch::conj(torch::complex(torch::full({1}, 1.0F), torch::full({1}, 3.0F + id())));
    });
    const auto parts = strategy.run([](const torch::Tensor& mine) { return torch::imag(mine); }, z);
    return Tensors{torch::imag(strategy.gather(z, 0)), strategy.gather(parts, 0)};
  });

  for (const Tensors& one : joined) {
    CHECK(one[0].equal(torch::tensor({-3.0F, -4.0F})));
    CHECK(one[1].equal(torch::tensor({-3.0F, -4.0F})));
  }
}

}  // namespace
}  // namespace muster::testing
