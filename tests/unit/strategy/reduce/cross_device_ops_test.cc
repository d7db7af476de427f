#include "strategy/reduce/cross_device_ops.h"

#include <type_traits>

#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/kinds/one_device_strategy.h"
#include "strategy/values/device_of.h"
#include "strategy/values/sparse.h"
#include "tests/support/catch.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/logged.h"
#include "tests/unit/strategy/replicas.h"

namespace muster {
namespace {

using testing::cpu;
using testing::cpus;
using testing::log_of;
using testing::throws;

// Component d on CPU:d holds make(d).
template <class F>
PerReplica<torch::Tensor> Spread(int n, F make) {
  std::vector<torch::Tensor> values;
  for (int d = 0; d < n; ++d) values.push_back(copy_to_device(make(d), cpu(d)));
  return PerReplica<torch::Tensor>(std::move(values));
}

PerReplica<torch::Tensor> Numbers(int n, int first = 0) {
  return Spread(n, [&](int d) { return torch::tensor(static_cast<float>(d + first)); });
}

std::vector<std::shared_ptr<CrossDeviceOps>> AllOps() {
  return {std::make_shared<ReductionToOneDevice>(), std::make_shared<HierarchicalCopyAllReduce>(),
          std::make_shared<HierarchicalCopyAllReduce>(0), std::make_shared<NcclAllReduce>(2),
          std::make_shared<CollectiveAllReduce>()};
}

// Every component is `value`, the i-th on devices[i]; nobody shares storage.
void CheckMirrored(const Mirrored<torch::Tensor>& result, const torch::Tensor& value,
                   const std::vector<std::string>& devices) {
  REQUIRE(result.size() == static_cast<int>(devices.size()));
  for (int i = 0; i < result.size(); ++i) {
    CHECK(result[i].equal(value));
    CHECK(muster::device_of(result[i]) == devices[static_cast<std::size_t>(i)]);
    if (value.numel() == 0) continue;
    for (int j = 0; j < i; ++j) CHECK(result[i].data_ptr() != result[j].data_ptr());
  }
}

std::size_t CountOf(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_CASE("values are reduced to the devices they lie on, to another, to a name",
          "[spec][XDO-01]") {
  for (const auto& ops : AllOps()) {
    for (const int n : {1, 2, 3, 4}) {
      const auto value = Numbers(n);
      const torch::Tensor mean = torch::tensor(static_cast<float>(n - 1) / 2);
      const torch::Tensor sum = torch::tensor(static_cast<float>(n * (n - 1)) / 2);
      std::vector<std::string> own;
      for (int d = 0; d < n; ++d) own.push_back(cpu(d));

      CheckMirrored(ops->reduce(ReduceOp::kMean, value, value), mean, own);
      CheckMirrored(ops->reduce(ReduceOp::kSum, value, value), sum, own);
      const torch::Tensor elsewhere = copy_to_device(torch::ones({}), cpu(7));
      CheckMirrored(ops->reduce(ReduceOp::kMean, value, elsewhere), mean, {cpu(7)});
      CheckMirrored(ops->reduce(ReduceOp::kSum, value, "cpu:5"), sum, {cpu(5)});
      CheckMirrored(ops->reduce(ReduceOp::kSum, value, cpus(2, 3)), sum, {cpu(3), cpu(4)});
    }
  }
}

TEST_CASE("a batch goes to any pair of destinations", "[spec][XDO-02]") {
  const auto first = Numbers(3), second = Numbers(3, 1);
  const std::vector<Destinations> places{first, "CPU:0", "CPU:6", cpus(2, 4)};
  for (const auto& ops : AllOps()) {
    for (const Destinations& a : places) {
      for (const Destinations& b : places) {
        const auto means = ops->batch_reduce(ReduceOp::kMean, {{first, a}, {second, b}});
        REQUIRE(means.size() == 2);
        CheckMirrored(means[0], torch::tensor(1.0f), a.devices());
        CheckMirrored(means[1], torch::tensor(2.0f), b.devices());
        const auto sums = ops->batch_reduce(ReduceOp::kSum, {{first, a}, {second, b}});
        CheckMirrored(sums[0], torch::tensor(3.0f), a.devices());
        CheckMirrored(sums[1], torch::tensor(6.0f), b.devices());
      }
    }
    CHECK(ops->batch_reduce(ReduceOp::kSum, {}).empty());
  }
}

TEST_CASE("a broadcast value is mirrored on all destinations, one too", "[spec][XDO-03]") {
  for (const auto& ops : AllOps()) {
    const auto all = ops->broadcast(torch::tensor(1), cpus(3, 1));
    static_assert(std::is_same_v<decltype(all), const Mirrored<torch::Tensor>>);
    CheckMirrored(all, torch::tensor(1), {cpu(1), cpu(2), cpu(3)});
    CheckMirrored(ops->broadcast(torch::tensor(1), "CPU:2"), torch::tensor(1), {cpu(2)});
  }
}

PerReplica<IndexedSlices> Slices() {
  return PerReplica<IndexedSlices>(
      {{torch::tensor({{1.0f, 2.0f}}), torch::tensor({1}), std::vector<std::int64_t>{5, 2}},
       {torch::tensor({{3.0f, 4.0f}, {5.0f, 6.0f}}), torch::tensor({1, 3}),
        std::vector<std::int64_t>{5, 2}}});
}

TEST_CASE("sparse values are joined, duplicates add up", "[spec][XDO-04][XDO-05]") {
  torch::Tensor sum = torch::zeros({5, 2}), mean = torch::zeros({5, 2});
  sum[1] = torch::tensor({4.0f, 6.0f});
  sum[3] = torch::tensor({5.0f, 6.0f});
  mean[1] = torch::tensor({2.0f, 3.0f});
  mean[3] = torch::tensor({2.5f, 3.0f});
  std::vector<torch::Tensor> sparse;
  const auto slices = Slices();
  for (const IndexedSlices& one : slices.values()) sparse.push_back(to_sparse(one));
  for (const auto& ops : AllOps()) {
    const auto sums = ops->reduce(ReduceOp::kSum, slices, cpus(2, 1));
    REQUIRE(sums.size() == 2);
    for (int d = 0; d < 2; ++d) {
      CHECK(sums[d].indices.equal(torch::tensor({1, 1, 3})));
      CHECK(sums[d].values.equal(torch::tensor({{1.0f, 2.0f}, {3.0f, 4.0f}, {5.0f, 6.0f}})));
      CHECK(to_dense(sums[d]).equal(sum));
      CHECK(muster::device_of(sums[d].values) == cpu(d + 1));
      CHECK(muster::device_of(sums[d].indices) == cpu(d + 1));
    }
    CHECK(to_dense(ops->reduce(ReduceOp::kMean, slices, "CPU:0")[0]).equal(mean));
    // The same as sparse tensors.
    const PerReplica<torch::Tensor> tensors(sparse);
    CHECK(ops->reduce(ReduceOp::kSum, tensors, "CPU:0")[0].to_dense().equal(sum));
    CHECK(ops->reduce(ReduceOp::kMean, tensors, "CPU:0")[0].to_dense().equal(mean));
  }
}

TEST_CASE("sparse values fall back to one device, which the log says once", "[spec][XDO-06]") {
  CollectiveAllReduce collective;
  const auto reduce_twice = [](CrossDeviceOps& ops) {
    return log_of([&] {
      ops.reduce(ReduceOp::kSum, Slices(), cpus(2, 0));
      ops.reduce(ReduceOp::kSum, Slices(), cpus(2, 0));
    });
  };

  CHECK(CountOf(reduce_twice(collective), "sparse values are joined on one device") == 1);
  CHECK(CountOf(reduce_twice(collective), "sparse values") == 0);
  ReductionToOneDevice to_one;
  CHECK(reduce_twice(to_one).empty());
  // So do replicas that come with them.
  const auto hierarchical = std::make_shared<HierarchicalCopyAllReduce>();
  MirroredStrategy strategy(cpus(3), hierarchical);
  const auto rows = Slices();
  const std::string log = log_of([&] {
    for (int call = 0; call < 2; ++call) {
      const auto sums =
          strategy.run([&] { return replica_context().all_reduce(ReduceOp::kSum, rows[1]); });
      for (const IndexedSlices& sum : sums.values()) CHECK(sum.indices.size(0) == 6);
    }
  });
  CHECK(CountOf(log, "HierarchicalCopyAllReduce: sparse values are joined on one device") == 1);
  CHECK(CountOf(log, "sparse values") == 1);
}

TEST_CASE("destinations must be devices, and there must be some", "[spec][XDO-08]") {
  ReductionToOneDevice ops;
  CHECK(throws(ErrorCode::kInvalidArgument, "destinations can not be empty",
               [&] { ops.reduce(ReduceOp::kSum, Numbers(2), std::vector<std::string>{}); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "must be one of",
               [&] { ops.reduce(ReduceOp::kSum, Numbers(2), "disk:0"); }));
  static_assert(!std::is_constructible_v<Destinations, double>);
  static_assert(!std::is_constructible_v<Destinations, Strategy&>);
}

TEST_CASE("a batch is a list of pairs of value and destination", "[spec][XDO-09]") {
  using Batch = std::vector<std::pair<ReduceInput, Destinations>>;
  static_assert(std::is_constructible_v<Batch::value_type, PerReplica<torch::Tensor>, const char*>);
  static_assert(!std::is_convertible_v<PerReplica<torch::Tensor>, Batch::value_type>);
  static_assert(!std::is_convertible_v<PerReplica<torch::Tensor>, Batch>);
  static_assert(!std::is_constructible_v<Batch::value_type, int, const char*>);
  SUCCEED("it does not compile");
}

// Counts what reaches the implementation.
class Counting final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "Counting"; }
  int reduced = 0;

 protected:
  std::vector<torch::Tensor> reduce_implementation(ReduceOp op,
                                                   const std::vector<torch::Tensor>& values,
                                                   const Destinations& to,
                                                   const CommunicationOptions&) override {
    ++reduced;
    return reduce_to_one(op, values, device::Place{}, to);
  }
};

TEST_CASE("one value that is on its destination is copied, not transported", "[spec][XDO-10]") {
  Counting ops;
  const auto value = Spread(1, [](int) { return torch::tensor({1.0f, 2.0f}); });

  const auto result = ops.reduce(ReduceOp::kMean, value, value);

  CheckMirrored(result, torch::tensor({1.0f, 2.0f}), {cpu(0)});
  CHECK(ops.reduced == 0);
  ops.reduce(ReduceOp::kMean, Numbers(2), "CPU:0");
  CHECK(ops.reduced == 1);
}

TEST_CASE("only SUM and MEAN are reductions", "[spec][XDO-11]") {
  for (const auto& ops : AllOps()) {
    for (const int n : {1, 2}) {
      CHECK(throws(ErrorCode::kInvalidArgument, "not one of: SUM, MEAN",
                   [&] { ops->reduce(static_cast<ReduceOp>(7), Numbers(n), "CPU:0"); }));
    }
  }
}

TEST_CASE("reduction to one device: which one, and how values are added", "[spec][XDO-12]") {
  std::vector<std::string> seen;
  const auto spy = [&](const std::vector<torch::Tensor>& values) {
    torch::Tensor product = values[0].clone();
    for (std::size_t i = 1; i < values.size(); ++i) product = product * values[i];
    seen.push_back(muster::device_of(product));
    return product;
  };

  ReductionToOneDevice there("CPU:6", spy);
  CheckMirrored(there.reduce(ReduceOp::kSum, Numbers(3, 2), cpus(2, 0)), torch::tensor(24.0f),
                {cpu(0), cpu(1)});
  CheckMirrored(there.reduce(ReduceOp::kMean, Numbers(3, 2), "CPU:1"), torch::tensor(8.0f),
                {cpu(1)});
  ReductionToOneDevice first(std::nullopt, spy);
  first.reduce(ReduceOp::kSum, Numbers(2, 1), cpus(2, 3));
  CHECK(seen == std::vector<std::string>{cpu(6), cpu(6), cpu(3)});
}

TEST_CASE("the number of packs is zero or more", "[spec][XDO-13]") {
  CHECK(throws(ErrorCode::kInvalidArgument, "requires num_packs >= 0",
               [] { NcclAllReduce ops(-1); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "requires num_packs >= 0",
               [] { HierarchicalCopyAllReduce ops(-1); }));
  // Three tensors of 5, 0 and 6 numbers: whatever the packs, the sums are the same.
  const auto tensor = [](int size) {
    return Spread(4, [&](int d) { return torch::arange(1.0f, 1.0f + size) * (d + 1); });
  };
  const auto a = tensor(5), b = tensor(0), c = tensor(6);
  for (const int packs : {0, 1, 2, 3, 20}) {
    HierarchicalCopyAllReduce ops(packs);
    const auto sums = ops.batch_reduce(ReduceOp::kSum, {{a, a}, {b, a}, {c, a}});
    const auto own = Destinations(a).devices();
    CheckMirrored(sums[0], torch::arange(1.0f, 6.0f) * 10, own);
    CheckMirrored(sums[1], torch::zeros({0}), own);
    CheckMirrored(sums[2], torch::arange(1.0f, 7.0f) * 10, own);
  }
}

TEST_CASE("hierarchical all-reduce sums halves first, on 4 and 8 logical CPUs", "[spec][XDO-14]") {
  // Numbers whose float sum shows the order: ((1 + 1e8) - 1e8) + 1 is 1, (1 + 1e8) + (-1e8 + 1) 0.
  const std::vector<float> numbers{1, 1e8f, -1e8f, 1};
  const auto value =
      Spread(4, [&](int d) { return torch::full({3}, numbers[static_cast<std::size_t>(d)]); });
  HierarchicalCopyAllReduce hierarchical;
  ReductionToOneDevice flat;
  const auto first = [&](CrossDeviceOps& ops, const Destinations& to) {
    return ops.reduce(ReduceOp::kSum, value, to)[0][0].item<float>();
  };
  CHECK(first(flat, value) == 1);
  CHECK(first(hierarchical, value) == 0);
  // Other destinations: reduced to one.
  CHECK(first(hierarchical, "CPU:0") == 1);
  CHECK(first(hierarchical, cpus(4, 1)) == 1);

  for (const int n : {2, 3, 4, 8}) {
    for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf,
                            torch::kLong, torch::kInt}) {
      const auto numbered = Spread(n, [&](int d) { return torch::full({9}, d, type); });
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
        const auto expected = flat.reduce(op, numbered, "CPU:0")[0];
        CheckMirrored(hierarchical.reduce(op, numbered, numbered), expected,
                      Destinations(numbered).devices());
      }
    }
  }
  NcclAllReduce nccl;
  const std::string log = log_of([&] {
    CHECK(first(nccl, value) == 1);
    CHECK(first(nccl, value) == 1);
  });
  CHECK(CountOf(log, "NcclAllReduce: these devices are reduced on one of them") == 1);
}

TEST_CASE("gather joins on one device and copies", "[spec][XDO-15]") {
  const auto value = Spread(3, [](int d) { return torch::full({1, d + 1}, d); });
  for (const auto& ops : AllOps()) {
    CheckMirrored(ops->gather(value, cpus(2, 4), 1), torch::tensor({{0, 1, 1, 2, 2, 2}}),
                  {cpu(4), cpu(5)});
  }
}

TEST_CASE("tensors are grouped by their bytes", "[spec][XDO-16]") {
  using Packs = std::vector<std::vector<std::size_t>>;
  const std::vector<torch::Tensor> tensors{torch::zeros({2, 4, 4}), torch::zeros({8}, torch::kInt),
                                           torch::zeros({10, 10}, torch::kLong),
                                           torch::zeros({1}, torch::kInt)};

  CHECK(group_by_size(tensors, 200) == Packs{{0, 1, 2}, {3}});
  CHECK(group_by_size(tensors, 0) == Packs{{0, 1, 2, 3}});
}

TEST_CASE("communication options: bytes are not negative, names in any case", "[spec][XDO-18]") {
  using Implementation = CommunicationImplementation;
  CHECK(throws(ErrorCode::kInvalidArgument, "bytes_per_pack must be >= 0",
               [] { (void)CommunicationOptions{.bytes_per_pack = -1}; }));
  CHECK(CommunicationOptions{.implementation = "Ring"}.implementation == Implementation::kRing);
  CHECK(CommunicationOptions{.implementation = "nccl"}.implementation == Implementation::kNccl);
  CHECK(CommunicationOptions{.implementation = "AUTO"}.implementation == Implementation::kAuto);
  CHECK(throws(ErrorCode::kInvalidArgument, "not one of: AUTO, RING, NCCL",
               [] { (void)CommunicationOptions{.implementation = "gloo"}; }));
}

TEST_CASE("merged options: what is not the default wins", "[spec][XDO-19]") {
  using std::chrono::milliseconds;
  const CommunicationOptions mine{
      .bytes_per_pack = 10, .timeout = milliseconds(20), .implementation = "ring"};
  const CommunicationOptions other{
      .bytes_per_pack = 30, .timeout = milliseconds(40), .implementation = "nccl"};

  const CommunicationOptions kept = mine.merge({});
  CHECK(kept.bytes_per_pack == 10);
  CHECK(kept.timeout == milliseconds(20));
  CHECK(kept.implementation == CommunicationImplementation::kRing);
  const CommunicationOptions taken = mine.merge(other);
  CHECK(taken.bytes_per_pack == 30);
  CHECK(taken.timeout == milliseconds(40));
  CHECK(taken.implementation == CommunicationImplementation::kNccl);
  // Each by itself.
  const CommunicationOptions later = mine.merge({.timeout = milliseconds(50)});
  CHECK(later.bytes_per_pack == 10);
  CHECK(later.timeout == milliseconds(50));
  CHECK(later.implementation == CommunicationImplementation::kRing);
  const CommunicationOptions packed = mine.merge({.bytes_per_pack = 60});
  CHECK(packed.bytes_per_pack == 60);
  CHECK(packed.timeout == milliseconds(20));
  CHECK(packed.implementation == CommunicationImplementation::kRing);
  CHECK(CommunicationOptions().merge(mine).implementation == CommunicationImplementation::kRing);
}

TEST_CASE("ops are chosen by what devices there are", "[spec][XDO-20]") {
  const auto chosen = [](const std::vector<std::string>& devices, const MachineFacts& facts) {
    return std::string(select_cross_device_ops(devices, facts)->name());
  };
  CHECK(chosen({"CPU:0", "GPU:0"}, {.nccl = true}) == "ReductionToOneDevice");
  CHECK(chosen({"CPU:0", "CPU:1"}, {.nccl = true}) == "ReductionToOneDevice");
  CHECK(chosen({"GPU:0", "GPU:1"}, {.nccl = false}) == "ReductionToOneDevice");
  CHECK(chosen({"GPU:0", "GPU:1"}, {.nccl = true, .gpu_cards = {0, 0}}) == "ReductionToOneDevice");
  CHECK(chosen({"GPU:0", "GPU:1"}, {.nccl = true, .gpu_cards = {0, 1}}) == "NcclAllReduce");
}

TEST_CASE("a mirrored strategy chooses by devices, or takes what it is given",
          "[spec][MIR-12][MIR-13][MIR-14][MIR-15][MIR-16][MIR-17]") {
  using Implementation = CommunicationImplementation;
  const auto implementation = [](const std::vector<std::string>& devices,
                                 const MachineFacts& facts) {
    const auto ops = mirrored_cross_device_ops(devices, facts);
    return dynamic_cast<const CollectiveAllReduce&>(*ops).implementation();
  };
  // MIR-12
  MirroredStrategy cpus({"CPU:0", "CPU:1"});
  CHECK(cpus.cross_device_ops().name() == "CollectiveAllReduce");
  CHECK(implementation({"CPU:0", "CPU:1"}, {.nccl = true}) == Implementation::kRing);
  // MIR-13, MIR-14
  CHECK(implementation({"GPU:0", "GPU:1"}, {.nccl = true, .gpu_cards = {0, 1}}) ==
        Implementation::kNccl);
  CHECK(implementation({"GPU:0", "GPU:1"}, {.nccl = true, .gpu_cards = {0, 0}}) ==
        Implementation::kRing);
  // MIR-15
  CHECK(mirrored_cross_device_ops({"CPU:0", "GPU:0"}, {.nccl = true})->name() ==
        "ReductionToOneDevice");
  // MIR-16
  const std::shared_ptr<CrossDeviceOps> collective = std::make_shared<CollectiveAllReduce>();
  CHECK(cross_device_ops_for(collective, torch::kInt, {"GPU:0", "GPU:1"})->name() ==
        "ReductionToOneDevice");
  CHECK(cross_device_ops_for(collective, torch::kFloat, {"GPU:0", "GPU:1"}) == collective);
  CHECK(cross_device_ops_for(collective, torch::kInt, {"CPU:0", "CPU:1"}) == collective);
  // MIR-17
  const auto mine = std::make_shared<Counting>();
  MirroredStrategy explicit_ops({"CPU:0", "CPU:1"}, mine);
  CHECK(&explicit_ops.cross_device_ops() == mine.get());
  explicit_ops.reduce(ReduceOp::kSum, Numbers(2));
  CHECK(mine->reduced == 1);
  explicit_ops.run([] { replica_context().all_reduce(ReduceOp::kSum, torch::ones({2})); });
  CHECK(mine->reduced == 2);
}

TEST_CASE("sums, quotients and copies of dense and sparse values", "[spec][XDO-21]") {
  const torch::Tensor a = torch::tensor({{1.0f, 2.0f}, {0.0f, 0.0f}, {3.0f, 4.0f}});
  const torch::Tensor b = torch::tensor({{0.0f, 0.0f}, {5.0f, 6.0f}, {7.0f, 8.0f}});
  CHECK(aggregate(std::vector{a, b})
            .equal(torch::tensor({{1.0f, 2.0f}, {5.0f, 6.0f}, {10.0f, 12.0f}})));
  CHECK(divide_by(a, 2).equal(torch::tensor({{0.5f, 1.0f}, {0.0f, 0.0f}, {1.5f, 2.0f}})));

  const IndexedSlices x{torch::tensor({{1.0f, 2.0f}, {3.0f, 4.0f}}), torch::tensor({0, 2}),
                        std::vector<std::int64_t>{3, 2}};
  const IndexedSlices y{torch::tensor({{5.0f, 6.0f}, {7.0f, 8.0f}}), torch::tensor({1, 2}),
                        std::vector<std::int64_t>{3, 2}};
  const IndexedSlices sum = aggregate(std::vector{x, y});
  CHECK(sum.indices.equal(torch::tensor({0, 2, 1, 2})));
  CHECK(to_dense(sum).equal(torch::tensor({{1.0f, 2.0f}, {5.0f, 6.0f}, {10.0f, 12.0f}})));
  CHECK(divide_by(x, 2).values.equal(torch::tensor({{0.5f, 1.0f}, {1.5f, 2.0f}})));
  CHECK(divide_by(x, 2).indices.equal(x.indices));

  const IndexedSlices shapeless{x.values, x.indices};
  const IndexedSlices copy = copy_to_device(shapeless, "CPU:3");
  CHECK_FALSE(copy.dense_shape.has_value());
  CHECK(copy.values.equal(x.values));
  CHECK(muster::device_of(copy.values) == cpu(3));
  CHECK(copy.values.data_ptr() != x.values.data_ptr());
  CHECK(copy_to_device(x, "CPU:3").dense_shape == x.dense_shape);
  CHECK(throws(ErrorCode::kInvalidArgument, "without a dense_shape", [&] { to_dense(shapeless); }));
}

TEST_CASE("rows that are none of their tensor become no whole tensor", "[strategy][unit]") {
  const auto ones = [](std::int64_t rows) { return torch::ones({rows, 2}); };
  const auto at = [](std::vector<std::int64_t> rows) { return torch::tensor(rows); };
  const std::vector<std::int64_t> shape{3, 2};
  const std::vector<std::pair<IndexedSlices, std::string>> refused{
      {{ones(2), at({0, 3}), shape}, "index 3 at position 1 is not in [0, 3)"},
      {{ones(1), at({-1}), shape}, "index -1 at position 0 is not in [0, 3)"},
      {{ones(2), at({0}), shape}, "1 indices and values of shape [2, 2] are no rows of a tensor"},
      {{torch::ones({1, 5}), at({0}), shape}, "of a tensor of shape [3, 2]"},
      {{torch::ones({}), at({0}), std::vector<std::int64_t>{}}, "of a tensor of shape []"},
      {{ones(1), torch::ones({1}), shape}, "must be a list of int32 or int64, not Float"},
      {{ones(1), at({0}).reshape({1, 1}), shape}, "of shape [1, 1]"},
      {{torch::Tensor(), at({0}), shape}, "without values"},
      {{ones(1), torch::Tensor(), shape}, "without indices"}};
  for (const auto& [slices, text] : refused) {
    CAPTURE(text);
    CHECK(throws(ErrorCode::kInvalidArgument, text, [&] { (void)to_dense(slices); }));
    CHECK(throws(ErrorCode::kInvalidArgument, text, [&] { (void)to_sparse(slices); }));
  }
  const IndexedSlices none{ones(0), at({}), shape};
  CHECK(to_dense(none).equal(torch::zeros({3, 2})));
  CHECK(to_sparse(none).to_dense().equal(torch::zeros({3, 2})));
}

TEST_CASE("values that do not go together are refused by all ops", "[strategy][unit]") {
  const auto shapes = Spread(2, [](int d) { return torch::ones({d + 1}); });
  const auto types =
      Spread(2, [](int d) { return torch::ones({2}, d == 0 ? torch::kFloat : torch::kLong); });
  const auto bools = Spread(2, [](int) { return torch::ones({2}, torch::kBool); });
  const auto wide =
      Spread(2, [](int) { return torch::ones({2, 2}).to_sparse(); });  // two sparse dimensions
  const auto mixed = Spread(
      2, [](int d) { return d == 0 ? torch::ones({2, 2}) : torch::ones({2, 2}).to_sparse(1); });
  for (const auto& ops : AllOps()) {
    for (const Destinations& to : {Destinations(shapes), Destinations("CPU:0")}) {
      CHECK(throws(ErrorCode::kInvalidArgument, "Shape mismatch",
                   [&] { ops->reduce(ReduceOp::kSum, shapes, to); }));
      CHECK(throws(ErrorCode::kInvalidArgument, "replica 1 holds",
                   [&] { ops->reduce(ReduceOp::kSum, types, to); }));
      CHECK(throws(ErrorCode::kInvalidArgument, "bool has no sum",
                   [&] { ops->reduce(ReduceOp::kSum, bools, to); }));
      CHECK(throws(ErrorCode::kInvalidArgument, "2 sparse dimensions",
                   [&] { ops->reduce(ReduceOp::kSum, wide, to); }));
      CHECK(throws(ErrorCode::kInvalidArgument, "replica 1 holds a sparse tensor",
                   [&] { ops->reduce(ReduceOp::kSum, mixed, to); }));
    }
  }
}

TEST_CASE("a mean of integers is float64 of one value as of several", "[strategy][unit]") {
  for (const auto& ops : AllOps()) {
    for (const int n : {1, 2}) {
      const auto value = Spread(n, [](int) { return torch::tensor({3, 4}); });
      const auto mean = ops->reduce(ReduceOp::kMean, value, "CPU:0");
      CHECK(mean[0].scalar_type() == torch::kDouble);
      CHECK(mean[0].equal(torch::tensor({3.0, 4.0}, torch::kDouble)));
      CHECK(ops->batch_reduce(ReduceOp::kMean, {{value, "CPU:0"}})[0][0].equal(mean[0]));
      CHECK(ops->reduce(ReduceOp::kSum, value, "CPU:0")[0].scalar_type() == torch::kLong);
    }
  }
}

TEST_CASE("undefined tensors and sparse ones of other layouts are refused in words",
          "[strategy][unit]") {
  CHECK(throws(ErrorCode::kInvalidArgument, "an undefined tensor cannot be broadcast",
               [] { ReductionToOneDevice().broadcast(torch::Tensor(), "CPU:0"); }));
  const torch::Tensor compressed = torch::eye(2).to_sparse_csr();
  const std::string text = "a tensor of layout SparseCsr cannot be reduced";
  CHECK(throws(ErrorCode::kInvalidArgument, text,
               [&] { aggregate(std::vector{compressed, compressed}); }));
  const PerReplica<torch::Tensor> both({compressed, torch::eye(2).to_sparse_csr()});
  for (const auto& ops : AllOps()) {
    CHECK(throws(ErrorCode::kInvalidArgument, text,
                 [&] { ops->reduce(ReduceOp::kSum, both, "CPU:0"); }));
  }
}

}  // namespace
}  // namespace muster
