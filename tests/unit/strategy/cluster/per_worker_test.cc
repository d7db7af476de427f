// Values that every worker has one of: datasets, iterators, counters.
#include <algorithm>
#include <atomic>
#include <set>

#include "strategy/muster.h"
#include "tests/unit/strategy/cluster/workers.h"

namespace per_worker_test {

using muster::Dataset;
using muster::WorkerIterator;

std::atomic<int> v{0};
std::atomic<int> live_passes{0};
std::atomic<int> running{0};

Dataset<torch::Tensor> range(int start, int stop) { return muster::dataset::range(start, stop); }
Dataset<torch::Tensor> batches() { return muster::dataset::range(1, 11).batch(4); }
Dataset<torch::Tensor> shuffled() { return muster::dataset::range(1000).shuffle(1000); }
Dataset<torch::Tensor> shard_of_ten(int workers) {
  return muster::dataset::range(10).shard(workers, muster::worker_index());
}
Dataset<torch::Tensor> fails_on_worker(int which) {
  if (muster::worker_index() == which) {
    muster::raise(muster::ErrorCode::kNotFound, "no such file on this host");
  }
  return muster::dataset::range(5);
}
Dataset<torch::Tensor> makes_variable() {
  (void)muster::Variable::create("w", torch::zeros({2}));
  return muster::dataset::range(5);
}
Dataset<torch::Tensor> makes_module() {
  muster::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  (void)strategy.distribute(torch::nn::Linear(2, 1));
  return muster::dataset::range(5);
}
int makes_module_in_closure() {
  muster::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  return static_cast<int>(strategy.distribute(torch::nn::Linear(2, 1)).parameters().size());
}
muster::DistributedDataset<torch::Tensor> distributed() {
  static muster::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  return muster::experimental_distribute_dataset(
      strategy, muster::dataset::range(1, 9).batch(4, /*drop_remainder=*/true));
}
std::int64_t next(WorkerIterator<torch::Tensor>& data) {
  return data.get_next().item<std::int64_t>();
}
std::optional<std::int64_t> next_or_none(WorkerIterator<torch::Tensor>& data) {
  const auto value = data.next();
  return value ? std::optional(value->item<std::int64_t>()) : std::nullopt;
}
void add_next(WorkerIterator<torch::Tensor>& data) {
  v += static_cast<int>(data.get_next().item<std::int64_t>());
}
void takes_and_fails(WorkerIterator<torch::Tensor>& data) {
  (void)data.get_next();
  muster::raise(muster::ErrorCode::kOutOfRange, "on purpose");
}
torch::Tensor next_batch(WorkerIterator<torch::Tensor>& data) { return data.get_next(); }
std::int64_t sum_of_both(WorkerIterator<torch::Tensor>& a, WorkerIterator<torch::Tensor>& b) {
  return a.get_next().item<std::int64_t>() + b.get_next().item<std::int64_t>();
}
std::int64_t sum_of_all(const Dataset<torch::Tensor>& data) {
  std::int64_t sum = 0;
  for (const torch::Tensor& one : data) sum += one.item<std::int64_t>();
  return sum;
}
std::int64_t sum_of_rest(WorkerIterator<torch::Tensor>& data) {
  std::int64_t sum = 0;
  while (const auto value = data.next()) sum += value->item<std::int64_t>();
  return sum;
}
std::vector<std::int64_t> first_of(const Dataset<torch::Tensor>& data, int count) {
  std::vector<std::int64_t> first;
  for (const torch::Tensor& one : data.take(count)) first.push_back(one.item<std::int64_t>());
  return first;
}
std::pair<double, double> pieces(WorkerIterator<muster::PerReplica<torch::Tensor>>& data) {
  const auto step = data.get_next();
  return {step[0].sum().item<double>(), step[1].sum().item<double>()};
}

struct Counter {
  std::atomic<int> value{0};
};
std::shared_ptr<Counter> make_counter(int start) {
  auto counter = std::make_shared<Counter>();
  counter->value = start;
  return counter;
}
void bump(std::shared_ptr<Counter>& counter) { ++counter->value; }
int value_of(const std::shared_ptr<Counter>& counter) { return counter->value; }
int own_number() { return 100 + muster::worker_index(); }
std::int64_t same(std::int64_t x) { return x; }
std::pair<int, int> number_and_index(int number) { return {number, muster::worker_index()}; }

// A dataset that counts its passes.
struct Counted {
  struct Pass {
    Pass() { ++live_passes; }
    Pass(Pass&& other) noexcept : at(other.at) { ++live_passes; }
    ~Pass() { --live_passes; }
    std::optional<int> next() { return at++; }
    int at = 0;
  };
  Pass iterator() const { return {}; }
  static std::optional<std::vector<muster::TensorSpec>> element_spec() { return std::nullopt; }
};
Counted counted() { return {}; }
int next_counted(WorkerIterator<int>& data) { return data.get_next(); }

// One whose passes stand at a place that is too long to remember.
struct FarAway {
  struct Pass {
    std::optional<int> next() { return 1; }
    std::string save_position() const { return std::string(1 << 20, 'x'); }
  };
  Pass iterator(const std::optional<std::string>& = std::nullopt) const { return {}; }
  static std::optional<std::vector<muster::TensorSpec>> element_spec() { return std::nullopt; }
};
FarAway far_away() { return {}; }
void fails_far_away(WorkerIterator<int>& data) {
  (void)data.get_next();
  muster::raise(muster::ErrorCode::kOutOfRange, "on purpose");
}

torch::Tensor large_table() { return torch::ones({33 << 20}); }
double sum_of_table(const torch::Tensor& table) { return table.sum().item<double>(); }

muster::PerWorkerDataset<Dataset<torch::Tensor>>* reachable = nullptr;
muster::ClusterCoordinator* reachable_coordinator = nullptr;
void iterator_inside() { (void)reachable->iterator(); }
void schedules_inside() { reachable_coordinator->join(); }
void fails() { muster::raise(muster::ErrorCode::kOutOfRange, "on purpose"); }

}  // namespace per_worker_test

MUSTER_FUNCTION(per_worker_test::range);
MUSTER_FUNCTION(per_worker_test::batches);
MUSTER_FUNCTION(per_worker_test::shuffled);
MUSTER_FUNCTION(per_worker_test::shard_of_ten);
MUSTER_FUNCTION(per_worker_test::fails_on_worker);
MUSTER_FUNCTION(per_worker_test::makes_variable);
MUSTER_FUNCTION(per_worker_test::makes_module);
MUSTER_FUNCTION(per_worker_test::makes_module_in_closure);
MUSTER_FUNCTION(per_worker_test::distributed);
MUSTER_FUNCTION(per_worker_test::next);
MUSTER_FUNCTION(per_worker_test::next_or_none);
MUSTER_FUNCTION(per_worker_test::add_next);
MUSTER_FUNCTION(per_worker_test::takes_and_fails);
MUSTER_FUNCTION(per_worker_test::next_batch);
MUSTER_FUNCTION(per_worker_test::sum_of_both);
MUSTER_FUNCTION(per_worker_test::sum_of_all);
MUSTER_FUNCTION(per_worker_test::sum_of_rest);
MUSTER_FUNCTION(per_worker_test::first_of);
MUSTER_FUNCTION(per_worker_test::pieces);
MUSTER_FUNCTION(per_worker_test::make_counter);
MUSTER_FUNCTION(per_worker_test::bump);
MUSTER_FUNCTION(per_worker_test::value_of);
MUSTER_FUNCTION(per_worker_test::own_number);
MUSTER_FUNCTION(per_worker_test::same);
MUSTER_FUNCTION(per_worker_test::number_and_index);
MUSTER_FUNCTION(per_worker_test::counted);
MUSTER_FUNCTION(per_worker_test::next_counted);
MUSTER_FUNCTION(per_worker_test::far_away);
MUSTER_FUNCTION(per_worker_test::fails_far_away);
MUSTER_FUNCTION(per_worker_test::large_table);
MUSTER_FUNCTION(per_worker_test::sum_of_table);
MUSTER_FUNCTION(per_worker_test::iterator_inside);
MUSTER_FUNCTION(per_worker_test::schedules_inside);
MUSTER_FUNCTION(per_worker_test::fails);

namespace per_worker_test {
namespace {

using namespace muster;
using namespace std::chrono_literals;
using testing::code_of;
using testing::eventually;
using testing::soon;
using testing::ThreadWorkers;
using testing::throws;

// An iterator of all workers has no next() of its own: only a worker's has.
template <class T>
concept HasNext = requires(T& iterator) { iterator.next(); };
static_assert(!HasNext<PerWorkerIterator<torch::Tensor>> && HasNext<WorkerIterator<torch::Tensor>>);
// The worker's own is passed where it is asked for, another type is not.
static_assert(Schedulable<next, PerWorkerIterator<torch::Tensor>>);
static_assert(!Schedulable<next, PerWorkerIterator<int>>);
static_assert(!Schedulable<next, PerWorkerDataset<Dataset<torch::Tensor>>>);
static_assert(!Schedulable<next, int>);
// What a dataset function returns need not travel, but can then not be scheduled.
static_assert(Buildable<range, int, int> && !Schedulable<range, int, int>);
static_assert(!Buildable<fails>);

TEST_CASE("each fresh iterator of a per-worker dataset begins at its first element",
          "[strategy][unit][CCO-07][CCO-08][CCO-15]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  const auto data = coordinator.create_per_worker_dataset<range>(1, 2);
  v = 0;
  coordinator.schedule<add_next>(data.iterator());
  coordinator.schedule<add_next>(data.iterator());
  coordinator.join();
  CHECK(v == 2);
}

TEST_CASE("a dataset function may batch, and return a dataset of the worker's replicas",
          "[strategy][unit][CCO-09][CCO-19][CCO-21]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const auto data = coordinator.create_per_worker_dataset<batches>();
  const auto iterator = data.iterator();
  CHECK(torch::equal(coordinator.schedule<next_batch>(iterator).fetch(),
                     torch::tensor({1, 2, 3, 4})));
  // The dataset itself is an argument, too.
  const auto numbers = coordinator.create_per_worker_dataset<range>(0, 5);
  CHECK(coordinator.schedule<sum_of_all>(numbers).fetch() == 10);
  CHECK(coordinator.schedule<sum_of_all>(numbers).fetch() == 10);
  const auto spec = data.element_spec();
  REQUIRE(spec);
  CHECK(spec->at(0).dtype == torch::kInt64);
  CHECK(spec->at(0).shape == std::vector<std::int64_t>{-1});

  const auto split = coordinator.create_per_worker_dataset<distributed>();
  const auto split_iterator = split.iterator();
  CHECK(coordinator.schedule<pieces>(split_iterator).fetch() == std::pair{3.0, 7.0});
  CHECK(coordinator.schedule<pieces>(split_iterator).fetch() == std::pair{11.0, 15.0});
  // What one of the two replicas is given of each batch.
  const auto spec_of_replica = split.element_spec();
  REQUIRE(spec_of_replica);
  REQUIRE(spec_of_replica->size() == 1);
  CHECK(spec_of_replica->at(0).dtype == torch::kInt64);
  CHECK(spec_of_replica->at(0).shape == std::vector<std::int64_t>{2});
  coordinator.join();
}

TEST_CASE("a function may use two iterators", "[strategy][unit][CCO-13]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const auto from_0 = coordinator.create_per_worker_dataset<range>(0, 10).iterator();
  const auto from_5 = coordinator.create_per_worker_dataset<range>(5, 10).iterator();
  CHECK(coordinator.schedule<sum_of_both>(from_0, from_5).fetch() == 5);
  CHECK(coordinator.schedule<sum_of_both>(from_0, from_5).fetch() == 7);
  coordinator.join();
}

TEST_CASE("five workers shard by their index and see all elements once",
          "[strategy][unit][CCO-20]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(5));
  const auto data = coordinator.create_per_worker_dataset<shard_of_ten>(5);
  // One for each worker: a resource that reads the other.
  const auto sums = coordinator.create_per_worker_resource<sum_of_all>(data).fetch();
  CHECK(std::multiset<std::int64_t>(sums.begin(), sums.end()) ==
        std::multiset<std::int64_t>{5, 7, 9, 11, 13});
}

TEST_CASE("two workers shuffle without a seed in different orders", "[strategy][unit][CCO-11]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  const auto data = coordinator.create_per_worker_dataset<shuffled>();
  const auto orders = coordinator.create_per_worker_resource<first_of>(data, 20).fetch();
  REQUIRE(orders.size() == 2);
  CHECK(orders[0] != orders[1]);
}

TEST_CASE("a worker's own value is passed, changes, and is read from all workers",
          "[strategy][unit][CCO-17][CCO-18]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(3));
  const auto counters = coordinator.create_per_worker_resource<make_counter>(0);
  for (int i = 0; i < 10; ++i) coordinator.schedule<bump>(counters);
  coordinator.join();
  const auto values = coordinator.create_per_worker_resource<value_of>(counters).fetch();
  CHECK(values.size() == 3);
  CHECK(std::accumulate(values.begin(), values.end(), 0) == 10);
  // By value where the function takes it so.
  const auto numbers = coordinator.create_per_worker_resource<own_number>();
  CHECK(numbers.fetch() == std::vector<int>{100, 101, 102});
  for (int i = 0; i < 20; ++i) {
    const auto [number, index] = coordinator.schedule<number_and_index>(numbers).fetch();
    CHECK(number == 100 + index);
  }
  coordinator.join();
}

TEST_CASE("iterators that are dropped wait for their closures and leave nothing on workers",
          "[strategy][unit][CCO-14]") {
  live_passes = 0;
  {
    ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
    const auto data = coordinator.create_per_worker_dataset<counted>();
    for (int round = 0; round < 10; ++round) {
      const auto iterator = data.iterator();
      for (int i = 0; i < 10; ++i) coordinator.schedule<next_counted>(iterator);
    }
    coordinator.join();
    eventually("all passes have ended", [&] {
      (void)coordinator.done();
      return live_passes == 0;
    });
  }
  CHECK(live_passes == 0);
}

TEST_CASE("a value that outlives its coordinator ends with its last handle all the same",
          "[strategy][unit]") {
  live_passes = 0;
  // As a process's own, it is there for the next coordinator.
  const auto workers = std::make_shared<ThreadWorkers>(2);
  {
    std::optional<PerWorkerIterator<int>> left;
    {
      ClusterCoordinator coordinator(workers);
      left = coordinator.create_per_worker_dataset<counted>().iterator();
      left->wait();
      CHECK(live_passes == 2);
    }
    CHECK(code_of([&] { left->wait(); }) == ErrorCode::kCancelled);
    CHECK(live_passes == 2);
  }
  eventually("all passes have ended", [] { return live_passes == 0; });
}

TEST_CASE("inside a closure there is no coordinator", "[strategy][unit][CCO-16]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  auto data = coordinator.create_per_worker_dataset<range>(0, 10);
  reachable = &data;
  reachable_coordinator = &coordinator;
  const auto iterates = coordinator.schedule<iterator_inside>();
  CHECK(throws(ErrorCode::kFailedPrecondition, "inside a closure", [&] { iterates.fetch(); }));
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kFailedPrecondition);
  const auto schedules = coordinator.schedule<schedules_inside>();
  CHECK(throws(ErrorCode::kFailedPrecondition, "inside a closure", [&] { schedules.fetch(); }));
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kFailedPrecondition);
  coordinator.join();
}

TEST_CASE("a dataset function that fails on one worker fails the closures that use it there",
          "[strategy][unit][CCE-07][CCE-08]") {
  const auto workers = std::make_shared<ThreadWorkers>(2);
  ClusterCoordinator coordinator(workers);
  const auto data = coordinator.create_per_worker_dataset<fails_on_worker>(1);
  const auto iterator = data.iterator();
  eventually("both have built it", [&] {
    const auto states = data.states();
    return std::ranges::none_of(states, [](const PerWorkerState& state) {
      return state.kind == PerWorkerState::Kind::kBuilding;
    });
  });
  // Never used, it is no error.
  coordinator.join();
  CHECK(coordinator.done());
  CHECK(data.states()[0].kind == PerWorkerState::Kind::kReady);
  CHECK(data.states()[1].kind == PerWorkerState::Kind::kFailed);
  CHECK(data.states()[1].message.find("no such file on this host") != std::string::npos);
  CHECK(code_of([&] { data.wait(soon()); }) == ErrorCode::kNotFound);

  // What is scheduled now comes to worker 1.
  workers->lose(0);
  std::optional<ClosureInputError> at_fetch;
  const auto value = coordinator.schedule<next>(iterator);
  try {
    (void)value.fetch(soon());
  } catch (const ClosureInputError& error) {
    at_fetch = error;
  }
  REQUIRE(at_fetch);
  CHECK(at_fetch->code() == ErrorCode::kNotFound);
  CHECK(at_fetch->details().task == "worker:1");
  std::optional<ClosureInputError> at_join;
  try {
    coordinator.join(soon());
  } catch (const ClosureInputError& error) {
    at_join = error;
  }
  REQUIRE(at_join);
  CHECK(at_join->code() == ErrorCode::kNotFound);
  CHECK(at_join->details().task == "worker:1");
  coordinator.join();
}

TEST_CASE("a dataset function may not create variables", "[strategy][unit][CCO-10]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const auto data = coordinator.create_per_worker_dataset<makes_variable>();
  CHECK(throws(ErrorCode::kInvalidArgument, "creates the variable \"w\"",
               [&] { data.wait(soon()); }));
  // Nor those of a module.
  const auto of_module = coordinator.create_per_worker_dataset<makes_module>();
  CHECK(throws(ErrorCode::kInvalidArgument, "creates the variable \"weight\"",
               [&] { of_module.wait(soon()); }));
  // Other functions on the same thread may.
  CHECK(coordinator.schedule<makes_module_in_closure>().fetch(soon()) == 2);
}

TEST_CASE("an iterator goes on after a round that was cancelled", "[strategy][unit][CCE-09]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const auto iterator = coordinator.create_per_worker_dataset<range>(0, 1000).iterator();
  CHECK(coordinator.schedule<next>(iterator).fetch() == 0);
  coordinator.schedule<fails>();
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kOutOfRange);
  CHECK(coordinator.schedule<next>(iterator).fetch() == 1);
  coordinator.join();
}

TEST_CASE("the end of a worker's data is an error, a value or a result, as the program likes",
          "[strategy][unit]") {
  const auto workers = std::make_shared<ThreadWorkers>(1);
  {
    ClusterCoordinator coordinator(workers);
    const auto iterator = coordinator.create_per_worker_dataset<range>(0, 1).iterator();
    CHECK(coordinator.schedule<next>(iterator).fetch() == 0);
    // As a value.
    CHECK(coordinator.schedule<next_or_none>(iterator).fetch() == std::nullopt);
    // As an error, which cancels others.
    const auto end = coordinator.schedule<next>(iterator);
    CHECK(throws(ErrorCode::kOutOfRange, "has ended", [&] { (void)end.fetch(); }));
    CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kOutOfRange);
  }
  // As a result of this closure alone.
  ClusterCoordinator coordinator(workers, {.end_of_data_is_a_result = true});
  const auto iterator = coordinator.create_per_worker_dataset<range>(0, 1).iterator();
  CHECK(coordinator.schedule<next>(iterator).fetch() == 0);
  const auto end = coordinator.schedule<next>(iterator);
  const auto void_end = coordinator.schedule<add_next>(iterator);
  coordinator.join();
  CHECK(coordinator.done());
  CHECK_THROWS_AS(end.fetch(), EndOfData);
  CHECK_THROWS_AS(void_end.fetch(), EndOfData);
  const auto given_on = coordinator.schedule<fails>();
  CHECK(code_of([&] { given_on.fetch(); }) == ErrorCode::kOutOfRange);
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kOutOfRange);
}

TEST_CASE("a worker that comes back builds its values anew, and its data goes on where it was",
          "[strategy][unit]") {
  const auto workers = std::make_shared<ThreadWorkers>(1);
  ClusterCoordinator coordinator(workers);
  const auto data = coordinator.create_per_worker_dataset<range>(5, 10);
  const auto iterator = data.iterator();
  const auto without_place = coordinator.create_per_worker_dataset<counted>().iterator();
  CHECK(coordinator.schedule<next>(iterator).fetch() == 5);
  // Also where nobody waits for the value, and where the function throws.
  coordinator.schedule<add_next>(iterator);
  coordinator.join();
  coordinator.schedule<takes_and_fails>(iterator);
  CHECK(code_of([&] { coordinator.join(); }) == ErrorCode::kOutOfRange);
  CHECK(coordinator.schedule<next_counted>(without_place).fetch() == 0);
  workers->lose(0);
  CHECK(iterator.states()[0].kind == PerWorkerState::Kind::kAborted);
  CHECK_THROWS_AS(iterator.wait(soon()), ClosureAbortedError);
  // New ones may be asked for meanwhile.
  const auto second = data.iterator();
  const auto numbers = coordinator.create_per_worker_resource<own_number>();
  workers->replace(0);
  CHECK(coordinator.schedule<next>(iterator).fetch() == 8);
  CHECK(coordinator.schedule<next>(second).fetch() == 5);
  workers->replace(0);
  CHECK(coordinator.schedule<next>(iterator).fetch() == 9);
  CHECK(coordinator.schedule<next_or_none>(iterator).fetch() == std::nullopt);
  CHECK(coordinator.schedule<next>(second).fetch() == 6);
  // Whose iterator does not know where it stands begins anew.
  CHECK(coordinator.schedule<next_counted>(without_place).fetch() == 0);
  CHECK(numbers.fetch() == std::vector<int>{100});
  coordinator.join();
}

TEST_CASE("what a per-worker value is made of is there for it, though nobody else holds it",
          "[strategy][unit][CCO-21][CCF-06]") {
  const auto workers = std::make_shared<ThreadWorkers>(1);
  ClusterCoordinator coordinator(workers);
  const auto sum = coordinator.create_per_worker_resource<sum_of_all>(
      coordinator.create_per_worker_dataset<range>(0, 5));
  CHECK(sum.fetch(soon()) == std::vector<std::int64_t>{10});
  coordinator.join();

  workers->replace(0);

  CHECK(sum.fetch(soon()) == std::vector<std::int64_t>{10});
  CHECK(sum.states()[0].kind == PerWorkerState::Kind::kReady);
}

TEST_CASE("a per-worker value is of one coordinator", "[strategy][unit]") {
  std::optional<PerWorkerIterator<torch::Tensor>> orphan;
  {
    ClusterCoordinator gone(std::make_shared<ThreadWorkers>(1));
    orphan = gone.create_per_worker_dataset<range>(0, 5).iterator();
  }
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  ClusterCoordinator other(std::make_shared<ThreadWorkers>(1));
  CHECK(code_of([&] { coordinator.schedule<next>(*orphan); }) == ErrorCode::kCancelled);
  const auto theirs = other.create_per_worker_dataset<range>(0, 5).iterator();
  CHECK(throws(ErrorCode::kInvalidArgument, "another coordinator",
               [&] { coordinator.schedule<next>(theirs); }));
  CHECK(code_of([&] { coordinator.schedule<next>(PerWorkerIterator<torch::Tensor>()); }) ==
        ErrorCode::kFailedPrecondition);
  coordinator.join();
  CHECK(coordinator.counts().queued == 0);
}

TEST_CASE("a pass whose place cannot be remembered fails its closure, not the executor",
          "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const auto data = coordinator.create_per_worker_dataset<far_away>();
  const auto pass = data.iterator();

  coordinator.schedule<next_counted>(pass);
  CHECK(throws(ErrorCode::kResourceExhausted, "", [&] { coordinator.join(); }));
  coordinator.schedule<fails_far_away>(pass);
  CHECK(throws(ErrorCode::kOutOfRange, "on purpose", [&] { coordinator.join(); }));
  CHECK(coordinator.schedule<own_number>().fetch() == 100);
}

TEST_CASE("a per-worker value that is too long to travel is of use where it is",
          "[strategy][unit][memory]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));
  const auto table = coordinator.create_per_worker_resource<large_table>();

  table.wait();

  CHECK(coordinator.schedule<sum_of_table>(table).fetch() == 33 << 20);
  CHECK(throws(ErrorCode::kResourceExhausted, "more than 134217728 bytes", [&] { table.fetch(); }));
  CHECK(table.states().front().kind == PerWorkerState::Kind::kReady);
}

TEST_CASE("a queue of two takes what is of each worker and remote values and rounds that fail",
          "[strategy][unit][CCO-22]") {
  dispatch::Driver::Options options = dispatch::DriverOptions(dispatch::ProgramFunctions());
  options.dispatch.capacity = 2;
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(5, 1, std::move(options)),
                                 {.timeout = 60s});
  const auto data = coordinator.create_per_worker_dataset<range>(0, 1'000'000);
  const auto numbers = coordinator.create_per_worker_resource<own_number>();
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    const auto iterator = data.iterator();
    std::vector<RemoteValue<std::int64_t>> taken;
    std::vector<RemoteValue<std::int64_t>> passed_on;
    std::vector<RemoteValue<std::pair<int, int>>> seen;
    for (int i = 0; i < 50; ++i) {
      taken.push_back(coordinator.schedule<next>(iterator));
      seen.push_back(coordinator.schedule<number_and_index>(numbers));
      passed_on.push_back(coordinator.schedule<same>(taken.back()));
    }
    coordinator.join();
    std::map<std::int64_t, int> times;
    for (const std::int64_t value : coordinator.fetch(taken)) ++times[value];
    // Each worker's begins at its first element and leaves none out.
    for (const auto& [value, workers] : times) {
      CHECK(workers <= (value == 0 ? 5 : times[value - 1]));
    }
    for (const auto& [number, index] : coordinator.fetch(seen)) CHECK(number == 100 + index);
    CHECK(coordinator.fetch(passed_on) == coordinator.fetch(taken));

    // Whoever waits for room hears of it.
    const auto failing = data.iterator();
    coordinator.schedule<takes_and_fails>(failing);
    ErrorCode code = ErrorCode::kOk;
    for (const TimePoint end = soon();
         code == ErrorCode::kOk && std::chrono::steady_clock::now() < end;) {
      code = code_of([&] { coordinator.schedule<add_next>(failing); });
    }
    CHECK(code == ErrorCode::kOutOfRange);
    coordinator.join();
  }
}

}  // namespace
}  // namespace per_worker_test
