// A model's job under virtual time and bad luck: workers die with a gradient on some servers and
// not on others, come back, wake up late, servers lose their memory, drivers end, and the
// coordinator is killed again and again. --seeds N runs more seeds, --seed N one.
#include <deque>
#include <random>
#include <utility>

#include "tests/support/seeds.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator::testing {
namespace {

constexpr int kModelTroubles = 30;
constexpr std::uint64_t kSteps = 100;

class ModelWorld {
 public:
  // `lossy`: servers lose their memory too.
  ModelWorld(std::uint64_t seed, bool lossy)
      : random_(seed),
        lossy_(lossy),
        servers_(1 + Upto(2)),
        workers_(1 + Upto(2)),
        cluster_(Options(), [this] { return std::make_unique<MemoryJournal>(rows_); }) {
    for (int i = 0; i < servers_; ++i) Join({"ps", i}, /*fresh=*/true);
    for (int i = 0; i < workers_; ++i) Join({"worker", i}, /*fresh=*/true);
    REQUIRE(cluster_.Submit(Cluster::Spec()).ok());
    REQUIRE(cluster_.View() == 1);
    lost_memory_ = false;
  }

  void Run() {
    for (int i = 0; i < kModelTroubles && !cluster_.job().ended(); ++i) {
      Drive();
      Trouble();
      Look();
    }
    Calm();
  }

 private:
  static Coordinator::Options Options() {
    Coordinator::Options options;
    options.jobs.driver_limit = 1'000;
    return options;
  }
  int Upto(int most) { return static_cast<int>(random_() % static_cast<unsigned>(most + 1)); }
  TaskId SomeWorker() { return {"worker", Upto(workers_ - 1)}; }
  TaskId SomeServer() { return {"ps", Upto(servers_ - 1)}; }

  void Join(const TaskId& task, bool fresh) {
    if (fresh) ++boots_[task];
    if (fresh && task.type == "ps") lost_memory_ = true;
    (void)cluster_.Join(task, fmt::format("{}-{}", task.ToString(), boots_[task]));
  }

  // As the driver: opens the job when it must, and keeps some closures scheduled.
  void Drive() {
    ModelJob& job = cluster_.job();
    if (job.ended() || job.driver() == Incarnation()) return;
    const auto opened = cluster_.Open();
    if (!opened.ok()) return;
    const std::uint64_t done = opened->steps_done();
    if (!lost_memory_) CHECK(done >= done_);
    done_ = done;
    const std::uint64_t from = opened->scheduled() + 1;
    const std::uint64_t to = std::min<std::uint64_t>(kSteps, from + static_cast<unsigned>(Upto(4)));
    if (from <= to) (void)cluster_.Schedule(from, to);
  }

  void Trouble() {
    switch (Upto(11)) {
      case 0:  // killed with a gradient on its way, which some servers get
        Forget(SomeWorker(), /*push=*/true);
        return;
      case 1:  // stopped, or cut off, and wakes up late
        Silence(SomeWorker());
        return;
      case 2:
        Silence(SomeServer());
        return;
      case 3:
        if (lossy_ && Upto(2) == 0) {
          const TaskId server = SomeServer();
          cluster_.Kill(server);
          cluster_.Pass(Millis(Upto(3'000)));
          Join(server, /*fresh=*/true);
        }
        return;
      case 4:
      case 5:
        return RestartCoordinator();
      case 6:
        if (cluster_.job().driver() != Incarnation()) cluster_.DriverExits("signal SIGKILL");
        return cluster_.Pass(Millis(500));
      case 7:
        return PushLate();
      case 8:
        return Save();
      default:
        return Work();
    }
  }

  // Each worker finishes some of what it has.
  void Work() {
    for (int i = 0; i < workers_; ++i) {
      FakeDaemon& daemon = cluster_.at({"worker", i});
      for (int n = Upto(3); n > 0 && !daemon.given.empty(); --n) {
        const Given closure = daemon.given.front();
        daemon.given.pop_front();
        Remember(i, closure);
        daemon.Finish(closure);
      }
    }
    cluster_.Settle();
  }

  void Remember(int worker, const Given& closure) {
    late_.emplace_back(cluster_.daemons.at({"worker", worker}), closure);
    if (late_.size() > 40) late_.pop_front();
  }
  // What is in flight somewhere is in the hands of a process that may push it whenever it likes.
  void RememberAll() {
    for (int i = 0; i < workers_; ++i) {
      for (const auto& closure : cluster_.at({"worker", i}).given) Remember(i, closure);
    }
  }

  void Forget(const TaskId& worker, bool push) {
    RememberAll();
    FakeDaemon& daemon = cluster_.at(worker);
    if (push && !daemon.given.empty()) daemon.Push(daemon.given.front(), Some());
    cluster_.Kill(worker);
    if (Upto(1) == 0) cluster_.Pass(Millis(Upto(4'000)));
    Join(worker, /*fresh=*/true);
  }
  std::set<int> Some() {
    std::set<int> some;
    for (int i = 0; i < servers_; ++i) {
      if (Upto(1) == 0) some.insert(i);
    }
    return some;
  }

  void Silence(const TaskId& task) {
    RememberAll();
    cluster_.at(task).silent = true;
    cluster_.Pass(Millis(Upto(8'000)));
    Join(task, /*fresh=*/false);
  }

  void PushLate() {
    if (late_.empty()) return;
    const auto& [daemon, closure] =
        late_[static_cast<std::size_t>(Upto(static_cast<int>(late_.size()) - 1))];
    daemon->Push(closure, Some());
  }

  void RestartCoordinator() {
    RememberAll();
    const std::uint64_t view = cluster_.View();
    cluster_.RestartCoordinator();
    PushLate();
    std::vector<TaskId> tasks;
    for (int i = 0; i < servers_; ++i) tasks.push_back({"ps", i});
    for (int i = 0; i < workers_; ++i) tasks.push_back({"worker", i});
    std::shuffle(tasks.begin(), tasks.end(), random_);
    for (const TaskId& task : tasks) {
      if (Upto(2) == 0) cluster_.Pass(Millis(Upto(2'000)));
      const bool ps = task.type == "ps";
      Join(task, /*fresh=*/ps ? lossy_ && Upto(9) == 0 : Upto(3) == 0);
      if (Upto(3) == 0) PushLate();
    }
    cluster_.Pass(Millis(1'500));
    if (!lost_memory_) CHECK(cluster_.View() == view);
  }

  void Save() {
    Work();
    const auto joined = cluster_.JoinNow();
    if (joined.ok() && joined->done()) (void)cluster_.BeginSave(joined->steps_done());
    cluster_.Settle();
  }

  // What must hold at any moment.
  void Look() {
    cluster_.Settle();
    REQUIRE_FALSE(cluster_.job().ended());
    for (int i = 0; i < servers_; ++i) CHECK(cluster_.at({"ps", i}).torn_saves == 0);
  }

  // Everybody is well, and the job ends with each step applied once by every server.
  void Calm() {
    for (int i = 0; i < 400 && done_ < kSteps; ++i) {
      Drive();
      cluster_.WorkAll();
      cluster_.Pass(Millis(500));
    }
    INFO(cluster_.job().record().job().message()
         << " " << cluster_.job().record().job().reason() << " view " << cluster_.View()
         << " driver " << cluster_.job().driver().value() << " scheduled "
         << (cluster_.models.contains("job-1") ? cluster_.model().Report(false).ShortDebugString()
                                               : "none"));
    REQUIRE(cluster_.JoinNow().ok());
    REQUIRE(cluster_.JoinNow()->steps_done() == kSteps);
    for (int i = 0; i < servers_; ++i) {
      const Memory* memory = cluster_.MemoryOf({"ps", i});
      REQUIRE(memory != nullptr);
      CHECK(memory->view == cluster_.View());
      CHECK(memory->StandsAt(kSteps));
    }
    REQUIRE(cluster_.FinishJob().ok());
    CHECK(cluster_.State() == v1::JOB_STATE_SUCCEEDED);
  }

  Rows rows_;
  std::mt19937_64 random_;
  const bool lossy_;
  const int servers_;
  const int workers_;
  Cluster cluster_;
  std::map<TaskId, int> boots_;
  std::uint64_t done_ = 0;
  // A server did: the job goes back to a checkpoint.
  bool lost_memory_ = false;
  std::deque<std::pair<std::shared_ptr<FakeDaemon>, Given>> late_;
};

TEST_CASE("No step of a model's job is lost or done twice while its servers keep their memory",
          "[coordinator][unit]") {
  muster::testing::EachSeed(1'000, [](std::uint64_t seed) {
    ModelWorld world(seed, /*lossy=*/false);
    world.Run();
  });
}

TEST_CASE("A model's job ends with every step applied once, whoever loses what",
          "[coordinator][unit]") {
  muster::testing::EachSeed(1'000, [](std::uint64_t seed) {
    ModelWorld world(seed, /*lossy=*/true);
    world.Run();
  });
}

}  // namespace
}  // namespace muster::coordinator::testing
