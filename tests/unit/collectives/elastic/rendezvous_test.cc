// Workers of an elastic run under virtual time: killed, started again, stopped, cut off from each
// other, at any moment, also while they form a group or vote.
#include "collectives/elastic/rendezvous.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/seeds.h"

namespace muster::collectives {
namespace {

using Phase = WorkerReport::Phase;

constexpr Millis kTick{20};
constexpr Millis kFormWithin{2'000};
constexpr Millis kNoticed{4'000};
constexpr std::uint64_t kSteps = 200;

struct State {
  std::uint64_t step = 0;
  std::uint64_t hash = 1;
};

State After(const State& state, std::uint64_t generation) {
  return {state.step + 1, (state.hash ^ (generation + state.step)) * 0x100000001b3ULL};
}

struct PlayedGroup {
  Formation formation;
  std::set<int> formed;  // ranks
  std::set<int> with_state;
  std::set<int> prepared;
  std::uint64_t step = 0;
  bool over = false;
};

struct Worker {
  std::unique_ptr<Rendezvous> rendezvous;
  bool alive = false;
  TimePoint stopped_since;
  bool stopped = false;
  bool failed = false;  // ended with an error
  TimePoint began;      // to seek
  std::optional<Formation> agreed;
  TimePoint agreed_at;
  std::shared_ptr<PlayedGroup> group;
  int rank = 0;
  State committed;
  State prepared;
};

struct Faults {
  bool kills = true;
  bool stops = false;
  bool cuts = false;
};

class World {
 public:
  World(std::uint64_t seed, Faults faults)
      : random_(seed), faults_(faults), workers_(2 + random_() % 4) {
    cut_.assign(size(), std::vector<bool>(size(), false));
    for (std::size_t i = 0; i < size(); ++i) Start(i);
  }

  // Faults for ten seconds, then none; everybody who has ended is started again.
  void Run() {
    const TimePoint quiet = now_ + Millis(10'000);
    while (now_ < quiet) {
      if (Chance(0.02)) Fault();
      Tick();
    }
    for (auto& row : cut_) std::fill(row.begin(), row.end(), false);
    for (std::size_t i = 0; i < size(); ++i) {
      if (workers_[i].stopped) Continue(i);
      if (!workers_[i].alive) Start(i);
    }
    for (int tick = 0; tick < 15'000 && !AllOver(); ++tick) Tick();
    CHECK(AllOver());
  }

  int errors = 0;
  int joins = 0;
  int undone = 0;
  int finished = 0;

 private:
  std::size_t size() const { return workers_.size(); }
  bool Chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  bool Runs(std::size_t i) const { return workers_[i].alive && !workers_[i].stopped; }
  bool AllOver() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
      return worker.failed ||
             (worker.alive && worker.rendezvous->report().phase == Phase::kFinished);
    });
  }

  void Start(std::size_t i) {
    Worker& worker = workers_[i];
    worker = Worker{};
    worker.alive = true;
    worker.rendezvous =
        std::make_unique<Rendezvous>(Rendezvous::Options{.self = static_cast<int>(i),
                                                         .workers = static_cast<int>(size()),
                                                         .min_workers = 1,
                                                         .start_within = Millis(1'000)},
                                     ++incarnation_, 7, 0);
    Seek(worker);
  }
  void Seek(Worker& worker) {
    if (worker.group != nullptr) worker.group->over = true;
    worker.group.reset();
    worker.began = now_;
    worker.rendezvous->Seek("port " + std::to_string(++ports_), now_);
  }
  void End(std::size_t i) {
    workers_[i].alive = false;
    workers_[i].stopped = false;
  }
  void Continue(std::size_t i) {
    workers_[i].stopped = false;
    if (now_ - workers_[i].stopped_since > Rendezvous::kSilent / 2) workers_[i].rendezvous->Slept();
  }

  void Fault() {
    const std::size_t i = random_() % size();
    const std::size_t j = random_() % size();
    Worker& worker = workers_[i];
    switch (random_() % 3) {
      case 0:
        if (!faults_.kills) break;
        if (!worker.alive) {
          Start(i);
        } else if (OthersHaveState(i)) {
          End(i);
        }
        break;
      case 1:
        if (!faults_.stops || !worker.alive) break;
        if (worker.stopped) {
          Continue(i);
        } else {
          worker.stopped = true;
          worker.stopped_since = now_;
        }
        break;
      default:
        if (faults_.cuts && i != j) cut_[i][j] = cut_[j][i] = !cut_[i][j];
    }
  }
  // With all state gone a run begins anew, which is no fault of the rules.
  bool OthersHaveState(std::size_t i) const {
    if (workers_[i].rendezvous->report().generation == 0) return true;
    for (std::size_t j = 0; j < size(); ++j) {
      if (j == i || !workers_[j].alive) continue;
      if (workers_[j].rendezvous->report().generation >= latest_) return true;
    }
    return false;
  }

  void Tick() {
    now_ += kTick;
    std::vector<std::size_t> order(size());
    for (std::size_t i = 0; i < size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::size_t i : order) {
      if (!Runs(i) || workers_[i].failed || Chance(0.2)) continue;
      Worker& worker = workers_[i];
      if (worker.rendezvous->report().phase == Phase::kFinished) continue;
      if (worker.agreed.has_value()) {
        FormOne(worker);
      } else if (worker.group != nullptr) {
        StepOne(worker);
      } else {
        LookAround(i);
      }
    }
  }

  // Whether j has answered i.
  bool Ask(std::size_t i, std::size_t j) {
    Rendezvous& mine = *workers_[i].rendezvous;
    if (cut_[i][j]) {
      mine.OnSilence(static_cast<int>(j), Silence::kCutOff, now_);
    } else if (!workers_[j].alive || workers_[j].failed) {
      mine.OnSilence(static_cast<int>(j), Silence::kEnded, now_);
    } else if (workers_[j].stopped) {
      mine.OnSilence(static_cast<int>(j), Silence::kMute, now_);
    } else {
      workers_[j].rendezvous->OnReport(mine.report(), now_);
      mine.OnReport(workers_[j].rendezvous->report(), now_);
      return true;
    }
    return false;
  }

  void LookAround(std::size_t i) {
    Worker& worker = workers_[i];
    for (std::size_t j = 0; j < size(); ++j) {
      if (j != i) Ask(i, j);
    }
    const auto next = worker.rendezvous->Propose(now_);
    if (!next.ok() || now_ - worker.began > Millis(120'000)) {
      worker.failed = true;
      // Who comes when all is done is told so.
      if (next.ok() || next.status().code() != StatusCode::kFailedPrecondition) ++errors;
      return;
    }
    if (!next->has_value() || !worker.rendezvous->Accept(**next).ok()) return;
    const Formation& formation = **next;
    for (const WorkerReport& member : formation.members) {
      const auto j = static_cast<std::size_t>(member.name.worker);
      if (j == i) continue;
      if (Chance(0.05) || !Ask(i, j) || !workers_[j].rendezvous->Accept(formation).ok()) {
        worker.rendezvous->GiveUp();
        return;
      }
      Agree(workers_[j], formation);
    }
    Agree(worker, formation);
    groups_[formation.generation] = std::make_shared<PlayedGroup>();
    groups_[formation.generation]->formation = formation;
  }
  void Agree(Worker& worker, const Formation& formation) {
    worker.agreed = formation;
    worker.agreed_at = now_;
  }

  bool Together(const Formation& formation) const {
    for (const WorkerReport& a : formation.members) {
      const auto i = static_cast<std::size_t>(a.name.worker);
      if (!Runs(i) || workers_[i].rendezvous->report().name != a.name) return false;
      for (const WorkerReport& b : formation.members) {
        if (cut_[i][static_cast<std::size_t>(b.name.worker)]) return false;
      }
    }
    return true;
  }

  void FormOne(Worker& worker) {
    const Formation formation = *worker.agreed;
    const auto found = groups_.find(formation.generation);
    const bool there = found != groups_.end() && !found->second->over;
    if (!there || !Together(formation) || Chance(0.05)) {
      if (now_ - worker.agreed_at < kFormWithin && !Chance(0.05)) return;
      if (found != groups_.end()) found->second->over = true;
      worker.agreed.reset();
      worker.rendezvous->GiveUp();
      return;
    }
    const std::shared_ptr<PlayedGroup>& group = found->second;
    worker.agreed.reset();
    worker.group = group;
    worker.rank = formation.RankOf(worker.rendezvous->report().name);
    group->step = formation.target + 1;
    group->formed.insert(worker.rank);
    const bool fresh = formation.Fresh(worker.rank);
    if (!fresh) {
      if (worker.committed.step < formation.target) {
        Count(worker, worker.prepared);
      } else if (worker.prepared.step > formation.target) {
        worker.prepared = worker.committed;
        ++undone;
      }
      CHECK(worker.committed.step == formation.target);
      group->with_state.insert(worker.rank);
      Begun(formation);
    }
    worker.rendezvous->Formed(formation, !fresh);
  }
  // A first group: nobody is left of whatever was before.
  void Begun(const Formation& formation) {
    latest_ = std::max(latest_, formation.generation);
    const auto donor = static_cast<std::size_t>(formation.donor);
    if (formation.members[donor].generation != 0) return;
    for (std::size_t i = 0; i < size(); ++i) {
      if (workers_[i].alive && !workers_[i].failed) {
        CHECK(workers_[i].rendezvous->report().generation == 0);
      }
    }
    history_.clear();
  }

  // A step counts here: it is the same for all, and for ever.
  void Count(Worker& worker, const State& state) {
    const auto [known, first] = history_.try_emplace(state.step, state.hash);
    CHECK(known->second == state.hash);
    worker.committed = worker.prepared = state;
  }

  bool Over(const PlayedGroup& group) const {
    if (group.over) return true;
    for (const WorkerReport& member : group.formation.members) {
      const Worker& worker = workers_[static_cast<std::size_t>(member.name.worker)];
      if (!worker.alive || worker.failed || worker.rendezvous->report().name != member.name) {
        return true;
      }
      if (worker.stopped && now_ - worker.stopped_since > kNoticed) return true;
    }
    return !Together(group.formation) &&
           std::none_of(workers_.begin(), workers_.end(), [](auto& one) { return one.stopped; });
  }

  void StepOne(Worker& worker) {
    const std::shared_ptr<PlayedGroup> group = worker.group;
    const auto members = group->formation.members.size();
    Rendezvous& mine = *worker.rendezvous;
    if (Over(*group) && Chance(0.5)) return Seek(worker);
    if (!group->with_state.contains(worker.rank)) {
      const WorkerReport& donor =
          group->formation.members[static_cast<std::size_t>(group->formation.donor)];
      const Worker& gives = workers_[static_cast<std::size_t>(donor.name.worker)];
      if (Over(*group) || !group->with_state.contains(group->formation.donor)) return;
      worker.committed = worker.prepared = gives.committed;
      group->with_state.insert(worker.rank);
      mine.Formed(group->formation, true);
      ++joins;
      return;
    }
    if (worker.committed.step >= kSteps) {
      mine.Finish();
      ++finished;
      return;
    }
    const std::uint64_t step = worker.committed.step + 1;
    if (worker.prepared.step < step) {
      if (Over(*group) || group->with_state.size() < members) return;
      if (step > group->step) {  // the first to begin it
        group->step = step;
        group->prepared.clear();
      }
      worker.prepared = After(worker.committed, group->formation.generation);
      mine.Prepared(step);
      group->prepared.insert(worker.rank);
      return;
    }
    const bool counts = group->step > step || group->prepared.size() == members;
    if (!counts) return;
    // The votes of all are there: this member may hear of it though another has ended meanwhile.
    Count(worker, worker.prepared);
    mine.Committed(step);
    if (mine.SomebodyWaits(now_)) Seek(worker);
  }

  std::mt19937_64 random_;
  const Faults faults_;
  TimePoint now_{std::chrono::hours(1)};
  std::vector<Worker> workers_;
  std::vector<std::vector<bool>> cut_;
  std::map<std::uint64_t, std::shared_ptr<PlayedGroup>> groups_;
  std::map<std::uint64_t, std::uint64_t> history_;  // what each step that counts has led to
  std::uint64_t incarnation_ = 0;
  std::uint64_t ports_ = 0;
  std::uint64_t latest_ = 0;
};

TEST_CASE("survivors go on from the last step that counts, whoever is killed or comes",
          "[collectives][elastic][sim]") {
  int joins = 0;
  int undone = 0;
  testing::EachSeed(1'000, [&](std::uint64_t seed) {
    World world(seed, {.kills = true});
    world.Run();
    CHECK(world.errors == 0);
    joins += world.joins;
    undone += world.undone;
  });
  CHECK(joins > 1'000);
  CHECK(undone > 10);
}

TEST_CASE("a step that counts is never done again by others, with workers stopped or cut off",
          "[collectives][elastic][sim]") {
  const bool stops = GENERATE(true, false);
  int finished = 0;
  testing::EachSeed(1'000, [&](std::uint64_t seed) {
    World world(seed, {.kills = true, .stops = stops, .cuts = !stops});
    world.Run();
    finished += world.finished;
  });
  CHECK(finished > 1'000);
}

// Both report to each other.
void Meet(Rendezvous& a, Rendezvous& b, TimePoint now) {
  a.OnReport(b.report(), now);
  b.OnReport(a.report(), now);
}

TEST_CASE("who is left behind by one that it sees waits for those with whom that one went",
          "[collectives][elastic][unit]") {
  const auto made = [](int self) {
    return Rendezvous({.self = self, .workers = 3, .start_within = Millis(1'000)},
                      static_cast<std::uint64_t>(10 + self), 7, 0);
  };
  Rendezvous zero = made(0), one = made(1), two = made(2);
  TimePoint now{std::chrono::hours(1)};
  // Workers 1 and 2 train.
  one.Seek("a:1", now);
  two.Seek("a:2", now);
  now += Millis(1'000);
  one.OnSilence(0, Silence::kEnded, now);
  two.OnSilence(0, Silence::kEnded, now);
  for (int look = 0; look < 2; ++look) Meet(one, two, now);
  const auto first = one.Propose(now);
  REQUIRE(first.ok());
  REQUIRE(first->has_value());
  for (Rendezvous* worker : {&one, &two}) {
    REQUIRE(worker->Accept(**first).ok());
    worker->Formed(**first, true);
    worker->Prepared(1);
    worker->Committed(1);
  }
  // Worker 0 comes, which cannot reach worker 2; worker 1 sees both.
  for (Rendezvous* worker : {&zero, &one, &two}) worker->Seek("b:0", now);
  Meet(one, two, now);
  for (int look = 0; look < 2; ++look) Meet(zero, one, now);
  for (int look = 0; look < 2; ++look) {
    zero.OnSilence(2, Silence::kCutOff, now);
    two.OnSilence(0, Silence::kCutOff, now);
    now += Rendezvous::kSilent;
  }
  auto next = zero.Propose(now);
  REQUIRE(next.ok());
  REQUIRE(next->has_value());
  CHECK((*next)->members.size() == 2);
  const Status refused = one.Accept(**next);
  CHECK(refused.code() == StatusCode::kAborted);
  CHECK(Message(refused).find("first tells those whom it leaves behind") != std::string::npos);

  Meet(two, one, now);  // worker 2 is told; worker 1 hears of it at the next meeting
  Meet(one, two, now);
  REQUIRE(zero.Accept(**next).ok());
  REQUIRE(one.Accept(**next).ok());
  zero.Formed(**next, true);

  // Worker 1 ends at once: worker 0 goes on alone, so worker 2 may not.
  two.OnSilence(1, Silence::kEnded, now);
  const auto alone = two.Propose(now);
  REQUIRE(alone.ok());
  CHECK_FALSE(alone->has_value());
  two.OnSilence(0, Silence::kEnded, now);
  CHECK(two.Propose(now).status().code() == StatusCode::kUnavailable);
}

TEST_CASE("a first group that is lost before others have its state does not wait for all again",
          "[collectives][elastic][unit]") {
  const auto made = [](int self) {
    return Rendezvous({.self = self, .workers = 3, .start_within = Millis(60'000)},
                      static_cast<std::uint64_t>(10 + self), 7, 0);
  };
  Rendezvous zero = made(0), one = made(1), two = made(2);
  const TimePoint now{std::chrono::hours(1)};
  for (Rendezvous* worker : {&zero, &one, &two}) worker->Seek("a:0", now);
  for (int look = 0; look < 2; ++look) {
    Meet(one, two, now);
    Meet(zero, one, now);
    Meet(zero, two, now);
  }
  const auto first = zero.Propose(now);
  REQUIRE(first.ok());
  REQUIRE(first->has_value());
  for (Rendezvous* worker : {&zero, &one, &two}) REQUIRE(worker->Accept(**first).ok());
  for (Rendezvous* worker : {&zero, &one, &two}) worker->Formed(**first, worker == &zero);

  for (Rendezvous* worker : {&one, &two}) {
    worker->Seek("b:0", now);
    worker->OnSilence(0, Silence::kEnded, now);
  }
  for (int look = 0; look < 2; ++look) Meet(one, two, now);

  const auto next = one.Propose(now);
  REQUIRE(next.ok());
  REQUIRE(next->has_value());
  CHECK((*next)->members.size() == 2);
}

TEST_CASE("a group without one that its leader sees has to outweigh those whom nobody sees",
          "[collectives][elastic][unit]") {
  const int workers = GENERATE(5, 6);
  std::vector<std::unique_ptr<Rendezvous>> all;
  TimePoint now{std::chrono::hours(1)};
  for (int i = 0; i < workers; ++i) {
    all.push_back(std::make_unique<Rendezvous>(
        Rendezvous::Options{.self = i, .workers = workers, .start_within = Millis(1'000)},
        static_cast<std::uint64_t>(10 + i), 7, 0));
  }
  const auto look = [&](const std::function<bool(std::size_t, std::size_t)>& cut) {
    for (const auto& one : all) one->Seek("a:0", now);
    for (int again = 0; again < 3; ++again) {
      for (std::size_t high = 0; high < all.size(); ++high) {
        for (std::size_t low = 0; low < high; ++low) {
          if (!cut(high, low)) {
            Meet(*all[high], *all[low], now);
            continue;
          }
          all[high]->OnSilence(static_cast<int>(low), Silence::kCutOff, now);
          all[low]->OnSilence(static_cast<int>(high), Silence::kCutOff, now);
        }
      }
      now += Rendezvous::kSilent;
    }
  };
  look([](auto, auto) { return false; });
  const auto first = all[0]->Propose(now);
  REQUIRE(first.ok());
  REQUIRE(first->has_value());
  for (const auto& one : all) {
    REQUIRE(one->Accept(**first).ok());
    one->Formed(**first, true);
  }

  // Workers 1 and 2 do not see each other, and none of the first three sees the rest.
  look([](std::size_t high, std::size_t low) {
    return (high == 2 && low == 1) || (high > 2 && low < 3);
  });
  const auto next = all[0]->Propose(now);

  REQUIRE(next.ok());
  if (workers == 6) {
    CHECK_FALSE(next->has_value());
    return;
  }
  REQUIRE(next->has_value());
  CHECK((*next)->members.back().name.worker == 1);  // 0 and 1
  CHECK(Message(all[0]->Accept(**next)).find("first tells") != std::string::npos);
}

TEST_CASE("the first group does not wait for places that nobody has",
          "[collectives][elastic][unit]") {
  Rendezvous worker({.self = 0, .workers = 4, .start_within = Millis(60'000)}, 1, 7, 0);
  const TimePoint now{std::chrono::hours(1)};
  worker.Seek("a:0", now);
  for (const int other : {1, 2}) worker.OnSilence(other, Silence::kVacant, now);
  worker.OnSilence(3, Silence::kEnded, now);
  CHECK_FALSE(worker.Propose(now)->has_value());  // it may come yet

  worker.OnSilence(3, Silence::kVacant, now);
  CHECK(worker.Propose(now)->has_value());
  CHECK(worker.Awaited(now) == "1 of at least 1 workers seek a group: no other is there");
}

}  // namespace
}  // namespace muster::collectives
