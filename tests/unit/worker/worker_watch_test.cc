#include "tests/unit/worker/fixture.h"

namespace muster::worker {
namespace {

TEST_CASE("steps of a second are none of two seconds, whenever the watchdog looks",
          "[worker][unit]") {
  FakeScheduler scheduler;
  FakeIo io;
  WorkerCore core({.worker_index = 2,
                   .threads = 3,
                   .advertised_host = "host-2",
                   .cache_directory = "/cache",
                   .warm = false,
                   .step_limit = Millis(2'000)},
                  scheduler, io);
  v1::Command command;
  command.set_id(1);
  v1::StartExecutor& start = *command.mutable_start_executor();
  start.mutable_plan()->set_job_id("j");
  start.mutable_plan()->set_view(1);
  start.mutable_plan()->set_epoch(1);
  start.mutable_program()->set_incarnation(1);
  core.OnCommand(StreamId(7), command);
  REQUIRE(io.launched.size() == 1);
  v1::FromExecutor message;
  message.mutable_ready()->mutable_endpoint()->set_tcp_address("127.0.0.1:9");
  core.OnMessage(io.launched[0], message);
  const auto live = [&](std::uint64_t ended, std::uint64_t closure) {
    v1::FromExecutor told;
    told.mutable_pulse()->set_ended(ended);
    v1::RunningClosure& one = *told.mutable_pulse()->add_running();
    one.set_closure(closure);
    one.set_attempt(closure);
    io.cpu += Millis(900);
    core.OnMessage(io.launched[0], told);
    scheduler.Advance(Millis(1'000));
  };
  for (std::uint64_t step = 1; step <= 60; ++step) live(step - 1, step);
  CHECK(io.killed.empty());

  for (int second = 0; second < 15; ++second) live(60, 61);
  CHECK(io.killed.contains(io.launched[0]));
}

}  // namespace
}  // namespace muster::worker
