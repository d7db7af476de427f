// Workers of an elastic run under virtual time: killed, started again, stopped, cut off from each
// other, at any moment, also while they form a group or vote.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "collectives/elastic/rendezvous.h"
#include "tests/support/catch.h"
#include "tests/support/seeds.h"

namespace muster::collectives {
namespace {

using Phase = WorkerReport::Phase;

constexpr Millis kTick{20};
constexpr Millis kFormWithin{2'000};
constexpr Millis kNoticed{4'000};
constexpr Millis kStartWithin{1'000};
// An address that is cut off is asked for so long.
constexpr Millis kAnswerWithin{300};
// Without other faults all that can be in one group train in it after this time.
constexpr Millis kGoOnWithin{2'000};
constexpr std::uint64_t kSteps = 200;

struct State {
  std::uint64_t step = 0;
  std::uint64_t hash = 1;
};

State After(const State& state, Generation generation) {
  return {state.step + 1, (state.hash ^ (generation.value() + state.step)) * 0x100000001b3ULL};
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
  TimePoint busy_until;
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
  bool misses = true;  // answers are lost, groups do not form
  bool slow = false;   // who asks an address that is cut off does nothing else meanwhile
};

class World {
 public:
  World(std::uint64_t seed, Faults faults, int workers = 0)
      : random_(seed), faults_(faults), workers_(workers == 0 ? 2 + random_() % 4 : workers) {
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

  // Workers a and b do not reach each other for a while, and all others reach both.
  void RunWithPairApart(std::size_t a, std::size_t b, bool from_the_beginning) {
    Millis limit = kGoOnWithin;
    if (from_the_beginning) {
      limit += kStartWithin;
    } else {
      REQUIRE(TickUntil(limit, [&] { return TrainTogether(size(), 1); }));
      RunFor(Millis(random_() % 500));
    }
    SetApart(a, b, true);
    CheckTrainTogether(size() - 1, limit);
    CheckUndisturbed();
    CheckAllMeet(a, b);
  }

  // Worker b ends and is started again, where it does not reach worker a; all others reach both.
  void RunWithNewcomerApart(std::size_t a, std::size_t b) {
    REQUIRE(TickUntil(kGoOnWithin, [&] { return TrainTogether(size(), 1); }));
    End(b);
    CheckTrainTogether(size() - 1, kGoOnWithin);
    SetApart(a, b, true);
    Start(b);
    CheckUndisturbed();
    CheckAllMeet(a, b);
  }

  int errors = 0;
  int joins = 0;
  int undone = 0;
  int finished = 0;

 private:
  std::size_t size() const { return workers_.size(); }
  bool Chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  bool Misses() { return faults_.misses && Chance(0.05); }
  bool Runs(std::size_t i) const { return workers_[i].alive && !workers_[i].stopped; }
  bool AllOver() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
      return worker.failed ||
             (worker.alive && worker.rendezvous->report().phase == Phase::kFinished);
    });
  }
  void SetApart(std::size_t a, std::size_t b, bool apart) { cut_[a][b] = cut_[b][a] = apart; }
  std::uint64_t Furthest() const {
    std::uint64_t furthest = 0;
    for (const Worker& one : workers_) furthest = std::max(furthest, one.committed.step);
    return furthest;
  }
  // So many are in one group of just them, and have done `step` there.
  bool TrainTogether(std::size_t members, std::uint64_t step) const {
    return std::any_of(workers_.begin(), workers_.end(), [&](const Worker& first) {
      return first.group != nullptr && first.group->formation.members.size() == members &&
             std::count_if(workers_.begin(), workers_.end(), [&](const Worker& one) {
               return one.group == first.group && one.committed.step >= step;
             }) == static_cast<std::ptrdiff_t>(members);
    });
  }
  void CheckTrainTogether(std::size_t members, Millis limit) {
    const std::uint64_t next = Furthest() + 1;
    CHECK(TickUntil(limit, [&] { return TrainTogether(members, next); }));
  }
  bool TickUntil(Millis limit, const std::function<bool()>& reached) {
    const TimePoint until = now_ + limit;
    while (now_ < until && !reached()) Tick();
    return reached();
  }
  void RunFor(Millis time) {
    (void)TickUntil(time, [] { return false; });
  }
  // Who is left out does not disturb those that train.
  void CheckUndisturbed() {
    const std::size_t groups = groups_.size();
    const std::uint64_t before = Furthest();
    RunFor(Millis(1'000));
    CHECK(Furthest() > before + 2);
    CHECK(groups_.size() == groups);
  }
  // Once a and b reach each other, to the end of the run.
  void CheckAllMeet(std::size_t a, std::size_t b) {
    SetApart(a, b, false);
    CheckTrainTogether(size(), kGoOnWithin);
    CHECK(TickUntil(Millis(60'000), [&] { return AllOver(); }));
    for (const Worker& worker : workers_) {
      CHECK(worker.committed.step == kSteps);
      CHECK(worker.committed.hash == history_[kSteps]);
    }
  }

  void Start(std::size_t i) {
    Worker& worker = workers_[i];
    worker = Worker{};
    worker.alive = true;
    worker.rendezvous =
        std::make_unique<Rendezvous>(Rendezvous::Options{.self = static_cast<int>(i),
                                                         .workers = static_cast<int>(size()),
                                                         .min_workers = 1,
                                                         .start_within = kStartWithin},
                                     incarnation_ = incarnation_.Next(), 7, 0);
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
    if (workers_[i].rendezvous->report().generation == Generation()) return true;
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
      Worker& worker = workers_[i];
      if (!Runs(i) || worker.failed || now_ < worker.busy_until || Chance(0.2)) continue;
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
      if (faults_.slow && cut_[i][j]) worker.busy_until = now_ + kAnswerWithin;
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
      if (Misses() || !Ask(i, j) || !workers_[j].rendezvous->Accept(formation).ok()) {
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
    if (!there || !Together(formation) || Misses()) {
      if (now_ - worker.agreed_at < kFormWithin && !Misses()) return;
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
    if (formation.members[donor].generation != Generation()) return;
    for (std::size_t i = 0; i < size(); ++i) {
      if (workers_[i].alive && !workers_[i].failed) {
        CHECK(workers_[i].rendezvous->report().generation == Generation());
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
  std::map<Generation, std::shared_ptr<PlayedGroup>> groups_;
  std::map<std::uint64_t, std::uint64_t> history_;  // what each step that counts has led to
  Incarnation incarnation_;
  std::uint64_t ports_ = 0;
  Generation latest_;
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

void CheckNoStepTwice(const Faults& faults) {
  int finished = 0;
  testing::EachSeed(1'000, [&](std::uint64_t seed) {
    World world(seed, faults);
    world.Run();
    finished += world.finished;
  });
  CHECK(finished > 1'000);
}

TEST_CASE("a step that counts is never done again by others, with workers stopped",
          "[collectives][elastic][sim]") {
  CheckNoStepTwice({.kills = true, .stops = true});
}

TEST_CASE("a step that counts is never done again by others, with workers cut off",
          "[collectives][elastic][sim]") {
  CheckNoStepTwice({.kills = true, .cuts = true});
}

// Which two of how many workers are apart, the seed says; a is the lower one.
void EachPairApart(
    const std::function<void(World&, std::uint64_t, std::size_t, std::size_t)>& run) {
  testing::EachSeed(1'000, [&](std::uint64_t seed) {
    const int workers = 3 + static_cast<int>(seed % 3);
    std::mt19937_64 random(seed);
    const std::size_t b = 1 + random() % static_cast<std::size_t>(workers - 1);
    const std::size_t a = random() % b;
    INFO("workers " << a << " and " << b << " of " << workers << " are apart");
    World world(seed, {.kills = false, .misses = false, .slow = true}, workers);
    run(world, seed, a, b);
    CHECK(world.errors == 0);
  });
}

TEST_CASE("of workers of which two do not reach each other all but one go on soon, and it joins",
          "[collectives][elastic][sim]") {
  EachPairApart([](World& world, std::uint64_t seed, std::size_t a, std::size_t b) {
    const bool from_the_beginning = seed % 2 == 0;
    INFO((from_the_beginning ? "from the beginning" : "later"));
    world.RunWithPairApart(a, b, from_the_beginning);
  });
}

TEST_CASE("a worker that starts and does not reach one of those that train leaves them alone",
          "[collectives][elastic][sim]") {
  EachPairApart([](World& world, std::uint64_t seed, std::size_t a, std::size_t b) {
    if (seed % 4 < 2) std::swap(a, b);
    world.RunWithNewcomerApart(a, b);
  });
}

}  // namespace
}  // namespace muster::collectives
