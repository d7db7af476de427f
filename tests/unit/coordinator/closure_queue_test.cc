#include "coordinator/closure_queue.h"

#include "coordinator/interval_set.h"
#include "tests/support/catch.h"

namespace muster::coordinator {
namespace {

constexpr ClosureKey Train(std::uint64_t id) { return {v1::CLOSURE_KIND_TRAIN, id}; }

TEST_CASE("What is put back is taken again, and done only when finished",
          "[coordinator][unit][spec][CCQ-01]") {
  ClosureQueue queue;
  CHECK(queue.idle());
  REQUIRE(queue.Put(Train(1)) == ClosureQueue::PutResult::kQueued);

  REQUIRE(queue.Get() == Train(1));
  REQUIRE(queue.PutBack(Train(1)).ok());
  REQUIRE(queue.Get() == Train(1));
  CHECK_FALSE(queue.idle());
  REQUIRE(queue.MarkFinished(Train(1)).ok());
  CHECK(queue.idle());
}

TEST_CASE("Closures come out in order, one put back goes to the end",
          "[coordinator][unit][spec][CCQ-02]") {
  ClosureQueue queue;
  for (std::uint64_t id = 1; id <= 3; ++id) (void)queue.Put(Train(id));

  REQUIRE(queue.Get() == Train(1));
  REQUIRE(queue.PutBack(Train(1)).ok());
  CHECK(queue.Get() == Train(2));
  CHECK(queue.Get() == Train(3));
  CHECK(queue.Get() == Train(1));
  CHECK_FALSE(queue.Get());
}

TEST_CASE("Settling what is not in flight is refused", "[coordinator][unit][spec][CCQ-05]") {
  ClosureQueue queue;
  (void)queue.Put(Train(1));

  CHECK(queue.MarkFinished(Train(1)).code() == StatusCode::kInternal);
  CHECK(queue.PutBack(Train(2)).code() == StatusCode::kInternal);
  CHECK(queue.MarkFailed(Train(3), Internal("x")).code() == StatusCode::kInternal);
}

TEST_CASE("A full queue takes nothing more until something is taken", "[coordinator][unit]") {
  ClosureQueue queue(2);
  (void)queue.Put(Train(1));
  (void)queue.Put(Train(2));

  CHECK(queue.Put(Train(3)) == ClosureQueue::PutResult::kFull);
  (void)queue.Get();
  CHECK(queue.Put(Train(3)) == ClosureQueue::PutResult::kQueued);
}

TEST_CASE("A closure that is queued, running or done is not queued again", "[coordinator][unit]") {
  ClosureQueue queue;
  (void)queue.Put(Train(1));
  CHECK(queue.Put(Train(1)) == ClosureQueue::PutResult::kKnown);
  (void)queue.Get();
  CHECK(queue.Put(Train(1)) == ClosureQueue::PutResult::kKnown);
  (void)queue.MarkFinished(Train(1));
  CHECK(queue.Put(Train(1)) == ClosureQueue::PutResult::kKnown);

  queue.Forget(v1::CLOSURE_KIND_TRAIN);
  CHECK(queue.Put(Train(1)) == ClosureQueue::PutResult::kQueued);
}

TEST_CASE("Of many errors the first is raised, once, when nothing is in flight",
          "[coordinator][unit][spec][CCE-03]") {
  ClosureQueue queue;
  for (std::uint64_t id = 1; id <= 4; ++id) (void)queue.Put(Train(id));
  (void)queue.Get();
  (void)queue.Get();

  (void)queue.MarkFailed(Train(1), InvalidArgument("first"));
  CHECK_FALSE(queue.Raise());
  CHECK_FALSE(queue.Get());
  CHECK(queue.Put(Train(9)) == ClosureQueue::PutResult::kFailed);
  (void)queue.MarkFailed(Train(2), InvalidArgument("second"));
  const auto error = queue.Raise();
  REQUIRE(error);
  CHECK(Message(*error) == "first");
  CHECK_FALSE(queue.Raise());
  CHECK(queue.idle());
  // What was cancelled may be scheduled again.
  CHECK(queue.Put(Train(3)) == ClosureQueue::PutResult::kQueued);
}

TEST_CASE("With an error pending, what is put back is cancelled", "[coordinator][unit]") {
  ClosureQueue queue;
  (void)queue.Put(Train(1));
  (void)queue.Put(Train(2));
  (void)queue.Get();
  (void)queue.Get();

  (void)queue.MarkFailed(Train(1), Internal("x"));
  REQUIRE(queue.PutBack(Train(2)).ok());
  REQUIRE(queue.Raise());
  CHECK(queue.queued() == 0);
}

TEST_CASE("A set of numbers costs memory by run", "[coordinator][unit]") {
  IntervalSet set;
  for (std::uint64_t id = 1; id <= 1'000; id += 2) CHECK(set.Insert(id));
  CHECK(set.runs() == 500);
  for (std::uint64_t id = 2; id <= 1'000; id += 2) CHECK(set.Insert(id));
  CHECK(set.runs() == 1);
  CHECK_FALSE(set.Insert(500));

  set.Erase(500);
  CHECK_FALSE(set.Contains(500));
  CHECK(set.Contains(499));
  CHECK(set.Contains(501));
  CHECK(set.runs() == 2);
}

}  // namespace
}  // namespace muster::coordinator
