// Steps of a program's closures: how far they run ahead of each other, and that synchronous ones
// have the same bits on any number of workers.
#include <atomic>
#include <thread>

#include "tests/unit/strategy/parameter_server/servers.h"

namespace steps_of_closures {

// State of the test that runs; closures run on threads of its process.
muster::Variable stepped;
muster::ServerOptimizer stepper;
std::atomic<int> under_way{0};
std::atomic<int> most_under_way{0};

// A gradient whose bits show what was read and in which order gradients were added.
void one_gradient(std::int64_t batch) {
  const int now = ++under_way;
  for (int most = most_under_way; now > most && !most_under_way.compare_exchange_weak(most, now);) {
  }
  const torch::Tensor x = torch::sin(torch::arange(12, torch::kFloat) * static_cast<double>(batch));
  const torch::Tensor gradient = torch::cos(stepped.value().detach() + x.view({4, 3})) *
                                 std::pow(10.0, static_cast<double>(batch % 5));
  stepper.apply_gradients({{gradient, stepped}});
  --under_way;
}
// The first execution of this batch waits until the test ends.
std::atomic<std::int64_t> straggler{0};
std::atomic<bool> straggles{false};
void sometimes_late(std::int64_t batch) {
  if (std::int64_t late = batch; straggler.compare_exchange_strong(late, 0)) {
    while (straggles) std::this_thread::yield();
  }
  one_gradient(batch);
}
void breaks_its_step(std::int64_t) { muster::raise(muster::ErrorCode::kOutOfRange, "a bad batch"); }

}  // namespace steps_of_closures

MUSTER_FUNCTION(steps_of_closures::one_gradient);
MUSTER_FUNCTION(steps_of_closures::sometimes_late);
MUSTER_FUNCTION(steps_of_closures::breaks_its_step);

namespace muster {
namespace {

using namespace steps_of_closures;
using testing::says;
using testing::Servers;

torch::Tensor after_training(int workers, const ParameterServerOptions& options, int batches,
                             int join_at) {
  Servers servers(2, workers);
  ParameterServerStrategy strategy(options);
  const auto scope = strategy.scope();
  stepped = Variable::create("w", torch::zeros({4, 3}));
  stepper = ServerOptimizer(torch::optim::AdamOptions(0.01), {stepped});
  under_way = most_under_way = 0;
  ClusterCoordinator coordinator(servers.link);
  for (int batch = 1; batch <= batches; ++batch) {
    coordinator.schedule_step<one_gradient>(batch);
    if (batch == join_at) coordinator.join();
  }
  coordinator.join();
  torch::Tensor result = stepped.value().detach().clone();
  stepped = {};
  stepper = {};
  return result;
}

TEST_CASE("synchronous steps of a program have the same bits on 1, 2 and 4 workers",
          "[parameter_server][spec]") {
  const ParameterServerOptions options{.partitioner = fixed_shards_partitioner(2),
                                       .consistency = Consistency::synchronous(),
                                       .gradients_per_step = 3};
  // Steps of 3; one of 2 ends with the first join, one of 1 with the last.
  const torch::Tensor alone = after_training(1, options, 30, 17);
  CHECK(torch::equal(after_training(2, options, 30, 17), alone));
  CHECK(torch::equal(after_training(4, options, 30, 17), alone));
  CHECK(alone.abs().max().item<float>() > 0);
}

TEST_CASE("a synchronous step does not wait for a closure whose second execution has ended",
          "[parameter_server][spec]") {
  const ParameterServerOptions options{.consistency = Consistency::synchronous(),
                                       .gradients_per_step = 3};
  const torch::Tensor half = after_training(1, options, 12, 0);
  const torch::Tensor whole = after_training(1, options, 24, 12);
  Servers servers(2, 2);
  ParameterServerStrategy strategy(
      {.consistency = Consistency::synchronous(), .gradients_per_step = 3, .speculative = 1});
  const auto scope = strategy.scope();
  stepped = Variable::create("w", torch::zeros({4, 3}));
  stepper = ServerOptimizer(torch::optim::AdamOptions(0.01), {stepped});
  ClusterCoordinator coordinator(servers.link);
  straggler = 8;
  straggles = true;
  for (int batch = 1; batch <= 12; ++batch) coordinator.schedule_step<sometimes_late>(batch);

  coordinator.join();

  CHECK(straggler == 0);
  CHECK(coordinator.counts().succeeded == 12);
  CHECK(torch::equal(stepped.value().detach(), half));
  // What the first execution still writes counts for nothing.
  straggles = false;
  for (int batch = 13; batch <= 24; ++batch) coordinator.schedule_step<sometimes_late>(batch);
  coordinator.join();
  CHECK(torch::equal(stepped.value().detach(), whole));
  stepped = {};
  stepper = {};
}

TEST_CASE("with a staleness of k no more than k + 1 steps are under way",
          "[parameter_server][spec]") {
  (void)after_training(4, {.consistency = Consistency::bounded(1)}, 40, 0);
  CHECK(most_under_way <= 2);
  (void)after_training(4, {.consistency = Consistency::bounded(1), .gradients_per_step = 2}, 40, 0);
  CHECK(most_under_way <= 4);
}

TEST_CASE("a synchronous step whose closure breaks_its_step is over, and the next one begins",
          "[parameter_server][spec]") {
  Servers servers(1, 2);
  ParameterServerStrategy strategy(
      {.consistency = Consistency::synchronous(), .gradients_per_step = 2});
  const auto scope = strategy.scope();
  stepped = Variable::create("w", torch::zeros({4, 3}));
  stepper = ServerOptimizer(torch::optim::SGDOptions(1), {stepped});
  ClusterCoordinator coordinator(servers.link);
  coordinator.schedule_step<one_gradient>(1);
  coordinator.schedule_step<breaks_its_step>(2);
  CHECK(says("a bad batch", [&] { coordinator.join(); }));
  for (const int batch : {1, 2, 3, 4}) coordinator.schedule_step<one_gradient>(batch);
  coordinator.join();
  CHECK(stepped.value().detach().abs().max().item<float>() > 0);
  stepped = {};
  stepper = {};
}

TEST_CASE("consistency is one for each program, and its numbers are checked",
          "[parameter_server][spec]") {
  Servers servers(1, 1);
  const auto make = [](const ParameterServerOptions& options) {
    return [options] { const ParameterServerStrategy strategy(options); };
  };
  CHECK(says("gradients_per_step is from 1 to 4096; given 0", make({.gradients_per_step = 0})));
  CHECK(says("has no meaning with consistency async", make({.gradients_per_step = 2})));
  CHECK(says("a staleness of at most 10000; given 10001",
             make({.consistency = Consistency::bounded(10'001)})));
  CHECK(says("speculative is at most 1000; given 1001",
             make({.consistency = Consistency::synchronous(), .speculative = 1'001})));
  CHECK(says("speculative 1 without synchronous steps",
             make({.consistency = Consistency::bounded(1), .speculative = 1})));
  make({.consistency = Consistency::bounded(2)})();
  make({.consistency = Consistency::bounded(2)})();
  CHECK(says("another consistency", make({.consistency = Consistency::synchronous()})));
}

}  // namespace
}  // namespace muster
