// Sums of gradients that begin while the backward pass goes on.
#include <algorithm>
#include <future>
#include <memory>
#include <mutex>
#include <utility>

#include "strategy/kinds/mirrored_strategy.h"
#include "strategy/train/module.h"
#include "strategy/train/optimizer.h"
#include "tests/unit/strategy/multi_worker_mirrored/workers.h"
#include "tests/unit/strategy/replicas.h"

namespace muster::testing {
namespace {

constexpr OptimizerOptions kEarly{.reduce_in_backward = true, .bytes_per_pack = 150};
constexpr OptimizerOptions kAtTheStep{};

// Dense layers of two types, a table whose gradient is rows, and a layer that is used now and then.
struct MixedImpl : torch::nn::Cloneable<MixedImpl> {
  MixedImpl() { reset(); }
  void reset() override {
    // Workers are threads here, and share libtorch's generator.
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    torch::manual_seed(3);
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 4).sparse(true)));
    first = register_module("first", torch::nn::Linear(4, 6));
    second = register_module("second", torch::nn::Linear(6, 5));
    wide = register_module("wide", torch::nn::Linear(5, 2));
    wide->to(torch::kFloat64);
    seldom = register_module("seldom", torch::nn::Linear(4, 2));
  }
  torch::Tensor forward(const torch::Tensor& rows, bool with_seldom) {
    const torch::Tensor x = table->forward(rows);
    const torch::Tensor y = wide->forward(
        torch::relu(second->forward(torch::tanh(first->forward(x)))).to(torch::kFloat64));
    return with_seldom ? y + seldom->forward(x) : y;
  }
  torch::nn::Embedding table = nullptr;
  torch::nn::Linear first = nullptr, second = nullptr, wide = nullptr, seldom = nullptr;
};

// What a replica of number `id` does in a step before the optimizer's.
using Gradients = std::function<void(MixedImpl& net, int step, int id)>;

torch::Tensor loss_of(MixedImpl& net, int step, int id) {
  const torch::Tensor rows = (torch::arange(3) * (id + 2) + step) % 7;
  return net.forward(rows, step % 3 == 2).square().sum();
}
void backward_once(MixedImpl& net, int step, int id) { loss_of(net, step, id).backward(); }

// All parameters after ten steps.
std::vector<torch::Tensor> trained(Strategy& strategy, const Gradients& gradients,
                                   const OptimizerOptions& how) {
  const auto scope = strategy.scope();
  const auto net = strategy.distribute(std::make_shared<MixedImpl>());
  const auto optimizer =
      strategy.optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.005), how);
  for (int step = 0; step < 10; ++step) {
    strategy.run([&] {
      optimizer.zero_grad();
      gradients(*net.copy(replica_context().local_replica_id()), step, id());
      if (!how.all_reduce_gradients) {
        optimizer.reduce_gradients();
        torch::NoGradGuard no_grad;
        for (auto& parameter : net->parameters()) {
          if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad() * 0.5;
        }
      }
      optimizer.step();
    });
  }
  std::vector<torch::Tensor> all;
  for (const auto& parameter : net->parameters()) all.push_back(parameter.detach().clone());
  return all;
}

// Bit for bit; and the run came to something.
bool same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const torch::Tensor& x, const torch::Tensor& y) {
                      return x.equal(y) && x.isfinite().all().item<bool>();
                    });
}

// Whether sums that begin in the backward pass train what those of the step do, on every worker.
bool trains_alike(int workers, int devices, const Gradients& gradients,
                  OptimizerOptions early = kEarly) {
  OptimizerOptions late = early;
  late.reduce_in_backward = false;
  const auto alike = on_cluster<bool>(workers, devices, [&](MultiWorkerMirroredStrategy& strategy) {
    return same(trained(strategy, gradients, early), trained(strategy, gradients, late));
  });
  return alike == std::vector<bool>(alike.size(), true);
}

TEST_CASE("gradients whose sums begin in the backward pass train what those of the step train",
          "[strategy][unit][COL-01]") {
  const auto [workers, devices] =
      GENERATE(std::pair{1, 1}, std::pair{1, 2}, std::pair{2, 1}, std::pair{2, 2}, std::pair{3, 1});
  const std::int64_t pack = GENERATE(1, 150, 1 << 20);
  OptimizerOptions early = kEarly;
  early.bytes_per_pack = pack;
  CHECK(trains_alike(workers, devices, backward_once, early));
  early.all_reduce_gradients = false;  // reduce_gradients(), then a change, then step()
  CHECK(trains_alike(workers, devices, backward_once, early));
}

TEST_CASE("what becomes of a gradient after its sum has begun counts", "[strategy][unit]") {
  const auto change = [](MixedImpl& net, int id, double by) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) {
      if (parameter.grad().defined() && !parameter.grad().is_sparse()) {
        parameter.mutable_grad().mul_(by + id);
      }
    }
  };
  const auto [what, gradients] = GENERATE_COPY(table<std::string, Gradients>({
      {"several backward passes",
       [](MixedImpl& net, int step, int id) {
         for (int pass = 0; pass < 3; ++pass) loss_of(net, step + pass, id).backward();
       }},
      {"changed in place, now and then",
       [=](MixedImpl& net, int step, int id) {
         backward_once(net, step, id);
         if (step % 3 == 1) change(net, id, 0.5);
       }},
      {"changed in place on one replica alone",
       [=](MixedImpl& net, int step, int id) {
         backward_once(net, step, id);
         if (id == 1) change(net, id, 0.5);
       }},
      {"another tensor",
       [](MixedImpl& net, int step, int id) {
         backward_once(net, step, id);
         for (auto& parameter : net.parameters()) {
           if (parameter.grad().defined()) parameter.mutable_grad() = parameter.grad() * 0.25;
         }
       }},
      {"clipped by libtorch, which writes past the version of a tensor",
       [](MixedImpl& net, int step, int id) {
         backward_once(net, step, id);
         std::vector<torch::Tensor> dense = net.first->parameters();
         for (const auto& parameter : net.second->parameters()) dense.push_back(parameter);
         if (step % 3 == 1) torch::nn::utils::clip_grad_norm_(dense, 0.01 * (id + 1));
       }},
      {"taken away",
       [](MixedImpl& net, int step, int id) {
         backward_once(net, step, id);
         if (step > 4) net.first->weight.mutable_grad() = torch::Tensor();
       }},
      {"made anew, the first ones dropped",
       [](MixedImpl& net, int step, int id) {
         backward_once(net, step + 1, id);
         for (auto& parameter : net.parameters()) parameter.mutable_grad() = torch::Tensor();
         backward_once(net, step, id);
       }},
      {"none on one replica, which had no examples",
       [](MixedImpl& net, int step, int id) {
         if (id != step % 2) backward_once(net, step, id);
       }},
      {"none on any",
       [](MixedImpl& net, int step, int id) {
         if (step != 3) backward_once(net, step, id);
       }},
      {"dense rows",
       [](MixedImpl& net, int step, int id) {
         backward_once(net, step, id);
         if (step % 2 == id % 2) {
           net.table->weight.mutable_grad() = net.table->weight.grad().to_dense();
         }
       }},
      {"rows that were dense",
       [](MixedImpl& net, int step, int id) {
         backward_once(net, step, id);
         auto& gradient = net.table->weight.mutable_grad();
         if (step < 4) gradient = gradient.to_dense();
       }},
  }));
  CAPTURE(what);
  CHECK(trains_alike(2, 1, gradients));
  CHECK(trains_alike(2, 2, gradients));
}

// All parameters of two modules of equal shapes after ten steps. One backward pass, which a replica
// without examples leaves out, comes to both; `steps` says who steps then.
using WhoSteps = std::function<void(int step, const std::function<void()>& first,
                                    const std::function<void()>& second)>;
std::shared_ptr<MixedImpl> waves(double phase) {
  const torch::NoGradGuard no_grad;
  auto net = std::make_shared<MixedImpl>();
  for (const auto& parameter : net->parameters()) {
    parameter.copy_(0.4 * torch::sin(torch::arange(parameter.numel()) + phase).view_as(parameter));
  }
  return net;
}
std::vector<torch::Tensor> trained_pair(Strategy& strategy, const WhoSteps& steps,
                                        const OptimizerOptions& of_first,
                                        const OptimizerOptions& of_second) {
  const auto scope = strategy.scope();
  // No random numbers: a worker draws for its copies while the other one makes a module.
  const auto first = strategy.distribute(waves(0.0));
  const auto second = strategy.distribute(waves(0.5));
  const torch::optim::SGDOptions rate(0.005);
  const auto steps_first = strategy.optimizer<torch::optim::SGD>(first, rate, of_first);
  const auto steps_second = strategy.optimizer<torch::optim::SGD>(second, rate, of_second);
  for (int step = 0; step < 10; ++step) {
    strategy.run([&] {
      const int copy = replica_context().local_replica_id();
      steps_first.zero_grad();
      steps_second.zero_grad();
      if (id() != step % 2) {
        const torch::Tensor one = loss_of(*first.copy(copy), step, id());
        (one + 3 * loss_of(*second.copy(copy), step + 1, id())).backward();
      }
      steps(step, [&] { steps_first.step(); }, [&] { steps_second.step(); });
    });
  }
  std::vector<torch::Tensor> all;
  for (const auto& module : {first, second}) {
    for (const auto& parameter : module->parameters()) all.push_back(parameter.detach().clone());
  }
  return all;
}

TEST_CASE("one backward pass for several optimizers trains what it does without early sums",
          "[strategy][unit]") {
  const auto [what, steps] = GENERATE_COPY(table<std::string, WhoSteps>({
      {"one after the other",
       [](int, const auto& first, const auto& second) {
         first();
         second();
       }},
      {"the second one first",
       [](int, const auto& first, const auto& second) {
         second();
         first();
       }},
      {"now one, now the other first",
       [](int step, const auto& first, const auto& second) {
         if (step % 3 == 0) first();
         second();
         if (step % 3 != 0) first();
       }},
      {"one of them seldom",
       [](int step, const auto& first, const auto& second) {
         if (step % 4 == 1) first();
         second();
       }},
      {"in turn",
       [](int step, const auto& first, const auto& second) { step % 2 == 0 ? first() : second(); }},
  }));
  const auto [of_first, of_second] = GENERATE(
      std::pair(kEarly, kEarly), std::pair(kEarly, kAtTheStep), std::pair(kAtTheStep, kEarly));
  const int devices = GENERATE(1, 2);
  CAPTURE(what, of_first.reduce_in_backward, of_second.reduce_in_backward, devices);
  const auto alike = on_cluster<bool>(2, devices, [&](MultiWorkerMirroredStrategy& strategy) {
    return same(trained_pair(strategy, steps, of_first, of_second),
                trained_pair(strategy, steps, kAtTheStep, kAtTheStep));
  });
  CHECK(alike == std::vector<bool>{true, true});
}

TEST_CASE("a step that is left out does no harm to those behind it", "[strategy][unit]") {
  const auto run = [](Strategy& strategy, const OptimizerOptions& how) {
    const auto scope = strategy.scope();
    const auto net = strategy.distribute(std::make_shared<MixedImpl>());
    const auto optimizer =
        strategy.optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.005), how);
    for (int step = 0; step < 8; ++step) {
      strategy.run([&] {
        optimizer.zero_grad();
        backward_once(*net.copy(replica_context().local_replica_id()), step, id());
        if (step % 3 != 1) optimizer.step();
      });
    }
    std::vector<torch::Tensor> all;
    for (const auto& parameter : net->parameters()) all.push_back(parameter.detach().clone());
    return all;
  };
  const auto alike = on_cluster<bool>(2, 1, [&](MultiWorkerMirroredStrategy& strategy) {
    return same(run(strategy, kEarly), run(strategy, kAtTheStep));
  });
  CHECK(alike == std::vector<bool>{true, true});
}

struct TwoLayersImpl : torch::nn::Cloneable<TwoLayersImpl> {
  TwoLayersImpl() { reset(); }
  void reset() override {
    first = register_parameter("first", torch::tensor({1.0F, 2.0F, 3.0F}));
    last = register_parameter("last", torch::tensor({10.0F, 20.0F}));
  }
  torch::Tensor loss() const { return (first.sum() * last).sum(); }
  torch::Tensor first, last;
};

TEST_CASE("the sums of a backward pass travel, the last layer's first, before anybody steps",
          "[strategy][unit][COL-01]") {
  const Cluster cluster(2);
  std::promise<void> travelled;
  const std::shared_future<void> seen = travelled.get_future().share();
  in_threads<bool>(2, [&](int worker) {
    MultiWorkerMirroredStrategy strategy(cluster.options(worker));
    const auto scope = strategy.scope();
    const auto net = strategy.distribute(std::make_shared<TwoLayersImpl>());
    const OptimizerOptions how{.reduce_in_backward = true, .bytes_per_pack = 1};
    const auto optimizer =
        strategy.optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.0), how);
    // The first step learns which gradients there are.
    strategy.run([&] {
      net->loss().backward();
      optimizer.step();
      optimizer.zero_grad();
    });
    strategy.run([&] {
      if (worker == 0) {
        net->loss().backward();
        seen.wait();  // and neither steps nor calls anything else
        return;
      }
      // Plays a replica that brings zeros.
      const CommunicationOptions soon{.timeout = std::chrono::seconds(60)};
      ReplicaContext& here = replica_context();
      try {
        const auto last = here.all_reduce(ReduceOp::kSum, torch::zeros({2}), soon);
        const auto first = here.all_reduce(ReduceOp::kSum, torch::zeros({3}), soon);
        if (!last.equal(torch::full({2}, 6.0F))) FAIL_CHECK("of the last layer: " << last);
        if (!first.equal(torch::full({3}, 30.0F))) FAIL_CHECK("of the first: " << first);
      } catch (const Error& error) {
        FAIL_CHECK(error.what());
      }
      travelled.set_value();
    });
    return true;
  });
}

struct OddImpl : torch::nn::Cloneable<OddImpl> {
  OddImpl() { reset(); }
  void reset() override {
    half = register_parameter("half", torch::linspace(0.1, 1, 5).to(torch::kFloat16));
    brain =
        register_parameter("brain", torch::linspace(0.1, 1, 6).view({2, 3}).to(torch::kBFloat16));
    complex = register_parameter(
        "complex", torch::complex(torch::linspace(0.1, 1, 3), torch::linspace(1, 0.1, 3)));
    nothing = register_parameter("nothing", torch::zeros({0, 4}));
    scalar = register_parameter("scalar", torch::tensor(0.5));
    turned = register_parameter("turned", torch::linspace(0.1, 1, 6).view({2, 3}).t());
    many.clear();
    for (int i = 0; i < 150; ++i) {
      many.push_back(register_parameter("many" + std::to_string(i), torch::full({2}, 0.01 * i)));
    }
  }
  torch::Tensor loss(double by) {
    torch::Tensor sum = (half.to(torch::kFloat32) * by).sin().sum() +
                        (brain.to(torch::kFloat32) * by).sin().sum() +
                        torch::real(complex * complex.conj()).sum() * by + nothing.sum() +
                        scalar.square() * by + (turned * by).sin().sum();
    for (const auto& one : many) sum = sum + (one * by).sin().sum();
    return sum;
  }
  torch::Tensor half, brain, complex, nothing, scalar, turned;
  std::vector<torch::Tensor> many;
};

TEST_CASE("gradients of all types and sizes, very many of them, begin in the backward pass",
          "[strategy][unit]") {
  const std::int64_t pack = GENERATE(1, 100);
  const auto run = [](Strategy& strategy, const OptimizerOptions& how) {
    const auto scope = strategy.scope();
    const auto net = strategy.distribute(std::make_shared<OddImpl>());
    const auto optimizer =
        strategy.optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.05), how);
    for (int step = 0; step < 6; ++step) {
      strategy.run([&] {
        optimizer.zero_grad();
        OddImpl& mine = *net.copy(replica_context().local_replica_id());
        if (step != 3 || id() != 0) mine.loss(1.0 + 0.25 * id()).backward();
        optimizer.step();
      });
    }
    std::vector<torch::Tensor> all;
    for (const auto& parameter : net->parameters()) {
      all.push_back(torch::view_as_real(parameter.detach().clone().to(torch::kComplexDouble)));
    }
    return all;
  };
  const OptimizerOptions early{.reduce_in_backward = true, .bytes_per_pack = pack};
  const int devices = GENERATE(1, 2);
  const auto alike = on_cluster<bool>(2, devices, [&](MultiWorkerMirroredStrategy& strategy) {
    const auto begun = run(strategy, early);
    const auto late = run(strategy, kAtTheStep);
    if (devices == 1) return same(begun, late);
    // Together with complex numbers narrow ones are added up on each worker, and rounded, first.
    return std::equal(
        begun.begin(), begun.end(), late.begin(), late.end(),
        [](const torch::Tensor& x, const torch::Tensor& y) { return x.allclose(y, 0.01, 0.005); });
  });
  CHECK(alike == std::vector<bool>{true, true});
}

TEST_CASE("a worker that is gone ends the backward passes and steps of the others",
          "[strategy][unit][MWM-15]") {
  const Cluster cluster(2);
  const auto told = in_threads<bool>(2, [&](int worker) {
    MultiWorkerMirroredStrategy strategy(cluster.options(worker));
    const auto scope = strategy.scope();
    const auto net = strategy.distribute(std::make_shared<MixedImpl>());
    const auto optimizer =
        strategy.optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.005), kEarly);
    const auto step = [&](int number) {
      strategy.run([&] {
        optimizer.zero_grad();
        backward_once(*net.copy(replica_context().local_replica_id()), number, id());
        optimizer.step();
      });
    };
    const auto until_told = [&] {
      for (int number = 0; number < 1000; ++number) step(number);
    };
    if (worker == 0) return throws(ErrorCode::kUnavailable, "worker:1", until_told);
    for (int number = 0; number < 4; ++number) step(number);
    return true;
  });
  CHECK(told == std::vector<bool>{true, true});
}

TEST_CASE("replicas of one worker that step different optimizers end the step on all workers",
          "[strategy][unit]") {
  const Cluster cluster(2);
  const auto told = in_threads<std::string>(2, [&](int worker) -> std::string {
    MultiWorkerMirroredOptions options = cluster.options(worker, 2);
    options.call_within = std::chrono::seconds(60);
    MultiWorkerMirroredStrategy strategy(options);
    const auto scope = strategy.scope();
    const auto few = strategy.distribute(std::make_shared<TwoLayersImpl>());
    const auto many = strategy.distribute(std::make_shared<MixedImpl>());
    const auto of_few = strategy.optimizer<torch::optim::SGD>(few, torch::optim::SGDOptions(0.1));
    const auto of_many = strategy.optimizer<torch::optim::SGD>(many, torch::optim::SGDOptions(0.1));
    const auto error = error_of([&] {
      strategy.run([&] {
        if (id() == 3) {
          of_many.step();
        } else {
          of_few.step();
        }
      });
    });
    return error ? error->message() : "";
  });

  for (const std::string& one : told) {
    CAPTURE(one);
    CHECK(one.find("replica 0 brings 2 gradients, replica 1 9") != std::string::npos);
  }
}

TEST_CASE("where all replicas are in one process the option changes nothing", "[strategy][unit]") {
  MirroredStrategy mirrored({"CPU:0", "CPU:1"});
  CHECK(
      same(trained(mirrored, backward_once, kEarly), trained(mirrored, backward_once, kAtTheStep)));
}

TEST_CASE("a pack of gradients has at least one byte", "[strategy][unit]") {
  MirroredStrategy mirrored({"CPU:0", "CPU:1"});
  const auto scope = mirrored.scope();
  const auto net = mirrored.distribute(std::make_shared<TwoLayersImpl>());
  CHECK(throws(ErrorCode::kInvalidArgument, "bytes_per_pack is 0", [&] {
    mirrored.optimizer<torch::optim::SGD>(net, torch::optim::SGDOptions(0.1),
                                          {.reduce_in_backward = true, .bytes_per_pack = 0});
  }));
}

}  // namespace
}  // namespace muster::testing
