// Launched jobs under virtual time and bad luck, with the real decisions of their workers
// (launch_worker.h): workers die, are cut off and drained, connections break with answers on their
// way, processes fail and do not listen, the coordinator is killed with rows unwritten, its disk
// hangs, and somebody may stop the job. --seeds N runs more seeds, --seed N one.
#include <algorithm>
#include <csignal>
#include <set>

#include "common/messages/job_state.h"
#include "common/telemetry/log.h"
#include "coordinator/restarts.h"
#include "tests/support/seeds.h"
#include "tests/unit/coordinator/launch_worker.h"

namespace muster::coordinator::testing {
namespace {

constexpr int kLaunchTroubles = 30;
// A worker says nothing of a process for longer than that only where it cannot.
constexpr Millis kWellKnown{500};
// For the workers of a launch to be given up by a coordinator that was started again, and more.
constexpr Millis kSettled{30'000};

class LaunchWorld : public LaunchChance {
 public:
  LaunchWorld(std::uint64_t seed, bool elastic)
      : random_(seed),
        elastic_(elastic),
        count_(1 + Upto(3)),
        cluster_(Options(), [this] { return std::make_unique<MemoryJournal>(rows_); }) {
    for (int i = 0; i < count_; ++i) Begin(i);
    Pass(Millis(250));
    v1::SubmitJobRequest request;
    *request.mutable_spec() = Spec();
    cluster_.core->Submit(request, [&](const auto& reply) { submitted_ = reply.ok(); });
    Pass(Millis(500));
    REQUIRE(submitted_);
  }

  void Run() {
    for (int i = 0; i < kLaunchTroubles && !job().ended(); ++i) {
      Trouble();
      Look();
    }
    Mend();
    if (Upto(1) == 0) CheckRestart();
    End();
    CheckGivenBack();
  }

  int Upto(int most) override {
    return static_cast<int>(random_() % static_cast<unsigned>(most + 1));
  }

 private:
  // ---- What is simulated.

  static Coordinator::Options Options() {
    Coordinator::Options options;
    options.jobs.stop_grace = Millis(5'000);
    options.jobs.command_limit = Millis(20'000);
    return options;
  }
  v1::JobSpec Spec() {
    v1::JobSpec spec;
    spec.set_name("train");
    if (elastic_) spec.mutable_strategy()->set_kind(v1::STRATEGY_KIND_MULTI_WORKER_MIRRORED);
    const int least = 1 + Upto(count_ - 1);
    spec.mutable_strategy()->set_workers(static_cast<std::uint32_t>(least));
    spec.mutable_strategy()->set_max_workers(static_cast<std::uint32_t>(least + Upto(1)));
    v1::LaunchSpec& launch = *spec.mutable_launch();
    launch.set_command("train");
    launch.set_elastic(elastic_);
    constexpr std::array kPolicies = {v1::RESTART_POLICY_NEVER, v1::RESTART_POLICY_ON_FAILURE,
                                      v1::RESTART_POLICY_ON_FAILURE, v1::RESTART_POLICY_EXIT_CODE};
    launch.set_restart(kPolicies[static_cast<std::size_t>(Upto(3))]);
    if (launch.restart() != v1::RESTART_POLICY_NEVER) {
      launch.set_max_restarts(static_cast<std::uint32_t>(Upto(4)));
    }
    launch.set_grace_ms(static_cast<std::uint32_t>(500 + Upto(1'500)));
    if (!elastic_) launch.set_processes_per_worker(static_cast<std::uint32_t>(1 + Upto(1)));
    return spec;
  }

  Job& job() { return cluster_.any("train"); }
  const v1::Job& shown() { return job().record().job(); }
  const v1::LaunchSpec& launch() { return shown().spec().launch(); }
  LaunchWorker& at(int index) { return *workers_[static_cast<std::size_t>(index)]; }

  // A process of now, in the place of one that has gone.
  void Begin(int index) {
    const auto at = static_cast<std::size_t>(index);
    if (workers_.size() <= at) workers_.resize(at + 1);
    ++begun_;
    // Whoever calls may be one of its own calls.
    gone_.push_back(std::move(workers_[at]));
    workers_[at] = std::make_unique<LaunchWorker>(cluster_, *this, TaskId{"worker", index},
                                                  fmt::format("boot-{}", begun_), 1'000 + begun_);
    workers_[at]->Connect();
  }
  // It ends; another process takes its place, before it is given up or later.
  void Replace(int index, bool told) {
    at(index).Die(told);
    Spoil();
    const int millis = Upto(Upto(1) == 0 ? 300 : 6'000);
    (void)cluster_.time.RunAfter(Millis(millis), [this, index] {
      if (at(index).dead()) Begin(index);
    });
  }
  void OnReleased(const TaskId& worker) override {
    cluster_.time.Post([this, index = worker.index] {
      if (!at(index).draining() || at(index).dead()) return;
      Replace(index, /*told=*/Upto(1) == 0);
    });
  }

  void Pass(Millis total) {
    constexpr Millis kStep{250};
    for (Millis passed{0}; passed < total; passed += kStep) {
      for (const auto& worker : workers_) worker->Beat();
      cluster_.time.Advance(std::min(kStep, total - passed));
      if (submitted_) LookAtState();
    }
  }

  void Trouble() {
    const int index = Upto(count_ - 1);
    LaunchWorker& worker = at(index);
    switch (Upto(15)) {
      case 0:
        if (!worker.dead()) Replace(index, /*told=*/Upto(1) == 0);
        break;
      case 1:
        if (!worker.dead()) worker.cut() ? worker.Mend() : worker.Cut();
        break;
      case 2:  // what was on its way is lost: a command, an answer, news
      case 3:
        if (!worker.dead() && !worker.cut()) worker.Reset(/*noticed=*/Upto(1) == 0);
        break;
      case 4:
      case 5:
      case 6:
        ProcessFails(worker);
        break;
      case 7:
        if (Upto(1) == 0) ProcessEnds(worker);
        break;
      case 8:
        RestartCoordinator();
        break;
      case 9:
        if (Upto(1) == 0) HangDisk();
        break;
      case 10:
        if (!worker.dead() && Upto(2) == 0) {
          Spoil();
          worker.Drain();
        }
        break;
      case 11:
        if (Upto(9) == 0) {
          job().Stop(Millis(Upto(3'000)));
        }
        break;
      default:
        break;
    }
    Pass(Millis(Upto(Upto(3) == 0 ? 5'000 : 700)));
  }

  std::optional<worker::LaunchedId> SomeProcess(const LaunchWorker& worker) {
    std::vector<worker::LaunchedId> alive;
    for (const auto& [id, process] : worker.processes()) {
      if (process.alive) alive.push_back(id);
    }
    if (alive.empty()) return std::nullopt;
    return alive[static_cast<std::size_t>(Upto(static_cast<int>(alive.size()) - 1))];
  }
  void ProcessFails(LaunchWorker& worker) {
    const auto id = SomeProcess(worker);
    if (!id) return;
    const LaunchedHere& process = worker.processes().at(*id);
    // A failure that the row of the launch already covers is one that the policy counts.
    const v1::Job& row = rows_.jobs.at(job().id()).job();
    const bool counts = row.state() == v1::JOB_STATE_RUNNING && !process.asked &&
                        row.launch().launch() == process.launch;
    if (counts) failed_.insert(process.launch);
    constexpr std::array<std::pair<std::uint32_t, std::uint32_t>, 4> kEnds = {
        {{1, 0}, {137, 0}, {0, SIGSEGV}, {0, SIGKILL}}};
    const auto [code, signal] = kEnds[static_cast<std::size_t>(Upto(3))];
    ++failures_;
    worker.Exit(*id, code, signal);
  }
  static void ProcessEnds(LaunchWorker& worker, worker::LaunchedId id) { worker.Exit(id, 0, 0); }
  void ProcessEnds(LaunchWorker& worker) {
    if (const auto id = SomeProcess(worker)) ProcessEnds(worker, *id);
  }
  // What happens to the launch of now is not the program's doing alone.
  void Spoil() { spoilt_.insert(shown().launch().launch()); }

  void RestartCoordinator() {
    LookAtState();
    cluster_.RestartCoordinator();
    LookAtRestart();
    for (const auto& worker : workers_) {
      if (!worker->dead()) worker->LoseCoordinator();
    }
  }
  void HangDisk() {
    if (cluster_.journal_disk.hangs) return cluster_.journal_disk.Go();
    cluster_.journal_disk.hangs = true;
  }
  // Nothing more happens to it.
  void Mend() {
    if (cluster_.journal_disk.hangs) cluster_.journal_disk.Go();
    for (const auto& worker : workers_) {
      if (worker->cut() && !worker->dead()) worker->Mend();
    }
    Pass(kSettled);
  }

  // ---- What must hold.

  void Look() {
    LookAtState();
    if (launch().restart() == v1::RESTART_POLICY_NEVER) CHECK(shown().restarts() == 0);
    if (!elastic_) CHECK(shown().restarts() <= MostRestarts());
  }
  std::uint32_t MostRestarts() {
    if (launch().restart() == v1::RESTART_POLICY_NEVER) return 0;
    return launch().max_restarts() == 0 ? kDefaultRestarts : launch().max_restarts();
  }

  // From one moment to a later one, under one coordinator.
  static bool MayFollow(v1::JobState before, v1::JobState after) {
    if (before == after) return true;
    switch (before) {
      case v1::JOB_STATE_PENDING:
        return after != v1::JOB_STATE_SUCCEEDED;
      case v1::JOB_STATE_STARTING:
      case v1::JOB_STATE_RESTORING:
        return after != v1::JOB_STATE_PENDING;
      case v1::JOB_STATE_RUNNING:
        return after != v1::JOB_STATE_PENDING && after != v1::JOB_STATE_STARTING;
      case v1::JOB_STATE_STOPPING:
        return after == v1::JOB_STATE_CANCELLED;
      default:
        return false;
    }
  }
  void LookAtState() {
    const v1::JobState now = shown().state();
    CAPTURE(StateName(state_), StateName(now), shown().message());
    if (state_ != v1::JOB_STATE_UNSPECIFIED) REQUIRE(MayFollow(state_, now));
    state_ = now;
  }
  // The row says all that the next coordinator knows.
  void LookAtRestart() {
    const auto found = rows_.jobs.find(job().id());
    REQUIRE(found != rows_.jobs.end());
    const v1::Job& now = shown();
    state_ = now.state();
  }

  void OnSent(const TaskId& worker, const v1::Command& command) override {
    if (!command.has_prepare_launch()) return;
    const std::uint64_t number = command.prepare_launch().launch();
    CAPTURE(worker.ToString(), number);
    // It is on disk, and nobody has heard of it before.
    const v1::LaunchState& row = rows_.jobs.at(command.prepare_launch().job_id()).job().launch();
    REQUIRE((elastic_ ? std::ranges::any_of(row.tasks(),
                                            [&](const auto& one) { return one.launch() == number; })
                      : row.launch() == number));
    REQUIRE(prepared_.insert({number, elastic_ ? TaskId{} : worker}).second);
    REQUIRE(number >= newest_);
    newest_ = number;
  }

  void OnRun(const TaskId& task, const LaunchedHere& process) override {
    CAPTURE(task.ToString(), process.launch, process.place);
    REQUIRE(ran_.insert({process.launch, process.place}).second);
    for (const auto& worker : workers_) {
      for (const auto& [id, other] : worker->processes()) {
        if (!other.alive || other.launch == process.launch) continue;
        CAPTURE(other.launch, other.place, worker->pid());
        // One worker runs one launch.
        REQUIRE(worker.get() != &at(task.index));
        const bool rival = !elastic_ || other.place == process.place;
        const bool known = worker->InContact() && cluster_.time.Now() - other.began > kWellKnown;
        REQUIRE_FALSE((rival && known && !other.asked));
      }
    }
    CHECK(process.restarts <= (elastic_ ? failures_ : MostRestarts()));
    if (elastic_) return;
    const auto counted = std::ranges::count_if(
        failed_, [&](std::uint64_t one) { return one < process.launch && !spoilt_.contains(one); });
    CHECK(static_cast<std::uint32_t>(counted) <= MostRestarts());
  }

  // ---- The end.

  std::string Snapshot() {
    v1::Job job = shown();
    std::string text = StateName(job.state());
    for (const v1::LaunchedTask& task : job.launch().tasks())
      text += "\n" + task.ShortDebugString();
    return text + fmt::format("\n{} restarts", job.restarts());
  }
  // Another coordinator comes to the same, and nobody is started for it.
  void CheckRestart() {
    const std::string before = Snapshot();
    const bool steady = shown().state() == v1::JOB_STATE_RUNNING || job().ended();
    const std::size_t ran = ran_.size();
    RestartCoordinator();
    Pass(kSettled);
    if (!steady) return;
    INFO(Told());
    CHECK(Snapshot() == before);
    CHECK(ran_.size() == ran);
  }
  // The last that this coordinator has told of it, and its spec.
  std::string Told() {
    const v1::Job job = cluster_.any("train").Describe();
    std::string text = job.spec().ShortDebugString() + Snapshot();
    for (const v1::Event& event : job.events()) {
      text +=
          fmt::format("\n{} {} {}", event.time_ms() - 3'600'000, event.reason(), event.message());
    }
    return text + fmt::format("\n{} {}: {}", StateName(job.state()), job.reason(), job.message());
  }

  // Whoever runs now comes to its end, well, and so does the job.
  void End() {
    for (int i = 0; i < 120 && !job().ended(); ++i) {
      Pass(Millis(1'000));
      if (shown().state() != v1::JOB_STATE_RUNNING) continue;
      for (const auto& worker : workers_) {
        while (const auto id = SomeProcess(*worker)) ProcessEnds(*worker, *id);
      }
    }
    INFO(Told());
    REQUIRE(job().ended());
  }

  void CheckGivenBack() {
    const v1::JobState state = shown().state();
    const std::size_t ran = ran_.size();
    Pass(kSettled);
    for (int i = 0; i < count_; ++i) {
      CAPTURE(i);
      CHECK(at(i).Alive() == 0);
      CHECK_FALSE(at(i).ran());
      CHECK_FALSE(at(i).draining());
      CHECK_FALSE(job().Occupies({"worker", i}));
    }
    CHECK(ran_.size() == ran);
    RestartCoordinator();
    Pass(Millis(5'000));
    CHECK(shown().state() == state);
    CHECK(ran_.size() == ran);
  }

  std::mt19937_64 random_;
  const bool elastic_;
  const int count_;
  Rows rows_;
  Cluster cluster_;
  bool submitted_ = false;
  int begun_ = 0;
  std::vector<std::unique_ptr<LaunchWorker>> workers_, gone_;

  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  std::uint64_t newest_ = 0;
  std::set<std::pair<std::uint64_t, TaskId>> prepared_;
  std::set<std::pair<std::uint64_t, std::uint32_t>> ran_;  // launch, place
  // Launches that processes have failed of by themselves, while the row said that they ran; and
  // those that something else has happened to.
  std::set<std::uint64_t> failed_, spoilt_;
  std::uint32_t failures_ = 0;
};

void EachLaunchWorld(bool elastic) {
  // What workers log of thousands of processes.
  log::Configure({.level = log::Level::kError});
  muster::testing::EachSeed(1'000,
                            [elastic](std::uint64_t seed) { LaunchWorld(seed, elastic).Run(); });
  log::Configure({});
}

TEST_CASE("A launched job ends, whatever happens to its workers, its processes and its coordinator",
          "[coordinator][launch][sim]") {
  EachLaunchWorld(/*elastic=*/false);
}

TEST_CASE("An elastic job ends, whatever happens to its workers, its processes and its coordinator",
          "[coordinator][launch][elastic][sim]") {
  EachLaunchWorld(/*elastic=*/true);
}

}  // namespace
}  // namespace muster::coordinator::testing
