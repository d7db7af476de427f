// Closures that end executors: run alone, cleared or given up.
#include <deque>
#include <random>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/seeds.h"
#include "tests/unit/dispatch/core/fixture.h"

namespace muster::dispatch {
namespace {

using namespace std::chrono_literals;
using Cause = Suspects::Cause;
using Ids = std::vector<std::uint64_t>;

struct Cluster : Bench {
  explicit Cluster(int workers, std::uint32_t credit = 2, std::uint32_t closures_at_a_time = 1)
      : Bench({.credit = {.least = credit, .most = credit}}), slots(closures_at_a_time) {
    for (int i = 0; i < workers; ++i) Join(i);
  }
  static std::string Name(int i) { return "worker:" + std::to_string(i); }
  void Join(int i) { handles[i] = dispatcher.AddWorker(Name(i), Incarnation(1), slots); }
  ClosureDispatcher::Crash Crash(int i, Cause cause = Cause::kItself, const Ids& running = {}) {
    const std::vector<ClosureId> ran(running.begin(), running.end());
    return dispatcher.CrashWorker(Name(i), "signal SIGSEGV", cause, ran);
  }
  const std::uint32_t slots;
  std::map<int, WorkerHandle> handles;
};

TEST_CASE("suspects run alone and first, and nothing else begins before they are cleared",
          "[dispatch][unit]") {
  Cluster cluster(2);
  for (int i = 0; i < 8; ++i) cluster.Schedule();
  const std::vector<Sent> before = cluster.Pump();
  REQUIRE(before.size() == 4);  // 1 and 3 on worker 0

  CHECK(NumbersOf(cluster.Crash(0).requeued) == Ids{1, 3});
  CHECK(cluster.Pump().empty());  // worker 1 is not free
  cluster.Done(before[1]);
  cluster.Done(before[3]);
  const std::vector<Sent> first = cluster.Pump();
  REQUIRE(first.size() == 1);
  CHECK(first[0].closure == 1);
  cluster.Join(0);
  CHECK(cluster.Pump().empty());  // 3 is better off where it has not crashed, the rest is held

  cluster.Done(first[0]);
  const std::vector<Sent> second = cluster.Pump();
  REQUIRE(second.size() == 1);
  CHECK(second[0].closure == 3);
  CHECK(second[0].worker == cluster.handles[1]);
  cluster.Done(second[0]);
  CHECK(cluster.PumpIds() == Ids{5, 6, 7, 8});
}

TEST_CASE("only what the executor was running is suspect, when that is known", "[dispatch][unit]") {
  Cluster cluster(1, 4);
  for (int i = 0; i < 4; ++i) cluster.Schedule();
  cluster.Pump();
  CHECK(NumbersOf(cluster.Crash(0, Cause::kItself, {2}).requeued) == Ids{1, 2, 3, 4});
  cluster.Join(0);

  const std::vector<Sent> alone = cluster.Pump();

  REQUIRE(alone.size() == 1);
  CHECK(alone[0].closure == 2);
  cluster.Done(alone[0]);
  CHECK(cluster.PumpIds() == Ids{1, 3, 4});
}

TEST_CASE(
    "of several that ran when their executor ended each runs alone, and the guilty one is named",
    "[dispatch][unit]") {
  Cluster cluster(1, 6, 4);
  std::vector<ResultSlab::Slot> futures;
  for (int i = 0; i < 6; ++i) futures.push_back(cluster.ScheduleWanted());
  REQUIRE(cluster.Pump().size() == 6);  // 5 and 6 wait behind those that run
  const auto next = [&] {
    const std::vector<Sent> sent = cluster.Pump();
    REQUIRE(sent.size() == 1);
    return sent[0];
  };

  CHECK(NumbersOf(cluster.Crash(0, Cause::kItself, {1, 2, 3, 4}).requeued) ==
        Ids{1, 2, 3, 4, 5, 6});
  cluster.Join(0);
  for (const std::uint64_t innocent : {1, 2}) {
    const Sent alone = next();
    CHECK(alone.closure == innocent);
    CHECK(cluster.Done(alone, "done") == Bench::Outcome::kDone);
  }
  CHECK(next().closure == 3);
  CHECK_FALSE(cluster.Crash(0, Cause::kItself, {3}).given_up);
  cluster.Join(0);
  CHECK(next().closure == 3);
  const auto last = cluster.Crash(0, Cause::kItself, {3});

  CHECK(last.given_up == ClosureId(3));
  CHECK(last.why ==
        "closure 3 has ended its executor 3 times, 2 of them with nothing else in flight "
        "(worker:0, the last time by signal SIGSEGV)");
  CHECK(Message(cluster.dispatcher.Raise()->status) == last.why);
  ResultSlab& results = cluster.dispatcher.results();
  CHECK(cluster.ValueOf(futures[0]) == "done");
  CHECK(cluster.ValueOf(futures[1]) == "done");
  CHECK(Message(results.error(futures[2])->status) == last.why);
  for (std::size_t i = 3; i < 6; ++i) {
    CHECK(results.error(futures[i])->status.code() == StatusCode::kCancelled);
  }
}

// Executors of several closures at a time, which begin what they have in the order in which it came
// and end it in any; one closure ends whichever executor runs it.
class OneCulprit {
 public:
  OneCulprit(std::uint64_t seed, Cause cause)
      : random_(seed),
        cause_(cause),
        slots_(2 + Upto(2)),
        executors_(1 + Upto(2)),
        cluster_(static_cast<int>(executors_.size()), 8, slots_),
        culprit_(1 + Upto(kClosures - 1)) {
    for (std::uint64_t i = 0; i < kClosures; ++i) futures_.push_back(cluster_.ScheduleWanted());
  }

  // Until the queue has failed, or all has ended.
  void Run() {
    while (!cluster_.dispatcher.failed()) {
      Take();
      REQUIRE(Step());
    }
    while (Step()) {
    }
    const auto raised = cluster_.dispatcher.Raise();
    REQUIRE(raised);
    REQUIRE(given_up_ == culprit_);
    REQUIRE(Message(raised->status).starts_with(fmt::format("closure {} has ended its", culprit_)));
    // The first time with others, then as often as it takes.
    REQUIRE(ends_ <= (cause_ == Cause::kOutside ? 7 : 3));
  }

  // How many of those that ran beside the culprit when an executor ended had a result in the end,
  // and how many were cancelled with the queue.
  std::pair<std::size_t, std::size_t> Innocent() {
    std::pair<std::size_t, std::size_t> counts;
    for (std::uint64_t id = 1; id <= kClosures; ++id) {
      const ClosureError* error = cluster_.dispatcher.results().error(futures_[id - 1]);
      if (id == culprit_) {
        REQUIRE(error != nullptr);
        REQUIRE(error->status.code() == StatusCode::kInternal);
        continue;
      }
      const bool cancelled = error != nullptr && error->status.code() == StatusCode::kCancelled;
      REQUIRE((error == nullptr || cancelled));
      if (beside_.contains(id)) ++(cancelled ? counts.second : counts.first);
    }
    return counts;
  }

  // What comes next runs as if nothing had been.
  void GoOn() {
    for (int i = 0; i < 20; ++i) cluster_.Schedule();
    culprit_ = 0;
    for (Take(); Step(); Take()) {
    }
    REQUIRE(cluster_.dispatcher.idle());
    REQUIRE_FALSE(cluster_.dispatcher.failed());
  }

 private:
  static constexpr std::uint64_t kClosures = 40;

  std::uint32_t Upto(std::uint32_t n) {
    return std::uniform_int_distribution<std::uint32_t>(0, n)(random_);
  }

  void Take() {
    for (const Sent& sent : cluster_.Pump()) {
      for (std::size_t i = 0; i < executors_.size(); ++i) {
        if (cluster_.handles[static_cast<int>(i)] == sent.worker) executors_[i].push_back(sent);
      }
    }
  }

  // One closure's end, or that of an executor. False: nothing runs.
  bool Step() {
    std::vector<std::size_t> busy;
    for (std::size_t i = 0; i < executors_.size(); ++i) {
      if (!executors_[i].empty()) busy.push_back(i);
    }
    if (busy.empty()) return false;
    const std::size_t where = busy[Upto(static_cast<std::uint32_t>(busy.size() - 1))];
    std::deque<Sent>& has = executors_[where];
    const std::size_t running = std::min<std::size_t>(has.size(), slots_);
    const auto one = has.begin() + Upto(static_cast<std::uint32_t>(running - 1));
    if (one->closure == culprit_) {
      EndExecutor(where, running);
    } else {
      const Sent sent = *one;
      has.erase(one);
      REQUIRE(cluster_.Done(sent, "done") == Bench::Outcome::kDone);
    }
    return true;
  }

  void EndExecutor(std::size_t where, std::size_t running) {
    Ids ran;
    for (std::size_t i = 0; i < running; ++i) ran.push_back(executors_[where][i].closure);
    beside_.insert(ran.begin(), ran.end());
    // Now and then it is not known.
    if (Upto(3) == 0) ran.clear();
    const auto crash = cluster_.Crash(static_cast<int>(where), cause_, ran);
    if (crash.given_up) given_up_ = crash.given_up->value();
    ++ends_;
    executors_[where].clear();
    cluster_.Join(static_cast<int>(where));
  }

  std::mt19937_64 random_;
  const Cause cause_;
  const std::uint32_t slots_;
  std::vector<std::deque<Sent>> executors_;
  Cluster cluster_;
  std::uint64_t culprit_;
  std::vector<ResultSlab::Slot> futures_;
  std::set<std::uint64_t> beside_;
  std::optional<std::uint64_t> given_up_;
  int ends_ = 0;
};

TEST_CASE("whatever runs beside it, who ends executors is given up and nobody else",
          "[dispatch][sim]") {
  const Cause cause = GENERATE(as<Cause>(), Cause::kItself, Cause::kEndless, Cause::kOutside);
  std::size_t through = 0;
  std::size_t cancelled = 0;
  muster::testing::EachSeed(1'000, [&](std::uint64_t seed) {
    OneCulprit world(seed, cause);
    world.Run();
    const auto innocent = world.Innocent();
    through += innocent.first;
    cancelled += innocent.second;
    world.GoOn();
  });
  // Only what stands behind the culprit, which fails the queue, is cancelled with it.
  CHECK(through > cancelled);
}

TEST_CASE("a verdict that comes after the link has broken blames what was in flight",
          "[dispatch][unit]") {
  Cluster cluster(1);
  for (int i = 0; i < 3; ++i) cluster.Schedule();
  cluster.Pump();
  cluster.dispatcher.RemoveWorker(cluster.handles[0], Unavailable("closed"));
  cluster.Crash(0);
  cluster.Join(0);

  CHECK(cluster.PumpIds() == Ids{1});  // alone
}

TEST_CASE("a closure that lost its executor again waits for the verdicts before it takes a third",
          "[dispatch][unit]") {
  Cluster cluster(4);
  cluster.Schedule();
  const auto break_link = [&](const Sent& sent) {
    cluster.dispatcher.RemoveWorker(sent.worker, Unavailable("closed"));
    return static_cast<int>(sent.worker.index);
  };
  const auto next = [&] {
    const std::vector<Sent> sent = cluster.Pump();
    REQUIRE(sent.size() == 1);
    return sent[0];
  };

  const int first = break_link(next());
  const int second = break_link(next());  // one may have been chance
  CHECK(cluster.Pump().empty());
  cluster.Crash(first);
  CHECK(cluster.Pump().empty());
  cluster.Crash(second);
  const int third = break_link(next());

  CHECK(cluster.Pump().empty());  // though one worker has nothing to do
  CHECK(cluster.Crash(third).given_up == ClosureId(1));
}

TEST_CASE("who waits for a verdict goes on when the worker is back or five seconds have passed",
          "[dispatch][unit]") {
  Cluster cluster(3);
  cluster.Schedule();
  for (int link = 0; link < 2; ++link) {
    const std::vector<Sent> sent = cluster.Pump();
    REQUIRE(sent.size() == 1);
    cluster.dispatcher.RemoveWorker(sent[0].worker, Unavailable("closed"));
  }
  REQUIRE(cluster.Pump().empty());
  const bool is_back = GENERATE(true, false);
  if (is_back) {
    cluster.Join(1);
  } else {
    CHECK(cluster.dispatcher.next_timer() == cluster.now + 5s);
    cluster.now += 4999ms;
    CHECK(cluster.Pump().empty());
    cluster.now += 1ms;
  }

  CHECK(cluster.PumpIds() == Ids{1});
  CHECK(cluster.dispatcher.next_timer() == TimePoint::max());
}

TEST_CASE("others go on while a closure waits for the verdict of its second loss",
          "[dispatch][unit]") {
  Cluster cluster(3, 1);
  cluster.Schedule();
  for (int link = 0; link < 2; ++link) {
    const std::vector<Sent> sent = cluster.Pump();
    REQUIRE(sent.size() == 1);
    cluster.dispatcher.RemoveWorker(sent[0].worker, Unavailable("closed"));
  }
  cluster.Schedule();

  CHECK(cluster.PumpIds() == Ids{2});
}

TEST_CASE("a lost link alone makes no suspects", "[dispatch][unit]") {
  Cluster cluster(1);
  for (int i = 0; i < 3; ++i) cluster.Schedule();
  cluster.Pump();
  cluster.dispatcher.RemoveWorker(cluster.handles[0], Unavailable("closed"));
  cluster.Join(0);
  CHECK(cluster.PumpIds() == Ids{1, 2});
}

TEST_CASE(
    "a closure that ends its executor three times is given up, on two workers or the only one",
    "[dispatch][unit]") {
  const int workers = GENERATE(1, 2);
  Cluster cluster(workers);
  const ResultSlab::Slot future = cluster.ScheduleWanted();
  std::optional<ClosureId> given_up;
  for (int crash = 1; crash <= 3; ++crash) {
    const std::vector<Sent> sent = cluster.Pump();
    REQUIRE(sent.size() == 1);
    const int where = sent[0].worker == cluster.handles[0] ? 0 : 1;
    given_up = cluster.Crash(where).given_up;
    cluster.Join(where);
    CHECK(given_up.has_value() == (crash == 3));
  }

  const auto raised = cluster.dispatcher.Raise();
  REQUIRE(raised.has_value());
  CHECK(raised->status.code() == StatusCode::kInternal);
  CHECK(raised->origin == Origin::kUser);
  CHECK(Message(raised->status).starts_with("closure 1 has ended its executor 3 times"));
  CHECK(cluster.dispatcher.results().state(future) == ResultSlab::State::kError);
}

TEST_CASE("ends that somebody else may have brought about need six, each alone",
          "[dispatch][unit]") {
  Cluster cluster(1);
  cluster.Schedule();
  for (int end = 1; end <= 6; ++end) {
    REQUIRE(cluster.Pump().size() == 1);
    CHECK(cluster.Crash(0, Cause::kOutside).given_up.has_value() == (end == 6));
    cluster.Join(0);
  }
}

TEST_CASE("a closure that succeeds is cleared and the counts begin anew", "[dispatch][unit]") {
  Cluster cluster(1, 2);
  for (int round = 0; round < 10; ++round) {
    cluster.Schedule();
    cluster.Schedule();
    for (int crash = 0; crash < 2; ++crash) {
      cluster.Pump();
      CHECK_FALSE(cluster.Crash(0).given_up.has_value());
      cluster.Join(0);
    }
    while (!cluster.dispatcher.idle()) {
      for (const Sent& sent : cluster.Pump()) cluster.Done(sent);
    }
  }
}

TEST_CASE("five crashes of any closures without a success in between give the last one up",
          "[dispatch][unit]") {
  Cluster cluster(3, 3);
  for (int i = 0; i < 30; ++i) cluster.Schedule();
  int crashes = 0;
  std::optional<ClosureId> given_up;
  while (!given_up && crashes < 10) {
    const int where = crashes % 3;
    cluster.Pump();
    if (cluster.dispatcher.in_flight(cluster.handles[where]) > 0) {
      given_up = cluster.Crash(where).given_up;
      cluster.Join(where);
    }
    ++crashes;
  }
  CHECK(given_up.has_value());
  CHECK(cluster.dispatcher.failed());
}

TEST_CASE("crashes before an error that was thrown count for no closure after it",
          "[dispatch][unit]") {
  Cluster cluster(1);
  cluster.Schedule();
  int crashes = 0;
  while (!cluster.dispatcher.failed() && crashes < 10) {
    REQUIRE(cluster.Pump().size() == 1);
    (void)cluster.Crash(0);
    cluster.Join(0);
    ++crashes;
  }
  CHECK(crashes == 3);
  REQUIRE(cluster.dispatcher.Raise().has_value());

  for (int i = 0; i < 2; ++i) {
    cluster.Schedule();
    for (int crash = 1; crash <= 2; ++crash) {
      REQUIRE(cluster.Pump().size() == 1);
      CHECK_FALSE(cluster.Crash(0).given_up.has_value());
      cluster.Join(0);
    }
    REQUIRE(cluster.Pump().size() == 1);
    CHECK(cluster.Crash(0).given_up.has_value());
    cluster.Join(0);
    REQUIRE(cluster.dispatcher.Raise().has_value());
  }
}

TEST_CASE("three closures without an end in a row give the last one up", "[dispatch][unit]") {
  Cluster cluster(3);
  for (int i = 0; i < 3; ++i) cluster.Schedule();
  REQUIRE(cluster.Pump().size() == 3);

  CHECK_FALSE(cluster.Crash(0, Cause::kEndless).given_up.has_value());
  CHECK_FALSE(cluster.Crash(1, Cause::kEndless).given_up.has_value());
  CHECK(cluster.Crash(2, Cause::kEndless).given_up == ClosureId(3));
}

TEST_CASE("a suspect goes elsewhere first, but not to a worker that is held for good",
          "[dispatch][unit]") {
  Cluster cluster(2);
  cluster.Schedule();
  cluster.Pump();
  cluster.Crash(0);
  cluster.Join(0);
  cluster.dispatcher.HoldWorker(cluster.handles[1], TimePoint::max());

  const std::vector<Sent> sent = cluster.Pump();

  REQUIRE(sent.size() == 1);
  CHECK(sent[0].worker == cluster.handles[0]);
}

}  // namespace
}  // namespace muster::dispatch
