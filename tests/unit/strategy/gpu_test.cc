// Strategies on GPUs. A program of its own: what its GPUs are is settled once in a process, here
// two logical GPUs on card 0, which any machine with a card has. Without a card the cases that need
// one say so and pass; what is refused without one is checked then.
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "strategy/base/logical_devices.h"
#include "strategy/input/dataset.h"
#include "strategy/input/distributed_dataset.h"
#include "strategy/reduce/cross_device_ops.h"
#include "strategy/train/checkpoint.h"
#include "strategy/train/metrics.h"
#include "strategy/train/module.h"
#include "strategy/train/optimizer.h"
#include "strategy/values/sparse.h"
#include "tests/support/catch.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/variables/variable_support.h"

namespace muster {
namespace {

using testing::cpu;
using testing::error_of;
using testing::floats;
using testing::id;
using testing::ints;
using testing::kMean;
using testing::kOnRead;
using testing::kSum;
using testing::list;
using testing::row;
using testing::throws;

bool any_card() { return list_physical_devices("GPU").size() > 0; }

// False, and said, where there is no card; else GPU:0 and GPU:1 are both on card 0.
bool two_gpus_on_one_card() {
  static const bool there = [] {
    if (!any_card()) return false;
    set_logical_device_configuration(0, 2);
    return true;
  }();
  if (!there) WARN("skipped: no GPU");
  return there;
}

std::string gpu(int index) {
  return "/job:localhost/replica:0/task:0/device:GPU:" + std::to_string(index);
}
const std::vector<std::string> kTwo{"GPU:0", "GPU:1"};

TEST_CASE("without a card every name of a GPU is refused with what there is, and what to do",
          "[strategy][unit]") {
  if (any_card()) {
    WARN("skipped: there is a GPU");
    return;
  }
  const auto refused = [](const std::function<void()>& body) {
    return throws(ErrorCode::kInvalidArgument, "there are 0 GPUs", body);
  };
  MirroredStrategy cpus({"CPU:0", "CPU:1"});
  const torch::Tensor one = torch::ones({1});

  CHECK(refused([] { OneDeviceStrategy strategy("GPU:0"); }));
  CHECK(refused([] { MirroredStrategy strategy({"CPU:0", "GPU:1"}); }));
  CHECK(refused([] { CentralStorageStrategy strategy({"GPU:0"}); }));
  CHECK(refused([] { CentralStorageStrategy strategy({"CPU:0"}, "GPU:0"); }));
  CHECK(refused([] { const DeviceScope scope("GPU:0"); }));
  CHECK(refused([] { const Destinations to("GPU:0"); }));
  CHECK(refused([] { ReductionToOneDevice ops("GPU:0"); }));
  CHECK(refused([&] { (void)copy_to_device(one, "GPU:0"); }));
  CHECK(refused([&] {
    (void)cpus.cross_device_ops().broadcast(one, std::vector<std::string>{"CPU:0", "GPU:0"});
  }));
  CHECK(throws(ErrorCode::kInvalidArgument, "0 cards",
               [] { set_logical_device_configuration(0, 2); }));
  // The remedy: another libtorch, or the driver.
  const auto error = error_of([] { OneDeviceStrategy strategy("GPU:0"); });
  CHECK((error->message().find("MUSTER_TORCH") != std::string::npos ||
         error->message().find("nvidia-smi") != std::string::npos));
}

TEST_CASE("devices are listed by type", "[strategy][unit]") {
  if (any_card() && !two_gpus_on_one_card()) return;
  CHECK(list_physical_devices("CPU") == std::vector<std::string>{"/physical_device:CPU:0"});
  CHECK(list_logical_devices("CPU") == std::vector<std::string>{cpu(0)});
  const std::vector<std::string> all = list_logical_devices();
  CHECK(all.size() == 1 + list_logical_devices("GPU").size());
  CHECK(all[0] == cpu(0));
  CHECK(throws(ErrorCode::kInvalidArgument, "NPU", [] { (void)list_logical_devices("NPU"); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "gpu", [] { (void)list_physical_devices("gpu"); }));
  CHECK(machine_facts().gpu_cards.size() == list_logical_devices("GPU").size());
}

TEST_CASE("without devices MirroredStrategy takes all logical GPUs, else CPU:0", "[spec][MIR-01]") {
  if (any_card() && !two_gpus_on_one_card()) return;
  const std::vector<std::string> gpus = list_logical_devices("GPU");
  if (gpus.empty()) WARN("skipped: no GPU to take, CPU:0 alone is checked");
  MirroredStrategy strategy;
  CHECK(strategy.worker_devices() == (gpus.empty() ? std::vector<std::string>{cpu(0)} : gpus));
  CHECK(strategy.uses_gpus() == !gpus.empty());
}

TEST_CASE("a replica knows libtorch's device for its tensors", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:2"});
  const auto devices = strategy.run([] { return replica_context().device(); });
  CHECK(devices[0] == torch::Device(torch::kCPU));
  CHECK(devices[1] == torch::Device(torch::kCPU));
  CHECK_FALSE(strategy.uses_gpus());
  CHECK(throws(ErrorCode::kOutOfRange, "replica 2", [&] { (void)strategy.torch_device(2); }));
  // The device is no kind of tensor's: a tensor made on it lies in the replica's arena.
  const auto made = strategy.run([] { return torch::zeros({3}, replica_context().device()); });
  CHECK(muster::device_of(made[1]) == cpu(2));
}

TEST_CASE("logical GPUs are settled when they are used", "[strategy][unit]") {
  if (!two_gpus_on_one_card()) return;
  CHECK(list_logical_devices("GPU").size() == list_physical_devices("GPU").size() + 1);
  CHECK(throws(ErrorCode::kFailedPrecondition, "in use",
               [] { set_logical_device_configuration(0, 3); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "logical GPUs, GPU:0 to",
               [] { OneDeviceStrategy strategy("GPU:63"); }));
}

TEST_CASE("logical GPUs on one card are reduced without NCCL", "[spec][MIR-14]") {
  if (!two_gpus_on_one_card()) return;
  const auto ops = mirrored_cross_device_ops(kTwo);
  CHECK(dynamic_cast<const CollectiveAllReduce&>(*ops).implementation() ==
        CommunicationImplementation::kRing);
  CHECK(select_cross_device_ops(kTwo)->name() == "ReductionToOneDevice");
}

TEST_CASE("copies lie on the logical GPU that they were made for", "[strategy][unit]") {
  if (!two_gpus_on_one_card()) return;
  const torch::Tensor one = floats(1, 2);
  for (int g = 0; g < 2; ++g) {
    const torch::Tensor there = copy_to_device(one, gpu(g));
    CHECK(there.is_cuda());
    CHECK(muster::device_of(there) == gpu(g));
    CHECK(list(there) == std::vector<double>{1, 2});
    const torch::Tensor again = copy_to_device(there, gpu(1 - g));
    CHECK(muster::device_of(again) == gpu(1 - g));
    CHECK(again.data_ptr() != there.data_ptr());
    CHECK(muster::device_of(copy_to_device(there, "CPU:1")) == cpu(1));
  }
}

TEST_CASE("the gradient through all_reduce on two logical GPUs of one card", "[spec][MIR-32]") {
  if (!two_gpus_on_one_card()) return;
  MirroredStrategy strategy(kTwo);
  for (const auto& [op, expected] :
       {std::pair(ReduceOp::kSum, 4.0), std::pair(ReduceOp::kMean, 2.0)}) {
    const auto gradients = strategy.run([by = op] {
      const auto options = torch::dtype(torch::kFloat).device(replica_context().device());
      const torch::Tensor x = torch::ones({}, options.requires_grad(true));
      const double c = id() == 0 ? 1 : 3;
      (replica_context().all_reduce(by, x * 1.0) * c).backward();
      return x.grad();
    });
    CHECK(testing::numbers(gradients) == testing::times(2, expected));
  }
}

TEST_CASE("the gradient of a tensor in host memory comes back there", "[strategy][unit]") {
  if (!two_gpus_on_one_card()) return;
  MirroredStrategy strategy(kTwo);
  const auto gradients = strategy.run([] {
    const torch::Tensor x = torch::ones({2}, torch::requires_grad());
    replica_context().all_reduce(ReduceOp::kSum, x).sum().backward();
    return x.grad();
  });
  for (const torch::Tensor& gradient : gradients.values()) {
    CHECK(gradient.is_cpu());
    CHECK(list(gradient) == std::vector<double>{2, 2});
  }
}

TEST_CASE("results of collective calls lie on the replicas' devices", "[strategy][unit]") {
  if (!two_gpus_on_one_card()) return;
  for (const std::vector<std::string>& devices :
       {kTwo, std::vector<std::string>{"CPU:1", "GPU:1", "GPU:0"}}) {
    MirroredStrategy strategy(devices);
    const auto results = strategy.run([] {
      const torch::Tensor mine =
          torch::full({2}, id() + 1.0, torch::device(replica_context().device()));
      const torch::Tensor sum = replica_context().all_reduce(ReduceOp::kSum, mine);
      const torch::Tensor joined = replica_context().all_gather(mine, 0);
      const IndexedSlices rows = replica_context().all_reduce(
          ReduceOp::kSum,
          IndexedSlices{mine, torch::tensor({0, id()}, torch::kLong).to(mine.device()),
                        std::vector<std::int64_t>{3}});
      return std::tuple{sum, joined, to_dense(rows)};
    });
    const int n = strategy.num_replicas_in_sync();
    for (int r = 0; r < n; ++r) {
      const auto& [sum, joined, dense] = results[r];
      CHECK(muster::device_of(sum) == strategy.worker_devices()[static_cast<std::size_t>(r)]);
      CHECK(list(sum) == testing::times(2, n * (n + 1) / 2));
      CHECK(joined.size(0) == 2 * n);
      CHECK(dense.sum().item<double>() == n * (n + 1));
      CHECK(dense.device() == strategy.torch_device(r));
    }
    // Across replicas: on CPU:0, or where it is wanted.
    const PerReplica<torch::Tensor> sums = strategy.run(
        [] { return torch::full({2}, id() + 1.0, torch::device(replica_context().device())); });
    CHECK(muster::device_of(strategy.reduce(ReduceOp::kSum, sums)) == cpu(0));
    CHECK(list(strategy.reduce(ReduceOp::kMean, sums)) == testing::times(2, (n + 1) / 2.0));
    CHECK(list(strategy.gather(sums, 0)).size() == static_cast<std::size_t>(2 * n));
    const auto everywhere = strategy.extended().reduce_to(ReduceOp::kSum, sums, devices);
    for (int r = 0; r < n; ++r) {
      CHECK(muster::device_of(everywhere[r]) ==
            strategy.worker_devices()[static_cast<std::size_t>(r)]);
    }
  }
}

TEST_CASE("variables on GPUs are read, written and scattered to there", "[spec][MIR-28]") {
  if (!two_gpus_on_one_card()) return;
  MirroredStrategy strategy({"CPU:0", "GPU:0", "GPU:1"});
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", torch::zeros({3}), {.aggregation = kSum});
  const Variable seen =
      Variable::create("seen", std::int64_t{0}, {.synchronization = kOnRead, .aggregation = kSum});

  const auto values = strategy.run([&] {
    v.assign_add(torch::full({3}, id() + 1.0, torch::device(replica_context().device())));
    v.scatter_add(row(1.0 * (id() + 1), id()));
    seen.assign_add(id() + 1);
    return v.value();
  });

  CHECK(v.devices() == std::vector<std::string>{cpu(0), gpu(0), gpu(1)});
  for (int r = 0; r < 3; ++r) {
    CHECK(values[r].device() == strategy.torch_device(r));
    CHECK(list(values[r]) == std::vector<double>{7, 8, 9});
    CHECK(muster::device_of(v.component(r).value()) == v.devices()[static_cast<std::size_t>(r)]);
  }
  CHECK(testing::number(seen) == 6);
  v.assign(floats(1, 2, 3));
  v.scatter_max(IndexedSlices{floats(5, 4), ints(0, 0)});
  for (const Variable& component : v.components()) {
    CHECK(list(component.value()) == std::vector<double>{5, 2, 3});
  }
  const auto merged = strategy.run([&] {
    return replica_context().merge_call(
        [](Strategy& all, const PerReplica<torch::Tensor>& x) {
          return all.reduce(ReduceOp::kSum, x);
        },
        torch::ones({2}, replica_context().device()));
  });
  CHECK(list(merged[2]) == testing::times(2, 3));
}

TEST_CASE("variables of one GPU lie and compute there", "[spec][ONE-02][ONE-06]") {
  if (!two_gpus_on_one_card()) return;
  OneDeviceStrategy strategy("GPU:1");
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", floats(1, 2));
  CHECK(v.device() == gpu(1));
  CHECK(muster::device_of(v.value()) == gpu(1));
  const auto doubled = strategy.run([&] { return v.value() * 2; });
  CHECK(doubled[0].is_cuda());

  for (const bool fetch : {true, false}) {
    InputOptions options;
    options.experimental_fetch_to_device = fetch;
    const auto data =
        experimental_distribute_dataset(strategy, dataset::range(4).batch(2), options);
    for (const auto& batch : data) CHECK(batch[0].is_cuda() == fetch);
  }
}

TEST_CASE("central storage of a CPU and a GPU keeps variables on the CPU", "[spec][CEN-06]") {
  if (!two_gpus_on_one_card()) return;
  CentralStorageStrategy strategy({"CPU:0", "GPU:0"});
  CHECK(strategy.parameter_devices() == std::vector<std::string>{cpu(0)});
  std::vector<std::vector<double>> steps;
  const auto data = experimental_distribute_dataset(strategy, dataset::range(10).batch(2));
  for (const auto& batch : data) {
    CHECK(batch[0].is_cpu());
    CHECK(batch[1].is_cuda());
    std::vector<double> step = list(batch[0]);
    step.push_back(list(batch[1])[0]);
    steps.push_back(step);
  }
  CHECK((steps == std::vector<std::vector<double>>{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}}));

  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", floats(2), {.aggregation = kMean});
  const auto values = strategy.run([&] {
    const torch::Tensor here = v.value();
    (here * here * torch::ones({1}, replica_context().device())).sum().backward();
    v.assign_sub(here.grad());
    return v.value();
  });
  CHECK(v.device() == cpu(0));
  for (int r = 0; r < 2; ++r) {
    CHECK(values[r].device() == strategy.torch_device(r));
    CHECK(list(values[r]) == std::vector<double>{-2});
  }
}

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second->forward(torch::tanh(norm->forward(first->forward(x))));
  }
  torch::nn::Linear first = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Linear second = nullptr;
};
TORCH_MODULE(Net);

Net same_net() {
  torch::manual_seed(7);
  Net net;
  net->to(torch::kFloat64);
  return net;
}

// Ten steps of Adam, each replica on half of 8 rows; the parameters afterwards, in host memory.
// They are saved in between, and restored into a net that begins elsewhere.
std::vector<torch::Tensor> trained(Strategy& strategy) {
  const testing::TempFolder folder;
  const auto scope = strategy.scope();
  auto net = strategy.distribute(same_net());
  auto optimizer = strategy.optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.05));
  Mean loss("loss");
  const auto steps = [&](auto& model, auto& with, int first) {
    for (int step = first; step < first + 5; ++step) {
      torch::manual_seed(static_cast<std::uint64_t>(100 + step));
      const torch::Tensor x = torch::randn({8, 6}, torch::kFloat64);
      strategy.run([&] {
        const torch::Tensor mine = x.narrow(0, id() * 4, 4).to(replica_context().device());
        with.zero_grad();
        const torch::Tensor each = model->forward(mine).square().sum(1);
        loss.update(each);
        (each.sum() / 8).backward();
        with.step();
      });
    }
  };
  steps(net, optimizer, 0);
  Checkpoint before;
  before.track(net);
  before.track(optimizer);
  before.save(folder / "five", 5);
  Net elsewhere = same_net();
  {
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& parameter : elsewhere->parameters()) parameter.fill_(9);
  }
  auto other = strategy.distribute(elsewhere);
  auto goes_on = strategy.optimizer<torch::optim::Adam>(other, torch::optim::AdamOptions(0.05));
  Checkpoint after;
  after.track(other);
  after.track(goes_on);
  after.restore(folder / "five").assert_consumed();
  steps(other, goes_on, 5);

  std::vector<torch::Tensor> result{torch::scalar_tensor(loss.result(), torch::kFloat64)};
  for (const auto* variables : {&other.parameters(), &other.buffers()}) {
    for (const Variable& variable : *variables) result.push_back(variable.value().cpu());
  }
  return result;
}

TEST_CASE("a module trains and is restored on GPUs as on CPUs", "[strategy][unit]") {
  MirroredStrategy cpus({"CPU:0", "CPU:1"});
  const auto expected = trained(cpus);
  CentralStorageStrategy central_cpus({"CPU:0", "CPU:1"});
  const auto same = [&](Strategy& strategy) {
    const auto result = trained(strategy);
    REQUIRE(result.size() == expected.size());
    for (std::size_t i = 0; i < result.size(); ++i) {
      INFO(strategy.name() << ", value " << i);
      // Adam makes steps of what rounding leaves of a gradient that is zero.
      const auto type = torch::kFloat64;
      CHECK(torch::allclose(result[i].to(type), expected[i].to(type), 1e-6, 1e-6));
    }
  };
  same(central_cpus);
  if (!two_gpus_on_one_card()) return;
  MirroredStrategy gpus(kTwo);
  same(gpus);
  MirroredStrategy mixed({"CPU:0", "GPU:1"});
  same(mixed);
  CentralStorageStrategy central({"GPU:0", "GPU:1"}, "CPU:0");
  same(central);
  CentralStorageStrategy on_card({"CPU:0", "GPU:1"}, "GPU:0");
  same(on_card);
}

TEST_CASE("replicas of GPUs draw numbers of their own, the same from the same seed",
          "[strategy][unit]") {
  if (!two_gpus_on_one_card()) return;
  MirroredStrategy strategy(kTwo);
  const auto draw = [&] {
    torch::manual_seed(3);
    return strategy.run([] { return torch::rand({4}, torch::device(replica_context().device())); });
  };
  const auto first = draw();
  const auto second = draw();
  CHECK_FALSE(first[0].cpu().equal(first[1].cpu()));
  for (int r = 0; r < 2; ++r) CHECK(first[r].cpu().equal(second[r].cpu()));
}

}  // namespace
}  // namespace muster
