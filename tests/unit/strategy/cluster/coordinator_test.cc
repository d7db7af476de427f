// Functions scheduled onto workers, and what comes back. Executors are real ones, on threads.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>

#include "strategy/cluster/internal/coordinator_core.h"
#include "strategy/cluster/internal/watchdog.h"
#include "strategy/muster.h"
#include "tests/support/environment_variables.h"
#include "tests/support/fixed_environment.h"
#include "tests/unit/strategy/cluster/workers.h"

namespace coordinator_test {

std::atomic<int> v{0};
std::atomic<int> running{0};
std::atomic<bool> gate{false};
std::atomic<int> most_running{0};

double square(double x) { return x * x; }
void add(int n) { v += n; }
torch::Tensor normalised(const torch::Tensor& rows, double epsilon) {
  return rows / (rows.norm(2, {1}, true) + epsilon);
}
using Nest = std::tuple<int, std::tuple<int, int>, std::vector<int>, std::map<std::string, int>>;
Nest nested() { return {2, {3, 4}, {5}, {{"v", 1}}}; }
std::string joined(const std::vector<std::string>& words, std::optional<std::string> with) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : with.value_or(" ")) + word;
  return all;
}
std::map<std::string, torch::Tensor> sums(std::map<std::string, std::vector<torch::Tensor>> parts) {
  std::map<std::string, torch::Tensor> all;
  for (const auto& [name, tensors] : parts) all[name] = torch::stack(tensors).sum(0);
  return all;
}
muster::IndexedSlices doubled(muster::IndexedSlices slices) {
  slices.values = slices.values * 2;
  return slices;
}
int fails(int code) { muster::raise(static_cast<muster::ErrorCode>(code), "as it was told"); }
int which_worker() { return muster::worker_index(); }
void until_cancelled() {
  std::atomic<bool> told{false};
  const std::stop_callback callback(muster::cancellation(), [&] {
    told = true;
    told.notify_all();
  });
  ++running;
  told.wait(false);
  muster::throw_if_cancelled();
}
void behind_gate() {
  ++running;
  while (!gate && !muster::cancellation().stop_requested()) std::this_thread::yield();
}
std::int64_t length(const std::string& text) { return static_cast<std::int64_t>(text.size()); }
std::string long_text(std::uint64_t bytes) { return std::string(bytes, 'x'); }
std::pair<double, double> reduced(double x) {
  muster::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  auto scope = strategy.scope();
  const auto each = strategy.run([](double one) { return std::tuple{one + 1, one - 1}; }, x);
  const auto [up, down] = strategy.reduce(muster::ReduceOp::kSum, each);
  return {up.item<double>(), down.item<double>()};
}
struct Model {
  explicit Model(double factor) : weight(torch::full({2}, factor)) {}
  torch::Tensor weight;
  std::atomic<int> uses{0};
};
std::unique_ptr<Model> make_model() { return std::make_unique<Model>(3.0); }
torch::Tensor apply(Model& model, const torch::Tensor& x) {
  ++model.uses;
  return model.weight * x;
}
int uses(Model& model) { return model.uses; }
struct Nothing {};
std::unique_ptr<Nothing> make_nothing() { return nullptr; }
int use_nothing(Nothing&) { return 1; }
int unregistered(int x) { return x; }
int* pointer() { return nullptr; }

}  // namespace coordinator_test

// Muster has one of this name, too.
int run_function(int x) { return x + 1; }

MUSTER_FUNCTION(run_function);
MUSTER_PROGRAM(coordinator_test::make_model);
MUSTER_PROGRAM(coordinator_test::make_nothing);
MUSTER_FUNCTION(coordinator_test::apply);
MUSTER_FUNCTION(coordinator_test::uses);
MUSTER_FUNCTION(coordinator_test::use_nothing);
MUSTER_FUNCTION(coordinator_test::square);
MUSTER_FUNCTION(coordinator_test::add);
MUSTER_FUNCTION(coordinator_test::normalised);
MUSTER_FUNCTION(coordinator_test::nested);
MUSTER_FUNCTION(coordinator_test::joined);
MUSTER_FUNCTION(coordinator_test::sums);
MUSTER_FUNCTION(coordinator_test::doubled);
MUSTER_FUNCTION(coordinator_test::fails);
MUSTER_FUNCTION(coordinator_test::which_worker);
MUSTER_FUNCTION(coordinator_test::until_cancelled);
MUSTER_FUNCTION(coordinator_test::behind_gate);
MUSTER_FUNCTION(coordinator_test::length);
MUSTER_FUNCTION(coordinator_test::long_text);
MUSTER_FUNCTION(coordinator_test::reduced);
MUSTER_FUNCTION(coordinator_test::pointer);

namespace coordinator_test {
namespace {

using namespace muster;
using namespace std::chrono_literals;
using testing::code_of;
using testing::soon;
using testing::ThreadWorkers;
using testing::throws;

// What is not registered, or not called as it is written, does not compile.
static_assert(Schedulable<square, double> && Schedulable<square, int>);
static_assert(Schedulable<joined, std::vector<std::string>, const char*>);
static_assert(Schedulable<square, RemoteValue<double>> && Schedulable<square, RemoteValue<int>>);
static_assert(!Schedulable<unregistered, int>);
static_assert(!Schedulable<square> && !Schedulable<square, double, double>);
static_assert(!Schedulable<square, std::string> && !Schedulable<square, RemoteValue<std::string>>);
static_assert(!Schedulable<normalised, double, double>);
// The program's object is no argument.
static_assert(Schedulable<coordinator_test::apply, torch::Tensor> &&
              !Schedulable<coordinator_test::apply, Model, torch::Tensor>);
// What it returns has to travel.
static_assert(!Schedulable<pointer>);
// Another kind of strategy has no coordinator.
static_assert(!std::is_constructible_v<ClusterCoordinator, MirroredStrategy&>);
static_assert(!std::is_constructible_v<ClusterCoordinator, OneDeviceStrategy&>);

TEST_CASE("outside of a program there is no cluster, and a local one has a worker at least",
          "[strategy][unit][PSS-05]") {
  CHECK(throws(ErrorCode::kFailedPrecondition, "needs a program on a cluster",
               [] { const ParameterServerStrategy strategy; }));
  CHECK(throws(ErrorCode::kFailedPrecondition, "this program has no cluster",
               [] { const ClusterCoordinator coordinator; }));
  CHECK(throws(ErrorCode::kInvalidArgument, "0 workers", [] { (void)local_cluster(0); }));
}

TEST_CASE("functions are called with their types and their values come back",
          "[strategy][unit][CCO-02][CCO-03]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));

  CHECK(coordinator.schedule<square>(3).fetch() == 9.0);
  CHECK(coordinator.schedule<joined>(std::vector<std::string>{"a", "b"}, "-").fetch() == "a-b");
  const torch::Tensor rows = torch::tensor({{3.0, 4.0}, {6.0, 8.0}});
  const torch::Tensor unit = coordinator.schedule<normalised>(rows, 0).fetch();
  CHECK(torch::allclose(unit, torch::tensor({{0.6f, 0.8f}, {0.6f, 0.8f}})));
  const auto all = coordinator
                       .schedule<sums>(std::map<std::string, std::vector<torch::Tensor>>{
                           {"w", {torch::ones({2}), torch::ones({2})}}})
                       .fetch();
  CHECK(torch::equal(all.at("w"), torch::full({2}, 2.0)));
  const IndexedSlices slices{torch::ones({1, 2}), torch::tensor({7})};
  CHECK(
      torch::equal(coordinator.schedule<doubled>(slices).fetch().values, torch::full({1, 2}, 2.0)));
  coordinator.join();
}

TEST_CASE("a nest is fetched as it is, and a nest of remote values as the nest of their values",
          "[strategy][unit][CCO-04]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const auto remote = coordinator.schedule<nested>();

  CHECK(remote.fetch() == Nest{2, {3, 4}, {5}, {{"v", 1}}});
  const std::vector<RemoteValue<double>> list{coordinator.schedule<square>(2),
                                              coordinator.schedule<square>(3)};
  CHECK(coordinator.fetch(list) == std::vector<double>{4, 9});
  const auto mixed = coordinator.fetch(
      std::tuple{std::pair{list[0], 5}, std::map<int, RemoteValue<double>>{{1, list[1]}},
                 std::string("plain"), coordinator.schedule<add>(0)});
  CHECK(std::get<0>(mixed) == std::pair{4.0, 5});
  CHECK(std::get<1>(mixed).at(1) == 9);
  CHECK(std::get<2>(mixed) == "plain");
  STATIC_REQUIRE(std::is_same_v<std::decay_t<decltype(std::get<3>(mixed))>, std::monostate>);
  // As tensors of this process.
  CHECK(list[0].get().item<double>() == 4);
  CHECK(std::get<0>(remote.get()).item<int>() == 2);
  coordinator.join();
}

TEST_CASE("the error of a nest is that of the first of its values that has one",
          "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const auto failed = coordinator.schedule<fails>(static_cast<int>(ErrorCode::kOutOfRange));
  CHECK(code_of([&] { coordinator.join(soon()); }) == ErrorCode::kOutOfRange);
  const RemoteValue<int> none;
  const auto code = [&](const auto& nest) {
    return code_of([&] { (void)coordinator.fetch(nest); });
  };
  CHECK(code(std::tuple{failed, none}) == ErrorCode::kOutOfRange);
  CHECK(code(std::tuple{none, failed}) == ErrorCode::kFailedPrecondition);
  CHECK(code(std::pair{failed, none}) == ErrorCode::kOutOfRange);
  CHECK(code(std::pair{none, failed}) == ErrorCode::kFailedPrecondition);
}

TEST_CASE("a function may have a name that Muster uses for one of its own", "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  CHECK(coordinator.schedule<::run_function>(2).fetch() == 3);
}

TEST_CASE("a remote value may be an argument, converted as in a call", "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  RemoteValue<double> x = coordinator.schedule<square>(2);
  for (int i = 0; i < 3; ++i) x = coordinator.schedule<square>(x);
  CHECK(x.fetch() == 65536.0);
  const auto text = coordinator.schedule<joined>(std::vector<std::string>{"ab", "c"}, std::nullopt);
  CHECK(coordinator.schedule<square>(coordinator.schedule<length>(text)).fetch() == 16.0);
  coordinator.join();
}

TEST_CASE("functions take the object of their process before their arguments", "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const torch::Tensor x = torch::tensor({1.0f, 2.0f});
  CHECK(torch::equal(coordinator.schedule<coordinator_test::apply>(x).fetch(), x * 3));
  CHECK(coordinator.schedule<uses>().fetch() == 1);
  CHECK(program_object<Model>().uses == 1);
  const auto none = coordinator.schedule<use_nothing>();
  CHECK(throws(ErrorCode::kInvalidArgument, "make_nothing made nothing", [&] { none.fetch(); }));
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kInvalidArgument);
}

TEST_CASE("join returns when nothing is scheduled, and as often as it is called",
          "[strategy][unit][CCO-06][CCO-07]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  coordinator.join();
  coordinator.join();
  CHECK(coordinator.done());

  v = 0;
  for (int i = 0; i < 5; ++i) coordinator.schedule<add>(2);
  coordinator.join();
  CHECK(v == 10);
  for (int i = 0; i < 5; ++i) coordinator.schedule<add>(2);
  coordinator.join();
  CHECK(v == 20);
  CHECK(coordinator.done());
}

TEST_CASE("a second coordinator of a cluster is the first one", "[strategy][unit][CCO-01]") {
  const auto workers = std::make_shared<ThreadWorkers>(1);
  ClusterCoordinator first(workers, {.timeout = 60s});
  ClusterCoordinator second(workers, {.timeout = 60s});
  CHECK(first == second);
  v = 0;
  for (int i = 0; i < 100; ++i) first.schedule<add>(1);
  second.join();
  CHECK(v == 100);
  CHECK(code_of([&] { ClusterCoordinator(workers, {.timeout = 1s}); }) ==
        ErrorCode::kFailedPrecondition);
  const auto others = std::make_shared<ThreadWorkers>(1);
  CHECK(!(first == ClusterCoordinator(others)));
}

TEST_CASE("a function knows the number of its worker, and nobody else does",
          "[strategy][unit][CCO-20]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  std::set<int> seen;
  testing::eventually("both workers have run one", [&] {
    seen.insert(coordinator.schedule<which_worker>().fetch());
    seen.insert(coordinator.schedule<which_worker>().fetch());
    std::vector<RemoteValue<int>> many;
    for (int i = 0; i < 20; ++i) many.push_back(coordinator.schedule<which_worker>());
    for (const int index : coordinator.fetch(many)) seen.insert(index);
    return seen.size() > 1;
  });
  CHECK(seen == std::set<int>{0, 1});
  CHECK(code_of([] { (void)worker_index(); }) == ErrorCode::kFailedPrecondition);
  CHECK(code_of([] { (void)cancellation(); }) == ErrorCode::kFailedPrecondition);
  CHECK(!in_closure());
}

TEST_CASE("replicas of a worker run and are reduced inside a closure", "[strategy][unit][CCO-25]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  CHECK(coordinator.schedule<reduced>(3).fetch() == std::pair{8.0, 4.0});
  CHECK(coordinator.schedule<reduced>(3).fetch() == std::pair{8.0, 4.0});
  coordinator.join();
}

TEST_CASE("a queue of two takes any number of closures of five workers",
          "[strategy][unit][CCO-22]") {
  dispatch::Driver::Options options = dispatch::DriverOptions(dispatch::ProgramFunctions());
  options.dispatch.capacity = 2;
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(5, 1, std::move(options)));
  v = 0;
  std::vector<RemoteValue<double>> values;
  for (int i = 0; i < 200; ++i) {
    coordinator.schedule<add>(1);
    values.push_back(coordinator.schedule<square>(i));
  }
  coordinator.join();
  CHECK(v == 200);
  CHECK(values[199].fetch() == 199.0 * 199.0);
}

TEST_CASE("a value may be fetched twice, and after its coordinator has gone",
          "[strategy][unit][CCF-12]") {
  RemoteValue<double> there;
  RemoteValue<void> never;
  {
    ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
    there = coordinator.schedule<square>(5);
    CHECK(there.fetch() == 25);
    CHECK(there.ready());
    running = 0;
    never = coordinator.schedule<until_cancelled>();
    testing::eventually("it runs", [] { return running == 1; });
    CHECK(!never.ready());
  }
  // All threads of the cluster have ended: the closure that ran was told.
  CHECK(never.ready());
  CHECK(there.fetch() == 25);
  CHECK(there.fetch() == 25);
  CHECK(code_of([&] { never.fetch(); }) == ErrorCode::kCancelled);
  CHECK(code_of([] { RemoteValue<int>().fetch(); }) == ErrorCode::kFailedPrecondition);
}

TEST_CASE("a coordinator that ends leaves no thread, its cluster's and its watchdog's neither",
          "[strategy][unit][CCO-24]") {
  const auto threads = [] {
    std::set<std::string> now;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      now.insert(thread.path().filename().string());
    }
    return now;
  };
  std::set<std::string> during;
  const auto use_one = [&] {
    ClusterCoordinator coordinator(local_cluster(2), {.watchdog = 60s});
    CHECK(coordinator.schedule<square>(3).fetch() == 9.0);
    coordinator.join();
    during = threads();
  };
  use_one();  // what libraries keep for good has begun now
  const std::set<std::string> before = threads();

  use_one();

  CHECK_FALSE(std::ranges::includes(before, during));
  // One that was waited for is there for a moment still.
  testing::eventually("its threads have ended",
                      [&] { return std::ranges::includes(before, threads()); });
}

TEST_CASE("waits end at their deadline and say whom they wait for", "[strategy][unit]") {
  gate = false;
  running = 0;
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2), {.timeout = 50ms});
  const RemoteValue<void> slow = coordinator.schedule<behind_gate>();
  testing::eventually("it runs", [] { return running == 1; });
  CHECK(throws(ErrorCode::kDeadlineExceeded, "1 in flight on worker:", [&] { slow.fetch(); }));
  CHECK(
      throws(ErrorCode::kDeadlineExceeded, "1 in flight on worker:", [&] { coordinator.join(); }));
  CHECK(!coordinator.done());
  gate = true;
  coordinator.join(soon());
  slow.fetch();

  ClusterCoordinator lonely(std::make_shared<ThreadWorkers>(0), {.timeout = 10ms});
  const RemoteValue<double> nowhere = lonely.schedule<square>(1);
  CHECK(throws(ErrorCode::kDeadlineExceeded, "1 queued, and no worker is there",
               [&] { nowhere.fetch(); }));
}

TEST_CASE("a wait for an argument that is not there is the call's own, and no closure fails for it",
          "[strategy][unit]") {
  gate = false;
  running = 0;
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2), {.timeout = 50ms});
  coordinator.schedule<behind_gate>();
  coordinator.schedule<behind_gate>();
  testing::eventually("both run", [] { return running == 2; });
  const RemoteValue<double> later = coordinator.schedule<square>(3);

  CHECK(throws(ErrorCode::kDeadlineExceeded, "the value is not there",
               [&] { coordinator.schedule<square>(later); }));
  CHECK(code_of([&] { coordinator.schedule<square>(RemoteValue<double>()); }) ==
        ErrorCode::kFailedPrecondition);

  gate = true;
  coordinator.join(soon());
  CHECK(later.fetch() == 9);
  CHECK(coordinator.schedule<square>(later).fetch() == 81);
}

TEST_CASE("counts tell what is queued, running and done", "[strategy][unit]") {
  gate = false;
  running = 0;
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  std::vector<RemoteValue<void>> values;
  for (int i = 0; i < 10; ++i) values.push_back(coordinator.schedule<behind_gate>());
  testing::eventually("both workers run", [] { return running == 2; });
  const CoordinatorCounts before = coordinator.counts();
  CHECK(before.workers == 2);
  CHECK(before.queued + before.in_flight == 10);
  CHECK(before.remote_values == 10);
  gate = true;
  coordinator.join();
  CHECK(coordinator.counts().succeeded == 10);
  CHECK(coordinator.counts().queued + coordinator.counts().in_flight == 0);
  values.clear();
  CHECK(coordinator.counts().remote_values == 0);
  CHECK(coordinator.workers() == std::vector<std::string>{"worker:0", "worker:1"});
}

TEST_CASE("counts tell executions, fetches, and workers that were lost and came back",
          "[strategy][unit][CCM-01]") {
  const auto workers = std::make_shared<ThreadWorkers>(1);
  ClusterCoordinator coordinator(workers);
  // A value of each worker is no closure's.
  const auto own = coordinator.create_per_worker_resource<which_worker>();
  own.wait();
  CHECK(coordinator.counts().closure_time.count() == 0);
  CHECK(coordinator.schedule<square>(2).fetch() == 4);
  CHECK(coordinator.schedule<square>(3).fetch() == 9);
  coordinator.join();
  CoordinatorCounts counts = coordinator.counts();
  CHECK(counts.executions == 2);
  CHECK(counts.closure_time.count() > 0);
  CHECK(counts.fetches == 2);
  CHECK(counts.fetch_time.count() > 0);
  CHECK(counts.queued + counts.in_flight + counts.worker_failures + counts.recoveries == 0);

  workers->lose(0);
  workers->replace(0);

  counts = coordinator.counts();
  CHECK(counts.worker_failures == 1);
  CHECK(counts.recoveries == 1);
  CHECK(counts.recovery_time.count() > 0);
}

TEST_CASE("workers begin one after another where a start delay is given",
          "[strategy][unit][CCO-23]") {
  dispatch::Driver::Options options = dispatch::DriverOptions(dispatch::ProgramFunctions());
  options.start_delay = 1h;
  options.most_start_delay = 300ms;
  const TimePoint begin = std::chrono::steady_clock::now();
  const auto workers = std::make_shared<ThreadWorkers>(3, 1, std::move(options));
  ClusterCoordinator coordinator(workers);
  const int first = coordinator.schedule<which_worker>().fetch();
  if (std::chrono::steady_clock::now() - begin < 300ms) CHECK(first == 0);
  // Both others have the longest delay, and then do as much as the first.
  std::set<int> seen;
  while (seen.size() < 3) {
    std::vector<RemoteValue<int>> values;
    for (int i = 0; i < 30; ++i) values.push_back(coordinator.schedule<which_worker>());
    for (const int worker : coordinator.fetch(values)) {
      if (worker > 0) CHECK(std::chrono::steady_clock::now() - begin >= 300ms);
      seen.insert(worker);
    }
    REQUIRE(std::chrono::steady_clock::now() < soon());
  }
  // One that comes back is not new.
  workers->lose(0);
  workers->lose(1);
  workers->replace(2);
  CHECK(coordinator.schedule<which_worker>().fetch(std::chrono::steady_clock::now() + 60s) == 2);
  coordinator.join();
}

TEST_CASE("each worker begins as much later as its number says", "[strategy][unit][CCO-23]") {
  dispatch::Driver::Options options = dispatch::DriverOptions(dispatch::ProgramFunctions());
  options.start_delay = 200ms;
  const TimePoint begin = std::chrono::steady_clock::now();
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(3, 1, std::move(options)));
  std::set<int> seen;
  while (seen.size() < 3) {
    std::vector<RemoteValue<int>> values;
    for (int i = 0; i < 30; ++i) values.push_back(coordinator.schedule<which_worker>());
    for (const int worker : coordinator.fetch(values)) {
      if (seen.insert(worker).second) {
        CHECK(std::chrono::steady_clock::now() - begin >= worker * 200ms);
      }
    }
    REQUIRE(std::chrono::steady_clock::now() < begin + 60s);
  }
  coordinator.join();
}

TEST_CASE("a timeout that the clock does not reach is one without an end", "[strategy][unit]") {
  constexpr auto longest = std::chrono::milliseconds::max();
  CHECK(internal::CoordinatorCore::until(std::nullopt, longest) == TimePoint::max());
  CHECK(internal::CoordinatorCore::until(TimePoint::min(), longest) == TimePoint::min());
  CHECK(internal::CoordinatorCore::until(std::nullopt, 1h) < TimePoint::max());

  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1),
                                 {.timeout = longest, .watchdog = longest});
  CHECK(coordinator.schedule<square>(3).fetch() == 9.0);
  coordinator.join();
}

TEST_CASE("a watchdog tells again and again that no closure ends, until it is over",
          "[strategy][unit][CCM-02]") {
  gate = false;
  running = 0;
  const auto workers = std::make_shared<ThreadWorkers>(1);
  ClusterCoordinator coordinator(workers);
  std::atomic<int> told{0};
  std::atomic<int> wrong{0};
  {
    // What ends in time is no news.
    const internal::Watchdog patient(workers->driver(), 60s, [&](const std::string&) { ++told; });
    (void)coordinator.schedule<square>(2);
    coordinator.join();
    CHECK(told == 0);
  }
  {
    const internal::Watchdog watchdog(workers->driver(), 10ms, [&](const std::string& text) {
      if (text.find("0.01 s: 0 queued, 1 in flight on worker:0") == std::string::npos) ++wrong;
      ++told;
    });
    coordinator.schedule<behind_gate>();
    testing::eventually("it has told twice", [&] { return told >= 2; });
    CHECK(wrong == 0);
  }
  const int told_then = told;
  gate = true;
  coordinator.join();
  CHECK(told == told_then);
}

TEST_CASE("closures stand still that were there before and of which none has ended since",
          "[strategy][unit][CCM-02]") {
  internal::Standstill standstill;
  dispatch::Driver::Counts counts;
  CHECK_FALSE(standstill.Look(counts));
  CHECK_FALSE(standstill.Look(counts));
  // What came a moment ago is no news, however long nothing was there.
  counts.in_flight = 2;
  CHECK_FALSE(standstill.Look(counts));
  CHECK(standstill.Look(counts));
  CHECK(standstill.Look(counts));
  // The first one goes on, others end behind it.
  ++counts.succeeded;
  CHECK_FALSE(standstill.Look(counts));
  CHECK(standstill.Look(counts));
  counts.failed = true;
  CHECK_FALSE(standstill.Look(counts));
  CHECK(standstill.Look(counts));
  counts.failed = false;
  counts.settled = ClosureId(3);
  CHECK_FALSE(standstill.Look(counts));
  // Those that were there have ended, and there are others.
  counts.in_flight = 0;
  CHECK_FALSE(standstill.Look(counts));
  counts.queued = 1;
  CHECK_FALSE(standstill.Look(counts));
  CHECK(standstill.Look(counts));
}

TEST_CASE("a watchdog's time is the option's, else the environment's, which must be a number",
          "[strategy][unit][CCM-02]") {
  const char* const variable = "TF_CLUSTER_COORDINATOR_WATCH_DOG_TIMEOUT";
  const auto timeout = [&](std::optional<std::chrono::milliseconds> given, const char* text) {
    return internal::Watchdog::timeout(given, FixedEnvironment({{variable, text}}));
  };

  CHECK(timeout(5ms, "2.5").value() == 5ms);
  CHECK(timeout(0ms, "2.5").value() == std::nullopt);
  CHECK(timeout(std::nullopt, "2.5").value() == 2'500ms);
  CHECK(timeout(std::nullopt, "0").value() == std::nullopt);
  CHECK(timeout(std::nullopt, "").value() == std::nullopt);
  // What the clock cannot wait for: never.
  CHECK(timeout(std::chrono::milliseconds::max(), "2.5").value() == std::nullopt);

  const testing::EnvironmentVariables wrong{{{variable, "2.5s"}}};
  const auto workers = std::make_shared<ThreadWorkers>(1);
  CHECK(throws(ErrorCode::kInvalidArgument, std::string(variable) + "=\"2.5s\"",
               [&] { ClusterCoordinator{workers}; }));
  ClusterCoordinator told(workers, {.watchdog = 60s});
  CHECK(told.schedule<square>(3).fetch() == 9.0);
}

TEST_CASE("100 MB of arguments and results travel, and more than the limit is refused with it",
          "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  constexpr std::uint64_t kLong = 100'000'000;
  CHECK(coordinator.schedule<length>(std::string(kLong, 'a')).fetch() == kLong);
  CHECK(coordinator.schedule<long_text>(kLong).fetch().size() == kLong);
  CHECK(throws(ErrorCode::kInvalidArgument, "134217728",
               [&] { coordinator.schedule<length>(std::string(std::size_t{128} << 20, 'a')); }));
  const auto too_long = coordinator.schedule<long_text>(std::uint64_t{128} << 20);
  CHECK(throws(ErrorCode::kResourceExhausted, "at most 134217728", [&] { too_long.fetch(); }));
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kResourceExhausted);
  CHECK(coordinator.schedule<square>(2).fetch() == 4);
  coordinator.join();
}

}  // namespace
}  // namespace coordinator_test
