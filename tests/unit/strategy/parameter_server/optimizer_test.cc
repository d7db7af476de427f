// Optimizers on parameter servers, beside libtorch's on the same gradients.
#include <limits>
#include <memory>

#include "tests/unit/strategy/parameter_server/servers.h"

namespace optimizers_of_servers {

// The running test's; closures run on threads of its process.
muster::Variable weights;
muster::Variable table;
muster::ServerOptimizer optimizer;

void step_by_optimizer(const torch::Tensor& x, const torch::Tensor& y, double rate) {
  const torch::Tensor loss = (torch::mm(x, weights) - y).pow(2).mean();
  loss.backward();
  optimizer.apply_gradients({{weights.value().grad(), weights}}, rate);
}
void look_up(const torch::Tensor& ids) {
  muster::embedding_lookup(table, ids).sum().backward();
  optimizer.apply_gradients({{muster::embedding_gradient(table), table}});
}
float reads_its_update() {
  optimizer.apply_gradients({{torch::ones({3, 1}), weights}});
  return weights.value().sum().item<float>();
}
void updates_and_throws() {
  optimizer.apply_gradients({{torch::ones({3, 1}), weights}});
  muster::raise(muster::ErrorCode::kOutOfRange, "after its update");
}
// The first gradient is good.
void goes_on_without_its_update() {
  try {
    optimizer.apply_gradients(
        {{torch::ones({3, 1}), weights}, {torch::full({10, 2}, INFINITY), table}});
  } catch (const muster::Error&) {
  }
}

}  // namespace optimizers_of_servers

MUSTER_FUNCTION(optimizers_of_servers::step_by_optimizer);
MUSTER_FUNCTION(optimizers_of_servers::look_up);
MUSTER_FUNCTION(optimizers_of_servers::reads_its_update);
MUSTER_FUNCTION(optimizers_of_servers::updates_and_throws);
MUSTER_FUNCTION(optimizers_of_servers::goes_on_without_its_update);

namespace muster {
namespace {

using namespace optimizers_of_servers;
using testing::Servers;
using testing::throws;
namespace optim = torch::optim;

constexpr int kSteps = 40;

double error_between(const torch::Tensor& ours, const torch::Tensor& theirs) {
  const double largest = theirs.abs().max().item<double>();
  return (ours - theirs.detach()).abs().max().item<double>() / largest;
}

struct OptimizerFixture {
  OptimizerFixture() { torch::manual_seed(4); }
  Servers servers;
  ParameterServerStrategy strategy{fixed_shards_partitioner(2)};

  // How far our variable is from theirs after steps with two learning rates, by gradients of all
  // rows, and by gradients of some of them, of which some come twice. libtorch's optimizer sees
  // these rows alone: the others and their slots stay as they were.
  template <class TheirOptimizer, class TheirOptions>
  void CheckEqualsTorch(const TheirOptions& options, torch::ScalarType type = torch::kFloat) {
    const auto scope = strategy.scope();
    const torch::Tensor start = torch::randn({5, 3}, torch::dtype(type));
    const torch::Tensor ids = torch::tensor({4, 0, 4}, torch::kLong);
    const torch::Tensor rows = torch::tensor({0, 4}, torch::kLong);
    const std::string suffix = std::to_string(made_++);
    const Variable dense = Variable::create("dense" + suffix, start);
    const Variable sparse = Variable::create("sparse" + suffix, start);
    const ServerOptimizer ours(options, {dense, sparse});
    torch::Tensor their_dense = start.clone().requires_grad_(true);
    torch::Tensor their_rows = start.index_select(0, rows).requires_grad_(true);
    TheirOptimizer theirs({their_dense, their_rows}, options);
    for (int i = 0; i < kSteps; ++i) {
      const double rate = i < kSteps / 2 ? options.lr() : options.lr() / 3;
      theirs.param_groups()[0].options().set_lr(rate);
      const torch::Tensor all = torch::randn({5, 3}, torch::dtype(type));
      const torch::Tensor some = torch::randn({3, 3}, torch::dtype(type));
      their_dense.mutable_grad() = all;
      their_rows.mutable_grad() = torch::stack({some[1], some[0] + some[2]});
      theirs.step();
      const IndexedSlices slices{.values = some, .indices = ids};
      if (rate == options.lr()) {
        ours.apply_gradients({{all, dense}, {slices, sparse}});
      } else {
        ours.apply_gradients({{all, dense}, {slices, sparse}}, rate);
      }
    }
    const double limit = type == torch::kDouble ? 1e-12 : 1e-5;
    INFO(c10::demangle(typeid(TheirOptimizer).name()));
    CHECK(error_between(dense.value(), their_dense) < limit);
    CHECK(error_between(sparse.value().index_select(0, rows), their_rows) < limit);
    CHECK(sparse.value().slice(0, 1, 4).equal(start.slice(0, 1, 4)));
  }

 private:
  int made_ = 0;
};

TEST_CASE_METHOD(OptimizerFixture, "updates on servers are those of libtorch's optimizers",
                 "[strategy][unit]") {
  CheckEqualsTorch<optim::SGD>(optim::SGDOptions(0.1).weight_decay(0.01));
  CheckEqualsTorch<optim::SGD>(optim::SGDOptions(0.1).momentum(0.8));
  CheckEqualsTorch<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
  CheckEqualsTorch<optim::Adam>(
      optim::AdamOptions(0.01).betas({0.8, 0.99}).eps(1e-6).weight_decay(0.1));
  CheckEqualsTorch<optim::AdamW>(optim::AdamWOptions(0.01));
  CheckEqualsTorch<optim::Adagrad>(
      optim::AdagradOptions(0.05).initial_accumulator_value(0.5).weight_decay(0.01));
  CheckEqualsTorch<optim::Adam>(optim::AdamOptions(), torch::kDouble);
}

TEST_CASE_METHOD(OptimizerFixture, "a sparse tensor is a gradient of rows, and nothing is none",
                 "[strategy][unit]") {
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", torch::zeros({4, 1}));
  const ServerOptimizer sgd(optim::SGDOptions(1), {v});
  const torch::Tensor sparse =
      torch::sparse_coo_tensor(torch::tensor({{1, 1}}), torch::tensor({{2.0F}, {3.0F}}), {4, 1});
  sgd.apply_gradients({{sparse, v}, {torch::Tensor(), v}, {embedding_gradient(v), v}});
  CHECK(v.value().equal(torch::tensor({{0.0F}, {-5.0F}, {0.0F}, {0.0F}})));
  sgd.apply_gradients({});
  CHECK(sgd.variables().at(0).is_same(v));
}

struct OptimizerClosures : OptimizerFixture {
  OptimizerClosures() {
    const auto scope = strategy.scope();
    weights = Variable::create("weights", torch::zeros({3, 1}));
    table = Variable::create("table", torch::zeros({10, 2}));
  }
  ~OptimizerClosures() {
    optimizer = ServerOptimizer();
    weights = Variable();
    table = Variable();
  }
  ClusterCoordinator coordinator{servers.link};
};

TEST_CASE_METHOD(OptimizerClosures, "closures train a model by an optimizer on servers",
                 "[strategy][unit]") {
  optimizer = ServerOptimizer(optim::AdamOptions(), {weights});
  const torch::Tensor truth = torch::tensor({{1.0F}, {-2.0F}, {3.0F}});
  for (int i = 0; i < 400; ++i) {
    const torch::Tensor x = torch::randn({16, 3});
    coordinator.schedule<step_by_optimizer>(x, torch::mm(x, truth), i < 250 ? 0.1 : 0.01);
  }
  coordinator.join();
  CHECK(torch::allclose(weights.value(), truth, 1e-2, 1e-2));
}

TEST_CASE_METHOD(OptimizerClosures, "each closure's gradient of rows counts once",
                 "[strategy][unit][CCO-07]") {
  optimizer = ServerOptimizer(optim::SGDOptions(1), {table});
  for (int i = 0; i < 200; ++i) {
    coordinator.schedule<look_up>(torch::tensor({i % 10, 3, 3}, torch::kLong));
  }
  coordinator.join();
  torch::Tensor expected = torch::full({10, 2}, -20.0F);
  expected[3] -= 400;
  CHECK(table.value().equal(expected));
}

TEST_CASE_METHOD(OptimizerClosures, "a closure reads its update, and one that throws makes none",
                 "[strategy][unit]") {
  optimizer = ServerOptimizer(optim::SGDOptions(0.5), {weights});
  CHECK(coordinator.schedule<reads_its_update>().fetch() == -1.5F);
  coordinator.schedule<updates_and_throws>();
  CHECK(testing::says("after its update", [&] { coordinator.join(); }));
  CHECK(weights.value().sum().item<float>() == -1.5F);
}

TEST_CASE_METHOD(OptimizerClosures, "a closure that goes on after a refused update has made none",
                 "[strategy][unit]") {
  optimizer = ServerOptimizer(optim::SGDOptions(1), {weights, table});
  coordinator.schedule<goes_on_without_its_update>();
  coordinator.join();
  CHECK(weights.value().sum().item<float>() == 0);
  CHECK(table.value().sum().item<float>() == 0);
}

TEST_CASE_METHOD(OptimizerFixture, "optimizers that servers do not have are refused by name",
                 "[strategy][unit]") {
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", torch::zeros({4}));
  const auto refused = [&](ErrorCode code, const std::string& part, const auto& options) {
    INFO(part);
    CHECK(throws(code, part, [&] { (void)ServerOptimizer(options, {v}); }));
  };
  refused(ErrorCode::kUnimplemented, "RMSprop", optim::RMSpropOptions(0.1));
  refused(ErrorCode::kUnimplemented, "amsgrad", optim::AdamOptions().amsgrad(true));
  refused(ErrorCode::kUnimplemented, "dampening", optim::SGDOptions(1).momentum(1).dampening(0.1));
  refused(ErrorCode::kUnimplemented, "lr_decay", optim::AdagradOptions().lr_decay(0.1));
  refused(ErrorCode::kInvalidArgument, "nesterov", optim::SGDOptions(1).nesterov(true));
  refused(ErrorCode::kInvalidArgument, "beta1", optim::AdamOptions().betas({1.5, 0.9}));
  refused(ErrorCode::kInvalidArgument, "learning rate of -1", optim::AdamOptions(-1));
  // It is free for one that is right.
  CHECK(ServerOptimizer(optim::SGDOptions(1), {v}).valid());
}

TEST_CASE_METHOD(OptimizerFixture, "a variable that cannot have the optimizer is named",
                 "[strategy][unit]") {
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", torch::zeros({4}));
  const Variable w = Variable::create("w", torch::zeros({4}));
  const Variable count = Variable::create("count", std::int64_t{0});
  const optim::SGDOptions options(1);
  const auto refused = [&](ErrorCode code, const std::string& part, std::vector<Variable> given) {
    INFO(part);
    CHECK(throws(code, part, [&] { (void)ServerOptimizer(options, std::move(given)); }));
  };
  refused(ErrorCode::kInvalidArgument, "variable count is Long", {v, count});
  refused(ErrorCode::kInvalidArgument, "no variables", {});
  refused(ErrorCode::kInvalidArgument, "variable (none) is on no parameter server", {Variable()});
  refused(ErrorCode::kFailedPrecondition, "variable v has an optimizer already", {w, v, v});
  const ServerOptimizer first(options, {v});
  refused(ErrorCode::kFailedPrecondition, "variable v has an optimizer already", {w, v});
  const ServerOptimizer second(options, {w});
}

TEST_CASE("a variable of this process is no variable of an optimizer on servers",
          "[strategy][unit]") {
  const Variable own = Variable::create("own", torch::zeros({2}));
  CHECK(throws(ErrorCode::kInvalidArgument, "variable own is on no parameter server",
               [&] { (void)ServerOptimizer(optim::SGDOptions(1), {own}); }));
}

TEST_CASE_METHOD(OptimizerFixture, "a gradient that does not fit changes no variable",
                 "[strategy][unit]") {
  const auto scope = strategy.scope();
  const Variable v = Variable::create("v", torch::zeros({4, 1}));
  const Variable w = Variable::create("w", torch::zeros({2}));
  const Variable other = Variable::create("other", torch::zeros({2}));
  const ServerOptimizer sgd(optim::SGDOptions(1), {v, w});
  const auto refused = [&](const std::string& part, const VariableGradient& gradient,
                           double rate = 1) {
    INFO(part);
    CHECK(throws(ErrorCode::kInvalidArgument, part,
                 [&] { sgd.apply_gradients({{torch::ones({2}), w}, gradient}, rate); }));
  };
  const torch::Tensor ones = torch::ones({4, 1});
  refused("variable v has shape [4, 1], its gradient [4]", {torch::ones({4}), v});
  refused("variable v has shape [4, 1], its gradient []", {torch::tensor(1.0F), v});
  refused("variable v", {IndexedSlices{torch::ones({1, 2}), torch::tensor({1})}, v});
  refused("4 at position 0 is not in [0, 4)",
          {IndexedSlices{torch::ones({1, 1}), torch::tensor({4})}, v});
  refused("variable other is none of this optimizer's 2 variables", {torch::ones({2}), other});
  refused("a learning rate of -1", {ones, v}, -1);
  refused("a learning rate of", {ones, v}, std::numeric_limits<double>::quiet_NaN());
  refused("a learning rate of 1e+39", {ones, v}, 1e39);
  CHECK(w.value().sum().item<float>() == 0);
  CHECK(throws(ErrorCode::kFailedPrecondition, "without options",
               [&] { ServerOptimizer().apply_gradients({{ones, v}}); }));
  CHECK(throws(ErrorCode::kInvalidArgument, "variable v: its gradient is not finite",
               [&] { sgd.apply_gradients({{torch::ones({2}), w}, {ones / 0, v}}); }));
  CHECK(w.value().sum().item<float>() == 0);
}

}  // namespace
}  // namespace muster
