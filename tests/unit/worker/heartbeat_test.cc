// What a worker says in its heartbeats.
#include "tests/unit/worker/fixture.h"

namespace muster::worker {
namespace {

TEST_CASE_METHOD(WorkerFixture, "commands that wait for a file are named for as long as they do",
                 "[worker][unit]") {
  const auto named = [&] {
    v1::Heartbeat heartbeat;
    core.NameFetching(heartbeat);
    return std::set<std::uint64_t>(heartbeat.fetching().begin(), heartbeat.fetching().end());
  };
  v1::Command check;
  check.set_id(next_command++);
  check.mutable_check_job()->mutable_spec()->mutable_model()->set_archive_sha256("abc");
  core.OnCommand(StreamId(7), check);
  const std::uint64_t first = Start(1, 1, "abc");
  const std::uint64_t again = Start(1, 1, "abc");
  CHECK(named() == std::set<std::uint64_t>{check.id(), first, again});
  Start(2);  // it needs none
  CHECK(named() == std::set<std::uint64_t>{check.id()});

  core.OnFetched("abc", std::string("/cache/abc.pt"));
  CHECK(named().empty());
}

TEST_CASE_METHOD(WorkerFixture, "closures are counted by the executor's pulse", "[worker][unit]") {
  StartReady(1);
  Pulse(io.launched[0], 1, 5);
  v1::Heartbeat heartbeat;
  core.FillHeartbeat(heartbeat);
  CHECK(heartbeat.closures_done() == 1);
}

TEST_CASE_METHOD(WorkerFixture,
                 "the collective call in which an executor stands is in the heartbeat",
                 "[worker][unit]") {
  io.wait = {.operation = 9, .call = "x", .awaited = "worker:1", .lasts = Millis(1'200)};
  v1::Heartbeat before;
  core.FillHeartbeat(before);
  CHECK(before.waits_size() == 0);  // of an executor without a job there is nothing to tell
  StartReady(1);
  v1::Heartbeat heartbeat;
  core.FillHeartbeat(heartbeat);
  REQUIRE(heartbeat.waits_size() == 1);
  const v1::CollectiveWait& wait = heartbeat.waits(0);
  CHECK(wait.job_id() == "j");
  CHECK(wait.task().type() == "worker");
  CHECK(wait.operation() == 9);
  CHECK(wait.awaited() == "worker:1");
  CHECK(wait.lasts_ms() == 1'200);
}

TEST_CASE_METHOD(WorkerFixture,
                 "what a job's executor holds is in the heartbeat until it has ended",
                 "[worker][unit]") {
  io.memory = 4'096;
  const auto held = [&] {
    v1::Heartbeat heartbeat;
    core.FillHeartbeat(heartbeat);
    return std::vector<v1::JobBytes>(heartbeat.job_bytes().begin(), heartbeat.job_bytes().end());
  };
  CHECK(held().empty());
  StartReady(1);
  REQUIRE(held().size() == 1);
  CHECK(held()[0].job_id() == "j");
  CHECK(held()[0].bytes() == 4'096);
  core.OnExited(io.launched[0], "signal SIGKILL");
  CHECK(held().empty());
}

}  // namespace
}  // namespace muster::worker
