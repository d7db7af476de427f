// Drivers, workers and parameter servers' marks under virtual time: workers die, stall and answer
// late and twice, drivers die and a new incarnation goes on from the marks. --seeds N runs more
// seeds, --seed N one.
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>

#include "dispatch/core/attempt.h"

#include "tests/support/catch.h"
#include "tests/support/seeds.h"
#include "tests/unit/dispatch/core/fixture.h"

namespace muster::dispatch {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kWindow = 64;
constexpr std::size_t kCapacity = 150;
constexpr std::size_t kArgumentBytes = 8'000;

// What a worker process does; it outlives its membership (a zombie), and a driver.
struct Process {
  WorkerHandle handle;
  int driver = 0;
  int task = 0;
};

class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed), total_(100 + Upto(300)) {
    processes_.resize(1 + Upto(4));
    failures_ = Upto(3) == 0;
    verdicts_ = Upto(1) == 0;
    StartDriver();
  }

  void Run() {
    for (int step = 0; step < 100'000 && !finished(); ++step) {
      Program();
      CheckBounds();
      Send();
      Trouble();
      Deliver();
    }
    INFO("settled " << settled() << " of " << total_);
    REQUIRE(finished());
    for (std::uint64_t id = 1; id <= total_; ++id) {
      REQUIRE((marks_.contains(id) || cancelled_.contains(id)));
    }
  }

 private:
  struct Message {
    TimePoint at;
    std::uint64_t order = 0;
    Process from;
    std::uint64_t closure = 0;
    Attempt attempt;
    std::optional<ClosureError> error;
    bool operator>(const Message& other) const {
      return std::tie(at, order) > std::tie(other.at, other.order);
    }
  };
  struct Member {
    std::optional<WorkerHandle> handle;
    TimePoint back_at;
    TimePoint stalled_until;
  };

  std::uint64_t Upto(std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n)(random_);
  }
  std::uint64_t settled() const { return dispatcher_->settled().value(); }
  bool finished() const { return settled() == total_ && dispatcher_->idle(); }

  // A new incarnation knows only what parameter servers know: marks, and the last watermark that
  // was told to them.
  void StartDriver() {
    ++incarnation_;
    ClosureDispatcher::Options options{.epoch = Epoch(1),
                                       .incarnation = incarnation_,
                                       .capacity = kCapacity,
                                       .argument_bytes = kArgumentBytes,
                                       .window = kWindow,
                                       .settled = ClosureId(told_settled_)};
    for (const std::uint64_t id : marks_) {
      if (id <= told_settled_) continue;
      auto& beyond = options.settled_beyond;
      if (!beyond.empty() && beyond.back().last.Next() == ClosureId(id)) {
        beyond.back().last = ClosureId(id);
      } else {
        beyond.push_back({ClosureId(id), ClosureId(id)});
      }
    }
    dispatcher_ = std::make_unique<ClosureDispatcher>(std::move(options));
    next_ = told_settled_ + 1;
    in_flight_.clear();
    given_.clear();
    awaited_.clear();
    // What ended without an effect and was not told is begun again.
    std::erase_if(cancelled_, [&](std::uint64_t id) { return id > told_settled_; });
    std::erase_if(done_, [&](std::uint64_t id) { return id > told_settled_; });
    done_.insert(marks_.begin(), marks_.end());
    for (Member& member : processes_) {
      member.handle.reset();
      member.back_at = now_ + std::chrono::microseconds(Upto(500));
    }
  }

  // Schedules while there is room, raises what has failed and goes on.
  void Program() {
    const std::string arguments(Upto(120), 'a');
    while (next_ <= total_) {
      const auto scheduled = dispatcher_->Schedule(1, BytesOf(arguments));
      if (scheduled.result != ResultSlab::kNone) dispatcher_->results().Release(scheduled.result);
      if (scheduled.admission != ClosureDispatcher::Admission::kQueued) break;
      REQUIRE(scheduled.closure.value() == next_);
      ++next_;
    }
    const std::uint64_t highest = next_ - 1;
    std::set<std::uint64_t> open;
    if (dispatcher_->failed()) {
      for (std::uint64_t id = settled() + 1; id <= highest; ++id) {
        if (!done_.contains(id)) open.insert(id);
      }
    }
    if (dispatcher_->Raise()) {
      REQUIRE(in_flight_.empty());
      cancelled_.insert(open.begin(), open.end());
      REQUIRE(settled() == highest);
    }
    told_settled_ = std::max(told_settled_, settled());
  }

  void CheckBounds() {
    REQUIRE(dispatcher_->argument_bytes() <= kArgumentBytes);
    // What comes back needs no place of the queue.
    REQUIRE(dispatcher_->queued() <= kCapacity + kWindow);
    REQUIRE(dispatcher_->in_flight() == in_flight_.size());
  }

  void Send() {
    dispatcher_->Pump(now_, [&](WorkerHandle worker, const Assignment& one) {
      const std::uint64_t id = one.closure.value();
      REQUIRE(id <= settled() + kWindow);
      REQUIRE_FALSE(done_.contains(id));
      // The lowest of all that wait, but for suspects and for what waits for a verdict.
      if (!verdicts_) REQUIRE(id == LowestWaiting());
      ++given_[id];
      REQUIRE(in_flight_.insert(id).second);
      // Each attempt is new, and a fresh closure comes behind all that went out before.
      const auto known = attempts_.lower_bound({id, 0});
      REQUIRE((known == attempts_.end() || known->first == id));
      REQUIRE(attempts_.insert({id, one.attempt.value()}).second);
      const int task = TaskOf(worker);
      const Process process{.handle = worker, .driver = incarnation_, .task = task};
      TimePoint at =
          std::max(now_, processes_[task].stalled_until) + std::chrono::microseconds(1 + Upto(200));
      Message message{.at = at,
                      .order = ++order_,
                      .from = process,
                      .closure = id,
                      .attempt = one.attempt,
                      .error = ErrorOf(id)};
      // It may be doubled, and it may never come (then its worker is lost some day).
      if (Upto(9) == 0) {
        Message again = message;
        again.at += std::chrono::microseconds(Upto(3'000));
        again.order = ++order_;
        messages_.push(again);
      }
      messages_.push(std::move(message));
    });
  }

  std::optional<ClosureError> ErrorOf(std::uint64_t id) {
    if (failures_ && Upto(99) == 0) {
      return ClosureError{.status = InvalidArgument("of {}", id), .origin = Origin::kUser};
    }
    if (Upto(49) == 0) {
      return ClosureError{.status = Unavailable("of {}", id), .origin = Origin::kWorker};
    }
    return std::nullopt;
  }

  int TaskOf(WorkerHandle worker) const {
    for (std::size_t task = 0; task < processes_.size(); ++task) {
      if (processes_[task].handle == worker) return static_cast<int>(task);
    }
    FAIL("a closure for a worker that is not there");
    return -1;
  }

  std::uint64_t LowestWaiting() const {
    std::uint64_t id = settled() + 1;
    while (in_flight_.contains(id) || done_.contains(id) || awaited_.contains(id)) ++id;
    return id;
  }

  void Trouble() {
    for (std::size_t task = 0; task < processes_.size(); ++task) {
      Member& member = processes_[task];
      const std::string name = "worker:" + std::to_string(task);
      if (!member.handle && member.back_at <= now_) {
        member.handle = dispatcher_->AddWorker(name, Incarnation(++order_), 1 + Upto(2));
        member.stalled_until = now_;
        std::erase_if(awaited_, [task](const auto& one) { return one.second == task; });
      }
      if (!member.handle) continue;
      if (Upto(199) == 0) member.stalled_until = now_ + std::chrono::microseconds(Upto(5'000));
      if (Upto(299) != 0) continue;
      const bool failed = dispatcher_->failed();
      std::vector<ClosureId> back;
      if (!verdicts_ || Upto(1) == 0) {
        back = dispatcher_->RemoveWorker(*member.handle, Unavailable("closed"));
        for (const std::uint64_t id : NumbersOf(back)) {
          if (given_[id] > 1 && !failed) awaited_[id] = task;  // it has lost one before
        }
      } else {
        auto crash =
            dispatcher_->CrashWorker(name, "signal SIGKILL", Suspects::Cause::kOutside, {});
        // Chance does not blame a closure here: six ends alone in a row.
        if (crash.given_up) {
          done_.insert(crash.given_up->value());
          cancelled_.insert(crash.given_up->value());
        }
        back = std::move(crash.requeued);
      }
      REQUIRE(std::ranges::is_sorted(back));
      for (const std::uint64_t id : NumbersOf(back)) {
        REQUIRE(in_flight_.erase(id) == 1);
        if (failed) done_.insert(id), cancelled_.insert(id);
      }
      member.handle.reset();
      member.back_at = now_ + std::chrono::microseconds(Upto(2'000));
    }
    if (Upto(799) == 0) StartDriver();
  }

  void Deliver() {
    const TimePoint until = now_ + std::chrono::microseconds(1 + Upto(100));
    while (!messages_.empty() && messages_.top().at <= until) {
      const Message message = messages_.top();
      messages_.pop();
      now_ = std::max(now_, message.at);
      // Parameter servers apply what any worker of the current incarnation brings, also one that
      // is lost: once for each closure, which is what a mark is.
      if (!message.error && message.from.driver == incarnation_) {
        marks_.insert(message.closure);
      }
      Believe(message);
    }
    now_ = until;
  }

  void Believe(const Message& message) {
    const bool current = in_flight_.contains(message.closure) &&
                         message.from.driver == incarnation_ &&
                         processes_[message.from.task].handle == message.from.handle;
    const auto outcome = dispatcher_->OnResult(message.from.handle,
                                               {.closure = ClosureId(message.closure),
                                                .attempt = message.attempt,
                                                .run = std::chrono::microseconds(Upto(20)),
                                                .error = message.error ? &*message.error : nullptr},
                                               now_);
    using enum ClosureDispatcher::Outcome;
    if (outcome == kStale) return;
    REQUIRE(current);  // no stale result is believed
    REQUIRE(in_flight_.erase(message.closure) == 1);
    if (outcome == kAgain) return;
    REQUIRE(done_.insert(message.closure).second);  // settled once
    if (outcome != kDone) cancelled_.insert(message.closure);
  }

  std::mt19937_64 random_;
  std::uint64_t total_;
  bool failures_ = false;
  bool verdicts_ = false;  // ends are blamed on closures, which makes suspects
  TimePoint now_{1h};
  std::uint16_t incarnation_ = 0;
  std::unique_ptr<ClosureDispatcher> dispatcher_;
  std::vector<Member> processes_;
  std::priority_queue<Message, std::vector<Message>, std::greater<>> messages_;
  std::uint64_t order_ = 0;
  std::uint64_t next_ = 1;
  std::uint64_t told_settled_ = 0;
  std::set<std::uint64_t> in_flight_;
  std::map<std::uint64_t, int> given_;            // how often, by this driver
  std::map<std::uint64_t, std::size_t> awaited_;  // until that worker is back
  std::set<std::uint64_t> done_;       // results that were believed, by this driver or before
  std::set<std::uint64_t> marks_;      // effects on parameter servers
  std::set<std::uint64_t> cancelled_;  // ended without one
  std::set<std::pair<std::uint64_t, std::uint64_t>> attempts_;
};

TEST_CASE("each closure settles exactly once whatever dies, stalls or answers twice",
          "[dispatch][sim]") {
  muster::testing::EachSeed(1'200, [](std::uint64_t seed) { World(seed).Run(); });
}

}  // namespace
}  // namespace muster::dispatch
