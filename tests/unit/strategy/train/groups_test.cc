// Optimizers with parameter groups; modules from files.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/leaks_of_libtorch.h"
#include "tests/support/small_files.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/errors.h"
#include "tests/unit/strategy/train/nets.h"

namespace muster::testing {
namespace {

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

TEST_CASE("options of a group are refused as those of an optimizer are", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto net = strategy.distribute(float64_net());
  const auto refused = [&](const std::string& part, const SGDOptions& options) {
    const std::vector<Group> groups{{{"first"}, SGDOptions(0.1)}, {{"second"}, options}};
    return throws(ErrorCode::kInvalidArgument, part,
                  [&] { (void)strategy.optimizer<SGD>(net, groups, SGDOptions(0.1)); });
  };
  CHECK(refused("group 1: Invalid learning rate: -1", SGDOptions(-1)));
  CHECK(refused("group 1: Invalid learning rate: nan", SGDOptions(NAN)));
  CHECK(refused("group 1: Invalid momentum", SGDOptions(0.1).momentum(-1)));
  CHECK(refused("a learning rate of inf", SGDOptions(INFINITY)));
}

TEST_CASE("of many parameters some are named where a group has none of them", "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0"});
  torch::nn::Sequential long_one;
  for (int i = 0; i < 12; ++i) long_one->push_back(torch::nn::Linear(1, 1));
  const auto net = strategy.distribute(long_one);
  const auto ask = [&] {
    (void)strategy.optimizer<SGD>(net, std::vector<Group>{{{"third"}, SGDOptions(0.1)}},
                                  SGDOptions(0.1));
  };
  CHECK(throws(ErrorCode::kInvalidArgument, ", 9.bias and 4 more", ask));
}

TEST_CASE("a module is loaded from a file into all copies, and saved", "[strategy][unit]") {
  const TempFolder folder;
  const std::string file = folder / "net.pt";
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
}

TEST_CASE("a module that cannot be saved leaves what was saved before", "[strategy][unit]") {
  const TempFolder folder;
  const std::string file = folder / "net.pt";
  const auto net = default_strategy().distribute(float64_net());
  net.save(file);
  const auto bytes = [](const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  };
  const std::string before = bytes(file);
  // Another name of the same bytes: nobody writes into them.
  std::filesystem::create_hard_link(file, folder / "before");
  net.variable("first.bias").assign(3);
  bool refused = false;
  {
    const SmallFiles limit(before.size() / 2);
    refused = throws(ErrorCode::kUnknown, "net.pt cannot be written", [&] { net.save(file); });
  }
  CHECK(refused);
  CHECK(bytes(file) == before);
  net.save(file);
  CHECK(bytes(folder / "before") == before);
  Net back = float64_net();
  torch::load(back, file);
  CHECK(back->first->bias[0].item<double>() == 3);
  std::size_t names = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names += entry.exists() ? 1 : 0;
  }
  CHECK(names == 2);
}

// As tests/fixtures/torchscript/make.py builds it in Python.
struct FromPythonImpl : torch::nn::Cloneable<FromPythonImpl> {
  FromPythonImpl() { reset(); }
  void reset() override {
    linear = register_module("linear", torch::nn::Linear(3, 2));
    bn = register_module("bn", torch::nn::BatchNorm1d(2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return bn->forward(linear->forward(x)); }
  torch::nn::Linear linear = nullptr;
  torch::nn::BatchNorm1d bn = nullptr;
};
TORCH_MODULE(FromPython);

TEST_CASE("what Python's torch wrote is loaded into all copies", "[strategy][unit]") {
  const std::string file =
      GENERATE("normed-1.13.pt", "normed-2.15.pt", "normed-state-1.13.pt", "normed-state-2.15.pt");
  CAPTURE(file);
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const FromPython normed;
  const auto net = strategy.distribute(normed);
  {
    const torch::NoGradGuard no_grad;
    normed->bn->running_var.fill_(9);
  }

  net.load(std::string(MUSTER_FIXTURES) + "/torchscript/" + file);

  for (int r = 0; r < net.size(); ++r) {
    const torch::Tensor sines = torch::sin(torch::arange(1, 7)).reshape({2, 3});
    CHECK(net.copy(r)->linear->weight.allclose(sines));
    CHECK(net.copy(r)->linear->bias.allclose(sines.flatten().narrow(0, 0, 2)));
    CHECK(net.copy(r)->bn->running_var.equal(torch::ones({2})));
    CHECK(net.copy(r)->linear->weight.requires_grad());
  }
}

TEST_CASE("a Python file that does not fit is refused with what it lacks, and changes nothing",
          "[strategy][unit]") {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  const auto net = strategy.distribute(float64_net());
  const torch::Tensor before = net->first->weight.clone();
  const std::string state = std::string(MUSTER_FIXTURES) + "/torchscript/normed-state-1.13.pt";
  const TempFolder folder;
  const std::string copy = folder / "state.pt";
  const auto refused = [&](const std::string& path, const std::string& why) {
    return throws(ErrorCode::kInvalidArgument, why, [&] { net.load(path); });
  };

  CHECK(refused(state, "it has no tensor first.weight"));
  std::stringstream text;
  text << std::ifstream(state, std::ios::binary).rdbuf();
  // Each byte that could decide something: no crash, and never a tensor that is not there.
  std::string bytes = text.str();
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x15);
    std::ofstream(copy, std::ios::binary) << damaged;
    const LeaksOfLibtorch leaks;
    CHECK(refused(copy, "does not fit module"));
  }
  std::ofstream(copy, std::ios::binary) << std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9", 9);
  CHECK(refused(copy, "torch.save(module.state_dict(), path)"));
  CHECK(net->first->weight.equal(before));
}

}  // namespace
}  // namespace muster::testing
