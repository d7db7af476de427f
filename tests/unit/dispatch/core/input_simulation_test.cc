// Passes over data under virtual time: workers end and come back at random, closures fail and are
// scheduled again. What is looked at is which elements the results that counted have used.
#include <deque>
#include <random>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/seeds.h"
#include "tests/unit/dispatch/core/fixture.h"

namespace muster::dispatch {
namespace {

using namespace std::chrono_literals;

std::uint64_t NumberAt(std::span<const std::byte> bytes) {
  std::uint64_t number = 0;
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

// Each worker begins what it is sent in order, `slots` at a time, and ends them in any order. A
// closure uses the worker's next element, says the turn that it had, and leaves the pass where it
// finds it at its end.
class Passes {
 public:
  Passes(std::uint64_t seed, bool failures, std::uint32_t slots = 1)
      : random_(seed),
        failures_(failures),
        slots_(slots),
        workers_(1 + Upto(3)),
        total_(50 + Upto(150)) {
    pass_ = dispatcher_.per_worker().Create(1, BytesOf("pass"));
  }

  void Run() {
    for (int step = 0; step < 100'000 && succeeded_ < total_; ++step) {
      now_ += 1ms;
      Schedule();
      Trouble();
      dispatcher_.Pump(now_, [&](WorkerHandle to, const Assignment& one) { Take(to, one); });
      for (Worker& worker : workers_) Work(worker);
      (void)dispatcher_.Raise();
    }
    REQUIRE(succeeded_ >= total_);
  }

  // By turns: those of results that counted.
  const std::multiset<std::uint64_t>& turns() const { return turns_; }
  std::uint64_t total() const { return total_; }
  // By worker, for its own pass: elements of results that counted.
  std::vector<std::multiset<std::uint64_t>> elements() const {
    std::vector<std::multiset<std::uint64_t>> all;
    for (const Worker& worker : workers_) all.push_back(worker.used);
    return all;
  }
  // The same with those that no result that counted has used, though a later one's did: closures
  // had taken them that ran beside it when the executor ended, that had to run again, or that run
  // still.
  std::vector<std::set<std::uint64_t>> accounted() const {
    std::vector<std::set<std::uint64_t>> all;
    for (const Worker& worker : workers_) {
      std::set<std::uint64_t>& one = all.emplace_back(worker.used.begin(), worker.used.end());
      one.insert(worker.left_out.begin(), worker.left_out.end());
      for (const Job& job : worker.running) one.insert(job.element);
    }
    return all;
  }

 private:
  struct Job {
    ClosureId closure;
    Attempt attempt;
    std::uint64_t turn = 0;
    std::uint64_t begins_at = 0;  // of a build
    std::uint64_t element = 0;    // of one that runs
  };
  struct Worker {
    std::optional<WorkerHandle> handle;
    std::deque<Job> jobs;
    std::vector<Job> running;
    std::uint64_t next = 0;  // of its pass
    // The furthest that a result which counted has left the pass at.
    std::uint64_t kept = 0;
    std::multiset<std::uint64_t> used;
    std::set<std::uint64_t> left_out;
  };

  std::uint64_t Upto(std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n)(random_);
  }

  void Schedule() {
    const std::array<ClosureId, 1> turns{pass_};
    while (dispatcher_.queued() < 20 && !dispatcher_.failed()) {
      REQUIRE(dispatcher_.Schedule(2, {}, turns).admission ==
              ClosureDispatcher::Admission::kQueued);
    }
  }

  void Trouble() {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      const std::string task = "worker:" + std::to_string(i);
      if (!worker.handle) {
        if (Upto(3) == 0)
          worker.handle =
              dispatcher_.AddWorker(task, Incarnation(now_.time_since_epoch() / 1ms), slots_);
      } else if (Upto(20) == 0) {
        (void)dispatcher_.RemoveWorker(*worker.handle, Unavailable("killed"));
        for (const Job& job : worker.running) {
          if (job.element < worker.kept) worker.left_out.insert(job.element);
        }
        worker.handle.reset();
        worker.jobs.clear();
        worker.running.clear();
        worker.next = 0;
      }
    }
  }

  void Take(WorkerHandle to, const Assignment& one) {
    Job job{.closure = one.closure, .attempt = one.attempt};
    std::span<const std::byte> arguments = one.arguments;
    if ((one.flags & kFlagBookmark) != 0) {
      const auto found = TakeBookmark(arguments);
      REQUIRE(found.ok());
      job.begins_at = NumberAt(found->place);
      REQUIRE(found->sequence == job.begins_at);
    } else if (one.function == 2) {
      job.turn = NumberAt(arguments);
    }
    for (Worker& worker : workers_) {
      if (worker.handle != to) continue;
      if (job.closure == pass_) REQUIRE(job.begins_at == worker.kept);
      worker.jobs.push_back(job);
    }
  }

  // Begins as many as may run; a build runs alone.
  void Begin(Worker& worker) {
    while (!worker.jobs.empty() && worker.running.size() < slots_) {
      Job job = worker.jobs.front();
      if (job.closure == pass_) {
        if (!worker.running.empty()) return;
        worker.next = job.begins_at;
        dispatcher_.OnResult(*worker.handle, {.closure = job.closure, .attempt = job.attempt},
                             now_);
      } else {
        job.element = worker.next++;
        worker.running.push_back(job);
      }
      worker.jobs.pop_front();
    }
  }

  // Ends some of what it runs.
  void Work(Worker& worker) {
    Begin(worker);
    for (std::uint64_t n = Upto(3); n > 0 && !worker.running.empty(); --n) {
      const auto ends =
          worker.running.begin() + static_cast<std::ptrdiff_t>(Upto(worker.running.size() - 1));
      const Job job = *ends;
      worker.running.erase(ends);
      ClosureResult result{.closure = job.closure, .attempt = job.attempt};
      const Bookmark bookmark{.value = pass_,
                              .sequence = worker.next,
                              .place = std::as_bytes(std::span(&worker.next, 1))};
      result.bookmarks = std::span(&bookmark, 1);
      const ClosureError error{.status = InvalidArgument("its own"), .origin = Origin::kUser};
      const ClosureError away{.status = Unavailable("cable"), .origin = Origin::kWorker};
      if (failures_ && Upto(30) == 0) result.error = &error;
      if (Upto(30) == 0) result.error = &away;
      const auto outcome = dispatcher_.OnResult(*worker.handle, result, now_);
      using enum ClosureDispatcher::Outcome;
      if (outcome == kStale || outcome == kAgain) {
        // The process lives on: what it took for one that runs again is not read twice.
        worker.left_out.insert(job.element);
      } else {
        worker.kept = std::max(worker.kept, bookmark.sequence);
        worker.used.insert(job.element);
        if (outcome != kCancelled) {
          turns_.insert(job.turn);
          ++succeeded_;
        }
      }
      Begin(worker);
    }
  }

  std::mt19937_64 random_;
  const bool failures_;
  const std::uint32_t slots_;
  TimePoint now_{1h};
  ClosureDispatcher dispatcher_{{}};
  ClosureId pass_;
  std::vector<Worker> workers_;
  std::uint64_t total_;
  std::uint64_t succeeded_ = 0;
  std::multiset<std::uint64_t> turns_;
};

TEST_CASE("each turn counts once, whatever ends and whatever is cancelled", "[dispatch][sim]") {
  muster::testing::EachSeed(1'000, [](std::uint64_t seed) {
    Passes world(seed, seed % 2 == 0);
    world.Run();
    const std::multiset<std::uint64_t>& turns = world.turns();
    // The last ones may still be out: the others are without a gap.
    std::uint64_t gaps = 0;
    std::uint64_t next = 0;
    for (const std::uint64_t turn : turns) {
      REQUIRE(turn >= next);  // never twice
      gaps += turn - next;
      next = turn + 1;
    }
    REQUIRE(gaps <= 20 + 4 * 256);
    REQUIRE(turns.size() >= world.total());
  });
}

TEST_CASE("a worker's next executor goes on where results that counted had left the pass",
          "[dispatch][sim]") {
  const auto closures_at_a_time = GENERATE(as<std::uint32_t>(), 1, 4);
  muster::testing::EachSeed(1'000, [&](std::uint64_t seed) {
    Passes world(seed, false, closures_at_a_time);
    world.Run();
    for (const std::multiset<std::uint64_t>& used : world.elements()) {
      const std::set<std::uint64_t> once(used.begin(), used.end());
      REQUIRE(once.size() == used.size());
    }
    // None is left out but by what ran beside.
    for (const std::set<std::uint64_t>& all : world.accounted()) {
      REQUIRE((all.empty() || *all.rbegin() + 1 == all.size()));
    }
  });
}

}  // namespace
}  // namespace muster::dispatch
