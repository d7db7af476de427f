// What collectives of replica contexts bring over the workers of a cluster: dense values, rows,
// batches of both, and on which devices.
#include <array>
#include <atomic>
#include <thread>

#include <fmt/format.h>

#include "strategy/core/context.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/values/device_of.h"
#include "strategy/values/sparse.h"
#include "strategy/variables/variable.h"
#include "tests/unit/strategy/logged.h"
#include "tests/unit/strategy/multi_worker_mirrored/workers.h"
#include "tests/unit/strategy/replicas.h"

namespace muster::testing {
namespace {

using Tensors = std::vector<torch::Tensor>;
using Rows = std::vector<std::int64_t>;

torch::Tensor floats(const std::vector<float>& values) { return torch::tensor(values); }

// Row indices[i] is values[i], of a matrix of one column.
torch::Tensor rows_of(const std::vector<float>& values, const Rows& indices) {
  return to_sparse({floats(values).reshape({-1, 1}), torch::tensor(indices), Rows{10, 1}});
}

bool has_rows(const torch::Tensor& sparse, const std::vector<float>& values, const Rows& indices) {
  const IndexedSlices slices = to_slices(sparse);
  return slices.values.reshape({-1}).equal(floats(values)) &&
         slices.indices.equal(torch::tensor(indices)) &&
         sparse.sizes() == torch::IntArrayRef({10, 1});
}

// What body(replica id) gives in each replica of `workers` workers of one device, by replica.
std::vector<Tensors> in_replicas(int workers, const std::function<Tensors(int)>& body) {
  return on_cluster<Tensors>(workers, 1, [&](MultiWorkerMirroredStrategy& strategy) {
    return strategy.run([&] { return body(id()); }).values()[0];
  });
}

TEST_CASE("all_reduce of one, two and four workers is their sum and their mean",
          "[spec][COL-01][COL-02][COL-03]") {
  const int workers = GENERATE(1, 2, 4);
  const auto all = in_replicas(workers, [](int replica) {
    const auto mine = static_cast<float>(replica);
    const Tensors both{torch::tensor(mine + 1), floats({2 * mine + 1, 2 * mine + 2})};
    Tensors result = replica_context().all_reduce(ReduceOp::kSum, both);
    for (const auto& mean : replica_context().all_reduce(ReduceOp::kMean, both)) {
      result.push_back(mean);
    }
    return result;
  });
  const std::map<int, float> sums{{1, 1.0F}, {2, 3.0F}, {4, 10.0F}};
  const std::map<int, std::vector<float>> pairs{{1, {1, 2}}, {2, {4, 6}}, {4, {16, 20}}};
  for (const Tensors& one : all) {
    const auto n = static_cast<float>(workers);
    CHECK(one[0].item<float>() == sums.at(workers));
    CHECK(one[1].equal(floats(pairs.at(workers))));
    CHECK(one[2].item<float>() == sums.at(workers) / n);
    CHECK(one[3].equal(floats(pairs.at(workers)) / n));
  }
}

TEST_CASE("rows of workers are joined in their order, however many each has",
          "[spec][COL-04][COL-05]") {
  const auto equal = in_replicas(2, [](int replica) {
    return Tensors{replica_context().all_reduce(
        ReduceOp::kSum, replica == 0 ? rows_of({1, 2}, {0, 1}) : rows_of({3, 4}, {1, 2}))};
  });
  const auto ragged = in_replicas(2, [](int replica) {
    return Tensors{replica_context().all_reduce(
        ReduceOp::kSum, replica == 0 ? rows_of({1}, {0}) : rows_of({2, 3, 4}, {0, 1, 2}))};
  });
  for (const std::size_t worker : {0U, 1U}) {
    CHECK(has_rows(equal[worker][0], {1, 2, 3, 4}, {0, 1, 1, 2}));
    CHECK(has_rows(ragged[worker][0], {1, 2, 3, 4}, {0, 0, 1, 2}));
  }
}

TEST_CASE("a nest of dense values and rows keeps its order: sums grow with the workers, means stay",
          "[spec][COL-06][COL-07]") {
  const int workers = GENERATE(2, 3);
  const auto all = in_replicas(workers, [](int) {
    const Tensors nest{floats({1, 2}), rows_of({3}, {4}), torch::full({3, 2}, 5.0F),
                       rows_of({6, 7}, {1, 9})};
    Tensors result = replica_context().all_reduce(ReduceOp::kSum, nest);
    for (const auto& mean : replica_context().all_reduce(ReduceOp::kMean, nest)) {
      result.push_back(mean);
    }
    return result;
  });
  const auto n = static_cast<float>(workers);
  for (const Tensors& one : all) {
    REQUIRE(one.size() == 8);
    for (const auto& [first, times] : {std::pair<std::size_t, float>{0, n}, {4, 1.0F}}) {
      CAPTURE(first);
      CHECK(one[first].allclose(floats({1, 2}) * times));
      CHECK(one[first + 1].to_dense().allclose(rows_of({3}, {4}).to_dense() * times));
      CHECK(one[first + 2].allclose(torch::full({3, 2}, 5.0F) * times));
      CHECK(one[first + 3].to_dense().allclose(rows_of({6, 7}, {1, 9}).to_dense() * times));
    }
  }
}

TEST_CASE("workers whose rows are of matrices of other shapes are all told so, and go on",
          "[strategy][unit]") {
  const auto told = on_cluster<std::string>(2, 2, [](MultiWorkerMirroredStrategy& strategy) {
    std::string said;
    const auto reduce = [](std::int64_t rows) {
      const IndexedSlices mine{floats({1}).reshape({1, 1}), torch::tensor(Rows{0}), Rows{rows, 1}};
      return replica_context().all_reduce(ReduceOp::kSum, mine);
    };
    const auto error = error_of([&] { strategy.run([&] { (void)reduce(id() == 3 ? 11 : 10); }); });
    if (error) said = fmt::format("{} {}", to_string(error->code()), error->message());
    strategy.run([&] { (void)reduce(10); });
    return said;
  });
  for (const std::string& one : told) {
    CAPTURE(one);
    CHECK(one.starts_with("INVALID_ARGUMENT"));
    CHECK(one.find("IndexedSlices 3 are rows of [11, 1], IndexedSlices 0 of [10, 1]") !=
          std::string::npos);
  }
}

TEST_CASE("replicas of one worker that bring different numbers of rows end the call on all workers",
          "[strategy][unit]") {
  const auto codes = on_cluster<ErrorCode>(2, 2, [](MultiWorkerMirroredStrategy& strategy) {
    return code_of([&] {
      strategy.run([&] {
        Tensors mine{rows_of({1}, {0})};
        if (id() == 1) mine.push_back(rows_of({2}, {1}));
        (void)replica_context().all_reduce(ReduceOp::kSum, mine,
                                           {.timeout = std::chrono::seconds(60)});
      });
    });
  });
  CHECK(codes == std::vector<ErrorCode>(2, ErrorCode::kInvalidArgument));
}

TEST_CASE("replicas of one worker whose values do not go together end the call on all workers",
          "[strategy][unit]") {
  // Complex numbers are added by the last replica of a worker; large values by each worker first.
  const auto add = [](MultiWorkerMirroredStrategy& strategy, bool in_replicas) {
    const std::int64_t large = 40'000;
    const auto own = strategy.run([&] {
      const std::int64_t size = id() == 1 ? large + 1 : large;
      if (!in_replicas) return torch::ones({size});
      return replica_context().all_reduce(ReduceOp::kSum, torch::ones({size}, torch::kComplexFloat),
                                          {.timeout = std::chrono::seconds(60)});
    });
    if (!in_replicas) (void)strategy.reduce(ReduceOp::kSum, own);
  };
  for (const bool in_replicas : {true, false}) {
    CAPTURE(in_replicas);
    const auto told = on_cluster<std::string>(2, 2, [&](MultiWorkerMirroredStrategy& strategy) {
      const auto error = error_of([&] { add(strategy, in_replicas); });
      return error ? fmt::format("{} {}", to_string(error->code()), error->message()) : "";
    });
    for (const std::string& one : told) {
      CAPTURE(one);
      CHECK(one.starts_with("INVALID_ARGUMENT"));
      CHECK(one.find("replica 1 holds shape [40001], replica 0 shape [40000]") !=
            std::string::npos);
    }
  }
}

TEST_CASE("an undefined value of one worker is an error of all and sparse ones are not gathered",
          "[strategy][unit][GAT-07]") {
  const auto told =
      on_cluster<std::vector<std::string>>(2, 2, [&](MultiWorkerMirroredStrategy& strategy) {
        std::vector<std::string> errors;
        const auto note = [&](const std::function<void()>& body) {
          const auto error = error_of(body);
          errors.push_back(error ? fmt::format("{} {}", to_string(error->code()), error->message())
                                 : "");
        };
        const auto some =
            strategy.run([] { return id() == 2 ? torch::Tensor() : torch::ones({2}); });
        note([&] { (void)strategy.reduce(ReduceOp::kSum, some); });
        const auto sparse = strategy.run([] { return torch::ones({2, 2}).to_sparse(1); });
        note([&] { (void)strategy.gather(sparse, 0); });
        errors.push_back(fmt::format("{}", strategy.reduce(ReduceOp::kSum, 1.0).item<double>()));
        return errors;
      });
  for (const std::vector<std::string>& one : told) {
    REQUIRE(one.size() == 3);
    CAPTURE(one[0], one[1]);
    CHECK(one[0].starts_with("INVALID_ARGUMENT"));
    CHECK(one[0].find("replica 2 holds an undefined tensor") != std::string::npos);
    CHECK(one[1].starts_with("UNIMPLEMENTED"));
    CHECK(one[1].find("does not support IndexedSlices") != std::string::npos);
    CHECK(one[2] == "2");  // both go on
  }
}

TEST_CASE("what one replica cannot bring to a sum ends the call on all workers",
          "[strategy][unit]") {
  const CommunicationOptions options{.timeout = std::chrono::seconds(60)};
  const auto start = [&](const torch::Tensor& value) {
    return replica_context().start_all_reduce(ReduceOp::kSum, value, options).wait();
  };
  const auto sum = [&](const torch::Tensor& value) {
    return replica_context().all_reduce(ReduceOp::kSum, value, options);
  };
  struct Case {
    std::function<torch::Tensor(const torch::Tensor&)> call;
    torch::Tensor value;
    std::string text;
  };
  const std::vector<Case> cases{
      {sum, torch::Tensor(), "all_reduce of an undefined tensor on replica 1"},
      {sum, torch::eye(2).to_sparse_csr(), "a tensor of layout SparseCsr cannot be reduced"},
      {start, torch::Tensor(), "start_all_reduce of an undefined tensor on replica 1"},
      {start, torch::eye(2).to_sparse_csr(), "a tensor of layout SparseCsr cannot be reduced"}};
  for (const int devices : {1, 2}) {
    for (const Case& one : cases) {
      const auto told =
          on_cluster<std::string>(2, devices, [&](MultiWorkerMirroredStrategy& strategy) {
            const auto error = error_of([&] {
              strategy.run([&] { (void)one.call(id() == 1 ? one.value : torch::ones({2, 2})); });
            });
            return error ? fmt::format("{} {}", to_string(error->code()), error->message()) : "";
          });
      for (const std::string& text : told) {
        CAPTURE(devices, one.text, text);
        CHECK(text.starts_with("INVALID_ARGUMENT"));
        CHECK(text.find(one.text) != std::string::npos);
      }
    }
  }
}

TEST_CASE("what one replica cannot bring to all_gather all workers hear of and go on",
          "[strategy][unit][GAT-07]") {
  const int devices = GENERATE(1, 2);
  const auto told =
      on_cluster<std::vector<std::string>>(2, devices, [](MultiWorkerMirroredStrategy& strategy) {
        std::vector<std::string> errors;
        const CommunicationOptions options{.timeout = std::chrono::seconds(60)};
        const auto note = [&](const auto& bad) {
          const auto error = error_of([&] {
            strategy.run([&] {
              if (id() == 1) {
                (void)replica_context().all_gather(bad, 0, options);
              } else {
                (void)replica_context().all_gather(torch::ones({2, 2}), 0, options);
              }
            });
          });
          errors.push_back(error ? fmt::format("{} {}", to_string(error->code()), error->message())
                                 : "");
        };
        note(torch::Tensor());
        note(torch::eye(2).to_sparse_csr());
        note(torch::eye(2).to_sparse(1));
        note(IndexedSlices{torch::ones({1, 2}), torch::tensor(Rows{0}), Rows{4, 2}});
        const auto ids =
            strategy.run([] { return replica_context().all_gather(torch::full({1}, id()), 0); });
        errors.push_back(fmt::format("{}", ids.values()[0].sum().item<std::int64_t>()));
        return errors;
      });
  for (const std::vector<std::string>& one : told) {
    REQUIRE(one.size() == 5);
    CAPTURE(devices, one[0], one[1], one[2], one[3]);
    CHECK(one[0].starts_with("INVALID_ARGUMENT"));
    CHECK(one[0].find("all_gather of an undefined tensor: tensor 0 of replica 1") !=
          std::string::npos);
    for (const std::size_t sparse : {1U, 2U, 3U}) {
      CHECK(one[sparse].starts_with("UNIMPLEMENTED"));
      CHECK(one[sparse].find("does not support IndexedSlices") != std::string::npos);
    }
    CHECK(one[4] == (devices == 1 ? "1" : "6"));
  }
}

TEST_CASE("a worker that waits for another one longer than its timeout is told for whom",
          "[spec][COL-10]") {
  // A dense value, rows, a batch of each.
  const std::vector<Tensors> batches{{floats({1})},
                                     {rows_of({1}, {0})},
                                     {floats({1}), floats({2, 3})},
                                     {rows_of({1}, {0}), rows_of({2, 3}, {1, 4})}};
  for (std::size_t form = 0; form < batches.size(); ++form) {
    const Cluster cluster(2);
    std::atomic<bool> gave_up{false};
    const auto told = in_threads<std::string>(2, [&](int worker) -> std::string {
      MultiWorkerMirroredStrategy strategy(cluster.options(worker));
      if (worker == 1) {
        while (!gave_up) std::this_thread::yield();
        return {};
      }
      const auto error = error_of([&] {
        strategy.run([&] {
          const CommunicationOptions options{.timeout = std::chrono::milliseconds(200)};
          if (batches[form].size() == 1) {
            (void)replica_context().all_reduce(ReduceOp::kSum, batches[form][0], options);
          } else {
            (void)replica_context().all_reduce(ReduceOp::kSum, batches[form], options);
          }
        });
      });
      gave_up = true;
      return error ? fmt::format("{} {}", to_string(error->code()), error->message()) : "";
    });
    CAPTURE(form, told[0]);
    CHECK(told[0].starts_with("DEADLINE_EXCEEDED"));
    CHECK(told[0].find("worker:1") != std::string::npos);
  }
}

TEST_CASE("all_gather joins values of one shape along each of their axes", "[spec][COL-08]") {
  const auto value = [](int replica) {
    return torch::arange(4, torch::kFloat).reshape({1, 2, 2}) + 10.0 * replica;
  };
  const auto all = in_replicas(3, [&](int replica) {
    Tensors joined;
    for (const int axis : {0, 1, 2}) {
      joined.push_back(replica_context().all_gather(value(replica), axis));
    }
    return joined;
  });
  for (const Tensors& one : all) {
    for (const int axis : {0, 1, 2}) {
      CAPTURE(axis);
      CHECK(one[static_cast<std::size_t>(axis)].equal(
          torch::cat({value(0), value(1), value(2)}, axis)));
    }
  }
}

TEST_CASE("values that cannot be joined are refused on all workers, which go on",
          "[spec][GAT-05][GAT-09]") {
  struct Told {
    std::vector<std::string> errors;
    torch::Tensor joined, sum;
  };
  const auto all = on_cluster<Told>(2, 1, [](MultiWorkerMirroredStrategy& strategy) {
    Told told;
    const auto note = [&](const std::function<void()>& body) {
      const auto error = error_of(body);
      told.errors.push_back(error ? fmt::format("{} {}", to_string(error->code()), error->message())
                                  : "");
    };
    const auto pieces = strategy.run([] { return torch::ones({2, id() + 1}); });

    note([&] { (void)strategy.gather(pieces, 0); });
    note([&] {
      strategy.run([] { (void)replica_context().all_gather(torch::ones({2, id() + 1}), 0); });
    });

    told.joined = strategy.gather(pieces, 1);
    told.sum = strategy.run([] {
      return replica_context().all_reduce(ReduceOp::kSum, torch::full({}, id() + 1.0F));
    })[0];
    return told;
  });
  for (const Told& one : all) {
    REQUIRE(one.errors.size() == 2);
    for (const std::string& error : one.errors) {
      CAPTURE(error);
      CHECK(error.starts_with("INVALID_ARGUMENT"));
      CHECK(error.find("Shape mismatch: Dimension 1 in both shapes must be equal") !=
            std::string::npos);
    }
    CHECK(one.joined.equal(torch::ones({2, 3})));
    CHECK(one.sum.item<float>() == 3.0F);
  }
}

// Threads of a worker whose calls may come in any order need a strategy each: calls of one are
// compared between its workers.
TEST_CASE("two threads of each worker that reduce at the same time never mix their values",
          "[spec][COL-09]") {
  const Cluster first(2);
  const Cluster second(2);
  const auto sums = in_threads<std::vector<Tensors>>(4, [&](int thread) {
    const int worker = thread / 2;
    const auto mine = static_cast<float>(1 + thread % 2);
    MultiWorkerMirroredStrategy strategy((thread % 2 == 0 ? first : second).options(worker));
    std::vector<Tensors> all;
    for (int call = 0; call < 50; ++call) {
      if (call % 7 == 3 * worker) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      all.push_back(strategy
                        .run([&] {
                          const Tensors batch{torch::full({2}, mine), torch::full({2}, mine)};
                          return replica_context().all_reduce(ReduceOp::kSum, batch);
                        })
                        .values()[0]);
    }
    return all;
  });
  for (std::size_t thread = 0; thread < 4; ++thread) {
    for (const Tensors& one : sums[thread]) {
      for (const torch::Tensor& sum : one) {
        CHECK(sum.equal(torch::full({2}, thread % 2 == 0 ? 2.0F : 4.0F)));
      }
    }
  }
}

TEST_CASE("two threads that reduce on one strategy never mix their values", "[spec][COL-09]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  constexpr int kCalls = 200;
  std::array<std::atomic<int>, 2> begun{};
  using Batches = std::vector<std::vector<Tensors>>;
  const auto sums = in_threads<Batches>(2, [&](int thread) {
    const auto mine = static_cast<std::size_t>(thread);
    Batches all;
    for (int call = 1; call <= kCalls; ++call) {
      const auto results = strategy.run([&] {
        begun[mine] = call;
        // This replica comes when those of the other thread do, the other one before.
        while (id() == call % 2 && begun[1 - mine] < call) std::this_thread::yield();
        const auto value = static_cast<float>((1 + thread) * call);
        const Tensors batch{torch::full({2}, value), torch::full({2}, value)};
        return replica_context().all_reduce(ReduceOp::kSum, batch);
      });
      all.push_back(results.values());
    }
    return all;
  });
  for (std::size_t thread = 0; thread < 2; ++thread) {
    for (std::size_t call = 0; call < kCalls; ++call) {
      const auto sum = static_cast<float>(2 * (1 + thread) * (call + 1));
      CAPTURE(thread, call);
      REQUIRE(sums[thread][call].size() == 2);
      for (const Tensors& replica : sums[thread][call]) {
        CHECK(replica[0].equal(torch::full({2}, sum)));
        CHECK(replica[1].equal(torch::full({2}, sum)));
      }
    }
  }
}

TEST_CASE("results are on the replicas' devices, wherever their arguments were made",
          "[spec][COL-14][COL-15]") {
  using Places = std::vector<std::vector<std::string>>;
  const auto all = on_cluster<Places>(2, 2, [](MultiWorkerMirroredStrategy& strategy) {
    const torch::Tensor outside = torch::ones({3});
    const auto results = strategy.run([&] {
      ReplicaContext& here = replica_context();
      return Tensors{here.all_reduce(ReduceOp::kSum, torch::ones({3})),
                     here.all_gather(torch::ones({1, 2}), 0),
                     here.all_reduce(ReduceOp::kMean, outside)};
    });
    Places places;
    for (const Tensors& one : results.values()) {
      places.emplace_back();
      for (const torch::Tensor& tensor : one) places.back().push_back(device_of(tensor));
    }
    places.push_back(strategy.worker_devices());
    return places;
  });
  for (const Places& worker : all) {
    REQUIRE(worker.size() == 3);
    for (const std::size_t replica : {0U, 1U}) {
      for (const std::string& place : worker[replica]) CHECK(place == worker[2][replica]);
    }
  }
}

TEST_CASE("what is reduced over workers lies on each worker's current device", "[spec][RED-21]") {
  using Places = std::vector<std::string>;
  const auto all = on_cluster<Places>(2, 2, [](MultiWorkerMirroredStrategy& strategy) {
    Places places;
    const auto note = [&] {
      for (const std::int64_t size : {10, 20'000}) {
        const auto value = strategy.run([&] { return torch::ones({size}); });
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
          places.push_back(device_of(strategy.reduce(op, value)));
        }
        places.push_back(device_of(strategy.reduce(ReduceOp::kSum, value, 0)));
      }
    };
    note();
    const DeviceScope elsewhere("CPU:5");
    note();
    return places;
  });
  for (const Places& worker : all) {
    REQUIRE(worker.size() == 12);
    for (std::size_t i = 0; i < worker.size(); ++i) {
      CAPTURE(i);
      CHECK(worker[i] == cpu(i < 6 ? 0 : 5));
    }
  }
}

TEST_CASE("collectives stand in loops and conditionals that all workers run through alike",
          "[spec][COL-16]") {
  const auto all = in_replicas(3, [](int replica) {
    torch::Tensor value = torch::full({2}, 1.0 + replica, torch::kFloat64);
    for (int round = 0; round < 5; ++round) {
      if (round % 2 == 0) {
        value = replica_context().all_reduce(ReduceOp::kSum, value);
      } else if (value.sum().item<double>() > 0) {
        value = replica_context().all_gather(value, 0).slice(0, 0, 2);
      }
    }
    return Tensors{value};
  });
  // 1 + 2 + 3, then three times as much twice.
  for (const Tensors& one : all) CHECK(one[0].equal(torch::full({2}, 54.0, torch::kFloat64)));
}

TEST_CASE("variables of any rank begin with the first worker's values", "[spec][COL-17]") {
  for (int repeat = 0; repeat < 2; ++repeat) {
    const auto all = on_cluster<Tensors>(5, 1, [](MultiWorkerMirroredStrategy& strategy) {
      const auto scope = strategy.scope();
      Tensors values;
      for (std::size_t rank = 1; rank <= 20; ++rank) {
        Rows shape(rank, rank < 8 ? 2 : 1);
        const Variable w =
            Variable::create("w", strategy.is_chief() ? torch::ones(shape) : torch::zeros(shape));
        values.push_back(w.value());
      }
      return values;
    });
    for (const Tensors& one : all) {
      for (std::size_t rank = 1; rank <= 20; ++rank) {
        CAPTURE(rank);
        CHECK(one[rank - 1].equal(torch::ones(Rows(rank, rank < 8 ? 2 : 1))));
      }
    }
  }
}

TEST_CASE("where NCCL is asked for on CPUs sums and gathers go by ring", "[spec][COL-13]") {
  const Cluster cluster(2);
  std::vector<Tensors> all;
  const std::string said = log_of([&] {
    all = in_threads<Tensors>(2, [&](int worker) {
      MultiWorkerMirroredOptions options = cluster.options(worker);
      options.implementation = CommunicationImplementation::kNccl;
      MultiWorkerMirroredStrategy strategy(options);
      const auto* const ops = dynamic_cast<CollectiveAllReduce*>(&strategy.cross_device_ops());
      const bool by_ring =
          ops != nullptr && ops->implementation() == CommunicationImplementation::kRing;
      return strategy
          .run([&] {
            ReplicaContext& here = replica_context();
            return Tensors{here.all_reduce(ReduceOp::kSum, torch::full({2}, 1.0F + id())),
                           here.all_gather(torch::full({1}, 1.0F + id()), 0),
                           torch::tensor(by_ring ? 1 : 0)};
          })
          .values()[0];
    });
  });
  CAPTURE(said);
  CHECK(said.find("NCCL is for GPUs, and CPU:0 is none: RING is used") != std::string::npos);
  for (const Tensors& one : all) {
    CHECK(one[0].equal(floats({3, 3})));
    CHECK(one[1].equal(floats({1, 2})));
    CHECK(one[2].item<int>() == 1);
  }
}

TEST_CASE("sums of float16 are rounded once over all workers, whatever else is in the nest",
          "[strategy][unit]") {
  const auto all = on_cluster<Tensors>(2, 2, [](MultiWorkerMirroredStrategy& strategy) {
    const auto sums = strategy.run([] {
      // More than float16 holds in each worker, nothing over both.
      const torch::Tensor half = torch::full({2}, id() < 2 ? 60'000.0 : -60'000.0, torch::kHalf);
      const torch::Tensor complex = torch::complex(torch::ones({1}), torch::full({1}, 1.0F * id()));
      const auto [sum, others] =
          replica_context().all_reduce(ReduceOp::kSum, std::make_tuple(half, complex));
      return Tensors{sum, others};
    });
    return sums[1];
  });
  for (const Tensors& one : all) {
    CHECK(one[0].scalar_type() == torch::kHalf);
    CHECK(one[0].equal(torch::zeros({2}, torch::kHalf)));
    CHECK(torch::real(one[1]).item<float>() == 4);
    CHECK(torch::imag(one[1]).item<float>() == 6);
  }
}

}  // namespace
}  // namespace muster::testing
