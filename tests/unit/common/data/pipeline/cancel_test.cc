#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/no_threads.h"
#include "tests/unit/common/data/pipeline/pipelines.h"

namespace muster::data::testing {
namespace {

using namespace std::chrono_literals;

using SteadyClock = std::chrono::steady_clock;

// Counts, and lets a test wait for a count.
class Counter {
 public:
  void Add() {
    {
      const std::lock_guard lock(mutex_);
      ++count_;
    }
    changed_.notify_all();
  }
  bool Reaches(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 30s, [&] { return count_ >= count; });
  }
  int count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

MapFunction Counting(Counter& counter) {
  return [&counter](const Element& element, const std::stop_token&) -> Result<Element> {
    counter.Add();
    return element;
  };
}
// Waits until it is stopped.
MapFunction Blocking(Counter& begun, Counter& ended) {
  return [&](const Element& element, const std::stop_token& stop) -> Result<Element> {
    begun.Add();
    const bool slept = WaitFor(stop, 1h);
    ended.Add();
    if (!slept) return Cancelled("stopped");
    return element;
  };
}

TEST_CASE("a prefetch works ahead while the consumer computes", "[pipeline][unit]") {
  Counter mapped;
  auto iterator = Open(Pipeline::Range(1000).Map(Counting(mapped), Parallel(4)).Prefetch(6));

  (void)iterator->Next();  // and now the consumer is busy

  // 6 prefetched, and the map's own window of 2 a thread, without another call of Next().
  CHECK(mapped.Reaches(1 + 6 + 8));
  CHECK(mapped.count() <= 1 + 6 + 1 + 8);
}

TEST_CASE("a prefetch reads at most its count ahead", "[pipeline][unit]") {
  Counter read;
  auto iterator = Open(Pipeline::Range(1000).Map(Counting(read)).Prefetch(3));

  for (int taken = 1; taken <= 20; ++taken) {
    (void)iterator->Next();
    CHECK(read.count() <= taken + 3);
  }
  CHECK(read.Reaches(23));
}

TEST_CASE("a parallel map runs as many calls at a time as it was told", "[pipeline][unit]") {
  std::mutex mutex;
  std::condition_variable changed;
  int inside = 0;
  const MapFunction meets_three = [&](const Element& element,
                                      const std::stop_token&) -> Result<Element> {
    std::unique_lock lock(mutex);
    ++inside;
    changed.notify_all();
    if (!changed.wait_for(lock, 30s, [&] { return inside >= 3; })) return Internal("alone");
    return element;
  };

  CHECK(testing::AllNumbers(Pipeline::Range(3).Map(meets_three, Parallel(3))) == Numbers{0, 1, 2});
}

TEST_CASE("destroying an iterator ends its threads, also those of a map that waits",
          "[pipeline][unit]") {
  for (const bool asked : {false, true}) {
    Counter begun, ended;
    auto iterator =
        Open(Pipeline::Range(100).Map(Blocking(begun, ended), Parallel(3)).Shuffle(5).Prefetch(2));
    // From another thread, or by a call that gives up.
    if (asked) {
      CHECK(iterator->Next(SteadyClock::now() + 1ms).status().code() ==
            StatusCode::kDeadlineExceeded);
    } else {
      std::thread consumer([&] { (void)iterator->Next(); });
      REQUIRE(begun.Reaches(1));
      iterator->Cancel();
      consumer.join();
    }
    REQUIRE(begun.Reaches(1));

    const auto start = SteadyClock::now();
    iterator.reset();

    CHECK(SteadyClock::now() - start < 1s);
    CHECK(begun.count() == ended.count());
  }
}

TEST_CASE("a pipeline that is dropped while another runs on ends its threads too",
          "[pipeline][unit]") {
  Counter begun, ended;
  const ExpandFunction blocking = [&](const Element& element) -> Result<Pipeline> {
    const std::int64_t n = Number(element);
    return Pipeline::Range(n, n + 2).Map(
        [&, n](const Element& one, const std::stop_token& stop) -> Result<Element> {
          if (Number(one) == n) return one;
          begun.Add();
          (void)WaitFor(stop, 1h);
          ended.Add();
          return Cancelled("stopped");
        },
        Parallel(2));
  };
  auto iterator = Open(Pipeline::Range(3)
                           .FlatMap([&](const Element& element) -> Result<Pipeline> {
                             return Pipeline::Range(1).Map(Times(1)).FlatMap(
                                 [&, element](const Element&) { return blocking(element); });
                           })
                           .Take(1)
                           .Repeat(3)
                           .Prefetch(1));

  // take(1) leaves each inner map behind while its second element waits.
  for (int i = 0; i < 3; ++i) CHECK(testing::NextOf(*iterator) == Numbers{0});
  CHECK_FALSE(testing::NextOf(*iterator).has_value());

  CHECK(begun.count() == ended.count());
}

TEST_CASE("an element that comes after the deadline is not lost", "[pipeline][unit]") {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  auto iterator = Open(Pipeline::Range(3).Map(
      [&](const Element& element, const std::stop_token&) -> Result<Element> {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return open; });
        return element;
      }));

  for (int i = 0; i < 3; ++i) {
    const Status late = iterator->Next(SteadyClock::now() + 1ms).status();
    CHECK(late.code() == StatusCode::kDeadlineExceeded);
    CHECK(testing::Mentions(late, "element 0"));
  }
  {
    const std::lock_guard lock(mutex);
    open = true;
  }
  changed.notify_all();

  const Item first = iterator->Next(SteadyClock::now() + 30s);
  REQUIRE((first.ok() && first->has_value()));
  CHECK(Number(**first) == 0);
  CHECK(testing::Flat(testing::Rest(*iterator)) == Numbers{1, 2});
  CHECK(iterator->taken() == 3);
}

TEST_CASE("Cancel ends a wait in Next, for good", "[pipeline][unit]") {
  Counter begun, ended;
  auto iterator = Open(Pipeline::Range(9).Map(Blocking(begun, ended)).Prefetch(1));
  Status result;
  std::thread consumer([&] { result = iterator->Next().status(); });
  REQUIRE(begun.Reaches(1));

  iterator->Cancel();
  consumer.join();

  CHECK(result.code() == StatusCode::kCancelled);
  CHECK(iterator->Next().status().code() == StatusCode::kCancelled);
}

TEST_CASE("a filter that lets nothing through can be stopped", "[pipeline][unit]") {
  Counter seen;
  auto iterator = Open(Pipeline::Range(1'000'000'000'000)
                           .Map(Counting(seen))
                           .Filter([](const Element&) -> Result<bool> { return false; }));
  CHECK(iterator->Next(SteadyClock::now() + 1ms).status().code() == StatusCode::kDeadlineExceeded);
  REQUIRE(seen.Reaches(10));

  const auto start = SteadyClock::now();
  iterator.reset();

  CHECK(SteadyClock::now() - start < 1s);
}

TEST_CASE("each thread of a pipeline is made known", "[pipeline][unit]") {
  std::atomic<int> threads = 0;
  Iterator::Options options;
  options.on_thread_start = [&] { ++threads; };

  (void)testing::AllNumbers(Pipeline::Range(50).Map(Times(2), Parallel(3)).Prefetch(2), options);

  CHECK(threads == 4);
}

TEST_CASE("a host that starts no more threads is an error of the step that needs one",
          "[pipeline][unit]") {
  Pipeline::InterleaveOptions ahead;
  ahead.parallel = true;
  for (const Pipeline& pipeline :
       {Range(9).Prefetch(1), Range(9).Map(Times(2), Parallel(2)),
        Range(9).Interleave(testing::TenOf(), ahead), Range(9).Prefetch(1).Batch(2)}) {
    auto iterator = Open(pipeline);
    Status none;
    {
      const muster::testing::NoThreads full;
      none = iterator->Next().status();
    }
    CHECK(none.code() == StatusCode::kResourceExhausted);
    CHECK(testing::Mentions(none, "a thread that reads a dataset: "));
    CHECK(iterator->Next().status().code() == none.code());
    CHECK(Open(pipeline)->Next().ok());
  }

  auto iterator = Open(Range(9));
  Status none;
  {
    const muster::testing::NoThreads full;
    none = iterator->Next(SteadyClock::now() + 30s).status();
  }
  CHECK(none.code() == StatusCode::kResourceExhausted);
}

TEST_CASE("a wait for ever lasts until it is stopped", "[pipeline][unit]") {
  Counter begun;
  std::stop_source source;
  bool slept = true;
  std::thread waiter([&] {
    begun.Add();
    slept = WaitFor(source.get_token(), std::chrono::nanoseconds::max());
  });
  REQUIRE(begun.Reaches(1));

  source.request_stop();
  waiter.join();

  CHECK_FALSE(slept);
}

// Not a test of this run: what docs/input.md tells. pipeline_test '[.benchmark]'
TEST_CASE("steps of 5 ms over a map that waits 8 ms", "[.benchmark]") {
  constexpr int kSteps = 200;
  const auto step = [] { (void)WaitFor({}, 5ms); };
  const MapFunction slow = [](const Element& element,
                              const std::stop_token& stop) -> Result<Element> {
    (void)WaitFor(stop, 8ms);
    return element;
  };
  const auto timed = [&](const std::function<void()>& before) {
    const auto start = SteadyClock::now();
    for (int i = 0; i < kSteps; ++i) {
      before();
      step();
    }
    return std::chrono::duration<double>(SteadyClock::now() - start).count();
  };
  std::vector<double> ratios;
  for (int run = 0; run < 5; ++run) {
    const double alone = timed([] {});
    auto iterator = Open(Pipeline::Range(10'000).Map(slow, Parallel(4)).Prefetch(2));
    std::int64_t expected = 0;
    const double with_input = timed([&] { REQUIRE(Number(**iterator->Next()) == expected++); });
    ratios.push_back(with_input / alone);
    WARN("steps alone " << alone << " s, with input " << with_input << " s");
  }
  std::sort(ratios.begin(), ratios.end());
  WARN("median ratio " << ratios[2]);
  CHECK(ratios[2] <= 1.1);
}

}  // namespace
}  // namespace muster::data::testing
