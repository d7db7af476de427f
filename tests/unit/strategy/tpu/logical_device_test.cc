// Replicas of several cores: values on single cores, split over them, or on all.
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "common/storage/checkpoint.h"
#include "muster/v1/checkpoint.pb.h"
#include "strategy/core/context.h"
#include "strategy/tpu/split_tensor.h"
#include "strategy/train/checkpoint.h"
#include "strategy/train/module.h"
#include "strategy/values/device_of.h"
#include "strategy/variables/extended.h"
#include "strategy/variables/variable.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/replicas.h"
#include "tests/unit/strategy/tpu/cores.h"

namespace muster {
namespace {

using testing::Cores;
using testing::throws;
using testing::tpu;
constexpr auto kInvalid = ErrorCode::kInvalidArgument;

TEST_CASE("a tensor is assigned to a core of its replica, and to no other number",
          "[strategy][spec][TPL-01]") {
  const Cores cores("2x1x1x2");
  TPUStrategy strategy(cores.replicas_of(2, 2));
  const auto there = strategy.run(
      [&](const torch::Tensor& x) { return strategy.experimental_assign_to_logical_device(x, 1); },
      torch::arange(3));
  CHECK(device_of(there[0]) == tpu(1));
  CHECK(device_of(there[1]) == tpu(3));
  CHECK(there[1].equal(torch::arange(3)));
  for (const int number : {-1, 2}) {
    CHECK(throws(
        kInvalid,
        "logical device " + std::to_string(number) + " is not in range: a replica has 2 cores",
        [&] {
          strategy.run([&] {
            return strategy.experimental_assign_to_logical_device(torch::ones({2}), number);
          });
        }));
  }
  CHECK(throws(ErrorCode::kFailedPrecondition, "needs a replica",
               [&] { (void)strategy.experimental_assign_to_logical_device(torch::ones({2}), 0); }));
}

TEST_CASE("rows of a table on another core have a sparse gradient where the table lies",
          "[strategy][unit]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy(cores.replicas_of(2, 1));
  strategy.run([&] {  // one replica: on this thread
    const torch::Tensor table = torch::ones({4, 2}, torch::requires_grad());
    const torch::Tensor there = strategy.experimental_assign_to_logical_device(table, 1);
    torch::embedding(there, torch::tensor({1, 3, 1}), -1, false, /*sparse=*/true).sum().backward();
    REQUIRE(table.grad().is_sparse());
    CHECK(device_of(table.grad()) == tpu(0));
    CHECK(table.grad().to_dense().sum(1).equal(torch::tensor({0.0f, 4.0f, 0.0f, 2.0f})));
  });
}

TEST_CASE("the name that an assignment gives a core is one that a device may be named by",
          "[strategy][unit]") {
  const Cores cores("2x1x1x2");
  const auto options = cores.replicas_of(2, 2);
  const DeviceAssignment& assignment = *options.experimental_device_assignment;
  const DeviceScope scope(assignment.tpu_device(/*replica=*/1, /*logical_core=*/1));
  CHECK(device_of(torch::ones({2})) == tpu(3));
  const DeviceScope host(assignment.host_device(1, 1));
  CHECK(device_of(torch::ones({2})) == testing::cpu(0));
}

TEST_CASE("in SPMD mode no tensor is assigned to a single core", "[strategy][spec][TPL-02]") {
  const Cores cores("1x1x1x2");
  TPUStrategyOptions options = cores.replicas_of(2, 1);
  options.experimental_spmd_xla_partitioning = true;
  TPUStrategy strategy(options);
  CHECK(throws(kInvalid, "Cannot assign a tensor to a logical device in SPMD mode", [&] {
    strategy.run(
        [&] { return strategy.experimental_assign_to_logical_device(torch::ones({2}), 0); });
  }));
  CHECK(throws(kInvalid, "SPMD", [&] { auto open = strategy.experimental_logical_device(0); }));
}

// What splitting a tensor of these sizes says.
bool refused(TPUStrategy& strategy, const std::string& part, std::vector<std::int64_t> sizes,
             std::vector<int> dimensions) {
  return throws(kInvalid, part, [&] {
    strategy.run([&] {
      (void)strategy.experimental_split_to_logical_devices(torch::ones(sizes), dimensions);
    });
  });
}

TEST_CASE("a split that does not fit is refused: first its rank, then sizes, then their number",
          "[strategy][spec][TPL-03][TPL-04][TPL-05]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy(cores.replicas_of(2, 1));
  CHECK(refused(strategy, "rank 2", {3, 3}, {2}));
  CHECK(refused(strategy, "rank 1", {3}, {1, 2}));
  CHECK(refused(
      strategy,
      "dimension 1 of a tensor of shape [4, 3] cannot be split: 3 does not divide into 2 parts",
      {4, 3}, {1, 2}));
  CHECK(refused(strategy, "dimension 0 in 0 parts", {4, 3}, {0, 2}));
  CHECK(refused(strategy, "3 does not divide", {3, 3}, {4, 1}));
  CHECK(refused(strategy, "[2, 2] make 4 parts, but a replica has 2 cores", {4, 4}, {2, 2}));
  CHECK(refused(strategy, "make 1 parts", {4, 4}, {1, 1}));
  // What was refused costs the next run nothing.
  const auto halves = strategy.run([&] {
    return strategy.experimental_split_to_logical_devices(torch::ones({4, 4}), {1, 2}).to_tensor();
  });
  CHECK(halves[0].equal(torch::ones({4, 4})));
}

TEST_CASE("an undefined tensor goes to no logical device", "[strategy][unit]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy(cores.replicas_of(2, 1));
  const auto refused_in_replica = [&](const std::string& part, const std::function<void()>& call) {
    return throws(kInvalid, part, [&] { strategy.run(call); });
  };
  CHECK(refused_in_replica("an undefined tensor cannot be split", [&] {
    (void)strategy.experimental_split_to_logical_devices(torch::Tensor(), {2});
  }));
  CHECK(refused_in_replica("an undefined tensor cannot be replicated", [&] {
    (void)strategy.experimental_replicate_to_logical_devices(torch::Tensor());
  }));
  CHECK(refused_in_replica("an undefined tensor cannot go to core", [&] {
    (void)strategy.experimental_assign_to_logical_device(torch::Tensor(), 1);
  }));
}

TEST_CASE("part i of a split value lies on logical device i, the last dimension fastest",
          "[strategy][spec][TPL-06]") {
  const Cores cores("2x2x1x2");
  const auto assignment = DeviceAssignment::build(
      cores.topology, {.computation_shape = {2, 1, 1, 2}, .num_replicas = 2});
  TPUStrategy strategy({.experimental_device_assignment = assignment});
  const torch::Tensor whole = torch::arange(24).reshape({4, 6});
  const auto split = [&](const torch::Tensor& value, std::vector<int> dimensions) {
    return strategy.run([&] {
      SplitTensor parts = strategy.experimental_split_to_logical_devices(value, dimensions);
      torch::Tensor joined = parts.to_tensor();
      return std::pair(std::move(parts), std::move(joined));
    });
  };

  const auto splits = split(whole, {2, 2});

  for (int r = 0; r < 2; ++r) {
    const auto& [parts, joined] = splits[r];
    REQUIRE(parts.num_logical_devices() == 4);
    CHECK(parts.sizes() == std::vector<std::int64_t>{4, 6});
    for (int i = 0; i < 4; ++i) {
      CHECK(parts.part(i).equal(whole.narrow(0, i / 2 * 2, 2).narrow(1, i % 2 * 3, 3)));
      CHECK(device_of(parts.part(i)) == tpu(assignment.tpu_ordinal(r, i)));
      CHECK(parts.device(i) == device_of(parts.part(i)));
      // A part holds no more memory than its own.
      CHECK(parts.part(i).storage().nbytes() == 6 * sizeof(std::int64_t));
    }
    CHECK(joined.equal(whole));
    CHECK(device_of(joined) == tpu(assignment.tpu_ordinal(r, 0)));
  }
  const torch::Tensor deep = torch::arange(16).reshape({2, 2, 4});
  CHECK(split(deep, {2, 1, 2})[1].second.equal(deep));
}

TEST_CASE("a replicated value is whole on every logical device", "[strategy][spec][TPL-07]") {
  const Cores cores("2x1x1x2");
  TPUStrategy strategy(cores.replicas_of(2, 2));
  const torch::Tensor whole = torch::arange(6.0).reshape({2, 3});
  const auto copies =
      strategy.run([&] { return strategy.experimental_replicate_to_logical_devices(whole); });
  for (int r = 0; r < 2; ++r) {
    CHECK(copies[r].replicated());
    for (int i = 0; i < 2; ++i) {
      CHECK(copies[r].part(i).equal(whole));
      CHECK(device_of(copies[r].part(i)) == tpu(2 * r + i));
    }
    CHECK(copies[r].to_tensor().equal(whole));
    CHECK(copies[r].sum().item<double>() == 15);
  }
}

TEST_CASE("logical devices nest, are in range, and the first counts where none is open",
          "[strategy][spec][TPL-08]") {
  const Cores cores("2x1x1x2");
  TPUStrategy strategy(cores.replicas_of(2, 2));
  for (const int number : {-1, 2}) {
    CHECK(throws(kInvalid, "not in range",
                 [&] { auto open = strategy.experimental_logical_device(number); }));
  }
  const auto scope = strategy.scope();
  const auto device = [](const char* name) { return Variable::create(name, 0.0).devices(); };
  using Devices = std::vector<std::string>;
  CHECK(device("a") == Devices{tpu(0), tpu(2)});
  {
    const auto outer = strategy.experimental_logical_device(1);
    CHECK(device("b") == Devices{tpu(1), tpu(3)});
    {
      const auto inner = strategy.experimental_logical_device(0);
      CHECK(device("c") == Devices{tpu(0), tpu(2)});
    }
    CHECK(device("d") == Devices{tpu(1), tpu(3)});
    const auto net = strategy.distribute(torch::nn::Linear(2, 1));
    CHECK(net.variable("weight").devices() == Devices{tpu(0), tpu(2)});
  }
  CHECK(device("e") == Devices{tpu(0), tpu(2)});
  const auto made = strategy.run([&] {
    const auto open = strategy.experimental_logical_device(1);
    return torch::ones({2});
  });
  CHECK(device_of(made[1]) == tpu(3));
}

struct Partitioned {
  explicit Partitioned(TPUStrategy& strategy) {
    const auto scope = strategy.scope();
    const auto on = [&](int core, const char* name, double value) {
      const auto open = strategy.experimental_logical_device(core);
      return Variable::create(name, value);
    };
    v = on(0, "v", 2);
    w = on(1, "w", 3);
  }
  torch::Tensor operator()(const torch::Tensor& x) const { return w * (v * x); }
  Variable v, w;
};

TEST_CASE("a model of two cores computes with the variables of each", "[strategy][spec][TPL-09]") {
  const Cores cores("2x2x1x2");
  TPUStrategy strategy(cores.replicas_of(2, 4));
  const Partitioned model(strategy);
  CHECK(model.v.device() == tpu(0));
  CHECK(model.w.device() == tpu(1));

  const auto results = strategy.run(model, torch::tensor(5.0));

  for (const torch::Tensor& result : results.values()) CHECK(result.item<double>() == 30);
  CHECK(strategy.reduce(ReduceOp::kSum, results).item<double>() == 120);
}

TEST_CASE("a model of two cores is saved and restored", "[strategy][spec][CKP-11]") {
  const Cores cores("2x2x1x2");
  TPUStrategy strategy(cores.replicas_of(2, 4));
  const Partitioned model(strategy);
  const testing::TempFolder folder;
  const std::string at = folder / "one";
  Checkpoint checkpoint({{"v", model.v}, {"w", model.w}});
  checkpoint.save(at);
  model.v.assign(1);
  model.w.assign(4);
  const auto total = [&] {
    return strategy.reduce(ReduceOp::kSum, strategy.run(model, torch::tensor(5.0))).item<double>();
  };
  CHECK(total() == 80);

  checkpoint.restore(at).assert_consumed();

  CHECK(total() == 120);
  CHECK(model.w.device() == tpu(1));
}

TPUStrategyOptions spmd(TPUStrategyOptions options) {
  options.experimental_spmd_xla_partitioning = true;
  return options;
}

TEST_CASE("in SPMD mode a variable has an equal copy on each core", "[strategy][spec][TPL-10]") {
  const Cores cores("2x1x1x2");
  TPUStrategy strategy(spmd(cores.replicas_of(2, 2)));
  const auto scope = strategy.scope();
  const auto v = Variable::create("v", torch::arange(6.0).reshape({2, 3}));
  CHECK(v.sizes() == std::vector<std::int64_t>{2, 3});
  CHECK(v.size() == 2);
  for (int r = 0; r < 2; ++r) {
    const std::vector<torch::Tensor> copies = strategy.copies_on_cores(v, r);
    REQUIRE(copies.size() == 2);
    for (int core = 0; core < 2; ++core) {
      const torch::Tensor& copy = copies[static_cast<std::size_t>(core)];
      CHECK(device_of(copy) == tpu(2 * r + core));
      CHECK(copy.equal(torch::arange(6.0).reshape({2, 3})));
    }
  }
  CHECK(throws(ErrorCode::kOutOfRange, "replica 2", [&] { (void)strategy.copies_on_cores(v, 2); }));
}

TEST_CASE("a write reaches all copies of a variable, which is one entry of a checkpoint",
          "[strategy][spec][TPL-11]") {
  const Cores cores("2x1x1x2");
  TPUStrategy strategy(spmd(cores.replicas_of(2, 2)));
  const auto scope = strategy.scope();
  const auto v =
      Variable::create("v", torch::zeros({2}), {.aggregation = VariableAggregation::kSum});
  const auto all_are = [&](double expected) {
    bool equal = true;
    for (int r = 0; r < 2; ++r) {
      for (const torch::Tensor& copy : strategy.copies_on_cores(v, r)) {
        equal = equal && copy.equal(torch::full({2}, expected));
      }
    }
    return equal;
  };
  v.assign(torch::full({2}, 5.0));
  CHECK(all_are(5));
  v.assign_add(2);
  CHECK(all_are(7));
  v.assign_sub(torch::ones({2}));
  CHECK(all_are(6));
  strategy.run([&] { v.assign_add(torch::full({2}, testing::id() + 1.0)); });
  CHECK(all_are(9));
  CHECK(throws(kInvalid, "v", [&] { v.assign(torch::ones({3})); }));
  CHECK(all_are(9));

  const testing::TempFolder folder;
  const std::string at = folder / "one";
  Checkpoint checkpoint({{"v", v}});
  checkpoint.save(at);
  const auto manifest = storage::ReadManifest(at);
  REQUIRE(manifest.ok());
  CHECK(manifest->slices_size() == 1);
  v.assign(0);
  checkpoint.restore(at).assert_consumed();
  CHECK(all_are(9));
}

TEST_CASE("in SPMD mode a module computes in its replicas what it computes outside",
          "[strategy][spec]") {
  const Cores cores("2x1x1x2");
  TPUStrategy strategy(spmd(cores.replicas_of(2, 2)));
  const auto scope = strategy.scope();
  const auto net = strategy.distribute(torch::nn::Linear(2, 1));
  const torch::Tensor out = net->forward(torch::ones({1, 2}));
  const auto outs = strategy.run([&] { return net->forward(torch::ones({1, 2})); });
  CHECK(outs[1].equal(out));
}

// An MLP whose first layer is cut along its columns and the second along its rows, as tensor
// parallel models are; its loss, and the gradients of all it is made of.
struct Network {
  torch::Tensor x = torch::randn({6, 4}, torch::kDouble);
  torch::Tensor first = torch::randn({4, 8}, torch::kDouble).set_requires_grad(true);
  torch::Tensor bias = torch::randn({8}, torch::kDouble).set_requires_grad(true);
  torch::Tensor second = torch::randn({8, 2}, torch::kDouble).set_requires_grad(true);

  std::vector<torch::Tensor> results(const torch::Tensor& loss) const {
    std::vector<torch::Tensor> all = torch::autograd::grad({loss}, {first, bias, second});
    all.push_back(loss.detach());
    return all;
  }
  std::vector<torch::Tensor> whole() const {
    const torch::Tensor hidden = torch::relu(torch::matmul(x, first) + bias);
    const torch::Tensor out = torch::matmul(hidden, second);
    return results((out * out).sum());
  }
};

bool near(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i)
    equal = torch::allclose(a[i], b[i], 1e-12, 1e-12);
  return equal;
}

TEST_CASE("a network of split layers has the loss and the gradients of a whole one",
          "[strategy][spec]") {
  const Cores cores("2x1x1x2");
  TPUStrategy strategy(cores.on({{{1, 0, 0, 0}, {1, 0, 0, 1}}}));
  torch::manual_seed(5);
  const Network net;
  strategy.run([&] {  // one replica: on this thread
    const auto split = [&](const torch::Tensor& value, std::vector<int> dimensions) {
      return strategy.experimental_split_to_logical_devices(value, dimensions);
    };
    const SplitTensor hidden = relu(matmul(net.x, split(net.first, {1, 2})) + net.bias);
    CHECK(hidden.partition_dimensions() == std::vector<int>{1, 2});
    const SplitTensor out = matmul(hidden, split(net.second, {2, 1}));
    CHECK(out.replicated());
    CHECK(near(net.results((out * out).sum()), net.whole()));
    // By rows of the batch.
    const SplitTensor rows =
        matmul(relu(matmul(split(net.x, {2, 1}), net.first) + net.bias), net.second);
    CHECK(rows.partition_dimensions() == std::vector<int>{2, 1});
    CHECK(device_of(rows.part(1)) == tpu(3));
    CHECK(near(net.results((rows * rows).sum()), net.whole()));
  });
}

TEST_CASE("products of matrices that are split in any two ways are those of whole ones",
          "[strategy][spec]") {
  const Cores cores("2x1x1x2");
  const auto assignment =
      DeviceAssignment::build(cores.topology, {.computation_shape = {2, 1, 1, 2}});
  TPUStrategy strategy({.experimental_device_assignment = assignment});
  torch::manual_seed(7);
  const torch::Tensor a = torch::randn({4, 8}, torch::kDouble).set_requires_grad(true);
  const torch::Tensor b = torch::randn({8, 12}, torch::kDouble).set_requires_grad(true);
  const torch::Tensor product = torch::matmul(a, b);
  const torch::Tensor weights = torch::randn({4, 12}, torch::kDouble);
  const auto expected = torch::autograd::grad({(product * weights).sum()}, {a, b});
  const std::vector<std::vector<int>> ways = {{4, 1}, {2, 2}, {1, 4}, {1, 1}};
  strategy.run([&] {
    const auto cut = [&](const torch::Tensor& value, const std::vector<int>& way) {
      return way == std::vector<int>{1, 1}
                 ? strategy.experimental_replicate_to_logical_devices(value)
                 : strategy.experimental_split_to_logical_devices(value, way);
    };
    for (const std::vector<int>& left : ways) {
      for (const std::vector<int>& right : ways) {
        INFO(left[0] << "x" << left[1] << " by " << right[0] << "x" << right[1]);
        const SplitTensor result = matmul(cut(a, left), cut(b, right));
        CHECK(torch::allclose(result.to_tensor(), product, 1e-12, 1e-12));
        const SplitTensor sum = cut(weights, left) + weights;  // twice the weights
        const torch::Tensor loss = (result * sum).sum() * 0.5;
        CHECK(near(torch::autograd::grad({loss}, {a, b}), expected));
        CHECK(torch::allclose((cut(weights, left) * cut(weights, right)).to_tensor(),
                              weights * weights));
      }
    }
  });
}

TEST_CASE("split values that do not fit each other are refused with their shapes",
          "[strategy][spec]") {
  const Cores cores("1x1x1x2");
  TPUStrategy strategy(cores.replicas_of(2, 1));
  strategy.run([&] {
    const auto split = [&](std::vector<std::int64_t> sizes) {
      return strategy.experimental_split_to_logical_devices(torch::ones(sizes), {2, 1});
    };
    CHECK(throws(kInvalid, "[4, 2] and [4, 2] are not two matrices that fit",
                 [&] { (void)matmul(split({4, 2}), split({4, 2})); }));
    CHECK(throws(kInvalid, "[4, 2] and [4, 1]", [&] { (void)(split({4, 2}) + split({4, 1})); }));
    CHECK(throws(kInvalid, "[3] cannot be broadcast to a split value of shape [4, 2]",
                 [&] { (void)(split({4, 2}) * torch::ones({3})); }));
    CHECK(throws(ErrorCode::kOutOfRange, "part 2", [&] { (void)split({4, 2}).part(2); }));
  });
}

}  // namespace
}  // namespace muster
