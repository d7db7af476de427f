// What becomes of per-worker data when executors end: each worker's own pass, and the one pass of
// all workers under exactly_once.
#include <algorithm>
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include <unistd.h>

#include "strategy/muster.h"
#include "tests/unit/strategy/cluster/workers.h"

namespace input_test {

using muster::Dataset;
using muster::WorkerIterator;

Dataset<torch::Tensor> numbers(std::int64_t n) { return muster::dataset::range(n); }
// Read ahead, computed by two, in another order in each process.
Dataset<torch::Tensor> shuffled(std::int64_t n) {
  return muster::dataset::range(n)
      .shuffle(50)
      .map([](const torch::Tensor& x) { return x + 1000; }, 2)
      .batch(2)
      .prefetch(2);
}
Dataset<torch::Tensor> even(std::int64_t n) {
  return muster::dataset::range(n).filter(
      [](const torch::Tensor& x) { return x.item<std::int64_t>() % 2 == 0; });
}
Dataset<torch::Tensor> own_part(std::int64_t n) {
  return muster::dataset::range(n).shard(2, muster::worker_index());
}
Dataset<torch::Tensor> third_part(std::int64_t n) { return muster::dataset::range(n).shard(3, 1); }
Dataset<torch::Tensor> no_file(std::int64_t) {
  muster::raise(muster::ErrorCode::kNotFound, "no such file");
}
// The running test's; closures run on threads of its process. The next element 1 waits until its
// closure is cancelled.
std::atomic<bool> waits{false};
std::atomic<bool> waiting{false};
Dataset<torch::Tensor> cancellable(std::int64_t n) {
  return muster::dataset::range(n).map([](const torch::Tensor& x) {
    if (x.item<std::int64_t>() == 1 && waits.exchange(false)) {
      waiting = true;
      (void)muster::dataset::wait_for(muster::cancellation(), std::chrono::hours(1));
      muster::throw_if_cancelled();
    }
    return x;
  });
}
void fails_when_it_waits() {
  while (!waiting && !muster::cancellation().stop_requested()) std::this_thread::yield();
  muster::raise(muster::ErrorCode::kOutOfRange, "on purpose");
}
std::int64_t next(WorkerIterator<torch::Tensor>& data) {
  return data.get_next().item<std::int64_t>();
}
// Long enough to be killed in.
std::int64_t slow_next(WorkerIterator<torch::Tensor>& data) {
  const auto value = data.get_next().item<std::int64_t>();
  ::usleep(500);
  return value;
}
std::vector<std::int64_t> slow_batch(WorkerIterator<torch::Tensor>& data) {
  const torch::Tensor batch = data.get_next();
  ::usleep(500);
  return {batch.data_ptr<std::int64_t>(), batch.data_ptr<std::int64_t>() + batch.numel()};
}
std::vector<std::int64_t> take(WorkerIterator<torch::Tensor>& data, int count) {
  std::vector<std::int64_t> all;
  for (int i = 0; i < count; ++i) all.push_back(next(data));
  return all;
}
std::vector<std::int64_t> rest(WorkerIterator<torch::Tensor>& data) {
  std::vector<std::int64_t> all;
  while (const auto value = data.next()) all.push_back(value->item<std::int64_t>());
  return all;
}
std::int64_t next_of_both(WorkerIterator<torch::Tensor>& a, WorkerIterator<torch::Tensor>& b) {
  const std::int64_t first = next(a);
  return first + next(b);
}
void fails() { muster::raise(muster::ErrorCode::kOutOfRange, "on purpose"); }
std::int64_t built(WorkerIterator<torch::Tensor>& data) { return next(data); }

}  // namespace input_test

MUSTER_FUNCTION(input_test::numbers);
MUSTER_FUNCTION(input_test::shuffled);
MUSTER_FUNCTION(input_test::even);
MUSTER_FUNCTION(input_test::own_part);
MUSTER_FUNCTION(input_test::third_part);
MUSTER_FUNCTION(input_test::no_file);
MUSTER_FUNCTION(input_test::cancellable);
MUSTER_FUNCTION(input_test::fails_when_it_waits);
MUSTER_FUNCTION(input_test::next);
MUSTER_FUNCTION(input_test::slow_next);
MUSTER_FUNCTION(input_test::slow_batch);
MUSTER_FUNCTION(input_test::take);
MUSTER_FUNCTION(input_test::rest);
MUSTER_FUNCTION(input_test::next_of_both);
MUSTER_FUNCTION(input_test::fails);
MUSTER_FUNCTION(input_test::built);

namespace input_test {
namespace {

using namespace muster;
using testing::code_of;
using testing::ProcessWorkers;
using testing::soon;
using testing::ThreadWorkers;
using testing::throws;

constexpr IteratorOptions kOnce{.input = InputGuarantee::kExactlyOnce};

// Kills workers at random moments and starts them again until all closures have ended.
void kill_until_done(ProcessWorkers& workers, ClusterCoordinator& coordinator, int count) {
  std::mt19937 random(20261122);
  for (int kills = 0; !coordinator.done(); ++kills) {
    const std::uint64_t goal = coordinator.counts().succeeded + random() % 30;
    testing::eventually("closures run", [&] {
      return coordinator.done() || coordinator.counts().succeeded >= goal;
    });
    const int victim = static_cast<int>(random()) % count;
    workers.kill(std::abs(victim));
    workers.tell_killed(std::abs(victim));
    workers.start(std::abs(victim));
    if (kills == 12) coordinator.join(soon());
  }
}

std::vector<std::int64_t> first_numbers(std::int64_t n) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST_CASE("a worker whose executor is killed goes on in its data where results had come to",
          "[strategy][unit]") {
  const auto workers = std::make_shared<ProcessWorkers>(1);
  ClusterCoordinator coordinator(workers);
  const auto data = coordinator.create_per_worker_dataset<numbers>(1'000'000).iterator();
  std::vector<RemoteValue<std::int64_t>> values;
  for (int i = 0; i < 400; ++i) values.push_back(coordinator.schedule<slow_next>(data));
  kill_until_done(*workers, coordinator, 1);

  std::vector<std::int64_t> used = coordinator.fetch(values);
  std::ranges::sort(used);
  CHECK(used == first_numbers(400));
}

TEST_CASE("under exactly_once each sample is used once, whichever executors are killed",
          "[strategy][unit]") {
  const auto workers = std::make_shared<ProcessWorkers>(3);
  ClusterCoordinator coordinator(workers, {.input = InputGuarantee::kExactlyOnce});
  const auto data = coordinator.create_per_worker_dataset<shuffled>(800).iterator();
  std::vector<RemoteValue<std::vector<std::int64_t>>> values;
  for (int i = 0; i < 400; ++i) values.push_back(coordinator.schedule<slow_batch>(data));
  kill_until_done(*workers, coordinator, 3);

  std::vector<std::int64_t> used;
  for (const auto& batch : coordinator.fetch(values)) {
    for (const std::int64_t value : batch) used.push_back(value - 1000);
  }
  CHECK_FALSE(std::ranges::is_sorted(used));
  std::ranges::sort(used);
  CHECK(used == first_numbers(800));
}

TEST_CASE("what a cancelled closure would have used under exactly_once, the next ones use",
          "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2),
                                 {.end_of_data_is_a_result = true});
  const auto data = coordinator.create_per_worker_dataset<numbers>(100).iterator(kOnce);
  std::vector<std::int64_t> used;
  int ends = 0;
  for (int round = 0; ends < 3; ++round) {
    std::vector<RemoteValue<std::int64_t>> values;
    try {
      for (int i = 0; i < 20; ++i) {
        values.push_back(coordinator.schedule<next>(data));
        if (i == 5 && round < 4) coordinator.schedule<fails>();
      }
      coordinator.join();
    } catch (const ClosureError& error) {
      CHECK(error.code() == ErrorCode::kOutOfRange);
    }
    for (const auto& value : values) {
      try {
        used.push_back(value.fetch());
      } catch (const EndOfData&) {
        ++ends;
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kCancelled);
      }
    }
  }
  std::ranges::sort(used);
  CHECK(used == first_numbers(100));
}

TEST_CASE("the element in which a closure is cancelled is the next one's", "[strategy][unit]") {
  const auto input = GENERATE(InputGuarantee::kPerWorker, InputGuarantee::kExactlyOnce);
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1, 2));
  const auto data =
      coordinator.create_per_worker_dataset<cancellable>(4).iterator({.input = input});
  CHECK(coordinator.schedule<next>(data).fetch() == 0);
  waiting = false;
  waits = true;
  const auto cancelled = coordinator.schedule<next>(data);
  coordinator.schedule<fails_when_it_waits>();
  CHECK(code_of([&] { coordinator.join(soon()); }) == ErrorCode::kOutOfRange);
  CHECK(code_of([&] { (void)cancelled.fetch(); }) == ErrorCode::kCancelled);

  for (std::int64_t i = 1; i < 4; ++i) CHECK(coordinator.schedule<next>(data).fetch() == i);
  coordinator.join(soon());
}

TEST_CASE("a closure may have several elements under exactly_once, and uses all of them",
          "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2, 2));
  const auto data = coordinator.create_per_worker_dataset<numbers>(8);
  const IteratorOptions threes{.input = InputGuarantee::kExactlyOnce, .elements_per_closure = 3};
  const auto iterator = data.iterator(threes);
  const auto first = coordinator.schedule<take>(iterator, 3);
  const auto second = coordinator.schedule<rest>(iterator);
  const auto last = coordinator.schedule<rest>(iterator);
  const auto behind = coordinator.schedule<rest>(iterator);
  coordinator.join();
  CHECK(first.fetch() == std::vector<std::int64_t>{0, 1, 2});
  CHECK(second.fetch() == std::vector<std::int64_t>{3, 4, 5});
  CHECK(last.fetch() == std::vector<std::int64_t>{6, 7});
  CHECK(behind.fetch().empty());

  const auto other = data.iterator(threes);
  const auto too_few = coordinator.schedule<take>(other, 2);
  CHECK(throws(ErrorCode::kFailedPrecondition, "it took 2 of the 3 elements",
               [&] { coordinator.join(); }));
  const auto too_many = coordinator.schedule<take>(other, 4);
  CHECK(throws(ErrorCode::kFailedPrecondition, "which are taken", [&] { coordinator.join(); }));
}

TEST_CASE("a closure of two passes under exactly_once ends with the data of the first",
          "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2),
                                 {.end_of_data_is_a_result = true});
  const auto data = coordinator.create_per_worker_dataset<numbers>(2);
  const auto first = data.iterator(kOnce);
  const auto second = data.iterator(kOnce);
  std::vector<RemoteValue<std::int64_t>> values;
  for (int i = 0; i < 3; ++i) values.push_back(coordinator.schedule<next_of_both>(first, second));
  coordinator.join();
  CHECK(values[0].fetch() == 0);
  CHECK(values[1].fetch() == 2);
  // It was told before it has asked for the second one's.
  CHECK_THROWS_AS(values[2].fetch(), EndOfData);
}

TEST_CASE("closures whose elements would have numbers beyond all data have none",
          "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  const IteratorOptions quarters{.input = InputGuarantee::kExactlyOnce,
                                 .elements_per_closure = std::int64_t{1} << 62};
  const auto parts = [&](const auto& dataset) {
    const auto iterator = dataset.iterator(quarters);
    std::vector<RemoteValue<std::vector<std::int64_t>>> values;
    for (int i = 0; i < 5; ++i) values.push_back(coordinator.schedule<rest>(iterator));
    coordinator.join();
    return coordinator.fetch(values);
  };
  using Parts = std::vector<std::vector<std::int64_t>>;

  CHECK(parts(coordinator.create_per_worker_dataset<numbers>(4)) ==
        Parts{{0, 1, 2, 3}, {}, {}, {}, {}});
  CHECK(parts(coordinator.create_per_worker_dataset<third_part>(9)) ==
        Parts{{1, 4, 7}, {}, {}, {}, {}});
}

TEST_CASE("exactly_once refuses data whose elements have no numbers, with the reason",
          "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  CHECK(throws(ErrorCode::kInvalidArgument, "elements of filter have no numbers",
               [&] { (void)coordinator.create_per_worker_dataset<even>(10).iterator(kOnce); }));
  CHECK(code_of([&] {
          (void)coordinator.create_per_worker_dataset<no_file>(10).iterator(kOnce);
        }) == ErrorCode::kNotFound);
  const auto data = coordinator.create_per_worker_dataset<numbers>(10);
  CHECK(throws(ErrorCode::kInvalidArgument, "elements_per_closure 0", [&] {
    (void)data.iterator({.input = InputGuarantee::kExactlyOnce, .elements_per_closure = 0});
  }));
  const auto iterator = data.iterator(kOnce);
  CHECK(throws(ErrorCode::kInvalidArgument, "is for closures",
               [&] { (void)coordinator.create_per_worker_resource<built>(iterator); }));

  // The workers' data must be the same.
  const auto parts = coordinator.create_per_worker_dataset<own_part>(10).iterator(kOnce);
  for (int i = 0; i < 4; ++i) coordinator.schedule<next>(parts);
  CHECK(throws(ErrorCode::kFailedPrecondition, "another pipeline",
               [&] { coordinator.join(soon()); }));
  // All is as before.
  CHECK(coordinator.schedule<next>(iterator).fetch() == 0);
  coordinator.join();
}

}  // namespace
}  // namespace input_test
