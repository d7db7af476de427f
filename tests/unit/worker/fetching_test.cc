// What a worker says of the commands that wait for an uploaded file.
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

}  // namespace
}  // namespace muster::worker
