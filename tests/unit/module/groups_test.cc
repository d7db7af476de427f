// Optimizers with parameter groups; modules from files.
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/unit/module/nets.h"
#include "tests/unit/strategy/errors.h"

namespace muster {
namespace {

using testing::all_strategies;
using testing::clone;
using testing::difference;
using testing::float64_batch;
using testing::float64_net;
using testing::Net;
using testing::replica_id;
using testing::squares;
using testing::throws;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using Group = ParameterGroup<SGDOptions>;

TEST_CASE("groups of parameters have options of their own, under every strategy",
          "[strategy][unit]") {
  // One process, by libtorch alone.
  Net plain = float64_net();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(plain->second->parameters(), std::make_unique<SGDOptions>(0.01));
  groups.emplace_back(std::vector{plain->first->bias},
                      std::make_unique<SGDOptions>(SGDOptions(0.2).momentum(0.9)));
  groups.emplace_back(std::vector{plain->first->weight}, std::make_unique<SGDOptions>(0.1));
  SGD reference(std::move(groups), SGDOptions(0.1));
  for (int step = 0; step < 4; ++step) {
    const auto batch = float64_batch(step, 8);
    reference.zero_grad();
    (squares(plain->forward(batch.x), batch.y).sum() / 8).backward();
    reference.step();
  }

  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    const auto net = strategy->distribute(float64_net());
    const auto optimizer = strategy->optimizer<SGD>(
        net,
        std::vector<Group>{{{"second"}, SGDOptions(0.01)},
                           {{"first.bias"}, SGDOptions(0.2).momentum(0.9)}},
        SGDOptions(0.1));
    const std::int64_t count = strategy->num_replicas_in_sync();
    for (int step = 0; step < 4; ++step) {
      const auto batch = float64_batch(step, 8);
      strategy->run([&] {
        const std::int64_t r = replica_id();
        const auto part = batch.part(8 * r / count, 8 * (r + 1) / count - 8 * r / count);
        optimizer.zero_grad();
        (squares(net->forward(part.x), part.y).sum() / 8).backward();
        optimizer.step();
      });
    }
    CHECK(optimizer.learning_rate() == 0.01);
    for (int r = 0; r < net.size(); ++r) CHECK(difference(*net.copy(r), *plain) < 1e-12);
  }
}

TEST_CASE("groups that do not fit the module are refused by name", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto net = strategy.distribute(float64_net());
  const auto refused = [&](const std::string& part, const std::vector<Group>& groups) {
    return throws(ErrorCode::kInvalidArgument, part,
                  [&] { (void)strategy.optimizer<SGD>(net, groups, SGDOptions(0.1)); });
  };
  CHECK(refused("group 0 names \"third\"", {{{"third"}, SGDOptions(0.1)}}));
  CHECK(refused("parameter first.bias is in groups 0 and 1",
                {{{"first"}, SGDOptions(0.1)}, {{"first.bias"}, SGDOptions(0.1)}}));
}

TEST_CASE("a module is loaded from a file into all copies, and saved", "[strategy][unit]") {
  const std::string file =
      (std::filesystem::temp_directory_path() / fmt::format("muster-load-{}.pt", getpid()))
          .string();
  Net trained = float64_net();
  {
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& parameter : trained->parameters()) parameter.fill_(0.5);
  }
  for (const auto& [name, strategy] : all_strategies()) {
    CAPTURE(name);
    torch::save(trained, file);
    const auto net = strategy->distribute(float64_net());
    const void* const memory = net->first->weight.data_ptr();

    net.load(file);

    CHECK(net->first->weight.data_ptr() == memory);
    for (int r = 0; r < net.size(); ++r) CHECK(difference(*net.copy(r), *trained) == 0);
    net.variable("first.bias").assign(3);
    net.save(file);
    Net back = float64_net();
    torch::load(back, file);
    CHECK(difference(*back, *net.copy(0)) == 0);
    CHECK(back->first->bias[0].item<double>() == 3);

    // What does not fit changes nothing.
    std::ofstream(file) << "not an archive";
    CHECK(throws(ErrorCode::kInvalidArgument, "does not fit module", [&] { net.load(file); }));
    torch::save(torch::nn::Linear(2, 2), file);
    CHECK(throws(ErrorCode::kInvalidArgument, "does not fit module", [&] { net.load(file); }));
    CHECK(throws(ErrorCode::kNotFound, "no such file", [&] { net.load(file + ".not"); }));
    CHECK(difference(*back, *net.copy(0)) == 0);
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace muster
