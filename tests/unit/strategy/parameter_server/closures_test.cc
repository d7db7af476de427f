// Variables on parameter servers in closures: snapshots, write sets, lost servers.
#include <atomic>
#include <fstream>
#include <thread>

#include "strategy/parameter_server/internal/closure_session.h"
#include "strategy/parameter_server/internal/remote_component.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/strategy/parameter_server/servers.h"

namespace closures_of_servers {

using muster::Variable;

// The running test's; closures run on threads of its process.
Variable v;
Variable w;

void increment() { v += 1; }
std::vector<float> own_writes() {
  std::vector<float> seen{v.item<float>()};
  v += 1;
  seen.push_back(v.item<float>());
  v.assign(10);
  v += 5;
  seen.push_back(v.item<float>());
  return seen;
}
void writes_and_throws() {
  v += 100;
  muster::raise(muster::ErrorCode::kOutOfRange, "after it has written");
}
void writes_what_is_given(const Variable& given) {
  given += 100;
  muster::raise(muster::ErrorCode::kOutOfRange, "after it has written");
}
double step(const torch::Tensor& x, const torch::Tensor& y) {
  const torch::Tensor loss = (torch::mm(x, w) - y).pow(2).mean();
  loss.backward();
  w.assign_sub(w.value().grad() * 0.1, false);
  return loss.item<double>();
}
void in_replicas(float x) {
  auto& strategy = v.strategy();
  strategy.run([&] { v.assign_add(x, false); });
}
// What the server has after each write, as the driver could read it then.
void waits_between(const std::string& folder) {
  v += 1;
  std::ofstream(folder + "/written") << std::flush;
  while (!std::ifstream(folder + "/go").good()) std::this_thread::yield();
  v += 10;
}
std::vector<float> immediate_reads() {
  std::vector<float> seen{v.item<float>()};
  v += 1;
  v += 1;
  seen.push_back(v.item<float>());
  return seen;
}
muster::ParameterServerStrategy* flushing = nullptr;
// A closure waits in its middle: the test looks, and writes, and lets it go on.
std::atomic<bool> in_the_middle{false};
std::atomic<bool> goes_on{false};
void waits_in_the_middle() {
  in_the_middle = true;
  while (!goes_on && !muster::cancellation().stop_requested()) std::this_thread::yield();
}
void flushes_between(bool throws) {
  v += 1;
  flushing->flush();
  v += 10;
  waits_in_the_middle();
  if (throws) muster::raise(muster::ErrorCode::kOutOfRange, "after it has flushed");
}
std::vector<float> reads_twice() {
  std::vector<float> seen{v.item<float>()};
  waits_in_the_middle();
  seen.push_back(v.item<float>());
  v += 1;
  seen.push_back(v.item<float>());
  return seen;
}
muster::ServerOptimizer* immediate_sgd = nullptr;
float optimizes_and_throws() {
  immediate_sgd->apply_gradients({{torch::ones({3, 1}), w}}, 1.0);
  const float seen = w.value().sum().item<float>();
  if (seen < -3) muster::raise(muster::ErrorCode::kOutOfRange, "after the second update");
  return seen;
}
void makes_one() {
  const auto scope = v.strategy().scope();
  (void)Variable::create("made in a closure", 1.0);
}

}  // namespace closures_of_servers

MUSTER_FUNCTION(closures_of_servers::increment);
MUSTER_FUNCTION(closures_of_servers::own_writes);
MUSTER_FUNCTION(closures_of_servers::writes_and_throws);
MUSTER_FUNCTION(closures_of_servers::writes_what_is_given);
MUSTER_FUNCTION(closures_of_servers::step);
MUSTER_FUNCTION(closures_of_servers::in_replicas);
MUSTER_FUNCTION(closures_of_servers::makes_one);
MUSTER_FUNCTION(closures_of_servers::waits_between);
MUSTER_FUNCTION(closures_of_servers::flushes_between);
MUSTER_FUNCTION(closures_of_servers::reads_twice);
MUSTER_FUNCTION(closures_of_servers::immediate_reads);
MUSTER_FUNCTION(closures_of_servers::optimizes_and_throws);

namespace muster {
namespace {

using namespace closures_of_servers;
using testing::says;
using testing::Servers;
using testing::throws;

struct ClosureFixture {
  ClosureFixture() {
    const auto scope = strategy.scope();
    v = Variable::create("v", 0.0);
    w = Variable::create("w", torch::zeros({3, 1}));
  }
  ~ClosureFixture() {
    v = Variable();
    w = Variable();
  }
  Servers servers;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator{servers.link};
};

TEST_CASE_METHOD(ClosureFixture, "each closure's writes count once", "[strategy][unit][CCO-07]") {
  for (int i = 0; i < 500; ++i) coordinator.schedule<increment>();
  coordinator.join();
  CHECK(v.item<float>() == 500);
}

TEST_CASE_METHOD(ClosureFixture, "a closure sees what it writes, others when it has ended",
                 "[strategy][unit]") {
  CHECK(coordinator.schedule<own_writes>().fetch() == std::vector<float>{0, 1, 15});
  CHECK(v.item<float>() == 15);
}

TEST_CASE_METHOD(ClosureFixture, "what a closure that throws has written is not sent",
                 "[strategy][unit]") {
  coordinator.schedule<writes_and_throws>();
  CHECK(says("after it has written", [&] { (void)(coordinator.join()); }));
  CHECK(v.item<float>() == 0);
}

struct MiddleFixture : ClosureFixture {
  MiddleFixture() {
    flushing = &strategy;
    in_the_middle = false;
    goes_on = false;
  }
  ~MiddleFixture() { flushing = nullptr; }
  void AwaitMiddle() {
    while (!in_the_middle && !coordinator.done()) std::this_thread::yield();
  }
};

TEST_CASE_METHOD(MiddleFixture, "others see what a closure has flushed while it runs on",
                 "[strategy][unit]") {
  coordinator.schedule<flushes_between>(false);
  AwaitMiddle();
  CHECK(v.item<float>() == 1);
  goes_on = true;
  coordinator.join();
  CHECK(v.item<float>() == 11);
}

TEST_CASE_METHOD(MiddleFixture, "of a closure that throws what it has flushed stays and no more",
                 "[strategy][unit]") {
  goes_on = true;
  coordinator.schedule<flushes_between>(true);
  CHECK(throws(ErrorCode::kOutOfRange, "after it has flushed", [&] { coordinator.join(); }));
  CHECK(v.item<float>() == 1);
}

TEST_CASE_METHOD(MiddleFixture,
                 "a closure goes on seeing what it has read first until it writes itself",
                 "[strategy][unit]") {
  const auto seen = coordinator.schedule<reads_twice>();
  AwaitMiddle();
  v.assign(5);
  goes_on = true;
  CHECK(seen.fetch() == std::vector<float>{0, 0, 6});
  CHECK(v.item<float>() == 6);
}

// The same with a strategy whose closures' writes are sent at once.
struct ImmediateFixture {
  ImmediateFixture() {
    const auto scope = strategy.scope();
    v = Variable::create("v", 0.0);
    w = Variable::create("w", torch::zeros({3, 1}));
  }
  ~ImmediateFixture() {
    v = Variable();
    w = Variable();
  }
  Servers servers;
  ParameterServerStrategy strategy{ParameterServerOptions{.writes = Writes::kImmediate}};
  ClusterCoordinator coordinator{servers.link};
};

TEST_CASE_METHOD(ImmediateFixture, "immediate writes are seen by others while the closure runs",
                 "[strategy][unit]") {
  const testing::TempFolder folder;
  coordinator.schedule<waits_between>(folder.path());
  while (!std::ifstream(folder / "written").good()) std::this_thread::yield();
  CHECK(v.item<float>() == 1);
  std::ofstream(folder / "go") << std::flush;
  coordinator.join();
  CHECK(v.item<float>() == 11);
  CHECK(coordinator.schedule<immediate_reads>().fetch() == std::vector<float>{11, 13});
}

TEST_CASE_METHOD(ImmediateFixture, "immediate writes of a closure that throws stay",
                 "[strategy][unit]") {
  coordinator.schedule<writes_and_throws>();
  CHECK(says("after it has written", [&] { coordinator.join(); }));
  CHECK(v.item<float>() == 100);
  ServerOptimizer sgd(torch::optim::SGDOptions(1), {w});
  immediate_sgd = &sgd;
  CHECK(coordinator.schedule<optimizes_and_throws>().fetch() == -3);
  coordinator.schedule<optimizes_and_throws>();
  CHECK(says("after the second update", [&] { coordinator.join(); }));
  CHECK(w.value().sum().item<float>() == -6);
}

TEST_CASE_METHOD(ImmediateFixture, "immediate writes to a variable that is an argument stay, too",
                 "[strategy][unit]") {
  coordinator.schedule<writes_what_is_given>(v);
  CHECK(says("after it has written", [&] { coordinator.join(); }));
  CHECK(v.item<float>() == 100);
}

TEST_CASE_METHOD(ImmediateFixture,
                 "immediate writes of replicas have a number each, so that a closure that runs "
                 "again doubles none",
                 "[strategy][unit]") {
  constexpr int kWrites = 200;
  const bool by_optimizer = GENERATE(false, true);
  ServerOptimizer sgd(torch::optim::SGDOptions(1), {w});
  const auto run = [&](std::uint64_t attempt, int replicas) {
    internal::ClosureSession session(servers.connection, ClosureId(1), Attempt(attempt), 0);
    std::vector<std::thread> threads;
    for (int replica = 0; replica < replicas; ++replica) {
      threads.emplace_back([&] {
        const internal::ClosureSession::Scope scope(session);
        for (int i = 0; i < kWrites / replicas; ++i) {
          if (by_optimizer) {
            sgd.apply_gradients({{torch::ones({3, 1}), w}}, 1.0);
          } else {
            v += 1;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  };

  const auto written = [&] {
    return by_optimizer ? -w.value().sum().item<float>() / 3 : v.item<float>();
  };

  run(1, 4);
  CHECK(written() == kWrites);
  run(2, 1);
  CHECK(written() == kWrites);
}

TEST_CASE("an executor refuses to write a variable that the driver has not made",
          "[strategy][unit]") {
  const Servers servers;
  // As an executor has it, which did not create it with a value.
  internal::RemoteComponent none("none", device::Place{}, nullptr, nullptr, {});
  internal::ClosureSession session(servers.connection, ClosureId(1), Attempt(1), 0);
  const internal::ClosureSession::Scope scope(session);
  for (int i = 0; i < 2; ++i) {
    CHECK(throws(ErrorCode::kFailedPrecondition, "variable none is on no parameter server", [&] {
      (void)none.Apply(internal::WriteKind::kAssign, "none", {.values = torch::ones({2})});
    }));
    CHECK_FALSE(none.form().has_value());
  }
}

TEST_CASE("immediate writes have no place in synchronous steps", "[strategy][unit]") {
  const Servers servers;
  CHECK(says("immediate writes in synchronous steps", [] {
    ParameterServerStrategy(
        {.consistency = Consistency::synchronous(), .writes = Writes::kImmediate});
  }));
}

TEST_CASE_METHOD(ClosureFixture, "a small model is trained by closures", "[strategy][unit]") {
  torch::manual_seed(1);
  const torch::Tensor truth = torch::tensor({{1.0F}, {-2.0F}, {3.0F}});
  for (int i = 0; i < 300; ++i) {
    const torch::Tensor x = torch::randn({16, 3});
    coordinator.schedule<step>(x, torch::mm(x, truth));
  }
  coordinator.join();
  CHECK(torch::allclose(w.value(), truth, 1e-2, 1e-2));
}

TEST_CASE_METHOD(ClosureFixture, "variables are made in the driver, not in closures",
                 "[strategy][unit]") {
  coordinator.schedule<makes_one>();
  CHECK(says("variables are made in the driver", [&] { (void)(coordinator.join()); }));
}

TEST_CASE_METHOD(ClosureFixture, "replicas of a closure's run() write for the closure",
                 "[strategy][unit][CCO-25]") {
  for (int i = 0; i < 10; ++i) coordinator.schedule<in_replicas>(2.0F);
  coordinator.join();
  CHECK(v.item<float>() == 20);
}

TEST_CASE_METHOD(ClosureFixture,
                 "a lost server fails closures with PsUnavailable, and join says so",
                 "[strategy][unit][CCF-10]") {
  servers.cluster.Restart(0);
  coordinator.schedule<increment>();
  CHECK_THROWS_AS(coordinator.join(), PsUnavailable);
}

// How often a closure had been sent round again when its server was lost for good.
std::uint32_t retries_until_lost(const CoordinatorOptions& options) {
  Servers servers;
  ParameterServerStrategy strategy;
  const auto scope = strategy.scope();
  v = Variable::create("v", 0.0);
  ClusterCoordinator coordinator(servers.link, options);
  servers.cluster.Restart(0);
  coordinator.schedule<increment>();
  try {
    coordinator.join();
  } catch (const PsUnavailable& error) {
    v = Variable();
    return error.details().retries;
  }
  FAIL("the closure has succeeded");
  return 0;
}

TEST_CASE("a program says at how many failures a server is lost", "[strategy][unit][CCF-10]") {
  CHECK(retries_until_lost({}) == 2);
  CHECK(retries_until_lost({.transient_ps_failures = 0}) == 0);
  CHECK(retries_until_lost({.transient_ps_failures = 1}) == 0);
  CHECK(retries_until_lost({.transient_ps_failures = 5}) == 4);
}

TEST_CASE("a window of failures that no clock has is refused", "[strategy][unit][CCF-10]") {
  const auto link = local_cluster(1);
  const auto window = GENERATE(std::chrono::milliseconds(0), std::chrono::milliseconds(-1),
                               std::chrono::milliseconds::max());
  CHECK(says("a transient_window of " + std::to_string(window.count()) + " ms: it is from 1 ms",
             [&] { ClusterCoordinator(link, {.transient_window = window}); }));
}

}  // namespace
}  // namespace muster
