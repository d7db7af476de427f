// A program's job under virtual time and bad luck: workers die, come back as other processes or as
// the same one, executors end before and after they are ready, main() fails, the coordinator is
// killed with rows unwritten, and old news arrives late. --seeds N runs more seeds, --seed N
// one.
#include <map>
#include <random>
#include <set>

#include "tests/support/seeds.h"
#include "tests/unit/coordinator/fake_cluster.h"

namespace muster::coordinator::testing {
namespace {

constexpr int kTroubles = 25;
constexpr Millis kCalm{90'000};

class ProgramWorld {
 public:
  explicit ProgramWorld(std::uint64_t seed)
      : random_(seed),
        workers_(1 + Upto(3)),
        most_(Upto(2) == 0 ? 0 : 1 + Upto(workers_ - 1)),
        cluster_({}, [this] { return std::make_unique<MemoryJournal>(rows_); }) {
    for (int i = 0; i < workers_; ++i) Join(i, /*fresh=*/true);
    v1::JobSpec spec;
    spec.set_name("words");
    spec.mutable_strategy()->set_kind(v1::STRATEGY_KIND_PARAMETER_SERVER);
    spec.mutable_strategy()->set_workers(static_cast<std::uint32_t>(most_));
    spec.mutable_program()->set_sha256(std::string(64, 'a'));
    spec.mutable_program()->set_restart(v1::RESTART_POLICY_ON_FAILURE);
    spec.mutable_program()->set_max_restarts(1'000);
    REQUIRE(cluster_.Submit(spec).ok());
  }

  void Run() {
    for (int i = 0; i < kTroubles; ++i) {
      Trouble();
      Look();
    }
    Calm();
    End();
  }

 private:
  int Upto(int most) { return static_cast<int>(random_() % static_cast<unsigned>(most + 1)); }
  Job& job() { return cluster_.any("words"); }
  static TaskId Worker(int index) { return {"worker", index}; }
  FakeDaemon& at(int index) { return cluster_.at(Worker(index)); }

  void Join(int index, bool fresh) {
    if (fresh) ++boots_[index];
    FakeDaemon& daemon =
        cluster_.Join(Worker(index), fmt::format("boot-{}-{}", index, boots_[index]));
    if (cluster_.joined.ok()) daemon.slow_executors = Upto(2) == 0;
  }

  void Trouble() {
    const int index = Upto(workers_ - 1);
    FakeDaemon& daemon = at(index);
    switch (Upto(9)) {
      case 0:  // killed
        cluster_.Kill(Worker(index));
        return Join(index, /*fresh=*/true);
      case 1:  // killed, and comes back when it has been given up
        cluster_.Kill(Worker(index));
        cluster_.Pass(Millis(Upto(5'000)));
        return Join(index, /*fresh=*/Upto(1) == 0);
      case 2:  // stopped for so long
        daemon.silent = true;
        cluster_.Pass(Millis(Upto(8'000)));
        return Join(index, /*fresh=*/false);
      case 3:  // an executor ends, by whatever, ready or not
        if (daemon.start.has_program()) {
          daemon.Executor(v1::ExecutorEvent::KIND_EXITED, "signal SIGKILL",
                          /*from_outside=*/true);
        }
        return;
      case 4:  // a slow one gets ready
        if (daemon.start.has_program()) daemon.Executor(v1::ExecutorEvent::KIND_READY);
        return;
      case 5:
        return MainIsReady();
      case 6:
        return MainFails();
      case 7:
        return RestartCoordinator();
      case 8:
        return OldNews();
      default:
        cluster_.Pass(Millis(Upto(1'500)));
    }
  }

  void MainIsReady() {
    v1::FromProgram message;
    (void)message.mutable_ready();
    cluster_.core->OnDriverMessage(job().id(), job().driver(), message);
    cluster_.Settle();
  }
  void MainFails() {
    if (job().driver() == Incarnation()) return;
    LookAtDrivers();
    cluster_.core->OnDriverExit(job().id(), job().driver(), false, "exit code 1");
    running_ = 0;
    cluster_.Settle();
  }
  void RestartCoordinator() {
    LookAtDrivers();
    cluster_.RestartCoordinator();
    running_ = 0;  // it dies with its parent
    for (int i = 0; i < workers_; ++i) Join(i, /*fresh=*/Upto(2) == 0);
  }
  // What processes that are long gone say.
  void OldNews() {
    if (numbers_.empty()) return;
    const Incarnation old(*numbers_.begin());
    if (old == job().driver()) return;
    cluster_.core->OnDriverExit(job().id(), old, Upto(1) == 0, "exit code 0");
    v1::FromProgram message;
    message.mutable_report()->set_done(1'000'000'000);
    cluster_.core->OnDriverMessage(job().id(), old, message);
    v1::DaemonMessage late;
    v1::ExecutorEvent& event = *late.mutable_executor();
    event.set_job_id(job().id());
    event.set_view(1);
    event.set_kind(v1::ExecutorEvent::KIND_READY);
    event.set_incarnation(1);
    at(Upto(workers_ - 1)).Say(late);
  }

  // What must hold at any moment.
  void Look() {
    cluster_.Settle();
    REQUIRE_FALSE(job().ended());
    LookAtStarts();
    LookAtDrivers();
    CHECK(job().record().job().program().done() < 1'000'000'000);
  }

  // No incarnation is given twice, by whichever coordinator.
  void LookAtStarts() {
    for (auto& [task, daemon] : cluster_.daemons) {
      for (; seen_commands_[daemon.get()] < daemon->commands.size();
           ++seen_commands_[daemon.get()]) {
        const v1::Command& command = daemon->commands[seen_commands_[daemon.get()]];
        if (!command.has_start_executor()) continue;
        const std::uint64_t number = command.start_executor().program().incarnation();
        CAPTURE(task.ToString(), number);
        REQUIRE(incarnations_.insert(number).second);
      }
      kept_.insert(daemon);
    }
  }

  // One main() at a time, each with a higher number; who vanishes from its members was judged.
  void LookAtDrivers() {
    FakeDrivers& drivers = cluster_.drivers;
    for (; seen_launches_ < drivers.launched.size(); ++seen_launches_) {
      const std::uint64_t number = drivers.launched[seen_launches_].start.incarnation();
      REQUIRE((numbers_.empty() || number > *numbers_.rbegin()));
      REQUIRE(running_ == 0);
      numbers_.insert(number);
      running_ = number;
      members_.clear();
      judged_.clear();
      // What is sent to it comes behind its launch; members begin anew.
      first_members_ = true;
    }
    for (; seen_sent_ < drivers.sent.size(); ++seen_sent_) {
      const v1::ToProgram& message = drivers.sent[seen_sent_];
      if (message.has_verdict()) judged_.insert(message.verdict().incarnation());
      if (!message.has_members()) continue;
      std::set<std::uint64_t> now;
      for (const v1::ProgramWorker& worker : message.members().workers()) {
        now.insert(worker.incarnation());
      }
      if (most_ > 0) REQUIRE(now.size() <= static_cast<std::size_t>(most_));
      if (!std::exchange(first_members_, false)) {
        for (const std::uint64_t before : members_) {
          CAPTURE(before);
          REQUIRE((now.contains(before) || judged_.contains(before)));
        }
      }
      members_ = now;
    }
  }

  // Nothing more happens to it: all that it may have runs, and main() knows it.
  void Calm() {
    for (int i = 0; i < workers_; ++i) {
      at(i).slow_executors = false;
      if (at(i).silent) Join(i, /*fresh=*/true);
      at(i).slow_executors = false;
      if (at(i).start.has_program()) at(i).Executor(v1::ExecutorEvent::KIND_READY);
    }
    cluster_.Pass(kCalm, Millis(250));
    Look();
    MainIsReady();
    REQUIRE(job().record().job().state() == v1::JOB_STATE_RUNNING);
    const std::size_t expected = static_cast<std::size_t>(most_ > 0 ? most_ : workers_);
    CHECK(members_.size() == expected);
    std::set<std::uint64_t> there;
    for (int i = 0; i < workers_; ++i) there.insert(at(i).start.program().incarnation());
    for (const std::uint64_t member : members_) CHECK(there.contains(member));
  }

  void End() {
    cluster_.core->OnDriverExit(job().id(), job().driver(), true, "exit code 0");
    cluster_.Settle();
    CHECK(job().record().job().state() == v1::JOB_STATE_SUCCEEDED);
    int stopped = 0;
    for (auto& [task, daemon] : cluster_.daemons) {
      const auto& commands = daemon->commands;
      stopped += !commands.empty() && commands.back().has_stop_executor() ? 1 : 0;
    }
    CHECK(stopped == workers_);
    const std::size_t launched = cluster_.drivers.launched.size();
    cluster_.Pass(Millis(5'000), Millis(250));
    CHECK(cluster_.drivers.launched.size() == launched);
  }

  std::mt19937_64 random_;
  const int workers_;
  const int most_;
  Rows rows_;
  Cluster cluster_;
  std::map<int, int> boots_;
  std::map<FakeDaemon*, std::size_t> seen_commands_;
  // So that no other daemon gets the address of one that was looked at.
  std::set<std::shared_ptr<FakeDaemon>> kept_;
  std::set<std::uint64_t> incarnations_;
  std::size_t seen_launches_ = 0;
  std::size_t seen_sent_ = 0;
  std::set<std::uint64_t> numbers_;
  std::uint64_t running_ = 0;
  std::set<std::uint64_t> members_, judged_;
  bool first_members_ = false;
};

TEST_CASE("A program outlives whatever happens to its workers, its main and its coordinator",
          "[coordinator][program][sim]") {
  muster::testing::EachSeed(1'000, [](std::uint64_t seed) { ProgramWorld(seed).Run(); });
}

}  // namespace
}  // namespace muster::coordinator::testing
