// Jobs whose variables live in executors, of one worker (home_view.h) or of several in step
// (group_view.h), under virtual time and bad luck: workers die, fall silent, come back, connections
// break with answers on their way, executors end, groups do not find together, the driver ends, the
// coordinator is killed with rows unwritten. --seeds N runs more seeds, --seed N one.
#include <algorithm>
#include <random>
#include <set>

#include "common/messages/job_state.h"
#include "tests/support/seeds.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator::testing {
namespace {

constexpr int kHomeTroubles = 30;
constexpr std::uint64_t kHomeSteps = 60;

class HomeWorld {
 public:
  HomeWorld(std::uint64_t seed, bool in_step)
      : random_(seed),
        in_step_(in_step),
        workers_(1 + Upto(2)),
        cluster_(Options(), [this] { return std::make_unique<MemoryJournal>(rows_); }) {
    // Drivers come one after another, under higher numbers.
    cluster_.drivers.on_model = [this, begin = cluster_.drivers.on_model](const auto& start) {
      REQUIRE(start.incarnation() > driver_);
      driver_ = start.incarnation();
      begin(start);
    };
    for (int i = 0; i < workers_; ++i) Join(i, /*fresh=*/true);
    REQUIRE(cluster_.Submit(Spec()).ok());
    cluster_.Pass(Millis(6'000));
    REQUIRE(cluster_.State() == v1::JOB_STATE_RUNNING);
  }

  void Run() {
    for (int i = 0; i < kHomeTroubles; ++i) {
      Drive();
      Trouble();
      Look();
      REQUIRE_FALSE(job().ended());
    }
    Mend();
    Upto(3) == 0 ? Stop() : Finish();
    CheckGivenBack();
  }

 private:
  // ---- What is simulated.

  // What ends executors here says nothing of a closure.
  static Coordinator::Options Options() {
    Coordinator::Options options;
    options.jobs.driver_limit = options.jobs.crash_limit = options.jobs.kill_limit = 1'000;
    options.jobs.executor_limit = 1'000;
    return options;
  }
  v1::JobSpec Spec() {
    v1::JobSpec spec = Cluster::Spec();
    v1::StrategySpec& strategy = *spec.mutable_strategy();
    strategy.set_kind(Upto(1) == 0 ? v1::STRATEGY_KIND_ONE_DEVICE : v1::STRATEGY_KIND_MIRRORED);
    if (in_step_) {
      least_ = 1 + Upto(workers_ - 1);
      strategy.set_kind(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
      strategy.set_workers(static_cast<std::uint32_t>(least_));
      strategy.set_max_workers(static_cast<std::uint32_t>(workers_));
    } else if (strategy.kind() == v1::STRATEGY_KIND_MIRRORED) {
      strategy.set_devices(2);
    }
    return spec;
  }

  int Upto(int most) { return static_cast<int>(random_() % static_cast<unsigned>(most + 1)); }
  ModelJob& job() { return cluster_.job(); }
  static TaskId Worker(int index) { return {"worker", index}; }
  FakeDaemon& at(int index) { return cluster_.at(Worker(index)); }

  void Join(int index, bool fresh) {
    if (fresh) ++boots_[index];
    FakeDaemon& daemon =
        cluster_.Join(Worker(index), fmt::format("boot-{}-{}", index, boots_[index]));
    REQUIRE(cluster_.joined.ok());
    kept_.push_back(cluster_.daemons.at(Worker(index)));
    (void)daemon;
  }

  // As the driver: opens the job when it must, and keeps some closures scheduled.
  void Drive() {
    if (job().ended() || job().driver() == Incarnation()) return;
    const auto opened = cluster_.Open();
    if (!opened.ok()) return;
    LookAtSteps(*opened);
    const std::uint64_t from = opened->scheduled() + 1;
    const std::uint64_t to =
        std::min<std::uint64_t>(kHomeSteps, from + static_cast<unsigned>(Upto(4)));
    if (from <= to) (void)cluster_.Schedule(from, to);
  }

  void Trouble() {
    const int index = Upto(workers_ - 1);
    FakeDaemon& daemon = at(index);
    switch (Upto(13)) {
      case 0:  // killed
        cluster_.Kill(Worker(index));
        if (Upto(1) == 0) cluster_.Pass(Millis(Upto(5'000)));
        return Join(index, /*fresh=*/true);
      case 1:  // stopped, or cut off
        daemon.silent = true;
        cluster_.Pass(Millis(Upto(8'000)));
        return Join(index, /*fresh=*/false);
      case 2:  // its connection breaks, and what was on its way is lost
        daemon.silent = true;
        if (Upto(1) == 0) cluster_.core->OnStreamEnded(daemon.session);
        return Join(index, /*fresh=*/false);
      case 3:
        return ExecutorEnds(daemon);
      case 4:
        return RestartCoordinator();
      case 5:
        if (job().driver() != Incarnation()) cluster_.DriverExits("signal SIGKILL");
        return cluster_.Pass(Millis(500));
      case 6:
        return Save();
      case 7:  // members of a group do not answer, or do not find each other
        daemon.silent_groups = !daemon.silent_groups;
        return cluster_.Pass(Millis(Upto(5'000)));
      case 8:
        if (const int other = Upto(workers_ - 1); other != index) {
          daemon.cut_from.insert(Worker(other));
        }
        return cluster_.Pass(Millis(Upto(5'000)));
      case 9:
        daemon.silent_groups = false;
        daemon.cut_from.clear();
        return cluster_.Pass(Millis(Upto(5'000)));
      case 10:
        return OldNews(daemon);
      default:
        return Work();
    }
  }

  void ExecutorEnds(FakeDaemon& daemon) {
    if (daemon.plan.job_id().empty() || daemon.start.program().incarnation() == 0) return;
    ended_.insert(daemon.start.program().incarnation());
    daemon.ExecutorExits("signal SIGKILL", /*from_outside=*/true);
    cluster_.Pass(Millis(Upto(1'500)));
  }
  // News of an executor that is long gone.
  void OldNews(FakeDaemon& daemon) {
    if (started_.empty()) return;
    v1::DaemonMessage late;
    v1::ExecutorEvent& event = *late.mutable_executor();
    event.set_job_id(job().id());
    event.set_view(1);
    event.set_kind(Upto(1) == 0 ? v1::ExecutorEvent::KIND_READY : v1::ExecutorEvent::KIND_EXITED);
    event.set_incarnation(started_.begin()->first);
    event.set_how("signal SIGKILL");
    if (daemon.start.program().incarnation() != event.incarnation()) daemon.Say(late);
    cluster_.Settle();
  }
  // Each worker finishes some of what it has.
  void Work() {
    for (int i = 0; i < workers_; ++i) {
      FakeDaemon& daemon = at(i);
      // Who leads no group any more makes no steps.
      if (in_step_ && i != Home()) continue;
      for (int n = Upto(3); n > 0 && !daemon.given.empty(); --n) {
        const Given closure = daemon.given.front();
        daemon.given.pop_front();
        daemon.Finish(closure);
        ShareVariables();
      }
    }
    cluster_.Settle();
  }
  // Whoever is in a group that makes steps has what its leader has.
  void ShareVariables() {
    if (!in_step_ || cluster_.State() != v1::JOB_STATE_RUNNING) return;
    const Memory* memory = cluster_.MemoryOf(Worker(Home()));
    if (memory == nullptr || memory->view != cluster_.View()) return;
    for (const v1::GroupMember& member : at(Home()).joined.members()) {
      const TaskId task = FromProto(member.task());
      FakeDaemon& other = cluster_.at(task);
      if (other.start.program().incarnation() != member.executor()) continue;
      if (Memory* const its = cluster_.MemoryOf(task); its != nullptr && its != memory) {
        *its = *memory;
      }
    }
  }
  void Save() {
    Work();
    const auto joined = cluster_.JoinNow();
    if (joined.ok() && joined->done()) (void)cluster_.BeginSave(joined->steps_done());
    cluster_.Settle();
  }

  // Whoever has the variables goes on where it stood when all come back with what they had.
  void RestartCoordinator() {
    // Where the leader was lost and is back without variables, and no group stands yet, it is asked
    // for them all the same: the job goes back to its checkpoint, which executors here know nothing
    // of.
    if (in_step_ && !LeaderHasAll()) return Work();
    LookAtState();
    const std::uint64_t view = cluster_.View();
    const bool ran = cluster_.State() == v1::JOB_STATE_RUNNING;
    const std::uint64_t done = done_;
    bool same = ran && job().record().plan().has_home() && AllWell();
    cluster_.RestartCoordinator();
    state_ = cluster_.State();
    CHECK(cluster_.View() == view);
    for (int i = 0; i < workers_; ++i) {
      if (Upto(2) == 0) cluster_.Pass(Millis(Upto(2'000)));
      const bool fresh = Upto(3) == 0;
      same = same && !fresh;
      Join(i, fresh);
    }
    cluster_.Pass(Millis(6'000));
    if (!same) return;
    CAPTURE(Told());
    CHECK(cluster_.View() == view);
    CHECK(cluster_.State() == v1::JOB_STATE_RUNNING);
    Drive();
    CHECK(done_ >= done);
  }
  bool LeaderHasAll() {
    const Memory* memory = cluster_.MemoryOf(Worker(Home()));
    if (!job().record().plan().has_home() || memory == nullptr) return false;
    if (memory->view != cluster_.View() || cluster_.State() != v1::JOB_STATE_RUNNING) return false;
    const auto has = std::ranges::count_if(memory->marks, [this](const auto& one) {
      return one.first <= cluster_.model().done() && one.second.applied;
    });
    return memory->start + static_cast<std::uint64_t>(has) >= cluster_.model().done();
  }
  int Home() { return static_cast<int>(job().record().plan().home()); }
  // Nobody is away, or cannot find another one.
  bool AllWell() {
    for (int i = 0; i < workers_; ++i) {
      if (at(i).silent || at(i).silent_groups || !at(i).cut_from.empty()) return false;
    }
    return true;
  }
  void Mend() {
    for (int i = 0; i < workers_; ++i) {
      at(i).silent_groups = false;
      at(i).cut_from.clear();
      if (at(i).silent) Join(i, /*fresh=*/false);
    }
    cluster_.Pass(Millis(30'000), Millis(250));
    Look();
  }

  // ---- What must hold.

  void Look() {
    cluster_.Settle();
    ShareVariables();
    LookAtState();
    LookAtStarts();
    if (!in_step_) LookAtClosures();
  }

  static bool MayFollow(v1::JobState before, v1::JobState after) {
    if (before == after) return true;
    switch (before) {
      case v1::JOB_STATE_PENDING:
      case v1::JOB_STATE_STARTING:
        return after != v1::JOB_STATE_SUCCEEDED;
      case v1::JOB_STATE_RESTORING:
      case v1::JOB_STATE_RUNNING:
        return after != v1::JOB_STATE_PENDING;
      case v1::JOB_STATE_STOPPING:
        return HasEnded(after);
      default:
        return false;
    }
  }
  void LookAtState() {
    const v1::JobState now = cluster_.State();
    CAPTURE(StateName(state_), StateName(now));
    if (state_ != v1::JOB_STATE_UNSPECIFIED) REQUIRE(MayFollow(state_, now));
    state_ = now;
    REQUIRE(cluster_.View() >= view_);
    view_ = cluster_.View();
  }

  // No executor's number is given twice, and none is asked for beside one that runs: only another
  // view, or the end of the one before, makes another.
  void LookAtStarts() {
    for (const auto& daemon : kept_) {
      Starts& seen = starts_[daemon.get()];
      for (; seen.commands < daemon->commands.size(); ++seen.commands) {
        const v1::Command& command = daemon->commands[seen.commands];
        if (command.has_stop_executor()) seen.running = false;
        if (!command.has_start_executor()) continue;
        const v1::StartExecutor& start = command.start_executor();
        const std::uint64_t number = start.program().incarnation();
        CAPTURE(number, seen.number, start.plan().view(), Told());
        if (!start.adopt()) {
          // One that may not have heard of it is asked again.
          const auto [same, first] = started_.emplace(number, daemon->boot_id());
          REQUIRE((first || (same->second == daemon->boot_id() && !ended_.contains(number))));
          const bool beside = seen.running && seen.number != number &&
                              !ended_.contains(seen.number) && seen.view == start.plan().view();
          REQUIRE_FALSE(beside);
        }
        // One that goes on has its number of before, if it does.
        seen.running = !start.adopt();
        seen.number = number;
        seen.view = start.plan().view();
      }
    }
  }

  // One executor at a time has the closures of the view of now.
  void LookAtClosures() {
    int holders = 0;
    for (int i = 0; i < workers_; ++i) {
      const auto& given = at(i).given;
      holders += std::ranges::any_of(given, [this](const Given& one) {
        return one.view == cluster_.View() && one.by == job().driver();
      });
    }
    CHECK(holders <= 1);
  }

  // In a view no step is undone; another one begins with a checkpoint, or at the beginning.
  void LookAtSteps(const v1::OpenJobReply& opened) {
    const std::uint64_t done = opened.steps_done();
    const std::uint64_t start = opened.plan().start_step();
    CAPTURE(done, done_, start, opened.plan().view(), Told());
    if (opened.plan().view() == opened_view_) CHECK(done >= done_);
    CHECK(done >= start);
    CHECK((start == 0 || cluster_.checkpoints.steps.contains(start)));
    opened_view_ = opened.plan().view();
    done_ = done;
  }

  // ---- The end.

  std::string Told() {
    const v1::Job shown = job().Describe();
    std::string text;
    for (const v1::Event& event : shown.events()) {
      text += fmt::format("\n{} {} {}", event.time_ms(), event.reason(), event.message());
    }
    return text +
           fmt::format("\n{} {}: {}", StateName(shown.state()), shown.reason(), shown.message());
  }

  void Finish() {
    for (int i = 0; i < 400 && done_ < kHomeSteps; ++i) {
      Drive();
      cluster_.WorkAll();
      cluster_.Pass(Millis(500), Millis(250));
    }
    INFO(Told());
    REQUIRE(cluster_.JoinNow().ok());
    REQUIRE(cluster_.JoinNow()->steps_done() == kHomeSteps);
    if (!in_step_) {
      const Memory* memory = cluster_.MemoryOf(Worker(Home()));
      REQUIRE(memory != nullptr);
      CHECK(memory->view == cluster_.View());
      CHECK(memory->StandsAt(kHomeSteps));
    }
    REQUIRE(cluster_.FinishJob().ok());
    CHECK(cluster_.State() == v1::JOB_STATE_SUCCEEDED);
  }
  void Stop() {
    job().Stop(Millis(1'000));
    LookAtState();
    cluster_.Pass(Millis(120'000), Millis(250));
    INFO(Told());
    CHECK(cluster_.State() == v1::JOB_STATE_CANCELLED);
  }

  // Nobody has an executor of it, and none is started for it any more.
  void CheckGivenBack() {
    cluster_.Pass(Millis(1'000));
    Look();
    const std::size_t started = started_.size();
    for (int i = 0; i < workers_; ++i) {
      CHECK_FALSE(job().Occupies(Worker(i)));
      CHECK_FALSE(starts_[&at(i)].running);
    }
    const v1::JobState state = cluster_.State();
    cluster_.RestartCoordinator();
    for (int i = 0; i < workers_; ++i) Join(i, /*fresh=*/false);
    cluster_.Pass(Millis(5'000), Millis(250));
    Look();
    CHECK(cluster_.State() == state);
    CHECK(started_.size() == started);
  }

  struct Starts {
    std::size_t commands = 0;  // that were looked at
    bool running = false;
    std::uint64_t number = 0;
    std::uint64_t view = 0;
  };

  std::mt19937_64 random_;
  const bool in_step_;
  const int workers_;
  int least_ = 1;
  Rows rows_;
  Cluster cluster_;
  std::map<int, int> boots_;
  // Also those of before, so that no other gets the address of one that was looked at.
  std::vector<std::shared_ptr<FakeDaemon>> kept_;
  std::map<FakeDaemon*, Starts> starts_;
  std::map<std::uint64_t, std::string> started_;  // by number: the daemon that was to
  std::set<std::uint64_t> ended_;
  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  std::uint64_t driver_ = 0;
  std::uint64_t view_ = 0;
  std::uint64_t opened_view_ = 0;
  std::uint64_t done_ = 0;
};

TEST_CASE("A job in one worker's executor does each step once, whatever happens around it",
          "[coordinator][unit][sim]") {
  muster::testing::EachSeed(1'000,
                            [](std::uint64_t seed) { HomeWorld(seed, /*in_step=*/false).Run(); });
}

TEST_CASE("A job of workers in step ends, whatever happens to them and around them",
          "[coordinator][unit][sim]") {
  muster::testing::EachSeed(1'000,
                            [](std::uint64_t seed) { HomeWorld(seed, /*in_step=*/true).Run(); });
}

}  // namespace
}  // namespace muster::coordinator::testing
