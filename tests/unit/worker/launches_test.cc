// What a worker does with launched processes, over an IO that records, in time that stands still.
#include "worker/launches.h"

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/fake_scheduler.h"

namespace muster::worker {
namespace {

struct FakeLaunchIo : LaunchIo {
  void Look(const v1::LaunchSpec&, std::function<void(const Status&)> then) override { then(here); }
  void Prepare(const std::string&, LaunchNumber launch, const v1::LaunchSpec&,
               std::uint32_t) override {
    prepared.push_back(launch);
  }
  void WriteWorkers(const std::string&, LaunchNumber, const std::string& text) override {
    written.push_back(text);
  }
  Status Run(LaunchedId id, const std::string&, const v1::LaunchSpec&,
             const v1::LaunchProcess&) override {
    if (run.ok()) started.push_back(id);
    return run;
  }
  void Ask(LaunchedId id) override { asked.push_back(id); }
  void Kill(LaunchedId id) override { killed.push_back(id); }
  std::optional<process::Wait> WaitOf(LaunchedId id) const override {
    const auto found = waits.find(id);
    return found == waits.end() ? std::nullopt : std::optional(found->second);
  }
  std::uint64_t MemoryOf(LaunchedId) override { return memory; }
  void Release(const std::string&) override { ++released; }
  void Forget(const std::string& job_id) override { forgotten.push_back(job_id); }
  void ToCoordinator(v1::DaemonMessage message) override { up.push_back(std::move(message)); }
  void Reply(StreamId, v1::CommandResult result) override { replies.push_back(std::move(result)); }

  Status here, run;
  std::vector<LaunchNumber> prepared;
  std::vector<LaunchedId> started, asked, killed;
  int released = 0;
  std::map<LaunchedId, process::Wait> waits;
  std::uint64_t memory = 0;
  std::vector<std::string> forgotten, written;
  std::vector<v1::DaemonMessage> up;
  std::vector<v1::CommandResult> replies;
};

struct LaunchesFixture {
  FakeScheduler scheduler;
  FakeLaunchIo io;
  Launches launches{{.worker_index = 2}, scheduler, io};
  std::uint64_t next_command = 1;

  v1::Command Command() {
    v1::Command command;
    command.set_id(next_command++);
    return command;
  }
  std::uint64_t Say(const v1::Command& command) {
    CHECK(launches.OnCommand(StreamId(1), command));
    return command.id();
  }
  std::uint64_t Prepare(std::uint64_t launch) {
    v1::Command command = Command();
    command.mutable_prepare_launch()->set_job_id("j");
    command.mutable_prepare_launch()->set_launch(launch);
    command.mutable_prepare_launch()->set_addresses(2);
    return Say(command);
  }
  std::uint64_t Start(std::uint64_t launch, int processes = 2) {
    v1::Command command = Command();
    command.mutable_start_launch()->set_job_id("j");
    command.mutable_start_launch()->set_launch(launch);
    for (int i = 0; i < processes; ++i) {
      v1::Task& task = *command.mutable_start_launch()->add_processes()->mutable_task();
      task.set_type("worker");
      task.set_index(static_cast<std::uint32_t>(i));
    }
    return Say(command);
  }
  std::uint64_t Stop(std::uint64_t launch, std::uint32_t grace_ms = 1'000, bool forget = false) {
    v1::Command command = Command();
    command.mutable_stop_launch()->set_job_id("j");
    command.mutable_stop_launch()->set_launch(launch);
    command.mutable_stop_launch()->set_grace_ms(grace_ms);
    command.mutable_stop_launch()->set_forget(forget);
    return Say(command);
  }
  // Prepared, with addresses, and started.
  void Begin(std::uint64_t launch) {
    Prepare(launch);
    launches.OnPrepared("j", LaunchNumber(launch), std::vector<std::string>{"a:1", "a:2"});
    REQUIRE(Code(Start(launch)) == StatusCode::kOk);
  }
  void Ends(std::size_t process, std::uint32_t code = 0) {
    launches.OnExited(io.started.at(process), {.how = "exit code", .code = code});
  }
  // kUnknown: not answered.
  StatusCode Code(std::uint64_t command) const {
    for (const v1::CommandResult& reply : io.replies) {
      if (reply.command_id() == command) return static_cast<StatusCode>(reply.status().code());
    }
    return StatusCode::kUnknown;
  }
  std::vector<v1::LaunchEvent> Events() const {
    std::vector<v1::LaunchEvent> events;
    for (const v1::DaemonMessage& one : io.up) {
      if (one.has_launched()) events.push_back(one.launched());
    }
    return events;
  }
};

TEST_CASE_METHOD(LaunchesFixture,
                 "a launch that waits for its files is named for as long as it does",
                 "[worker][unit]") {
  const auto named = [&] {
    v1::Heartbeat heartbeat;
    launches.NameFetching(heartbeat);
    return std::vector<std::uint64_t>(heartbeat.fetching().begin(), heartbeat.fetching().end());
  };
  const std::uint64_t prepare = Prepare(5);
  CHECK(named() == std::vector{prepare});
  launches.OnPrepared("j", LaunchNumber(5), std::vector<std::string>{"a:1", "a:2"});
  CHECK(named().empty());
}

TEST_CASE_METHOD(LaunchesFixture, "What a process says of any other in its place is told",
                 "[worker][launch]") {
  Begin(5);
  launches.OnExited(io.started.at(0), {.how = "exit code 3", .code = 3, .final = true});
  CHECK(Events().back().final());
  Ends(1, 3);
  CHECK_FALSE(Events().back().final());
}

TEST_CASE_METHOD(LaunchesFixture, "That a process has come too late is told", "[worker][launch]") {
  Begin(5);
  launches.OnExited(io.started.at(0), {.how = "exit code 3", .code = 3, .too_late = true});
  CHECK(Events().back().too_late());
  Ends(1, 3);
  CHECK_FALSE(Events().back().too_late());
}

TEST_CASE_METHOD(LaunchesFixture, "A launch is prepared, started, and told of",
                 "[worker][launch]") {
  const std::uint64_t prepare = Prepare(5);
  CHECK(Code(prepare) == StatusCode::kUnknown);
  CHECK(Code(Start(5)) == StatusCode::kFailedPrecondition);
  launches.OnPrepared("j", LaunchNumber(5), std::vector<std::string>{"a:1", "a:2"});
  REQUIRE(Code(prepare) == StatusCode::kOk);
  CHECK(io.replies.back().launch().addresses(1) == "a:2");
  // A repeat answers as the first did.
  CHECK(Code(Prepare(5)) == StatusCode::kOk);
  CHECK(io.prepared.size() == 1);

  CHECK(Code(Start(5)) == StatusCode::kOk);
  CHECK(Code(Start(5)) == StatusCode::kOk);
  CHECK(io.started.size() == 2);
  launches.OnStarted(io.started[1], 77);
  launches.OnLine(io.started[1], 1, "half\xff of it");
  launches.OnExited(io.started[1],
                    {.how = "exit code 3", .code = 3, .time_us = 9, .last_error = "boom\xff"});
  const std::vector<v1::LaunchEvent> events = Events();
  REQUIRE(events.size() == 2);
  CHECK(events[0].kind() == v1::LaunchEvent::KIND_STARTED);
  CHECK(events[0].pid() == 77);
  CHECK(events[1].exit_code() == 3);
  CHECK(events[1].task().index() == 1);
  CHECK_FALSE(events[1].asked());
  CHECK(events[1].last_lines_size() == 1);
  // Its lines have gone before it, under its own name.
  const auto log =
      std::find_if(io.up.begin(), io.up.end(), [](const auto& one) { return one.has_log(); });
  REQUIRE(log != io.up.end());
  CHECK(log->log().task().index() == 1);
}

TEST_CASE_METHOD(LaunchesFixture,
                 "The collective calls in which processes stand are in the heartbeat, those that "
                 "have ended are not",
                 "[worker][launch]") {
  Begin(5);
  for (const LaunchedId id : io.started) io.waits[id] = {.call = "barrier", .awaited = "worker:0"};
  Ends(0);
  v1::Heartbeat heartbeat;
  launches.FillHeartbeat(heartbeat);
  REQUIRE(heartbeat.waits_size() == 1);
  CHECK(heartbeat.waits(0).job_id() == "j");
  CHECK(heartbeat.waits(0).task().index() == 1);
  CHECK(heartbeat.waits(0).call() == "barrier");
}

TEST_CASE_METHOD(LaunchesFixture,
                 "What the processes of a job hold together is in the heartbeat, without those "
                 "that have ended",
                 "[worker][launch]") {
  io.memory = 100;
  const auto held = [&] {
    v1::Heartbeat heartbeat;
    launches.FillHeartbeat(heartbeat);
    std::map<std::string, std::uint64_t> bytes;
    for (const v1::JobBytes& one : heartbeat.job_bytes()) bytes[one.job_id()] += one.bytes();
    return bytes;
  };
  Begin(5);
  CHECK(held() == std::map<std::string, std::uint64_t>{{"j", 200}});
  Ends(0);
  CHECK(held() == std::map<std::string, std::uint64_t>{{"j", 100}});
  Ends(1);
  CHECK(held().empty());
}

TEST_CASE_METHOD(LaunchesFixture, "A stop asks, kills after its grace, and waits for the ends",
                 "[worker][launch]") {
  Begin(5);
  Ends(0, 1);
  const std::uint64_t stop = Stop(5, 1'000);
  CHECK(io.asked == std::vector<LaunchedId>{io.started[1]});
  CHECK(Code(stop) == StatusCode::kUnknown);
  scheduler.Advance(Millis(999));
  CHECK(io.killed.empty());
  scheduler.Advance(Millis(1));
  CHECK(io.killed == std::vector<LaunchedId>{io.started[1]});
  Ends(1);
  CHECK(Code(stop) == StatusCode::kOk);
  CHECK(Events().back().asked());
  CHECK(io.released == 1);
  CHECK(io.forgotten.empty());

  CHECK(Code(Stop(5, 0, true)) == StatusCode::kOk);
  CHECK(io.forgotten == std::vector<std::string>{"j"});
  // Nothing is told of what is forgotten.
  const std::size_t told = io.up.size();
  launches.OnAttached();
  CHECK(io.up.size() == told);
}

TEST_CASE_METHOD(LaunchesFixture, "A new launch begins when nothing of the one before it runs",
                 "[worker][launch]") {
  Begin(5);
  const std::size_t told = Events().size();
  const std::uint64_t prepare = Prepare(6);
  CHECK(io.killed.size() == 2);
  CHECK(io.prepared == std::vector{LaunchNumber(5)});
  Ends(0);
  CHECK(io.prepared.size() == 1);
  Ends(1);
  CHECK(io.prepared == std::vector{LaunchNumber(5), LaunchNumber(6)});
  // Those ends are nobody's concern, and what comes late of the old launch neither.
  CHECK(Events().size() == told);
  CHECK(Code(Prepare(5)) == StatusCode::kAborted);
  CHECK(Code(Stop(5)) == StatusCode::kOk);
  CHECK(io.asked.empty());
  launches.OnPrepared("j", LaunchNumber(5), std::vector<std::string>{"old:1"});
  CHECK(Code(prepare) == StatusCode::kUnknown);
  launches.OnPrepared("j", LaunchNumber(6), std::vector<std::string>{"a:3"});
  CHECK(Code(prepare) == StatusCode::kOk);
}

TEST_CASE_METHOD(LaunchesFixture,
                 "A launch that is stopped while the one before it is being killed never begins",
                 "[worker][launch]") {
  Begin(5);
  const std::uint64_t prepare = Prepare(6);
  const std::uint64_t stop = Stop(6, 1'000, true);
  CHECK(Code(prepare) == StatusCode::kAborted);
  Ends(0);
  CHECK(Code(stop) == StatusCode::kUnknown);
  Ends(1);
  CHECK(Code(stop) == StatusCode::kOk);
  CHECK(io.prepared == std::vector{LaunchNumber(5)});
  CHECK(io.released == 1);
  CHECK(io.forgotten == std::vector<std::string>{"j"});
}

TEST_CASE_METHOD(LaunchesFixture, "A launch is awaited until it is ready, replaced or stopped",
                 "[worker][launch]") {
  CHECK_FALSE(launches.Awaits("j", LaunchNumber(5)));
  Prepare(5);
  CHECK(launches.Awaits("j", LaunchNumber(5)));
  SECTION("ready") {
    launches.OnPrepared("j", LaunchNumber(5), std::vector<std::string>{"a:1", "a:2"});
  }
  SECTION("replaced") {
    Prepare(6);
    CHECK(launches.Awaits("j", LaunchNumber(6)));
  }
  SECTION("stopped") { Stop(5); }
  SECTION("forgotten") { Stop(5, 0, true); }
  CHECK_FALSE(launches.Awaits("j", LaunchNumber(5)));
}

TEST_CASE_METHOD(LaunchesFixture,
                 "A process that runs is told of at a registration before its pid is known",
                 "[worker][launch]") {
  Begin(5);
  launches.OnStarted(io.started[1], 71);
  io.up.clear();
  launches.OnAttached();
  const std::vector<v1::LaunchEvent> events = Events();
  REQUIRE(events.size() == 2);
  CHECK(events[0].kind() == v1::LaunchEvent::KIND_STARTED);
  CHECK(events[0].task().index() == 0);
  CHECK(events[0].pid() == 0);
  CHECK(events[1].pid() == 71);
}

TEST_CASE_METHOD(LaunchesFixture, "What became of processes is told again at each registration",
                 "[worker][launch]") {
  Begin(5);
  launches.OnStarted(io.started[0], 70);
  launches.OnStarted(io.started[1], 71);
  Ends(1, 4);
  io.up.clear();
  launches.OnAttached();
  const std::vector<v1::LaunchEvent> events = Events();
  REQUIRE(events.size() == 3);
  CHECK(events[0].pid() == 70);
  CHECK(events[2].kind() == v1::LaunchEvent::KIND_EXITED);
  CHECK(events[2].exit_code() == 4);
}

TEST_CASE_METHOD(LaunchesFixture,
                 "A launch that had not begun when its stream ended lets its addresses go",
                 "[worker][launch]") {
  Prepare(5);
  SECTION("ready") {
    launches.OnPrepared("j", LaunchNumber(5), std::vector<std::string>{"a:1", "a:2"});
  }
  SECTION("being prepared") {}
  CHECK(io.released == 0);
  launches.OnAttached();
  CHECK(io.released == 1);
  CHECK(io.forgotten == std::vector<std::string>{"j"});
  CHECK_FALSE(launches.Awaits("j", LaunchNumber(5)));
  CHECK(Code(Start(5)) == StatusCode::kFailedPrecondition);

  // The coordinator begins anew.
  Begin(6);
  CHECK(io.started.size() == 2);
}

TEST_CASE_METHOD(LaunchesFixture,
                 "What a job's processes left stays when a later launch is given up",
                 "[worker][launch]") {
  Begin(5);
  Ends(0, 4);
  Ends(1, 4);
  Prepare(6);

  launches.OnAttached();

  CHECK(io.released == 1);
  CHECK(io.forgotten.empty());
}

TEST_CASE_METHOD(LaunchesFixture, "A worker that is asked to end asks its processes, then kills",
                 "[worker][launch]") {
  Begin(5);
  launches.NoteDraining();
  CHECK(io.asked.size() == 2);
  CHECK(Code(Prepare(6)) == StatusCode::kUnavailable);
  bool done = false;
  launches.Drain(Millis(500), [&] { done = true; });
  CHECK(io.asked.size() == 2);
  Ends(0);
  scheduler.Advance(Millis(500));
  CHECK(io.killed == std::vector<LaunchedId>{io.started[1]});
  CHECK_FALSE(done);
  SECTION("and waits for their ends") { Ends(1); }
  SECTION("but not for one that cannot die") {
    scheduler.Advance(Millis(1'900));
    CHECK_FALSE(done);
    scheduler.Advance(Millis(200));
  }
  CHECK(done);
}

TEST_CASE_METHOD(LaunchesFixture, "A launch that is to start while its worker drains is told so",
                 "[worker][launch]") {
  Prepare(5);
  launches.OnPrepared("j", LaunchNumber(5), std::vector<std::string>{"a:1", "a:2"});
  launches.NoteDraining();

  CHECK(Code(Start(5)) == StatusCode::kUnavailable);
  CHECK(io.started.empty());
}

TEST_CASE_METHOD(LaunchesFixture, "Processes start when the file of who is there is written",
                 "[worker][launch][elastic]") {
  Prepare(5);
  launches.OnPrepared("j", LaunchNumber(5), std::vector<std::string>{"a:1"});
  v1::Command start = Command();
  start.mutable_start_launch()->set_job_id("j");
  start.mutable_start_launch()->set_launch(5);
  start.mutable_start_launch()->set_workers("those");
  start.mutable_start_launch()->add_processes()->mutable_task()->set_type("worker");
  Say(start);
  CHECK(io.written == std::vector<std::string>{"those"});
  CHECK(io.started.empty());

  SECTION("it is written") {
    launches.OnWorkersWritten("j", LaunchNumber(5), Ok());
    CHECK(Code(start.id()) == StatusCode::kOk);
    CHECK(io.started.size() == 1);
    v1::Command update = Command();
    update.mutable_update_launch()->set_job_id("j");
    update.mutable_update_launch()->set_launch(5);
    update.mutable_update_launch()->set_workers("these");
    CHECK(Code(Say(update)) == StatusCode::kOk);
    update.set_id(next_command++);
    update.mutable_update_launch()->set_launch(4);  // that one is over
    CHECK(Code(Say(update)) == StatusCode::kOk);
    CHECK(io.written == std::vector<std::string>{"those", "these"});
  }
  SECTION("the disk is full") {
    launches.OnWorkersWritten("j", LaunchNumber(5), ResourceExhausted("no room"));
    CHECK(Code(start.id()) == StatusCode::kResourceExhausted);
    CHECK(io.started.empty());
  }
  SECTION("the launch was stopped meanwhile") {
    Stop(5);
    launches.OnWorkersWritten("j", LaunchNumber(5), Ok());
    CHECK(Code(start.id()) == StatusCode::kAborted);
    CHECK(io.started.empty());
  }
}

TEST_CASE_METHOD(LaunchesFixture,
                 "Who is there is written again where the disk was full for as long as any runs",
                 "[worker][launch][elastic]") {
  Begin(5);
  const auto update = [&](const std::string& workers) {
    v1::Command command = Command();
    command.mutable_update_launch()->set_job_id("j");
    command.mutable_update_launch()->set_launch(5);
    command.mutable_update_launch()->set_workers(workers);
    Say(command);
    launches.OnWorkersWritten("j", LaunchNumber(5), ResourceExhausted("no room"));
  };
  update("these");
  update("others");
  scheduler.Advance(Millis(5'000));
  // One try for both, of the latest, which has not been answered.
  REQUIRE(io.written == std::vector<std::string>{"these", "others", "others"});

  SECTION("there is room again") {
    launches.OnWorkersWritten("j", LaunchNumber(5), Ok());
    scheduler.Advance(Millis(5'000));
    CHECK(io.written.size() == 3);
  }
  SECTION("there is none yet") {
    launches.OnWorkersWritten("j", LaunchNumber(5), ResourceExhausted("no room"));
    scheduler.Advance(Millis(5'000));
    CHECK(io.written.size() == 4);
  }
  SECTION("all have ended") {
    launches.OnWorkersWritten("j", LaunchNumber(5), ResourceExhausted("no room"));
    Ends(0);
    Ends(1);
    scheduler.Advance(Millis(5'000));
    CHECK(io.written.size() == 3);
  }
}

TEST_CASE_METHOD(LaunchesFixture, "A launch whose files or command are missing says so",
                 "[worker][launch]") {
  const std::uint64_t prepare = Prepare(5);
  launches.OnPrepared("j", LaunchNumber(5), ResourceExhausted("the disk is full"));
  CHECK(Code(prepare) == StatusCode::kResourceExhausted);
  CHECK(Code(Start(5)) == StatusCode::kFailedPrecondition);

  Prepare(6);
  launches.OnPrepared("j", LaunchNumber(6), std::vector<std::string>{"a:1"});
  io.run = NotFound("no guard");
  CHECK(Code(Start(6)) == StatusCode::kNotFound);

  io.here = NotFound("no command");
  v1::Command check = Command();
  check.mutable_check_job()->mutable_spec()->mutable_launch()->set_command("x");
  CHECK(Code(Say(check)) == StatusCode::kOk);
  CHECK(io.replies.back().check().problems(0) == "no command");
  // Other jobs' checks are not its own.
  v1::Command other = Command();
  (void)other.mutable_check_job();
  CHECK_FALSE(launches.OnCommand(StreamId(1), other));
}

}  // namespace
}  // namespace muster::worker
