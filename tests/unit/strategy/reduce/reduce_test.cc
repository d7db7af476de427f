#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "strategy/core/default_strategy.h"
#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/values/device_of.h"
#include "strategy/values/sparse.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/replicas.h"

namespace muster {

struct Outputs {
  torch::Tensor loss, score;
};
template <>
struct NestFields<Outputs> {
  static auto tie(auto& value) { return std::tie(value.loss, value.score); }
};

namespace {

using testing::cpu;
using testing::cpus;
using testing::id;
using testing::throws;

TEST_CASE("a reduce op may be given by name in any case", "[strategy][unit]") {
  CHECK(reduce_op("mean") == ReduceOp::kMean);
  CHECK(reduce_op("MEAN") == ReduceOp::kMean);
  CHECK(reduce_op("sum") == ReduceOp::kSum);
  CHECK(reduce_op("SUM") == ReduceOp::kSum);
  CHECK(default_strategy().reduce("Sum", torch::ones({3}), 0).item<float>() == 3);
}

TEST_CASE("another reduce op is refused", "[spec][RED-02]") {
  CHECK(throws(ErrorCode::kInvalidArgument, "\"max\" is not one of", [] { reduce_op("max"); }));
}

TEST_CASE("the default strategy reduces over axes", "[spec][RED-03][RED-04]") {
  Strategy& strategy = default_strategy();
  const torch::Tensor x = torch::tensor({{1.0f, 2.0f}, {3.0f, 4.0f}});

  CHECK(strategy.reduce(ReduceOp::kMean, x).equal(x));
  CHECK(strategy.reduce(ReduceOp::kMean, x, 0).equal(torch::tensor({2.0f, 3.0f})));
  CHECK(strategy.reduce(ReduceOp::kMean, x, {0, 1}).item<float>() == 2.5f);
  CHECK(strategy.reduce(ReduceOp::kSum, x).equal(x));
  CHECK(strategy.reduce(ReduceOp::kSum, x, 0).equal(torch::tensor({4.0f, 6.0f})));
  CHECK(strategy.reduce(ReduceOp::kSum, x, {0, 1}).item<float>() == 10.0f);
}

TEST_CASE("sums and means over replicas", "[spec][RED-05][RED-06]") {
  for (const int n : {1, 2, 3, 4}) {
    MirroredStrategy strategy(cpus(n, 0));
    const auto ones = strategy.run([] { return 1.0; });
    CHECK(strategy.reduce(ReduceOp::kSum, ones).item<double>() == n);
    {
      const auto scope = strategy.scope();
      CHECK(strategy.reduce(ReduceOp::kSum, ones).item<double>() == n);
    }
    const auto pair = strategy.run([] { return torch::tensor({1.0f, 2.0f}); });
    CHECK(strategy.reduce(ReduceOp::kMean, pair, 0).item<float>() == 1.5f);
    CHECK(strategy.reduce(ReduceOp::kSum, pair, 0).item<float>() == 3.0f * static_cast<float>(n));
  }
}

// Tensors have fewer types.
TEMPLATE_TEST_CASE("numbers of any C++ type are reduced", "[strategy][unit]", char, signed char,
                   unsigned char, short, unsigned short, int, unsigned, long, unsigned long,
                   long long, unsigned long long, float, double, long double) {
  MirroredStrategy strategy(cpus(2, 0));
  const PerReplica<TestType> value({TestType{3}, TestType{4}});
  CHECK(strategy.reduce(ReduceOp::kSum, value).template item<double>() == 7);
  CHECK(strategy.reduce(ReduceOp::kMean, value).template item<double>() == 3.5);
}

TEST_CASE("a number that no tensor can hold is refused", "[strategy][unit]") {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  constexpr auto kMore = std::uint64_t{kMost} + 1;
  CHECK(nest::to_tensor(std::uint64_t{kMost}).item<std::int64_t>() == kMost);
  CHECK(throws(ErrorCode::kInvalidArgument, "9223372036854775808 is above the largest integer",
               [] { (void)nest::to_tensor(kMore); }));
}

TEST_CASE("with an axis MEAN divides by the number of elements", "[spec][RED-07][RED-08][RED-09]") {
  for (const auto type :
       {torch::kFloat, torch::kInt, torch::kLong, torch::kBFloat16, torch::kHalf}) {
    const bool rounds = type == torch::kBFloat16 || type == torch::kHalf;
    for (const int n : {2, 4}) {
      MirroredStrategy strategy(cpus(n, 0));
      const auto value = strategy.run([&] { return torch::full({id() + 1}, id(), type); });
      double sum = 0, elements = 0;
      for (int r = 0; r < n; ++r) {
        sum += r * (r + 1);
        elements += r + 1;
      }
      CHECK(sum == (n == 2 ? 2 : 20));
      CHECK(strategy.reduce(ReduceOp::kSum, value, 0).item<double>() == sum);
      const torch::Tensor mean = strategy.reduce(ReduceOp::kMean, value, 0);
      CHECK(torch::is_floating_point(mean));
      CHECK(mean.item<double>() == Approx(sum / elements).epsilon(rounds ? 1e-2 : 1e-6));
    }
  }
}

TEST_CASE("sums of bfloat16 and float16 are made in float32", "[spec][RED-09]") {
  MirroredStrategy strategy(cpus(2, 0));
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    const auto value = strategy.run([&] { return torch::full({4096}, 1, type); });

    // In bfloat16 a running sum stops growing at 256, in float16 at 2048.
    CHECK(strategy.reduce(ReduceOp::kSum, value, 0).item<float>() == 8192.0f);
  }
}

TEST_CASE("sums of bfloat16 and float16 over replicas alone are rounded once", "[spec][RED-09]") {
  for (const std::shared_ptr<CrossDeviceOps>& ops : std::vector<std::shared_ptr<CrossDeviceOps>>{
           std::make_shared<CollectiveAllReduce>(), std::make_shared<ReductionToOneDevice>(),
           std::make_shared<HierarchicalCopyAllReduce>(2)}) {
    MirroredStrategy strategy(cpus(3), ops);
    for (const auto type : {torch::kBFloat16, torch::kHalf}) {
      // One more is lost in a sum of this type, two are not.
      const double large = type == torch::kHalf ? 2048 : 256;
      for (const bool gradient : {false, true}) {
        CAPTURE(ops->name(), torch::toString(type), gradient);
        const auto options = torch::dtype(type).requires_grad(gradient);
        const auto all_sums = strategy.run([&] {
          return replica_context().all_reduce(ReduceOp::kSum,
                                              torch::full({3}, id() == 0 ? large : 1.0, options));
        });
        const auto values =
            strategy.run([&] { return torch::full({3}, id() == 0 ? large : 1.0, options); });
        const torch::Tensor expected = torch::full({3}, large + 2, type);
        CHECK(strategy.reduce(ReduceOp::kSum, values).equal(expected));
        for (const torch::Tensor& sum : all_sums.values()) CHECK(sum.equal(expected));
        // A mean has room for a sum that its type has none for.
        const auto most = strategy.run([&] { return torch::full({3}, 60'000.0, options); });
        CHECK(strategy.reduce(ReduceOp::kMean, most).equal(torch::full({3}, 60'000.0, type)));
      }
    }
  }
}

TEST_CASE("uneven pieces of a batch: not a mean of means", "[spec][RED-10]") {
  MirroredStrategy strategy(cpus(2, 0));
  const PerReplica<torch::Tensor> value(
      {torch::tensor({0.0f, 1.0f, 2.0f, 3.0f}), torch::tensor({4.0f, 5.0f})});

  CHECK(strategy.reduce(ReduceOp::kMean, value, 0).item<float>() == 2.5f);
}

TEST_CASE("axes count from the end when negative and must be in range", "[spec][RED-11]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto value = strategy.run([] { return torch::ones({2, 3}); });

  CHECK(strategy.reduce(ReduceOp::kSum, value, -1).equal(torch::full({2}, 6.0f)));
  CHECK(throws(ErrorCode::kInvalidArgument, "axis out of range for value with rank",
               [&] { strategy.reduce(ReduceOp::kSum, value, 2); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "axis out of range for value with rank",
               [&] { strategy.reduce(ReduceOp::kSum, value, -3); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "axis out of range for value with rank 2",
               [&] { strategy.reduce(ReduceOp::kSum, value, {0, 2}); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "axis out of range for value with rank 0",
               [&] { strategy.reduce(ReduceOp::kMean, strategy.run([] { return 1.0; }), 0); }));
  for (Strategy* const any :
       {static_cast<Strategy*>(&strategy), static_cast<Strategy*>(&default_strategy())}) {
    CHECK(throws(ErrorCode::kInvalidArgument,
                 "axis 1 of a value with rank 2 is given twice, as 1 and -1",
                 [&] { any->reduce(ReduceOp::kMean, torch::ones({2, 3}), {0, 1, -1}); }));
  }
  CHECK(strategy.reduce(ReduceOp::kMean, value, {-1, 0}).item<float>() == 1);
}

TEST_CASE("an axis is an integer or a list of them", "[spec][RED-12]") {
  static_assert(!std::is_constructible_v<Axes, double>);
  static_assert(!std::is_constructible_v<Axes, const char*>);
  static_assert(!std::is_constructible_v<Axes, torch::Tensor>);
  SUCCEED("it does not compile");
}

TEST_CASE("the structure of what run returns is kept", "[spec][RED-13]") {
  for (const int n : {1, 2, 3}) {
    MirroredStrategy strategy(cpus(n, 0));
    const auto value = strategy.run([](int x) { return std::tuple(x + 1, x - 1); }, 3);

    const auto [sum, difference] = strategy.reduce(ReduceOp::kSum, value);

    CHECK(sum.item<int>() == 4 * n);
    CHECK(difference.item<int>() == 2 * n);
  }
  MirroredStrategy strategy(cpus(2, 0));
  const auto outputs =
      strategy.run([] { return Outputs{torch::ones({2}), torch::full({}, id())}; });
  const Outputs sums = strategy.reduce(ReduceOp::kSum, outputs);
  CHECK(sums.loss.equal(torch::full({2}, 2.0f)));
  CHECK(sums.score.item<int>() == 1);
}

TEST_CASE("local results are N structures", "[spec][RED-14][RED-15]") {
  MirroredStrategy strategy(cpus(2, 0));
  using Map = std::map<std::string, int>;

  const auto same = strategy.run([] { return Map{{"a", 1}, {"b", 2}}; });
  CHECK(strategy.local_results(same) == std::vector<Map>(2, {{"a", 1}, {"b", 2}}));
  const auto lists = strategy.run([] { return std::vector<int>{1, 2}; });
  CHECK(strategy.local_results(lists) == std::vector<std::vector<int>>(2, {1, 2}));
  const auto nested = strategy.run([] { return std::tuple(1, std::vector<int>{2, 3}); });
  CHECK(std::get<1>(strategy.local_results(nested)[1]) == std::vector<int>{2, 3});
  const auto own = strategy.run([] { return Map{{"a", id() + 1}, {"b", id() + 2}}; });
  CHECK(strategy.local_results(own) ==
        std::vector<Map>{{{"a", 1}, {"b", 2}}, {{"a", 2}, {"b", 3}}});
}

TEST_CASE("local results of a value that was never distributed", "[spec][RED-16]") {
  MirroredStrategy strategy(cpus(3, 0));

  CHECK(strategy.local_results(7) == std::vector<int>{7});
  CHECK((strategy.local_results(std::tuple(1, 2)) == std::vector<std::tuple<int, int>>(3, {1, 2})));
}

TEST_CASE("local results of a nest of distributed values are each replica's nest",
          "[spec][RED-14][RED-15]") {
  using Map = std::map<std::string, int>;
  MirroredStrategy strategy(cpus(2, 0));
  const auto ids = strategy.run(id);
  const auto tens = strategy.run([] { return 10 * id(); });

  const auto nests = strategy.local_results(
      std::tuple(ids, std::vector<PerReplica<int>>{tens, ids}, 7, Mirrored<int>({5})));
  REQUIRE(nests.size() == 2);
  CHECK((nests[0] == std::tuple(0, std::vector<int>{0, 0}, 7, 5)));
  CHECK((nests[1] == std::tuple(1, std::vector<int>{10, 1}, 7, 5)));
  CHECK(strategy.local_results(std::map<std::string, PerReplica<int>>{{"a", tens}}) ==
        std::vector<Map>{Map{{"a", 0}}, Map{{"a", 10}}});
  CHECK(throws(ErrorCode::kInvalidArgument, "a strategy of 2 replicas",
               [&] { (void)strategy.local_results(std::tuple(ids, PerReplica<int>({1, 2, 3}))); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "a strategy of 2 replicas",
               [&] { (void)strategy.local_results(std::tuple(PerReplica<int>({1, 2, 3}), 7)); }));
}

TEST_CASE("what one run returns the next takes", "[spec][RED-17][RED-18]") {
  using Map = std::map<std::string, int>;
  MirroredStrategy two(cpus(2, 0));
  const auto o1 = two.run([] { return id() + 1; });
  const auto o2 = two.run([](int x) { return Map{{"a", 2 * x}, {"b", x * x}}; }, o1);
  const auto o3 =
      two.run([](const Map& m, int) { return m.at("a") + 2 * m.at("b") + 2; }, o2, o2.size());
  CHECK(o1.values() == std::vector<int>{1, 2});
  CHECK(o2.values() == std::vector<Map>{{{"a", 2}, {"b", 1}}, {{"a", 4}, {"b", 4}}});
  CHECK(o3.values() == std::vector<int>{6, 14});

  OneDeviceStrategy one("CPU:0");
  const auto m = one.run([](int x) { return Map{{"a", 2 * x}, {"b", x * x}}; }, 4);
  CHECK(one.run([](const Map& map) { return map.at("a") + 2 * map.at("b") + 2; }, m)[0] == 42);
}

TEST_CASE("replicas that return lists of different length are an error", "[spec][RED-19]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto lists =
      strategy.run([] { return std::vector<int>(static_cast<std::size_t>(id() + 1)); });

  CHECK(throws(ErrorCode::kInternal, "replica 1 returned another structure",
               [&] { strategy.reduce(ReduceOp::kSum, lists); }));
  // So are mappings with other keys, with more and with fewer, in nests too.
  using Map = std::map<std::string, int>;
  const Map one{{"a", 1}};
  const Map other{{"b", 1}};
  const Map both{{"a", 1}, {"b", 2}};
  for (const auto& [first, second] :
       std::vector<std::pair<Map, Map>>{{one, other}, {one, both}, {both, one}, {Map(), one}}) {
    const PerReplica<std::tuple<int, Map>> maps({{0, first}, {0, second}});
    CHECK(throws(ErrorCode::kInternal, "replica 1 returned another structure than replica 0: a map",
                 [&] { strategy.reduce(ReduceOp::kMean, maps); }));
  }
}

TEST_CASE("one object on all replicas cannot be summed", "[spec][RED-20]") {
  MirroredStrategy strategy(cpus(2, 0));
  const torch::Tensor value = torch::ones({2});
  const auto same = strategy.run([&] { return value; });

  for (const auto& reduce_it :
       std::vector<std::function<void()>>{[&] { strategy.reduce(ReduceOp::kSum, value); },
                                          [&] { strategy.reduce(ReduceOp::kSum, same); },
                                          [&] { strategy.reduce(ReduceOp::kSum, 1.0); }}) {
    CHECK(throws(ErrorCode::kInvalidArgument, "cannot be reduced with the given reduce op",
                 reduce_it));
  }
  CHECK(strategy.reduce(ReduceOp::kMean, value).equal(value));
  CHECK(strategy.reduce(ReduceOp::kMean, same).equal(value));
  CHECK(strategy.reduce(ReduceOp::kSum, 0).item<int>() == 0);
}

TEST_CASE("run options are accepted", "[spec][RED-22]") {
  MirroredStrategy strategy(cpus(2, 0));

  const RunOptions others{.experimental_enable_dynamic_batch_size = false,
                          .experimental_bucketizing_dynamic_shape = true,
                          .experimental_xla_options = true};
  for (const RunOptions& options : {RunOptions{}, others}) {
    CHECK(strategy.run(
                      options, [](int x) { return x + id(); }, 5)
              .values() == std::vector<int>{5, 6});
  }
}

TEST_CASE("shapes that differ between replicas are an error that names both", "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2, 0));
  const auto value = strategy.run([] { return torch::ones({id() + 1}); });

  CHECK(throws(ErrorCode::kInvalidArgument, "replica 1 holds shape [2], replica 0 shape [1]",
               [&] { strategy.reduce(ReduceOp::kSum, value); }));
}

TEST_CASE("means of integers have room for their sums, also over axes and of one replica",
          "[strategy][unit]") {
  MirroredStrategy strategy(cpus(2));
  for (const auto type : {torch::kByte, torch::kChar, torch::kShort}) {
    CAPTURE(torch::toString(type));
    const auto values = strategy.run([&] { return torch::full({300}, 100 + 10 * id()).to(type); });
    CHECK(strategy.reduce(ReduceOp::kMean, values, 0).item<double>() == 105);
  }
  const auto flags = strategy.run([] { return torch::ones({4}, torch::kBool); });
  for (const auto op : {ReduceOp::kSum, ReduceOp::kMean}) {
    CHECK(throws(ErrorCode::kInvalidArgument, "bool has no sum over axes",
                 [&] { (void)strategy.reduce(op, flags, 0); }));
  }
  OneDeviceStrategy alone("CPU:0");
  alone.run([] {
    const torch::Tensor mean = replica_context().all_reduce(ReduceOp::kMean, torch::tensor({3}));
    CHECK(mean.scalar_type() == torch::kDouble);
    CHECK(replica_context().all_reduce(ReduceOp::kSum, torch::tensor({3})).scalar_type() ==
          torch::kLong);
  });
}

TEST_CASE("conjugate and negative views are reduced and gathered as what they show",
          "[strategy][unit]") {
  for (const std::shared_ptr<CrossDeviceOps>& ops : std::vector<std::shared_ptr<CrossDeviceOps>>{
           std::make_shared<CollectiveAllReduce>(), std::make_shared<ReductionToOneDevice>(),
           std::make_shared<HierarchicalCopyAllReduce>(2)}) {
    CAPTURE(ops->name());
    MirroredStrategy strategy(cpus(2), ops);
    const auto views = strategy.run([] {
      const torch::Tensor z =
          torch::complex(torch::full({2}, id() + 1.0), torch::full({2}, id() + 3.0));
      return std::pair(torch::conj(z), torch::imag(torch::conj(z)));
    });
    const auto made = strategy.run(
        [](const std::pair<torch::Tensor, torch::Tensor>& mine) {
          ReplicaContext& here = replica_context();
          return std::tuple(here.all_gather(mine.first, 0), here.all_gather(mine.second, 0),
                            here.all_reduce(ReduceOp::kSum, mine.second),
                            here.all_reduce(ReduceOp::kMean, mine.second));
        },
        views);
    const auto [conjugates, negatives] = strategy.reduce(ReduceOp::kSum, views);

    const torch::Tensor joined = torch::tensor({-3.0f, -3.0f, -4.0f, -4.0f});
    for (const auto& [complex, floats, sum, mean] : made.values()) {
      CHECK(torch::imag(complex).equal(joined));
      CHECK(floats.equal(joined));
      CHECK(sum.equal(torch::full({2}, -7.0f)));
      CHECK(mean.equal(torch::full({2}, -3.5f)));
    }
    CHECK(torch::imag(conjugates).equal(torch::full({2}, -7.0f)));
    CHECK(negatives.equal(torch::full({2}, -7.0f)));
  }
}

TEST_CASE("no axes, given as a list, are none to reduce over", "[strategy][unit]") {
  const Axes none(std::vector<std::int64_t>{});
  const torch::Tensor x = torch::tensor({{1.0f, 2.0f}, {3.0f, 4.0f}});
  CHECK(default_strategy().reduce(ReduceOp::kSum, x, none).equal(x));
  CHECK(default_strategy().reduce(ReduceOp::kMean, x, none).equal(x));

  MirroredStrategy strategy(cpus(2));
  const auto values = strategy.run([&] { return x * (id() + 1); });
  CHECK(strategy.reduce(ReduceOp::kSum, values, none).equal(x * 3));
  CHECK(strategy.reduce(ReduceOp::kMean, values, none).equal(x * 1.5));
}

TEST_CASE("a truth value that a replica returns is reduced alone and in a list",
          "[strategy][unit]") {
  OneDeviceStrategy one("CPU:1");
  const auto yes = one.run([] { return true; });
  const auto both = one.run([] { return std::vector<bool>{false, true}; });

  CHECK(one.reduce(ReduceOp::kSum, yes).item<bool>());
  CHECK_FALSE(one.reduce(ReduceOp::kSum, one.run([] { return false; })).item<bool>());
  const std::vector<torch::Tensor> sums = one.reduce(ReduceOp::kSum, both);
  REQUIRE(sums.size() == 2);
  CHECK_FALSE(sums[0].item<bool>());
  CHECK(sums[1].item<bool>());
  MirroredStrategy two(cpus(2));
  CHECK(throws(ErrorCode::kInvalidArgument, "bool has no sum over replicas",
               [&] { (void)two.reduce(ReduceOp::kSum, two.run([] { return true; })); }));
}

TEST_CASE("rows with the same values and other indices are no single object", "[spec][RED-20]") {
  MirroredStrategy strategy(cpus(2));
  const torch::Tensor one = torch::ones({1, 2});
  const std::vector<std::int64_t> shape{4, 2};
  const auto rows =
      strategy.run([&] { return IndexedSlices{one, torch::tensor({id() + 1}), shape}; });

  const torch::Tensor sum = to_dense(strategy.reduce(ReduceOp::kSum, rows));
  CHECK(sum.sum(1).equal(torch::tensor({0.0f, 2.0f, 2.0f, 0.0f})));
  CHECK(to_dense(strategy.reduce(ReduceOp::kMean, rows)).equal(sum / 2));
  const IndexedSlices same{one, torch::tensor({1}), shape};
  CHECK(throws(ErrorCode::kInvalidArgument, "every replica holds this one object",
               [&] { strategy.reduce(ReduceOp::kSum, strategy.run([&] { return same; })); }));
}

TEST_CASE("what no replica has is said to be undefined by every op", "[strategy][unit]") {
  for (const int n : {1, 2}) {
    MirroredStrategy strategy(cpus(n));
    const auto nothing = strategy.run([] { return torch::Tensor(); });
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMean}) {
      CHECK(throws(ErrorCode::kInvalidArgument, "replica 0 holds an undefined tensor",
                   [&] { strategy.reduce(op, nothing); }));
    }
    const auto empty = strategy.run([] { return std::vector<torch::Tensor>(); });
    CHECK(strategy.reduce(ReduceOp::kSum, empty).empty());
  }
}

TEST_CASE("what one replica alone brings is reduced to the current device", "[spec][RED-21]") {
  OneDeviceStrategy strategy("CPU:1");
  const auto values = strategy.run([] {
    const std::vector<std::int64_t> shape{4, 2};
    const IndexedSlices rows{torch::ones({1, 2}), torch::tensor({1}), shape};
    return std::tuple(torch::ones({2}, torch::requires_grad()), rows, to_sparse(rows));
  });
  const auto check = [&](const std::string& device) {
    for (const auto op : {ReduceOp::kSum, ReduceOp::kMean}) {
      const auto [dense, rows, sparse] = strategy.reduce(op, values);
      CHECK(muster::device_of(dense) == device);
      CHECK_FALSE(dense.is_alias_of(std::get<0>(values[0])));
      CHECK(dense.equal(torch::ones({2})));
      CHECK(muster::device_of(rows.values) == device);
      CHECK(muster::device_of(rows.indices) == device);
      CHECK(to_dense(rows).sum().item<float>() == 2);
      CHECK(muster::device_of(sparse) == device);
      CHECK(sparse.to_dense().sum().item<float>() == 2);
    }
  };
  check(cpu(0));
  {
    const DeviceScope there("CPU:1");
    check(cpu(1));
  }
  const DeviceScope elsewhere("CPU:5");
  check(cpu(5));
  std::get<0>(strategy.reduce(ReduceOp::kSum, values)).sum().backward();
  CHECK(std::get<0>(values[0]).grad().equal(torch::ones({2})));
}

TEST_CASE("sparse tensors are reduced over axes no more than IndexedSlices are",
          "[strategy][unit]") {
  for (const int n : {1, 2}) {
    MirroredStrategy strategy(cpus(n));
    const auto rows = strategy.run([] { return torch::ones({4, 2}).to_sparse(1); });
    for (const int axis : {0, 1}) {
      for (const auto op : {ReduceOp::kSum, ReduceOp::kMean}) {
        CHECK(throws(ErrorCode::kUnimplemented, "over axes does not support IndexedSlices",
                     [&] { (void)strategy.reduce(op, rows, axis); }));
      }
    }
    CHECK(throws(ErrorCode::kUnimplemented, "over axes does not support IndexedSlices",
                 [&] { (void)strategy.reduce(ReduceOp::kMean, rows[0], 0); }));
  }
}

TEST_CASE("the mean of one replica's rows of integers is float64 too", "[strategy][unit]") {
  for (const int n : {1, 2}) {
    MirroredStrategy strategy(cpus(n));
    const auto rows = strategy.run([] {
      return IndexedSlices{torch::full({1, 2}, 3), torch::tensor({id()}),
                           std::vector<std::int64_t>{4, 2}};
    });
    const IndexedSlices mean = strategy.reduce(ReduceOp::kMean, rows);
    CHECK(mean.values.scalar_type() == torch::kDouble);
    CHECK(mean.values.sum().item<double>() == 6);
  }
}

}  // namespace
}  // namespace muster
