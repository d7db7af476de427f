// Replicas of a function that runs on a worker know what the function knows of where it runs.
#include <atomic>
#include <vector>

#include "strategy/muster.h"
#include "tests/unit/strategy/cluster/workers.h"

namespace replicas_of_closures {

using muster::Dataset;
using muster::WorkerIterator;

std::atomic<int> begun{0};

muster::MirroredStrategy two() { return muster::MirroredStrategy({"CPU:0", "CPU:1"}); }

std::vector<int> worker_of_each() {
  muster::MirroredStrategy strategy = two();
  return strategy.run([] { return muster::in_closure() ? muster::worker_index() : -1; }).values();
}
void wait_in_replicas() {
  muster::MirroredStrategy strategy = two();
  strategy.run([] {
    std::atomic<bool> told{false};
    const std::stop_callback callback(muster::cancellation(), [&] {
      told = true;
      told.notify_all();
    });
    ++begun;
    told.wait(false);
    muster::throw_if_cancelled();
  });
}
void schedule_in_replicas() {
  muster::MirroredStrategy strategy = two();
  strategy.run([] { muster::ClusterCoordinator coordinator(muster::local_cluster(1)); });
}
Dataset<torch::Tensor> range(std::int64_t n) { return muster::dataset::range(n); }
void take_all_in_replicas(WorkerIterator<torch::Tensor>& data) {
  muster::MirroredStrategy strategy = two();
  strategy.run([&] {
    for (;;) (void)data.get_next();
  });
}
// Does nothing else: only next() can end it.
void take_on_in_replicas(WorkerIterator<torch::Tensor>& data) {
  muster::MirroredStrategy strategy = two();
  strategy.run([&] {
    const auto end = muster::testing::soon();
    while (data.next() && std::chrono::steady_clock::now() < end) begun = 2;
    muster::raise(muster::ErrorCode::kInternal, "it has taken elements for a minute");
  });
}
void fails() { muster::raise(muster::ErrorCode::kOutOfRange, "on purpose"); }

}  // namespace replicas_of_closures

MUSTER_FUNCTION(replicas_of_closures::worker_of_each);
MUSTER_FUNCTION(replicas_of_closures::wait_in_replicas);
MUSTER_FUNCTION(replicas_of_closures::schedule_in_replicas);
MUSTER_FUNCTION(replicas_of_closures::range);
MUSTER_FUNCTION(replicas_of_closures::take_all_in_replicas);
MUSTER_FUNCTION(replicas_of_closures::take_on_in_replicas);
MUSTER_FUNCTION(replicas_of_closures::fails);

namespace replicas_of_closures {
namespace {

using namespace muster;
using testing::code_of;
using testing::eventually;
using testing::ThreadWorkers;
using testing::throws;

TEST_CASE("each replica of a function knows the number of its worker", "[strategy][unit][CCO-20]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  const auto everywhere = coordinator.create_per_worker_resource<worker_of_each>();

  CHECK(everywhere.fetch() == std::vector<std::vector<int>>{{0, 0}, {1, 1}});

  // And nobody else does, on whatever thread: those of replicas are used again.
  MirroredStrategy here = two();
  CHECK(here.run([] { return in_closure(); }).values() == std::vector<bool>{false, false});
}

TEST_CASE("replicas that wait are told when another closure has failed",
          "[strategy][unit][CCE-04]") {
  begun = 0;
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  const auto waiting = coordinator.schedule<wait_in_replicas>();
  eventually("both replicas wait", [] { return begun == 2; });

  coordinator.schedule<fails>();

  CHECK(throws(ErrorCode::kOutOfRange, "on purpose", [&] { coordinator.join(); }));
  CHECK(code_of([&] { waiting.fetch(); }) == ErrorCode::kCancelled);
}

TEST_CASE("replicas that take elements on end when another closure has failed",
          "[strategy][unit][CCE-04]") {
  begun = 0;
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(2));
  const auto data = coordinator.create_per_worker_dataset<range>(std::int64_t{1} << 40).iterator();
  const auto taking = coordinator.schedule<take_on_in_replicas>(data);
  eventually("they take some", [] { return begun == 2; });

  coordinator.schedule<fails>();

  CHECK(throws(ErrorCode::kOutOfRange, "on purpose", [&] { coordinator.join(); }));
  CHECK(code_of([&] { taking.fetch(); }) == ErrorCode::kCancelled);
}

TEST_CASE("replicas that take more than there is say that the worker's data has ended",
          "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1),
                                 {.end_of_data_is_a_result = true});
  const auto data = coordinator.create_per_worker_dataset<range>(5).iterator();
  const auto end = coordinator.schedule<take_all_in_replicas>(data);

  CHECK_THROWS_AS(end.fetch(), EndOfData);

  coordinator.join();
}

TEST_CASE("there is no coordinator in a replica of a function", "[strategy][unit]") {
  ClusterCoordinator coordinator(std::make_shared<ThreadWorkers>(1));

  coordinator.schedule<schedule_in_replicas>();

  CHECK(throws(ErrorCode::kFailedPrecondition, "inside a closure", [&] { coordinator.join(); }));
}

}  // namespace
}  // namespace replicas_of_closures
