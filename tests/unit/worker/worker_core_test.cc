#include "tests/unit/worker/fixture.h"

namespace muster::worker {
namespace {

using Event = v1::ExecutorEvent;
using Fixture = WorkerFixture;

TEST_CASE_METHOD(Fixture,
                 "an executor is told its job and the command is answered when it is ready",
                 "[worker][unit]") {
  const auto command = Start(1);
  REQUIRE(io.launched.size() == 1);
  REQUIRE(io.sent.size() == 1);
  CHECK(io.sent[0].message.start().threads() == 3);
  CHECK(io.sent[0].message.start().worker_index() == 2);
  CHECK(io.sent[0].message.start().cache_directory() == "/cache");
  CHECK(io.sent[0].message.start().start().plan().job_id() == "j");
  CHECK(io.replies.empty());

  Ready(io.launched[0]);

  CHECK(Code(command) == StatusCode::kOk);
  CHECK(io.replies[0].first == StreamId(7));
  REQUIRE(Events().size() == 2);
  CHECK(Events()[0].kind() == Event::KIND_STARTED);
  CHECK(Events()[1].kind() == Event::KIND_READY);
  CHECK(Events()[1].pid() == 1'001);
  v1::Heartbeat heartbeat;
  core.FillHeartbeat(heartbeat);
  CHECK(heartbeat.executor_pid() == 1'001);
}

TEST_CASE_METHOD(Fixture, "a repeated start answers as the first did and starts nothing",
                 "[worker][unit]") {
  const auto first = Start(1);
  const auto second = Start(1);
  Ready(io.launched[0]);
  const auto third = Start(1);

  CHECK(io.launched.size() == 1);
  for (const auto& start : {first, second, third}) CHECK(Code(start) == StatusCode::kOk);
}

TEST_CASE_METHOD(Fixture, "a newer view kills the older executor, an older view is refused",
                 "[worker][unit]") {
  const auto old = Start(1);
  const ProcessId first = io.launched[0];
  const auto newer = Start(2);
  CHECK(Code(old) == StatusCode::kAborted);
  CHECK(io.killed.contains(first));
  REQUIRE(io.launched.size() == 2);

  Ready(first);  // too late
  CHECK(Code(newer) == StatusCode::kUnknown);
  Ready(io.launched[1]);
  CHECK(Code(newer) == StatusCode::kOk);

  CHECK(Code(Start(1)) == StatusCode::kAborted);
  CHECK(Code(Start(2, 0)) == StatusCode::kAborted);  // an older epoch
  CHECK(io.launched.size() == 2);
}

TEST_CASE_METHOD(Fixture, "an executor that cannot start is ended and may be asked for again",
                 "[worker][unit]") {
  const auto command = Start(1);
  Ready(io.launched[0], InvalidArgument("no such column"));

  CHECK(Code(command) == StatusCode::kInvalidArgument);
  CHECK(io.killed.contains(io.launched[0]));
  Start(1);
  CHECK(io.launched.size() == 2);
}

TEST_CASE_METHOD(Fixture,
                 "an executor goes on under a later coordinator when it has nothing left of before",
                 "[worker][unit]") {
  StartReady(4);
  const ProcessId process = io.launched[0];
  core.OnAttached();

  const auto adopting = Adopt(4, 2);
  REQUIRE(io.sent.back().message.has_adopt());
  CHECK(io.sent.back().message.adopt().least_attempt() == 2ull << 32);
  CHECK(Code(adopting) == StatusCode::kUnknown);  // a closure runs
  AnswerAdoption(process, 2);

  REQUIRE(Code(adopting) == StatusCode::kOk);
  REQUIRE(io.replies.back().second.adopted().shards_size() == 1);
  CHECK(io.replies.back().second.adopted().shards(0).watermark() == 2);
  CHECK(io.replies.back().second.adopted().executor() == 1);
  CHECK(Events().back().kind() == Event::KIND_READY);
  CHECK(Events().back().pid() == 1'001);
  CHECK(Events().back().incarnation() == 1);
  CHECK(Events().back().endpoint().tcp_address() == "host-2:9");
  CHECK(io.launched.size() == 1);
  // Claimed, so it stays; and it obeys the later coordinator alone.
  Live(process, Millis(120'000), 2, 0);
  CHECK(io.killed.empty());
  CHECK(Code(Start(4, 1)) == StatusCode::kAborted);
  CHECK(Code(Start(4, 2)) == StatusCode::kOk);
  const auto again = Adopt(4, 2);
  AnswerAdoption(process, 2);
  CHECK(Code(again) == StatusCode::kOk);
  CHECK(io.launched.size() == 1);
}

TEST_CASE_METHOD(Fixture, "variables that are gone are not made anew in the same view",
                 "[worker][unit]") {
  const auto nothing = Adopt(4, 2);
  CHECK(Code(nothing) == StatusCode::kNotFound);
  StartReady(4);
  CHECK(Code(Adopt(5, 2)) == StatusCode::kNotFound);  // it has another view's
  const auto adopting = Adopt(4, 2);
  core.OnExited(io.launched[0], "signal SIGKILL");
  CHECK(Code(adopting) == StatusCode::kUnavailable);
  CHECK(Code(Adopt(4, 2)) == StatusCode::kNotFound);
  CHECK(io.launched.size() == 1);
  // With parameter servers nothing is lost with an executor: there is another one.
  const auto another = Adopt(4, 2, /*servers=*/true);
  REQUIRE(io.launched.size() == 2);
  Ready(io.launched[1]);
  CHECK(Code(another) == StatusCode::kOk);
  CHECK_FALSE(io.replies.back().second.has_adopted());
}

TEST_CASE_METHOD(Fixture, "an executor whose update has failed halfway does not go on",
                 "[worker][unit]") {
  StartReady(4);
  const auto adopting = Adopt(4, 2);
  AnswerAdoption(io.launched[0], 0, FailedPrecondition("the update of step 1 has failed"));
  CHECK(Code(adopting) == StatusCode::kNotFound);
}

TEST_CASE_METHOD(Fixture, "a model's executor is told how to serve its driver, and says where",
                 "[worker][unit]") {
  StartReady(1);
  const v1::ProgramStart& serving = io.sent.back().message.start().start().program();
  CHECK(serving.key() == "key");
  CHECK(serving.link() == "auto");
  REQUIRE(Events().back().kind() == Event::KIND_READY);
  CHECK(Events().back().endpoint().tcp_address() == "host-2:9");
  CHECK(Events().back().incarnation() == 1);

  // Whoever asks again, because the answer was lost, is told again.
  const auto again = Start(1);
  CHECK(Code(again) == StatusCode::kOk);
  CHECK(Events().back().endpoint().tcp_address() == "host-2:9");
  CHECK(io.launched.size() == 1);
}

TEST_CASE_METHOD(Fixture, "an executor is asked into a group, and is ready again when that is over",
                 "[worker][unit]") {
  StartReady(4);
  const ProcessId process = io.launched[0];
  CHECK(Events().back().group_address() == "host-2:8");
  const auto join = [&](std::uint64_t view) {
    v1::Command command;
    command.set_id(next_command++);
    command.mutable_join_group()->set_job_id("j");
    command.mutable_join_group()->set_epoch(1);
    command.mutable_join_group()->set_view(view);
    command.mutable_join_group()->set_generation(9);
    core.OnCommand(StreamId(7), command);
    return command.id();
  };
  CHECK(Code(join(3)) == StatusCode::kAborted);
  const auto joining = join(4);
  REQUIRE(io.sent.back().message.has_join());
  CHECK(io.sent.back().message.join().generation() == 9);
  v1::FromExecutor answer;
  answer.mutable_joined()->mutable_status();
  answer.mutable_joined()->mutable_report()->set_has_variables(true);
  core.OnMessage(process, answer);
  REQUIRE(Code(joining) == StatusCode::kOk);
  CHECK(io.replies.back().second.group().has_variables());

  const std::size_t said = Events().size();
  Ready(process);
  REQUIRE(Events().size() == said + 1);
  CHECK(Events().back().kind() == Event::KIND_READY);
  CHECK(Events().back().group_address() == "host-2:8");

  const auto lost = join(4);
  core.OnExited(process, "signal SIGKILL");
  CHECK(Code(lost) == StatusCode::kUnavailable);
}

TEST_CASE_METHOD(Fixture, "an executor's end is told with its signal and its last 20 lines",
                 "[worker][unit]") {
  StartReady(1);
  for (int i = 0; i < 30; ++i) core.OnLine(io.launched[0], i, "line " + std::to_string(i));

  core.OnExited(io.launched[0], "signal SIGSEGV");

  const Event event = Events().back();
  CHECK(event.kind() == Event::KIND_EXITED);
  CHECK(event.how() == "signal SIGSEGV");
  CHECK(event.view() == 1);
  REQUIRE(event.last_lines_size() == 20);
  CHECK(event.last_lines(0) == "line 10");
  // All lines went before the event.
  REQUIRE(io.up[io.up.size() - 2].has_log());
  CHECK(io.up[io.up.size() - 2].log().lines_size() == 30);
}

TEST_CASE_METHOD(Fixture, "the line that says why a process ended by a signal outlives its frames",
                 "[worker][unit]") {
  StartReady(1);
  core.OnLine(io.launched[0], 0, "terminate called after throwing an instance of 'c10::Error'");
  core.OnLine(io.launched[0], 1, "  what():  d INTERNAL ASSERT FAILED at \"Allocator.h\":170");
  for (int i = 0; i < 30; ++i) core.OnLine(io.launched[0], i, "frame #" + std::to_string(i));

  core.OnExited(io.launched[0], "signal SIGABRT");

  const Event event = Events().back();
  REQUIRE(event.last_lines_size() == 21);
  CHECK(event.last_lines(0) == "  what():  d INTERNAL ASSERT FAILED at \"Allocator.h\":170");
  CHECK(event.last_lines(1) == "frame #10");
}

TEST_CASE_METHOD(Fixture, "the line that says why comes once, in its place", "[worker][unit]") {
  StartReady(1);
  core.OnLine(io.launched[0], 0, "  what():  bad");
  core.OnLine(io.launched[0], 1, "frame #0");
  core.OnExited(io.launched[0], "signal SIGABRT");
  CHECK(Events().back().last_lines_size() == 2);
}

TEST_CASE_METHOD(Fixture, "an executor that ends before it is ready answers its command",
                 "[worker][unit]") {
  const auto command = Start(1);
  core.OnExited(io.launched[0], "exit code 127");

  CHECK(Code(command) == StatusCode::kUnavailable);
  CHECK(Events().back().kind() == Event::KIND_EXITED);
}

TEST_CASE_METHOD(Fixture, "what a killed executor had written still reaches the job's log",
                 "[worker][unit]") {
  StartReady(1);
  Live(io.launched[0], Millis(60'000), 0, 5);
  REQUIRE(io.killed.contains(io.launched[0]));

  core.OnLine(io.launched[0], 7, "the last words");
  core.OnExited(io.launched[0], "signal SIGKILL");

  REQUIRE(io.up.back().has_log());
  CHECK(io.up.back().log().lines(0).text() == "the last words");
  core.OnLine(io.launched[0], 8, "a ghost");
  scheduler.Advance(Millis(1'000));
  CHECK(io.up.back().log().lines(0).text() == "the last words");
}

TEST_CASE_METHOD(Fixture, "lines are sent together, as UTF-8, and bounded", "[worker][unit]") {
  StartReady(1);
  core.OnLine(io.launched[0], 5, "bad \xFF byte");
  core.OnLine(io.launched[0], 6, std::string(10'000, 'x'));
  for (int i = 0; i < 5'000; ++i) core.OnLine(io.launched[0], 7, "spam");

  scheduler.Advance(Millis(100));

  REQUIRE(io.up.back().has_log());
  const v1::LogLines& lines = io.up.back().log();
  CHECK(lines.job_id() == "j");
  CHECK(lines.lines(0).text() == "bad \\xff byte");
  CHECK(lines.lines(0).time_us() == 5);
  CHECK(lines.lines(1).text().size() < 5'000);
  CHECK(lines.lines_size() == 4'001);
  CHECK(lines.lines(4'000).text().find("1002 lines dropped") != std::string::npos);
}

TEST_CASE_METHOD(Fixture, "an archive is fetched first, and its error answers the command",
                 "[worker][unit]") {
  const auto command = Start(1, 1, "abc");
  CHECK(io.launched.empty());
  REQUIRE(io.fetches == std::vector<std::string>{"abc"});
  core.OnFetched("abc", std::string("/cache/abc.pt"));
  REQUIRE(io.sent.size() == 1);
  CHECK(io.sent[0].message.start().archive_path() == "/cache/abc.pt");
  CHECK(io.sent[0].message.start().start().spec().model().archive_sha256() == "abc");

  const auto next = Start(2, 1, "abc");
  core.OnFetched("abc", NotFound("no such file"));

  CHECK(Code(command) == StatusCode::kAborted);
  CHECK(Code(next) == StatusCode::kNotFound);
}

TEST_CASE_METHOD(Fixture, "a fetch that ends after a newer view came starts nothing old",
                 "[worker][unit]") {
  Start(1, 1, "abc");
  Start(2);
  REQUIRE(io.launched.size() == 1);

  core.OnFetched("abc", std::string("/cache/abc.pt"));

  CHECK(io.launched.size() == 1);
}

v1::Command CheckCommand(std::uint64_t id) {
  v1::Command command;
  command.set_id(id);
  command.mutable_check_job()->mutable_spec()->set_name("n");
  return command;
}

TEST_CASE_METHOD(Fixture, "a job is checked in a process that ends after it", "[worker][unit]") {
  core.OnCommand(StreamId(7), CheckCommand(50));
  REQUIRE(io.sent.size() == 1);
  CHECK(io.sent[0].message.check().spec().name() == "n");
  CHECK(io.sent[0].message.cache_directory() == "/cache");
  v1::FromExecutor answer;
  answer.mutable_check()->mutable_report()->add_problems("wrong");

  core.OnMessage(io.launched[0], answer);

  REQUIRE(io.replies.size() == 1);
  CHECK(io.replies[0].second.check().problems(0) == "wrong");
  CHECK(io.killed.contains(io.launched[0]));
}

TEST_CASE_METHOD(Fixture, "a check has a deadline and does not survive its process",
                 "[worker][unit]") {
  core.OnCommand(StreamId(7), CheckCommand(50));
  scheduler.Advance(Millis(60'000));
  CHECK(Code(50) == StatusCode::kDeadlineExceeded);
  CHECK(io.killed.contains(io.launched[0]));

  core.OnCommand(StreamId(7), CheckCommand(51));
  core.OnLine(io.launched[1], 0, "terminate called");
  core.OnExited(io.launched[1], "signal SIGABRT");

  CHECK(Code(51) == StatusCode::kInternal);
  CHECK(io.replies.back().second.status().message().find("SIGABRT: terminate called") !=
        std::string::npos);
  scheduler.Advance(Millis(120'000));
  CHECK(io.replies.size() == 2);
}

TEST_CASE_METHOD(Fixture, "an evaluation may take long while it gets on", "[worker][unit]") {
  v1::Command command;
  command.set_id(50);
  command.mutable_evaluate_checkpoint()->set_directory("/step-7");
  core.OnCommand(StreamId(7), command);
  REQUIRE(io.sent.size() == 1);
  CHECK(io.sent[0].message.evaluate().directory() == "/step-7");
  CHECK(io.sent[0].message.threads() == 3);
  for (std::uint64_t batch = 0; batch < 5; ++batch) {
    scheduler.Advance(Millis(500'000));
    Pulse(io.launched[0], batch);
  }
  CHECK(Code(50) == StatusCode::kUnknown);
  v1::FromExecutor answer;
  answer.mutable_evaluated()->mutable_result()->set_examples(12);
  core.OnMessage(io.launched[0], answer);
  REQUIRE(Code(50) == StatusCode::kOk);
  CHECK(io.replies.back().second.evaluation().examples() == 12);
  CHECK(io.killed.contains(io.launched[0]));

  command.set_id(51);
  core.OnCommand(StreamId(7), command);
  scheduler.Advance(Millis(600'000));  // --step-timeout
  CHECK(Code(51) == StatusCode::kDeadlineExceeded);
  CHECK(io.killed.contains(io.launched[1]));
}

TEST_CASE_METHOD(Fixture, "a program that cannot be started is the command's error",
                 "[worker][unit]") {
  io.launch_error = NotFound("start muster-executor: no such file");

  CHECK(Code(Start(1)) == StatusCode::kNotFound);
}

TEST_CASE_METHOD(Fixture, "a stopped executor is killed without an event", "[worker][unit]") {
  StartReady(1);
  v1::Command command;
  command.set_id(90);
  command.mutable_stop_executor()->set_job_id("j");
  const std::size_t events = Events().size();

  core.OnCommand(StreamId(7), command);
  core.OnExited(io.launched[0], "signal SIGKILL");

  CHECK(Code(90) == StatusCode::kOk);
  CHECK(io.killed.contains(io.launched[0]));
  CHECK(Events().size() == events);
}

TEST_CASE_METHOD(Fixture, "what an older coordinator or view still asks for is refused",
                 "[worker][unit]") {
  Start(3, /*epoch=*/2);
  Ready(io.launched.back());
  const auto ask = [&](auto* (v1::Command::*body)(), std::uint64_t epoch, std::uint64_t view) {
    v1::Command command;
    command.set_id(next_command++);
    (command.*body)()->set_job_id("j");
    (command.*body)()->set_epoch(epoch);
    (command.*body)()->set_view(view);
    core.OnCommand(StreamId(7), command);
    return Code(command.id());
  };
  CHECK(ask(&v1::Command::mutable_stop_executor, 1, 3) == StatusCode::kAborted);
  CHECK(ask(&v1::Command::mutable_stop_executor, 2, 2) == StatusCode::kAborted);
  CHECK(ask(&v1::Command::mutable_get_values, 1, 3) == StatusCode::kAborted);
  CHECK(ask(&v1::Command::mutable_set_buffers, 1, 3) == StatusCode::kAborted);
  CHECK(ask(&v1::Command::mutable_save_variables, 1, 3) == StatusCode::kAborted);
  CHECK(ask(&v1::Command::mutable_save_variables, 2, 2) == StatusCode::kAborted);
  CHECK(io.killed.empty());
  CHECK(ask(&v1::Command::mutable_stop_executor, 2, 3) == StatusCode::kOk);
  CHECK(io.killed.contains(io.launched.back()));
}

struct WarmFixture : Fixture {
  WorkerCore warm{{.cache_directory = "/cache", .warm = true}, scheduler, io};
};

TEST_CASE_METHOD(WarmFixture, "a process is started in advance and used for the next job",
                 "[worker][unit]") {
  warm.Start();
  scheduler.RunReady();
  REQUIRE(io.launched.size() == 1);

  warm.OnCommand(StreamId(7), CheckCommand(1));
  REQUIRE(io.sent.size() == 1);
  CHECK(io.sent[0].process == io.launched[0]);
  v1::FromExecutor answer;
  answer.mutable_check();
  warm.OnMessage(io.launched[0], answer);  // healthy: it is the spare one again
  warm.OnCommand(StreamId(7), CheckCommand(2));
  CHECK(io.launched.size() == 1);
  CHECK(io.sent[1].process == io.launched[0]);

  scheduler.Advance(Millis(3'000));
  CHECK(io.launched.size() == 2);
}

TEST_CASE_METHOD(WarmFixture, "what a process wrote while it checked a job is not the next one's",
                 "[worker][unit]") {
  warm.Start();
  scheduler.RunReady();
  warm.OnCommand(StreamId(7), CheckCommand(1));
  warm.OnLine(io.launched[0], 1, "  what():  of the job that was checked");
  v1::FromExecutor answer;
  answer.mutable_check();
  warm.OnMessage(io.launched[0], answer);
  v1::Command command;
  command.set_id(2);
  v1::StartExecutor& start = *command.mutable_start_executor();
  start.mutable_plan()->set_job_id("j");
  start.mutable_plan()->set_view(1);
  start.mutable_plan()->set_epoch(1);
  start.mutable_program()->set_incarnation(1);
  warm.OnCommand(StreamId(7), command);
  warm.OnLine(io.launched[0], 2, "of this one");

  warm.OnExited(io.launched[0], "signal SIGSEGV");

  const v1::ExecutorEvent end = Events().back();
  REQUIRE(end.kind() == Event::KIND_EXITED);
  REQUIRE(end.last_lines_size() == 1);
  CHECK(end.last_lines(0) == "of this one");
}

TEST_CASE_METHOD(WarmFixture, "a spare process that dies is replaced later", "[worker][unit]") {
  warm.Start();
  scheduler.RunReady();
  warm.OnExited(io.launched[0], "exit code 1");
  scheduler.Advance(Millis(9'000));
  CHECK(io.launched.size() == 1);

  scheduler.Advance(Millis(1'000));

  CHECK(io.launched.size() == 2);
}

TEST_CASE_METHOD(Fixture, "an executor that stands still with a closure is killed and said so",
                 "[worker][unit]") {
  StartReady(1);
  core.OnLine(io.launched[0], 0, "waits for nothing");
  Live(io.launched[0], Millis(300'000), 4, 0);
  CHECK(io.killed.empty());  // nothing to do is no sin
  Live(io.launched[0], Millis(20'000), 4, 5);
  Live(io.launched[0], Millis(25'000), 5, 6);
  CHECK(io.killed.empty());

  Live(io.launched[0], Millis(15'000), 5, 6);

  CHECK(io.killed.contains(io.launched[0]));
  const v1::ExecutorEvent event = Events().back();
  CHECK(event.kind() == v1::ExecutorEvent::KIND_EXITED);
  CHECK(event.stuck());
  CHECK(event.how() ==
        "its worker's watchdog: closure 6 got nowhere for 30 s and used no processor time");
  CHECK(event.last_lines(0) == "waits for nothing");
  CHECK(event.from_outside());  // it may have been stopped
  scheduler.Advance(Millis(300'000));
  CHECK(io.killed.size() == 1);
}

TEST_CASE_METHOD(Fixture, "an executor that computes has the longer limit", "[worker][unit]") {
  StartReady(1);
  for (int second = 0; second < 590; ++second) {
    io.cpu += Millis(900);
    Pulse(io.launched[0], 0, 5);
    scheduler.Advance(Millis(1'000));
  }
  CHECK(io.killed.empty());

  for (int second = 0; second < 20; ++second) {
    io.cpu += Millis(900);
    Pulse(io.launched[0], 0, 5);
    scheduler.Advance(Millis(1'000));
  }

  CHECK(io.killed.contains(io.launched[0]));
  CHECK(Events().back().how() ==
        "its worker's watchdog: closure 5 has computed for 600 s without an end: no "
        "answer within the step limit (--step-timeout)");
  CHECK_FALSE(Events().back().from_outside());
}

TEST_CASE_METHOD(
    Fixture, "an executor that waits for a slower member of its group has the longer limit, too",
    "[worker][unit]") {
  StartReady(1);
  io.wait = {.operation = 9, .call = "all_reduce", .awaited = "worker:1", .lasts = Millis(1'200)};
  Live(io.launched[0], Millis(120'000), 4, 5);
  CHECK(io.killed.empty());

  SECTION("until it is stopped itself, and says nothing more of it") {
    io.wait.reset();
    Live(io.launched[0], Millis(25'000), 4, 5);
    CHECK(io.killed.empty());
    Live(io.launched[0], Millis(15'000), 4, 5);
    CHECK(io.killed.contains(io.launched[0]));
    CHECK(Events().back().how().find("closure 5 got nowhere for 30 s") != std::string::npos);
  }
  SECTION("and no longer than a step may take") {
    Live(io.launched[0], Millis(460'000), 4, 5);
    CHECK(io.killed.empty());
    Live(io.launched[0], Millis(30'000), 4, 5);
    CHECK(io.killed.contains(io.launched[0]));
    CHECK(Events().back().how().find("closure 5 has waited for worker:1 in all_reduce") !=
          std::string::npos);
    CHECK(Events().back().from_outside());
  }
}

TEST_CASE_METHOD(Fixture, "values of the model are asked of the job's executor, in order",
                 "[worker][unit]") {
  v1::Command get;
  get.set_id(60);
  get.mutable_get_values()->set_job_id("j");
  get.mutable_get_values()->set_view(1);
  core.OnCommand(StreamId(7), get);
  CHECK(Code(60) == StatusCode::kUnavailable);
  StartReady(1);
  get.set_id(61);
  core.OnCommand(StreamId(7), get);
  get.set_id(62);
  core.OnCommand(StreamId(7), get);
  v1::Command set;
  set.set_id(63);
  set.mutable_set_buffers()->set_job_id("j");
  set.mutable_set_buffers()->set_view(1);
  core.OnCommand(StreamId(7), set);
  CHECK(io.sent.back().message.has_set_buffers());
  CHECK(Code(63) == StatusCode::kOk);

  v1::FromExecutor answer;
  answer.mutable_values()->mutable_piece()->set_data("piece");
  core.OnMessage(io.launched[0], answer);
  CHECK(io.replies.back().second.command_id() == 61);
  CHECK(io.replies.back().second.values().data() == "piece");
  core.OnExited(io.launched[0], "signal SIGKILL");

  CHECK(Code(62) == StatusCode::kUnavailable);
}

}  // namespace
}  // namespace muster::worker
