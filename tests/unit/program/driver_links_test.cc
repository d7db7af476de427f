#include "program/driver_links.h"

#include <thread>
#include <vector>

#include "dispatch/executor.h"
#include "program/executor_endpoint.h"
#include <sys/stat.h>

#include "tests/support/catch.h"
#include "tests/support/other_user.h"
#include "tests/support/temp_folder.h"

namespace muster::program::internal {
namespace {

constexpr std::chrono::seconds kPatience{30};

v1::ProgramStart StartAs(const std::string& link) {
  v1::ProgramStart start;
  start.set_job_id("job-1");
  start.set_epoch(1);
  start.set_incarnation(1);
  start.set_key("key");
  start.set_host_id("here");
  start.set_link(link);
  return start;
}

// What a driver comes to that has one closure run by the executor there.
std::string Drive(const std::string& link, const std::string& endpoint, std::uint64_t functions) {
  // Their threads end with the process.
  static auto* const start = new v1::ProgramStart(StartAs(link));
  auto* const links = new DriverLinks(*start, {.functions = functions});
  v1::ProgramMembers members;
  members.set_version(1);
  v1::ProgramWorker& worker = *members.add_workers();
  worker.mutable_task()->set_type("worker");
  worker.set_incarnation(1);
  if (!worker.mutable_endpoint()->ParseFromString(endpoint)) return "it was told no address";
  (void)links->SetMembers(members);
  const auto limit = std::chrono::seconds(link == "local" ? 1 : 30);
  const Status there =
      links->AwaitWorkers(1, std::chrono::steady_clock::now() + limit, std::stop_token());
  if (!there.ok()) return Message(there);
  auto value = links->driver().Schedule(0, {}, std::chrono::steady_clock::now() + kPatience);
  if (!value.ok()) return Message(value.status());
  const auto bytes = value->Fetch(std::chrono::steady_clock::now() + kPatience);
  return bytes.ok() ? "its closure has run" : Message(bytes.status());
}

}  // namespace

TEST_CASE("a wait for many executors names some of them and counts the rest", "[program][unit]") {
  const v1::ProgramStart start = StartAs("tcp");
  DriverLinks links(start, {});
  v1::ProgramMembers members;
  members.set_version(1);
  for (std::uint32_t i = 0; i < 25; ++i) {
    v1::ProgramWorker& worker = *members.add_workers();
    worker.mutable_task()->set_type("worker");
    worker.mutable_task()->set_index(i);
    worker.set_incarnation(i + 1);
  }
  REQUIRE(links.SetMembers(members));

  const Status status = links.AwaitWorkers(25, std::chrono::steady_clock::now(), std::stop_token());

  CHECK(status.code() == StatusCode::kDeadlineExceeded);
  CHECK(Message(status).find("waited for 25 executors, 0 connected; worker:0: ") !=
        std::string::npos);
  CHECK(Message(status).ends_with("; and 5 more"));

  // Its keepers end before it does.
  members.set_version(2);
  members.clear_workers();
  REQUIRE(links.SetMembers(members));
  const TimePoint end = std::chrono::steady_clock::now() + kPatience;
  while (!links.Reap() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  CHECK(links.Reap());
}

TEST_CASE("an executor of another user on this host is driven by TCP, and not by its socket",
          "[program][unit]") {
  if (!muster::testing::MayBeOthers()) return;
  const std::string link = GENERATE(as<std::string>{}, "auto", "local");
  dispatch::FunctionTable functions;
  (void)functions.Add("nothing", [](dispatch::ClosureContext&) { return Ok(); });
  const muster::testing::Whisper address;
  const muster::testing::OtherUser other(
      [&] { return Drive(link, address.Hear(), functions.hash()); });
  const testing::TempFolder folder;
  v1::ProgramStart start = StartAs("auto");
  start.set_socket_directory(folder.path());
  auto listeners = ListenForDrivers(start);
  REQUIRE(listeners.ok());
  const v1::DataEndpoint endpoint = EndpointOf(*listeners, start);
  REQUIRE(::chmod(folder.path().c_str(), 0777) == 0);
  REQUIRE(::chmod(endpoint.unix_path().c_str(), 0777) == 0);
  auto executor = dispatch::Executor::Create({.identity = IdentityOf(start)}, functions);
  REQUIRE(executor.ok());
  std::thread server([&] { (void)(*executor)->Serve(*listeners); });

  address.Say(endpoint.SerializeAsString());
  const std::string words = other.Words();

  (*executor)->Stop();
  server.join();
  CAPTURE(link, words);
  if (link == "auto") {
    CHECK(words == "its closure has run");
  } else {
    CHECK(words.find("is user 0's, and this one user 12345's") != std::string::npos);
  }
}

}  // namespace muster::program::internal
