// Steps of a program's closures: how far they run ahead of each other, and that synchronous ones
// have the same bits on any number of workers.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/strategy/parameter_server/servers.h"

namespace steps_of_closures {

// State of the test that runs; closures run on threads of its process.
muster::Variable stepped;
muster::ServerOptimizer stepper;

// A gradient whose bits show what was read and in which order gradients were added.
void one_gradient(std::int64_t batch) {
  const torch::Tensor x = torch::sin(torch::arange(12, torch::kFloat) * static_cast<double>(batch));
  const torch::Tensor gradient = torch::cos(stepped.value().detach() + x.view({4, 3})) *
                                 std::pow(10.0, static_cast<double>(batch % 5));
  stepper.apply_gradients({{gradient, stepped}});
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

// Lets closures end when the test says so, and keeps what had ended when each began.
class Gate {
 public:
  // In a closure.
  void Pass(int closure) {
    std::unique_lock lock(mutex_);
    ended_before_[closure] = ended_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_ || let_go_.contains(closure); });
    ended_.insert(closure);
  }
  void LetGo(int closure) {
    const std::lock_guard lock(mutex_);
    let_go_.insert(closure);
    changed_.notify_all();
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  bool AwaitBegun(std::size_t closures) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60),
                             [&] { return ended_before_.size() >= closures; });
  }
  std::map<int, std::set<int>> ended_before() {
    const std::lock_guard lock(mutex_);
    return ended_before_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  std::set<int> let_go_;
  std::set<int> ended_;
  std::map<int, std::set<int>> ended_before_;
};
Gate* gate = nullptr;
void waits_at_the_gate(int closure) { gate->Pass(closure); }
void breaks_its_step(std::int64_t) { muster::raise(muster::ErrorCode::kOutOfRange, "a bad batch"); }
void does_nothing() {}

}  // namespace steps_of_closures

MUSTER_FUNCTION(steps_of_closures::one_gradient);
MUSTER_FUNCTION(steps_of_closures::sometimes_late);
MUSTER_FUNCTION(steps_of_closures::waits_at_the_gate);
MUSTER_FUNCTION(steps_of_closures::breaks_its_step);
MUSTER_FUNCTION(steps_of_closures::does_nothing);

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

void check_bound(std::uint32_t staleness, std::uint32_t in_a_step) {
  CAPTURE(staleness, in_a_step);
  const std::size_t bound = std::size_t{staleness + 1} * in_a_step;
  const std::size_t all = 2 * bound + 1;
  Gate of_this;
  gate = &of_this;
  // Two workers more than the bound has closures: what went beyond it would find an idle one, and
  // with an idle one schedule_step() itself gives out all that may go.
  Servers servers(1, static_cast<int>(bound) + 2);
  const ParameterServerStrategy strategy(
      {.consistency = Consistency::bounded(staleness), .gradients_per_step = in_a_step});
  ClusterCoordinator coordinator(servers.link);
  // Whatever fails, closures that wait must not keep their workers from ending.
  const std::unique_ptr<Gate, decltype([](Gate* closed) { closed->Open(); })> opens(&of_this);
  std::vector<RemoteValue<void>> values;
  for (std::size_t n = 1; n <= all; ++n) {
    values.push_back(coordinator.schedule_step<waits_at_the_gate>(static_cast<int>(n)));
  }

  // k + 1 steps begin before any has ended; the closure beyond them does not.
  REQUIRE(of_this.AwaitBegun(bound));
  CHECK(coordinator.counts().in_flight == bound);
  // Nor does it when all have ended but the oldest.
  for (std::size_t n = 2; n <= bound; ++n) {
    of_this.LetGo(static_cast<int>(n));
    values[n - 1].fetch();
  }
  CHECK(coordinator.counts().in_flight == 1);
  of_this.LetGo(1);
  values[0].fetch();
  REQUIRE(of_this.AwaitBegun(2 * bound));
  CHECK(coordinator.counts().in_flight == bound);
  of_this.Open();
  coordinator.join();

  const auto ended_before = of_this.ended_before();
  CHECK(ended_before.size() == all);
  for (const auto& [closure, ended] : ended_before) {
    const int steps = (closure - 1) / static_cast<int>(in_a_step) - static_cast<int>(staleness);
    for (int earlier = 1; earlier <= steps * static_cast<int>(in_a_step); ++earlier) {
      CAPTURE(closure, earlier);
      CHECK(ended.contains(earlier));
    }
  }
}

TEST_CASE("with a staleness of k closures of k + 1 steps begin, and the next when the oldest ends",
          "[parameter_server][spec]") {
  check_bound(0, 1);
  check_bound(1, 1);
  check_bound(2, 1);
  check_bound(1, 2);
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

TEST_CASE("an error of the queue ends its step, also where done() or schedule() throws it",
          "[parameter_server][spec]") {
  Servers servers(1, 2);
  ParameterServerStrategy strategy(
      {.consistency = Consistency::synchronous(), .gradients_per_step = 3});
  const auto scope = strategy.scope();
  ClusterCoordinator coordinator(servers.link);
  const bool by_done = GENERATE(true, false);
  CAPTURE(by_done);
  stepped = Variable::create("w", torch::zeros({4, 3}));
  stepper = ServerOptimizer(torch::optim::SGDOptions(1), {stepped});
  coordinator.schedule_step<one_gradient>(1).fetch();
  CHECK(stepped.value().detach().abs().max().item<float>() == 0);
  coordinator.schedule_step<breaks_its_step>(2);

  const auto error = testing::error_of([&] {
    while (true) {
      if (by_done) {
        (void)coordinator.done();
      } else {
        coordinator.schedule<does_nothing>();
      }
    }
  });

  CHECK(error->message().find("a bad batch") != std::string::npos);
  CHECK(stepped.value().detach().abs().max().item<float>() > 0);
  stepped = {};
  stepper = {};
}

// Workers whose driver is asked for by whoever uses them: at one of these moments it does something
// else first, as another thread could.
class Interrupted final : public internal::ClusterLink {
 public:
  explicit Interrupted(std::shared_ptr<internal::ClusterLink> workers)
      : workers_(std::move(workers)) {}
  // When this thread asks for the `nth` time from now.
  void Interrupt(int nth, std::function<void()> by) {
    by_ = std::move(by);
    left_ = nth;
  }
  bool interrupted() const { return by_ != nullptr && left_ == 0; }

  dispatch::Driver& driver() override {
    if (std::this_thread::get_id() == of_test_ && left_ > 0 && --left_ == 0) by_();
    return workers_->driver();
  }
  std::vector<std::string> workers() const override { return workers_->workers(); }
  std::vector<std::pair<std::string, bool>> tasks() const override { return workers_->tasks(); }
  Status await_workers(std::optional<TimePoint> deadline) override {
    return workers_->await_workers(deadline);
  }

 private:
  const std::shared_ptr<internal::ClusterLink> workers_;
  const std::thread::id of_test_ = std::this_thread::get_id();
  // The test's thread's alone.
  std::function<void()> by_;
  int left_ = 0;
};

TEST_CASE("join ends its synchronous step though another thread has scheduled by then",
          "[parameter_server][spec]") {
  Gate of_this;
  gate = &of_this;
  const auto workers = std::make_shared<Interrupted>(local_cluster(2));
  Servers servers(1, workers);
  ParameterServerStrategy strategy(
      {.consistency = Consistency::synchronous(), .gradients_per_step = 3});
  const auto scope = strategy.scope();
  stepped = Variable::create("w", torch::zeros({4, 3}));
  stepper = ServerOptimizer(torch::optim::SGDOptions(1), {stepped});
  ClusterCoordinator coordinator(servers.link);
  const std::unique_ptr<Gate, decltype([](Gate* closed) { closed->Open(); })> opens(&of_this);
  coordinator.schedule_step<one_gradient>(1);
  // First it waits; then it asks whether the step is over.
  workers->Interrupt(2, [&] { coordinator.schedule<waits_at_the_gate>(1); });

  coordinator.join();

  REQUIRE(workers->interrupted());
  const CoordinatorCounts counts = coordinator.counts();
  CHECK(counts.queued + counts.in_flight == 1);
  CHECK(stepped.value().detach().abs().max().item<float>() > 0);
  of_this.Open();
  coordinator.join();
  stepped = {};
  stepper = {};
}

TEST_CASE("a step that servers could not be told of is told when closures have ended again",
          "[parameter_server][unit]") {
  internal::StepCounter steps;
  std::vector<std::uint64_t> told;
  bool away = true;
  const auto tell = [&](std::uint64_t step) {
    if (away) muster::raise(ErrorCode::kUnavailable, "ps:0 is away");
    told.push_back(step);
  };
  REQUIRE(steps.SetRule({.gradients = 2, .staleness = 0}, tell).ok());
  const auto next = [&] { return steps.Next([](std::uint64_t step, bool) { return step; }); };
  const auto all_ended = [] { return true; };
  CHECK(next() == 1);
  CHECK_THROWS_AS(steps.End(all_ended), Error);
  away = false;

  // Not while closures of a step run.
  steps.End([] { return false; });
  CHECK(told.empty());
  steps.End(all_ended);
  steps.End(all_ended);
  CHECK(told == std::vector<std::uint64_t>{2});

  // What comes next says it, too.
  CHECK(next() == 2);
  away = true;
  CHECK_THROWS_AS(steps.End(all_ended), Error);
  away = false;
  CHECK(next() == 3);
  steps.End(all_ended);
  steps.End(all_ended);
  CHECK(told == std::vector<std::uint64_t>{2, 4});
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
