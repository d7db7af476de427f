#include "coordinator/membership.h"

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"

namespace muster::coordinator {
namespace {

class Recorder : public Membership::Observer {
 public:
  void OnUp(const Member& member, const Arrival& arrival) override {
    log.push_back("up " + member.task.ToString());
    last = arrival;
  }
  void OnDraining(const Member& member, const std::string&) override {
    log.push_back("draining " + member.task.ToString());
  }
  void OnSessionEnded(SessionId, const std::string&) override { log.push_back("ended"); }
  void OnLost(const Member& member) override {
    log.push_back("lost " + member.task.ToString() + ": " + member.how);
  }
  void OnHeld(const Member& member) override { log.push_back("held " + member.task.ToString()); }
  void OnStall(Millis slept) override { log.push_back(fmt::format("slept {}", slept.count())); }
  std::vector<std::string> log;
  Arrival last;
};

class Link : public DaemonLink {
 public:
  void Send(const v1::CoordinatorMessage& message) override { sent.push_back(message); }
  void End(const Status& status) override { ended = status; }
  std::vector<v1::CoordinatorMessage> sent;
  std::optional<Status> ended;
};

// Time that can pass while nothing runs, as for a process that is stopped.
class StoppableScheduler : public Scheduler {
 public:
  TimePoint Now() const override { return time_.Now() + stopped_; }
  std::chrono::system_clock::time_point WallNow() const override { return time_.WallNow(); }
  void Post(Task task) override { time_.Post(std::move(task)); }
  TimerId RunAfter(Millis delay, Task task) override {
    return time_.RunAfter(delay, std::move(task));
  }
  bool Cancel(TimerId timer) override { return time_.Cancel(timer); }

  void Advance(Millis by) { time_.Advance(by); }
  void Stop(Millis span) { stopped_ += span; }

 private:
  FakeScheduler time_;
  Millis stopped_{0};
};

struct Joining {
  StoppableScheduler time;
  Recorder observer;
  Membership members{{.epoch = Epoch(2), .tasks = {{"ps", 0}, {"worker", 0}}}, time, observer};

  Result<SessionId> Join(const std::string& boot, std::shared_ptr<Link> link,
                         const TaskId& task = {"worker", 0}, std::uint64_t epoch = 0) {
    v1::Register info;
    *info.mutable_task() = ToProto(task);
    info.set_boot_id(boot);
    info.set_epoch(epoch);
    return members.Register(info, std::move(link));
  }
};

TEST_CASE("A registration is welcomed with the lease and the epoch", "[coordinator][unit]") {
  Joining f;
  auto link = std::make_shared<Link>();
  const auto session = f.Join("a", link);

  REQUIRE(session.ok());
  REQUIRE(link->sent.size() == 1);
  const v1::Welcome& welcome = link->sent[0].welcome();
  CHECK(welcome.epoch() == 2);
  CHECK(welcome.session() == session->value());
  CHECK(welcome.lease_ms() == 3'000);
  CHECK(welcome.heartbeat_ms() == 250);
}

TEST_CASE("Strangers and those who saw a later coordinator are refused", "[coordinator][unit]") {
  Joining f;
  const auto code = [&](const TaskId& task, std::uint64_t epoch) {
    return f.Join("a", std::make_shared<Link>(), task, epoch).status().code();
  };
  CHECK(code({"worker", 1}, 0) == StatusCode::kFailedPrecondition);
  CHECK(code({"evaluator", 1}, 0) == StatusCode::kFailedPrecondition);
  CHECK(code({"worker", 0}, 3) == StatusCode::kFailedPrecondition);
  CHECK(code({"worker", 0}, 2) == StatusCode::kOk);
}

TEST_CASE("Heartbeats keep a lease, silence loses it", "[coordinator][unit]") {
  Joining f;
  auto link = std::make_shared<Link>();
  const SessionId session = *f.Join("a", link);
  for (int i = 0; i < 40; ++i) {
    f.time.Advance(Millis(250));
    v1::Heartbeat beat;
    beat.set_sequence(static_cast<std::uint64_t>(i));
    f.members.OnHeartbeat(session, beat);
  }
  CHECK(f.members.Find({"worker", 0}) != nullptr);
  CHECK(link->sent.back().ack().sequence() == 39);

  f.time.Advance(Millis(3'500));
  CHECK(f.members.Find({"worker", 0}) == nullptr);
  REQUIRE(link->ended);
  CHECK(link->ended->code() == StatusCode::kAborted);
  CHECK_FALSE(f.members.OnMessage(session));
}

TEST_CASE("The same process may connect again within the grace", "[coordinator][unit]") {
  Joining f;
  const SessionId session = *f.Join("a", std::make_shared<Link>());
  f.members.OnStreamEnded(session);
  f.time.Advance(Millis(400));
  REQUIRE(f.Join("a", std::make_shared<Link>()).ok());
  f.time.Advance(Millis(400));

  CHECK(f.observer.log == std::vector<std::string>{"up worker:0", "ended", "up worker:0"});
  CHECK(f.observer.last.same_process);
  CHECK_FALSE(f.observer.last.gap);
}

TEST_CASE("A reset stream is death after the grace, and the gap is measured",
          "[coordinator][unit]") {
  Joining f;
  const SessionId session = *f.Join("a", std::make_shared<Link>());
  f.members.OnStreamEnded(session);
  f.time.Advance(Millis(500));
  CHECK(f.observer.log.back() == "lost worker:0: its connection was reset");
  f.time.Advance(Millis(1'500));

  REQUIRE(f.Join("b", std::make_shared<Link>()).ok());
  CHECK_FALSE(f.observer.last.same_process);
  CHECK(f.observer.last.gap == Millis(2'000));
}

TEST_CASE("A process whose parent says how it ended is lost at once, by that cause",
          "[coordinator][unit]") {
  Joining f;
  const SessionId session = *f.Join("a", std::make_shared<Link>());
  const std::uint32_t pid = f.members.Find(session)->info.pid();
  f.members.OnStreamEnded(session);
  f.members.OnExit({"worker", 0}, pid + 1, "signal SIGKILL");  // of a process before it
  f.members.OnExit({"worker", 7}, pid, "signal SIGKILL");
  CHECK(f.members.Find({"worker", 0}) != nullptr);

  f.members.OnExit({"worker", 0}, pid, "signal SIGKILL");

  CHECK(f.observer.log.back() == "lost worker:0: signal SIGKILL");
  const std::size_t told = f.observer.log.size();
  f.time.Advance(Millis(5'000));
  CHECK(f.observer.log.size() == told);
}

TEST_CASE("A coordinator that slept gives everybody all their looks again, and says so",
          "[coordinator][unit]") {
  Joining f;
  (void)f.Join("a", std::make_shared<Link>());
  f.time.Advance(Millis(2'900));

  f.time.Stop(Millis(7'300));
  f.time.Advance(Millis(2'900));

  CHECK(f.observer.log == std::vector<std::string>{"up worker:0", "slept 7300"});
  f.time.Advance(Millis(500));
  REQUIRE(f.observer.log.size() == 4);
  // What it slept itself is not counted as the other's silence.
  CHECK(f.observer.log.back() == "lost worker:0: nothing was heard of it for 6.0 s");
}

TEST_CASE("A connection that broke while the coordinator slept may be made anew within a lease",
          "[coordinator][unit]") {
  Joining f;
  const SessionId before = *f.Join("a", std::make_shared<Link>());
  const SessionId after = *f.Join("b", std::make_shared<Link>(), {"ps", 0});
  f.members.OnStreamEnded(before);
  f.time.Advance(Millis(400));

  f.time.Stop(Millis(60'000));
  f.members.OnStreamEnded(after);
  f.time.Advance(Millis(2'400));

  CHECK(f.observer.log == std::vector<std::string>{"up worker:0", "up ps:0", "slept 59900"});
  REQUIRE(f.Join("b", std::make_shared<Link>(), {"ps", 0}).ok());
  CHECK(f.observer.last.same_process);
  CHECK_FALSE(f.observer.last.gap);
  f.time.Advance(Millis(2'000));
  CHECK(f.observer.log.back() == "lost worker:0: its connection was reset");
}

TEST_CASE("Looks that are late one after another still lose who is silent", "[coordinator][unit]") {
  Joining f;
  (void)f.Join("a", std::make_shared<Link>());
  for (int look = 0; look < 13; ++look) {
    f.time.Stop(Millis(1'000));  // a busy machine, not a stopped one
    f.time.Advance(Millis(250));
  }
  CHECK(f.observer.log.back().starts_with("lost worker:0"));
}

TEST_CASE("A drained daemon that closes its stream is gone at once", "[coordinator][unit]") {
  Joining f;
  const SessionId session = *f.Join("a", std::make_shared<Link>());
  f.members.OnDraining(session, "SIGTERM");
  CHECK(f.members.Up("worker").empty());
  f.members.OnStreamEnded(session);
  CHECK(f.observer.log.back() == "lost worker:0: it was drained");
}

TEST_CASE("Tasks of the spec that never came are listed", "[coordinator][unit]") {
  Joining f;
  (void)f.Join("a", std::make_shared<Link>());
  const auto states = f.members.Describe();
  REQUIRE(states.size() == 2);
  CHECK(states[0].state() == "never seen");
  CHECK(states[1].state() == "up");
}

TEST_CASE("A worker that nobody has named is missed when it is lost, not when it has drained",
          "[coordinator][unit]") {
  StoppableScheduler time;
  Recorder observer;
  Membership members{{.epoch = Epoch(2), .tasks = {}, .expected = {{"worker", 0}}}, time, observer};
  const auto join = [&](const TaskId& task, const std::string& boot) {
    v1::Register info;
    *info.mutable_task() = ToProto(task);
    info.set_boot_id(boot);
    return *members.Register(info, std::make_shared<Link>());
  };
  const auto drain = [&](SessionId session) {
    members.OnDraining(session, "SIGTERM");
    members.OnStreamEnded(session);
  };
  const auto shown = [&] {
    std::vector<std::string> tasks;
    for (const v1::TaskState& state : members.Describe()) {
      tasks.push_back(FromProto(state.task()).ToString() + " " + state.state());
    }
    return tasks;
  };
  using Shown = std::vector<std::string>;
  const SessionId expected = join({"worker", 0}, "a");
  const SessionId server = join({"ps", 0}, "b");
  const SessionId scaled_down = join({"worker", 1}, "c");
  members.OnStreamEnded(join({"worker", 2}, "d"));
  time.Advance(Millis(500));

  drain(expected);
  drain(server);
  drain(scaled_down);

  CHECK(shown() == Shown{"ps:0 lost", "worker:0 lost", "worker:2 lost"});
  // It may still be taken out, and is shown as that.
  CHECK(members.Knows({"worker", 1}));
  v1::TakenOut out;
  *out.mutable_task() = ToProto({"worker", 1});
  members.TakeOut(out);
  CHECK(shown() == Shown{"ps:0 lost", "worker:0 lost", "worker:1 drained", "worker:2 lost"});
  CHECK(members.LetIn({"worker", 1}));
  CHECK(shown() == Shown{"ps:0 lost", "worker:0 lost", "worker:2 lost"});
  (void)join({"worker", 1}, "e");
  CHECK(shown() == Shown{"ps:0 lost", "worker:0 lost", "worker:1 up", "worker:2 lost"});
}

v1::TakenOut Record(const TaskId& task, const std::string& boot) {
  v1::TakenOut record;
  *record.mutable_task() = ToProto(task);
  record.set_boot_id(boot);
  return record;
}

TEST_CASE("A task that is taken out is told to drain, and its next process is held",
          "[coordinator][unit]") {
  const TaskId worker{"worker", 0};
  Joining f;
  auto link = std::make_shared<Link>();
  const SessionId session = *f.Join("a", link);

  f.members.TakeOut(Record(worker, "a"));
  CHECK(link->sent.back().drain().reason() == "taken out of work by an operator");
  CHECK_FALSE(f.members.IsOut(worker));
  f.members.OnDraining(session, "taken out");
  f.members.OnStreamEnded(session);
  CHECK(f.members.IsOut(worker));
  CHECK(f.members.Describe(worker).state() == "drained");
  CHECK(f.members.Describe(worker).pid() == 0);

  f.observer.log.clear();
  const SessionId next = *f.Join("b", std::make_shared<Link>());
  CHECK(f.observer.log == std::vector<std::string>{"held worker:0"});
  CHECK(f.members.Find(worker) == nullptr);
  CHECK(f.members.Up("worker").empty());
  CHECK(f.members.Describe(worker).state() == "drained");
  // It keeps its lease, and its end is nobody's loss.
  CHECK(f.members.OnMessage(next));
  f.observer.log.clear();
  f.members.OnExit(worker, 0, "exit code 0");
  CHECK(f.observer.log == std::vector<std::string>{"ended"});

  (void)f.Join("c", std::make_shared<Link>());
  f.observer.log.clear();
  CHECK(f.members.LetIn(worker));
  CHECK(f.observer.log == std::vector<std::string>{"up worker:0"});
  CHECK_FALSE(f.members.LetIn(worker));
}

TEST_CASE("A new coordinator tells a task that is on its way out again, and waits for nobody else",
          "[coordinator][unit]") {
  const TaskId worker{"worker", 0};
  Joining f;
  f.members.TakeOut(Record(worker, "a"));
  CHECK_FALSE(f.members.IsOut(worker));

  SECTION("the process that was told is still there") {
    auto link = std::make_shared<Link>();
    (void)f.Join("a", link);
    CHECK(f.members.Find(worker) != nullptr);
    CHECK(link->sent.back().has_drain());
  }
  SECTION("another one has taken its place") {
    (void)f.Join("b", std::make_shared<Link>());
    CHECK(f.members.IsOut(worker));
    CHECK(f.members.Find(worker) == nullptr);
  }
}

TEST_CASE("A held process that is asked to end is released at once", "[coordinator][unit]") {
  Joining f;
  f.members.TakeOut(Record({"worker", 0}, ""));
  auto link = std::make_shared<Link>();
  const SessionId session = *f.Join("a", link);
  f.members.OnDraining(session, "SIGTERM");
  CHECK(link->sent.back().has_release());
}

}  // namespace
}  // namespace muster::coordinator
